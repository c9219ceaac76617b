"""Whether chosen strategies fit where anything does: ``python -m benchmarks.choices [--triples 500] [--seed 0]``.

Draws models, clusters, runtimes and batches, and lets Traincast choose a strategy for each. Where the choice does not
fit, the whole space of a search is judged in bulk for a member that does, up to the first one found: every mesh, every
schedule, sharding, recomputation and offloading, with micro batches of one sample, which need the least memory. The
judge shares no list of strategies with the choice. Runtimes with parameter servers are judged by the remedy.

With ``--searches N``, N small cases are searched as well, to see how much that gains over the choice, and whether it is
more than the choice says.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from traincast.ask import Training
from traincast.cluster import load_cluster
from traincast.errors import RequestError, StrategyError
from traincast.forecast import estimates_of, predict
from traincast.graph.load import load_model
from traincast.resolve import resolve
from traincast.searching.bulk.evaluate import Bulk
from traincast.searching.search import search
from traincast.searching.space import families, meshes, usual_axes
from traincast.strategy import Request, runtime_names
from traincast.strategy.choose import Choice, choose, remedy_of

MODELS: Final = (
    "gpt2", "gpt2-xl", "bert-large", "llama3-8b", "llama2-7b", "llama2-13b", "llama3-70b", "gpt3-175b", "mixtral-8x7b",
    "qwen3-30b-a3b", "resnet50", "vit-large", "vgg16", "t5-large",
)  # fmt: skip
NODES: Final = (
    "dgx-a100", "dgx-h100", "dgx-1-v100", "pcie-l40s", "pcie-l4", "rtx-4090", "rtx-3090", "v100-sxm2-16gb", "dgx-b200",
    "l4", "a10", "p3.16xlarge", "hgx-h800", "gb200-nvl72",
)  # fmt: skip
SEQUENCES: Final = (None, None, 512, 2048, 16384)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A random request without a strategy, in words."""

    model: str
    cluster: str
    runtime: str
    global_batch: int
    seq: int | None

    def request(self) -> Request:
        """The request; raises an error if its parts do not go together."""
        graph = load_model(self.model, seq=self.seq, use_cache=True)
        return resolve(
            Training(graph, cluster=self.cluster, global_batch=self.global_batch, runtime=self.runtime)
        ).request


def cases(count: int, seed: int, *, models: tuple[str, ...] = MODELS, most_devices: int = 64) -> Iterator[Case]:
    """Yield ``count`` random cases whose parts go together."""
    rng = random.Random(seed)
    found = 0
    while found < count:
        node, devices = rng.choice(NODES), rng.choice((1, 2, 4, 8))
        cluster = f"{node}:{rng.choice((1, 1, 1, 2, 4, 8))}x{devices}"
        case = Case(
            model=rng.choice(models),
            cluster=cluster,
            runtime=rng.choice(runtime_names()),
            global_batch=rng.choice((1, 2, 6, 8, 16, 32, 64, 256, 1024)),
            seq=rng.choice(SEQUENCES),
        )
        try:
            if load_cluster(cluster).num_devices > most_devices:
                continue
            case.request()
        except RequestError:
            continue  # no such node, or a length that the model does not take
        found += 1
        yield case


def fits_somewhere(request: Request) -> str:
    """Return the first strategy of the whole space that fits; empty if there is none.

    Larger micro batches need more memory, so one sample is all that is tried.
    """
    axes = usual_axes(request)
    devices, batch = request.cluster.num_devices, request.global_batch
    bulk = Bulk(
        request,
        axes,
        lambda works: estimates_of(request, works).seconds,
        most_memory=request.cluster.device.memory_bytes,
    )
    for at in sorted(meshes(axes, devices, batch), key=lambda at: (-at.tp * at.pp, -at.ep)):
        for found in families(axes, at, devices, batch):
            entry = bulk.prepare(found[0])
            if entry is None:
                continue
            bulk.estimate([entry])
            bulk.enter(entry)
            for part in entry.batches:
                for sharing, load in zip(entry.sharings, part.load.tolist(), strict=True):
                    if load <= 1.0:
                        return str(entry.strategy(part, sharing))
    return ""


def judged(case: Case) -> tuple[str, Choice | None, str]:
    """Return the verdict on a case, its choice, and a strategy that fits if the choice does not."""
    request = case.request()
    try:
        choice = choose(request)
    except StrategyError:
        choice = None
    if choice is not None and choice.need.fits:
        return "fits", choice, ""
    if request.runtime.defaults.servers and choice is not None:  # a search knows no servers: the remedy judges
        found = remedy_of(replace(request, strategy=choice.strategy), choice.need).change
        other = str(found.strategy) if found else ""
    else:
        other = fits_somewhere(request)
    return ("wrong" if other else "nothing fits"), choice, other


def gained(case: Case) -> tuple[float, float] | None:
    """Return the share of a chosen step that a search saves, and the most that is said; None if it does not fit."""
    given = {"cluster": case.cluster, "global_batch": case.global_batch, "seq": case.seq, "runtime": case.runtime}
    report = predict(case.model, use_cache=True, **given).report  # type: ignore[call-overload]
    if report.choice is None or report.choice.most_gain is None or not report.fits:
        return None
    best = search(case.model, use_cache=True, top=1, **given).best  # type: ignore[call-overload]
    return 1.0 - best.report.step_s / report.step_s, report.choice.most_gain


def main(arguments: list[str] | None = None) -> None:
    """Print the verdicts, every choice that is wrong, and what searches gain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--searches", type=int, default=0)
    given = parser.parse_args(arguments)
    began, counts = time.process_time(), Counter[str]()
    for case in cases(given.triples, given.seed):
        verdict, choice, other = judged(case)
        counts[verdict] += 1
        if verdict == "wrong":
            print(f"{case}: chose {choice.strategy if choice else 'nothing'}; fits: {other}", flush=True)
    print(f"{dict(counts)}, {time.process_time() - began:.0f} CPU s", flush=True)
    small = cases(
        10**6, given.seed + 1, models=("gpt2", "bert-large", "llama2-7b", "llama2-13b", "resnet50"), most_devices=16
    )
    gains: list[tuple[float, float]] = []
    while len(gains) < given.searches:
        case = next(small)
        try:
            found = gained(case)
        except StrategyError:
            continue
        if found is not None:
            gains.append(found)
            print(f"{case}: a search gains {found[0]:.1%}, at most {found[1]:.1%} said", flush=True)


if __name__ == "__main__":
    main()
