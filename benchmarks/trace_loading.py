"""How fast traces load, and what memory that takes: Traincast beside HolisticTraceAnalysis (HTA).

``python -m benchmarks.trace_loading TRACE [--megabytes 200]`` repeats the events of TRACE until the file has that
size, loads it with both, each in a process of its own, and prints seconds of wall clock and of processor, and the
peak of memory. With ``--breakdown`` it also prints both breakdowns of TRACE: compute, communication and copies
without compute, and idle, of the time between the first and the last kernel.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_LOADERS = {
    "traincast": "from traincast.traces.files.load import load_trace\nload = lambda path: load_trace(Path(path))",
    "hta": (
        "import logging\nlogging.disable(logging.CRITICAL)\nfrom hta.trace_analysis import TraceAnalysis\n"
        "load = lambda path: TraceAnalysis(trace_files={0: path}, trace_dir='/tmp')"
    ),
}
_CHILD = """
import json, resource, sys, time
from pathlib import Path
{loader}
wall, processor = time.perf_counter(), time.process_time()
load(sys.argv[1])
print(json.dumps([time.perf_counter() - wall, time.process_time() - processor,
                  resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def repeated(source: Path, target: Path, megabytes: float) -> None:
    """Write the events of ``source`` again and again, later each time and with new correlations."""
    text = source.read_bytes()
    document = json.loads(gzip.decompress(text) if source.suffix == ".gz" else text)
    events = document.pop("traceEvents")
    times = [e["ts"] for e in events if e.get("ph") == "X"]
    span = int(max(times) - min(times)) + 1000
    with target.open("w") as out:
        out.write(json.dumps(document)[:-1] + ', "traceEvents": [')
        number = 0
        while out.tell() < megabytes * 1e6:
            for event in events:
                out.write(",\n" if number or event is not events[0] else "\n")
                out.write(json.dumps(_later(event, number, span)))
            number += 1
        out.write("\n]}\n")


def _later(event: dict[str, Any], number: int, span: int) -> dict[str, Any]:
    if event.get("ph") != "X" or not number:
        return event
    args = dict(event.get("args") or {})
    for key in ("correlation", "External id", "external id"):
        if isinstance(args.get(key), int):
            args[key] += number * 10_000_000
    return {**event, "ts": event["ts"] + number * span, "args": args}


def measured(loader: str, path: Path) -> list[float]:
    """Return wall seconds, processor seconds and mebibytes of one load in a process of its own."""
    code = _CHILD.format(loader=_LOADERS[loader])
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def breakdowns(path: Path) -> None:
    """Print the breakdown of a trace by both, in microseconds."""
    import logging

    from hta.trace_analysis import TraceAnalysis

    from traincast.traces.breakdown import breakdown
    from traincast.traces.files.load import load_trace
    from traincast.traces.recording.device import device_work
    from traincast.traces.recording.pace import StepWindow

    logging.disable(logging.CRITICAL)
    trace = load_trace(path)
    work = device_work(trace)
    whole = StepWindow(int(work.start.min()), int(work.end.max()), on_device=True)
    own = breakdown(trace, work, [whole], num_steps=1)
    beside, idle = own.exposed_communication_s + own.bubble_s + own.copies_s, own.host_s + own.idle_s
    print(f"traincast  compute {own.compute_s * 1e6:.0f}  other {beside * 1e6:.0f}  idle {idle * 1e6:.0f}")
    try:
        analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
        row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    except Exception as error:
        print(f"hta        fails: {type(error).__name__} {error}")
        return
    parts = (row["compute_time(us)"], row["non_compute_time(us)"], row["idle_time(us)"])
    print(f"hta        compute {parts[0]:.0f}  other {parts[1]:.0f}  idle {parts[2]:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--breakdown", action="store_true")
    given = parser.parse_args()
    if given.breakdown:
        breakdowns(given.trace)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repeated.json"
        repeated(given.trace, path, given.megabytes)
        found = {loader: measured(loader, path) for loader in _LOADERS}
        for loader, (wall, processor, memory) in found.items():
            print(f"{loader:10} {wall:6.1f} s  {processor:6.1f} s of processor  {memory:6.0f} MiB")
        ratios = [b / a for a, b in zip(found["traincast"], found["hta"], strict=True)]
        print(f"ratio      {ratios[0]:6.1f}    {ratios[1]:6.1f}                 {ratios[2]:6.1f}")


if __name__ == "__main__":
    main()
