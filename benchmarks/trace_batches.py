"""Forecasts of other batch sizes from profiled steps of one, against real steps, on the machine at hand.

    python -m benchmarks.trace_batches -o DIR [--models 'NAME;…'] [--rounds 5]

Each model really trains on one thread, with four batch sizes in turns: ½, 1, 2 and 4 times its batch. Steps of 1 and
4 times the batch are also recorded by PyTorch's profiler. ``traincast trace learn`` turns the recorded steps into
events, and forecasts from these are compared with the plain steps: from the traces of one batch, and from those of two.
Times are seconds of the processor; times in which the process did not run are taken out of the traces, if the kernel
tells them (see ``off_core``), and a line says so if it does not. Models whose file is in DIR are not recorded again.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.off_core import OffCore, write_trace
from traincast.estimate import learned_cost_model
from traincast.estimate.events.model import EventsCostModel, events_of
from traincast.forecast import predict
from traincast.profiling.events.steps import training_step
from traincast.traces.files.load import load_jobs
from traincast.traces.learn import learn

MODELS: Final[dict[str, int]] = {
    "gpt:layers=4,hidden=256,heads=4,vocab=4000,seq=64": 4,
    "bert:layers=3,hidden=256,heads=4,vocab=4000,seq=64": 4,
    "resnet20-cifar": 8,
    "mobilenet-v2": 2,
    "nmt:layers=4,hidden=256,vocab=4000,seq=20": 4,
    "llama:layers=3,hidden=256,heads=4,vocab=4000,seq=64": 4,
    "vit:layers=3,hidden=192,heads=3": 2,
    "resnet18": 2,
    "squeezenet": 2,
    "shufflenet-v2": 2,
    "ncf": 64,
    "alexnet": 4,
    "densenet121": 2,
    "efficientnet-b0": 2,
}
"""Models with the batch sizes of their traces."""
FACTORS: Final = (0.5, 1.0, 2.0, 4.0)
TRACED: Final = (1.0, 4.0)
_WITHIN: Final = 0.12


class RealTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of plain steps by batch size, and of steps under the profiler; ``quiet``: waiting was taken out."""

    model: str
    batch: int
    rounds: int
    quiet: bool
    plain: dict[int, list[float]]
    profiled: dict[int, list[float]]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one batch size: real and forecast seconds, from the traces of one and of two batch sizes.

    Times are means, as those of events. ``spread`` is half of the distance between the quartiles of the real steps,
    over their mean.
    """

    model: str
    batch: int
    factor: float
    real_s: float
    spread: float
    one_s: float
    two_s: float
    inside: bool

    @property
    def one(self) -> float:
        """The error of the forecast from one traced batch size, signed."""
        return self.one_s / self.real_s - 1.0

    @property
    def two(self) -> float:
        """The error of the forecast from two traced batch sizes, signed."""
        return self.two_s / self.real_s - 1.0


def record_model(model: str, batch: int, *, folder: Path, rounds: int, off_core: OffCore | None) -> RealTimes:
    """Train a model with all batch sizes in turns; write a trace of each round for the traced ones."""
    sizes = sorted({max(1, round(batch * factor)) for factor in FACTORS})
    steps = {size: training_step(model, batch=size) for size in sizes}
    traced = [round(batch * factor) for factor in TRACED]
    plain: dict[int, list[float]] = {size: [] for size in sizes}
    profiled: dict[int, list[float]] = {size: [] for size in traced}
    for step in steps.values():
        step()
    for number in range(rounds):
        for size, step in steps.items():
            step()
            plain[size].append(_processor_s(step))
            if size in profiled:
                if off_core is not None:
                    off_core.forget()
                with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                    step()
                    with record_function(f"ProfilerStep#{number}"):
                        profiled[size].append(_processor_s(step))
                write_trace(profiler, folder / f"batch{size}_round{number}.json.gz", off_core)
                step()
                plain[size].append(_processor_s(step))
    found = RealTimes(
        model=model, batch=batch, rounds=rounds, quiet=off_core is not None, plain=plain, profiled=profiled
    )
    (folder / "real.json").write_bytes(msgspec.json.encode(found))
    return found


def _processor_s(step: Callable[[], Any]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def judge(real: RealTimes, folder: Path) -> list[Judged]:
    """Forecast all batch sizes from the traces in ``folder``."""
    traced = [round(real.batch * factor) for factor in TRACED]
    one = _cost_model(folder, traced[:1])
    two = _cost_model(folder, traced)
    found = []
    for size, seconds in real.plain.items():
        low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        mean = statistics.mean(seconds)
        alone = _report(real.model, size, one)
        found.append(
            Judged(
                model=real.model,
                batch=size,
                factor=size / real.batch,
                real_s=mean,
                spread=(high - low) / 2 / mean,
                one_s=alone.step_s,
                two_s=_report(real.model, size, two).step_s,
                inside=alone.low_s <= mean <= alone.high_s,
            )
        )
    return found


def _cost_model(folder: Path, sizes: Sequence[int]) -> EventsCostModel:
    paths = [path for size in sizes for path in sorted(folder.glob(f"batch{size}_round*.json.gz"))]
    learned = learn(load_jobs(paths))
    return EventsCostModel(events_of(folder, learned.card, learned.rows), learned_cost_model())


def _report(model: str, batch: int, cost_model: EventsCostModel) -> Any:
    return predict(
        model,
        cluster="cpu-server:1x1",
        strategy=f"mbs={batch}",
        global_batch=batch,
        precision="fp32",
        runtime="gloo",
        cost_model=cost_model,
        use_cache=True,
    ).report


def line_of(rows: Sequence[Judged], real: RealTimes) -> str:
    """Return one model as a line of the table."""
    by_factor = {row.factor: row for row in rows}
    one = [f"{by_factor[f].one:+.1%}" if f in by_factor else "" for f in FACTORS]
    two = [f"{by_factor[f].two:+.1%}" if f in by_factor else "" for f in FACTORS]
    spread = sorted(row.spread for row in rows)
    watched = [
        statistics.mean(steps) / statistics.mean(real.plain[size]) - 1.0 for size, steps in real.profiled.items()
    ]
    profiler = ", ".join(f"{share:+.1%}" for share in watched)
    cells = [f"{real.model} ({real.batch})", *one, *two, f"{spread[0]:.1%}–{spread[-1]:.1%}", profiler]
    return "| " + " | ".join(cells) + " |"


def table_of(lines: Sequence[str], rows: Sequence[Judged]) -> str:
    """Return all models as a Markdown table, and what they say together."""
    head = "| model (batch) | ½ | 1 | 2 | 4 | two sizes: ½ | 1 | 2 | 4 | quartiles | profiler |"
    other = [row for row in rows if row.factor != 1.0]
    between = [row for row in rows if row.factor not in TRACED]
    texts = [
        _summary("other batch sizes, from one", [row.one for row in other])
        + f"; {sum(row.inside for row in other)} of {len(other)} in the interval",
        _summary("½ and 2, from one", [row.one for row in between]),
        _summary("½ and 2, from two (1 and 4)", [row.two for row in between]),
        _summary("the traced size itself", [row.one for row in rows if row.factor == 1.0]),
    ]
    return "\n".join([head, "|---" * head.count(" | ") + "|---|", *lines, "", *texts])


def _summary(what: str, errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    if not sizes:
        return f"{what}: none"
    share = sum(size <= _WITHIN for size in sizes) / len(sizes)
    return (
        f"{what}: mean {statistics.mean(sizes):.1%}, signed {statistics.mean(errors):+.1%}, worst {max(sizes):.1%}, "
        f"within {_WITHIN:.0%}: {share:.0%} of {len(sizes)}"
    )


def _recorded(folder: Path, model: str, batch: int, rounds: int) -> RealTimes | None:
    """Return what an earlier run recorded, if it was asked for the same."""
    path = folder / "real.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=RealTimes)
    return found if (found.model, found.batch, found.rounds) == (model, batch, rounds) else None


def main() -> None:
    """Record, learn, forecast and compare; print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--models", default=";".join(MODELS), help="names separated by semicolons")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    names = args.models.split(";")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"unknown models: {', '.join(unknown)}; known: {'; '.join(MODELS)}")
    torch.set_num_threads(1)
    try:
        off_core = OffCore()
    except OSError as error:
        off_core = None
        sys.stdout.write(f"traces contain the time in which the process did not run: {error}\n")
    rows: list[Judged] = []
    lines: list[str] = []
    for name in names:
        folder = args.output / re.sub("[^a-z0-9]+", "-", name)
        folder.mkdir(parents=True, exist_ok=True)
        real = _recorded(folder, name, MODELS[name], args.rounds)
        if real is None:
            real = record_model(name, MODELS[name], folder=folder, rounds=args.rounds, off_core=off_core)
            gc.collect()
        found = judge(real, folder)
        rows += found
        lines.append(line_of(found, real))
        sys.stdout.write(f"{lines[-1]}\n")
        sys.stdout.flush()
        (args.output / "trace_batches.json").write_text(
            json.dumps(msgspec.to_builtins(rows), indent=1), encoding="utf-8"
        )
    sys.stdout.write(f"\n{table_of(lines, rows)}\n")


if __name__ == "__main__":
    main()
