"""Forecasts from measured events against real steps, on the machine at hand.

    python -m benchmarks.own_machine -o DIR [--models 'NAME;…']

Each model is measured by ``traincast profile events`` and forecast from these events. Two other processes really train
the same model meanwhile, and nothing watches their steps. All three take turns step by step, so that they see the same
machine: its speed changes by a quarter within minutes if others use it too. The two real times differ by the machine's
own noise, which is printed beside every error. Steps that waited for a core for more than 2 % of their time are thrown
away. Everything runs on one thread; the whole benchmark takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Final

from traincast.estimate import learned_cost_model
from traincast.estimate.events.model import EventsCostModel, read_events
from traincast.forecast import predict
from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.measure import measure_events
from traincast.profiling.launch import run_locally

MODELS: Final[dict[str, int]] = {
    "resnet18": 2,
    "mobilenet-v2": 4,
    "squeezenet": 4,
    "shufflenet-v2": 4,
    "densenet121": 1,
    "alexnet": 4,
    "efficientnet-b0": 2,
    "resnet20-cifar": 32,
    "ncf": 64,
    "gpt:layers=8,hidden=256,heads=4,vocab=8000,seq=128": 4,
    "bert:layers=6,hidden=256,heads=4,vocab=8000,seq=128": 4,
    "llama:layers=8,hidden=256,heads=4,vocab=8000,seq=128": 4,
    "nmt:layers=4,hidden=256,vocab=8000,seq=20": 4,
}
"""Models with their batch sizes."""
_STEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One model: the forecast, the real steps of two processes, and what the events cost."""

    model: str
    batch: int
    forecast_s: float
    one_s: float
    other_s: float
    events_s: float
    measured: float

    @property
    def real_s(self) -> float:
        """The mean of both real times."""
        return (self.one_s + self.other_s) / 2.0

    @property
    def error(self) -> float:
        """The error of the forecast, signed."""
        return self.forecast_s / self.real_s - 1.0

    @property
    def noise(self) -> float:
        """How far the two real times are apart."""
        return abs(self.one_s - self.other_s) / self.real_s


class RealSteps:
    """A process that really trains a model until :meth:`seconds` is asked for."""

    def __init__(self, model: str, batch: int, *, output: Path, lock: Path) -> None:
        self._output, self._code = output, 0
        output.unlink(missing_ok=True)
        words = [model, str(batch), str(output), str(lock)]
        self._thread = Thread(target=self._run, args=(words,))
        self._thread.start()

    def _run(self, words: list[str]) -> None:
        self._code = run_locally("benchmarks.own_machine_steps", words, ranks=1)

    def seconds(self) -> float:
        """Wait for the process to end; return the mean seconds of their steps."""
        self._thread.join()
        if self._code:
            raise RuntimeError(f"real steps failed with exit code {self._code}")
        return float(json.loads(self._output.read_text(encoding="utf-8"))["step_s"])


def judge(model: str, batch: int, *, folder: Path, runtime: str) -> Outcome:
    """Measure events while two other processes really train, and forecast from them."""
    cluster, strategy = "cpu-server:1x1", f"mbs={batch}"
    events = folder / re.sub("[^a-z0-9]+", "-", model)
    request = EventsAsk(
        model=model, cluster=cluster, strategy=strategy, global_batch=batch, runtime=runtime, steps=_STEPS
    )
    lock = folder / "turns.lock"
    lock.touch()

    def launcher(arguments: Sequence[str], *, ranks: int) -> int:
        words = [str(lock), "traincast", *arguments]
        return run_locally("benchmarks.own_machine_turns", words, ranks=ranks)

    real = [RealSteps(model, batch, output=folder / f"real{number}.json", lock=lock) for number in range(2)]
    start = time.monotonic()
    try:
        shutil.rmtree(events, ignore_errors=True)
        measure_events(request, events, launcher=launcher)
    finally:
        lock.unlink()
        cost = time.monotonic() - start
        one, other = (steps.seconds() for steps in real)
    report = predict(
        model,
        cluster=cluster,
        strategy=strategy,
        global_batch=batch,
        precision="fp32",
        runtime=runtime,
        cost_model=EventsCostModel(read_events(events), learned_cost_model()),
        use_cache=True,
    ).report
    return Outcome(
        model=model,
        batch=batch,
        forecast_s=report.step_s,
        one_s=one,
        other_s=other,
        events_s=cost,
        measured=report.estimated_by["measured"],
    )


def table_of(outcomes: list[Outcome]) -> str:
    """Return the outcomes as a Markdown table."""
    lines = [
        "| model | batch | real step | forecast | error | noise | measured | profiling |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        (
            f"| {o.model} | {o.batch} | {o.real_s * 1e3:.1f} ms | {o.forecast_s * 1e3:.1f} ms | "
            f"{o.error:+.1%} | {o.noise:.1%} | {o.measured:.0%} | {o.events_s:.0f} s |"
        )
        for o in outcomes
    ]
    errors = sorted(abs(o.error) for o in outcomes)
    noises = sorted(o.noise for o in outcomes)
    lines.append(
        f"\nmedian error {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.1%}; "
        f"median noise {noises[len(noises) // 2]:.1%}, worst {noises[-1]:.1%}"
    )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--models", default=";".join(MODELS), help="names separated by semicolons")
    parser.add_argument("--runtime", default="gloo")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for name in args.models.split(";"):
        outcomes.append(judge(name, MODELS[name], folder=args.output, runtime=args.runtime))
        sys.stdout.write(table_of(outcomes).splitlines()[len(outcomes) + 1] + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"\n{table_of(outcomes)}\n")
    found = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
    (args.output / "own_machine.json").write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
