"""Checks forecasts of random requests against physical limits: ``python -m benchmarks.physics [--requests 10000]``.

Draws devices, models, strategies, precisions, runtimes and calibrated clusters, and counts impossible forecasts: a step
whose lower end would need more than the peak rate, or an interval that does not contain its own forecast. The limit is
computed here independently, operator by operator, from the lowered programs and the datasheet.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from traincast.ask import Training
from traincast.cluster import cluster_names, load_cluster, node_names
from traincast.errors import TraincastError
from traincast.forecast import Forecast, forecast
from traincast.graph import Operator, OperatorGraph
from traincast.graph.load import load_model
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.report.figures import model_flops
from traincast.resolve import resolve
from traincast.strategy import PRECISIONS, Request, Strategy, runtime_names
from traincast.strategy.prepare import prepare
from traincast.strategy.schedules import Pass

MODELS = {
    "gpt2": (128, 1024),
    "llama:layers=4,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000": (2048, 8192),
    "llama:layers=8,hidden=1024,heads=16,ffn=4096,vocab=32000": (512, 4096),
    "bert-base": (128, 512),
    "resnet50": (0,),
    "vgg16": (0,),
}
"""Models and the lengths of their sequences (0: they have none)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The errors found in a forecast, and whether its interval had to be cut."""

    wrong: tuple[str, ...]
    cut: bool


def drawn(rng: random.Random, graphs: dict[tuple[str, int], OperatorGraph]) -> Request:
    """Return a random request; many are refused."""
    name, lengths = rng.choice(list(MODELS.items()))
    seq = rng.choice(lengths)
    if (name, seq) not in graphs:
        graphs[name, seq] = load_model(name, seq=seq or None, use_cache=True)
    place = rng.choice(cluster_names()) if rng.random() < 0.5 else rng.choice(node_names())
    cluster = load_cluster(f"{place}:{rng.choice((1, 1, 2, 4))}")
    tp, pp = rng.choice((1, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2, 4))
    cp = rng.choice((1, 1, 1, 1, 2))
    dp = max(1, cluster.num_devices // (tp * pp * cp))
    micro_batch, accumulate = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 2, 4, 8))
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        num_microbatches=accumulate,
        zero=rng.choice((0, 0, 1, 2, 3)),
        recompute=rng.choice(("none", "none", "selective", "full")),
        sequence_parallel=tp > 1 and rng.random() < 0.5,
        offload=rng.choice(((), (), (), ("optimizer",), ("activations",))),
    )
    request = resolve(
        Training(
            graphs[name, seq],
            cluster=cluster,
            global_batch=dp * micro_batch * accumulate,
            precision=rng.choice(list(PRECISIONS)),
            runtime=rng.choice(runtime_names()),
        )
    ).request

    return replace(request, strategy=strategy)


def limit_of(request: Request) -> float:
    """Return the seconds of the busiest stage's products at the peak rates of their dtypes, from its programs."""
    prepared, device = prepare(request), request.cluster.device
    known: dict[int, float] = {}

    def of(items: tuple[Any, ...]) -> float:
        works = [item.work for item in items if isinstance(item.work, Operator) and item.work.kind in MATRIX_KINDS]
        return sum(work.flops / device.peak(work.dtype.value) for work in works)

    busiest = 0.0
    for stage, order in enumerate(prepared.slots.order):
        held = prepared.held(stage)
        total = 0.0
        for slot in order:
            for program in held[slot.chunk]:
                key = id(program) * len(Pass) + slot.what
                if key not in known:
                    known[key] = of(program.items(slot.what))
                total += known[key]
        busiest = max(busiest, total)
    return busiest


def judged(made: Forecast) -> Found:
    """Return what is impossible about a forecast."""
    report, request = made.report, made.request
    wrong = []
    least = limit_of(request)
    peak = request.cluster.device.peak(request.precision.linear.value) * request.cluster.num_devices
    mfu = model_flops(request.graph) * request.global_batch / (peak * report.low_s)
    if report.low_s < least * (1 - 1e-9):
        wrong.append(f"low end at {least / report.low_s:.0%} of the peak rates")
    if mfu > 1 + 1e-9:
        wrong.append(f"low end at {mfu:.0%} MFU")
    if not report.low_s <= report.step_s <= report.high_s:
        wrong.append("the interval does not hold its forecast")
    if not report.memory_low_bytes <= report.peak_memory_bytes <= report.memory_high_bytes:
        wrong.append("the interval of memory does not hold its forecast")
    if report.memory_low_bytes < report.memory.states * (1 - 1e-9):
        wrong.append("the interval of memory begins below weights, gradients and optimizer states")
    if report.fits and report.fits_probability < report.fits_margin * (1 - 1e-9):
        wrong.append("fits below its margin")
    return Found(tuple(wrong), report.low_s <= report.floor_s * (1 + 1e-12))


def main() -> None:
    """Draw, forecast, count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    graphs: dict[tuple[str, int], OperatorGraph] = {}
    began, done, refused, cut = time.perf_counter(), 0, 0, 0
    wrong: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    while done < asked.requests:
        try:
            request = drawn(rng, graphs)
            made = forecast(request)
        except TraincastError:
            refused += 1
            continue
        done += 1
        found = judged(made)
        cut += found.cut
        sources["calibrated" if request.cluster.calibration else "not calibrated"] += 1
        for text in found.wrong:
            wrong[re.sub(r"[\d.]+%", "…", text)] += 1
            print(
                f"{text}: {made.report.model} on {made.report.cluster}, {made.report.strategy}, {made.report.precision}"
            )
        if done % 1000 == 0:
            print(
                f"{done:,} forecasts, {sum(wrong.values())} wrong, {cut} cut, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
    print(
        f"{done:,} forecasts ({dict(sources)}; {refused:,} draws refused): {sum(wrong.values())} below what is possible"
    )
    print(f"{cut:,} intervals begin at the limit, and reached below it before")
    for text, number in wrong.most_common():
        print(f"  {number:6,} × {text}")


if __name__ == "__main__":
    main()
