"""What tests share: graphs captured once, requests in a line, cost models of chosen seconds, invariants."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from tests.tiers import sort_into_tiers
from traincast import (
    AnalyticalCostModel,
    Cluster,
    CostModel,
    Estimates,
    Operator,
    OperatorGraph,
    Request,
    Runtime,
    Strategy,
    Timeline,
    capture,
    load_cluster,
    load_runtime,
)
from traincast.cli import output
from traincast.estimate import SOURCES
from traincast.simulate import expand, simulate
from traincast.strategy import Lowered, Plan, load_precision, lower, parse_strategy
from traincast.work import Collective, Work

__all__ = ["SOURCES", "AnalyticalCostModel", "CostModel", "Estimates"]

GPT = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128"
LLAMA = "llama:layers=4,hidden=256,heads=8,kv_heads=4,vocab=1000,seq=128"
CNN = "resnet-cifar:layers=20"


@pytest.fixture(scope="session", autouse=True)
def _no_progress_lines() -> Iterator[None]:
    """No line about progress on standard error, however slow the machine is."""
    before, output._FIRST_LINE_S = output._FIRST_LINE_S, 3600.0  # type: ignore[misc]
    yield
    output._FIRST_LINE_S = before  # type: ignore[misc]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(pytestconfig: pytest.Config) -> Iterator[None]:
    """Captured graphs stay beside pytest's own cache, by content and code: a second run need not trace again."""
    assert pytestconfig.cache is not None
    before = os.environ.get("TRAINCAST_CACHE")
    os.environ["TRAINCAST_CACHE"] = str(pytestconfig.cache.mkdir("traincast-graphs"))
    yield
    if before is None:
        del os.environ["TRAINCAST_CACHE"]
    else:
        os.environ["TRAINCAST_CACHE"] = before


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the cases of long tests into the two tiers, before pytest deselects by marks."""
    sort_into_tiers(items)


def pytest_collection_finish() -> None:
    """Collects garbage less often: what all tests share stays, and looking at it again and again takes a tenth."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@cache
def graph_of(spec: str) -> OperatorGraph:
    """The graph of ``spec``, captured once per session at most."""
    return capture(spec, use_cache=True)


@cache
def devices(count: int) -> Cluster:
    """``count`` A100s, eight to a node where there are so many."""
    per_node = min(8, count)
    assert count % per_node == 0
    return replace(load_cluster("dgx-a100"), num_nodes=count // per_node, devices_per_node=per_node)


def request_of(
    strategy: str | Strategy = "dp=1",
    *,
    model: str = GPT,
    global_batch: int = 16,
    runtime: str | Runtime = "pytorch",
    precision: str = "bf16",
    optimizer: bool = True,
    between_steps: bool = True,
) -> Request:
    """A request on exactly as many devices as ``strategy`` asks for; hosts may have no work between steps."""
    chosen = parse_strategy(strategy, global_batch=global_batch) if isinstance(strategy, str) else strategy
    used = load_runtime(runtime) if isinstance(runtime, str) else runtime
    return Request(
        graph=graph_of(model),
        cluster=devices(chosen.num_ranks),
        strategy=chosen,
        runtime=used if between_steps else used.patched(launches={"step": 0.0, "parameter": 0.0}),
        precision=load_precision(precision),
        global_batch=global_batch,
        optimizer=optimizer,
    )


@dataclass(frozen=True)
class ChosenSeconds:
    """A cost model that gives each work the seconds that ``rule`` says, exactly."""

    rule: Callable[[Work], float]

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        """Seconds by the rule, without any width of interval."""
        seconds = np.array([self.rule(work) for work in works], dtype=np.float64)
        source = np.full(len(works), SOURCES.index("analytical"), dtype=np.int8)
        return Estimates(seconds=seconds, low=seconds, high=seconds, source=source)


@dataclass(frozen=True)
class OnlyCompute:
    """The analytical cost model with free collectives, transfers and launches."""

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        """Seconds of operators; zero for all else."""
        found = AnalyticalCostModel().estimate(works, cluster)
        seconds = np.where([isinstance(w, Operator) for w in works], found.seconds, 0.0)
        return replace(found, seconds=seconds, low=seconds, high=seconds)


def seconds_of(
    plan: Plan, request: Request, model: CostModel | None = None
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds of the works of ``plan``."""
    return (model or AnalyticalCostModel()).estimate(plan.works, request.cluster).seconds


def run(
    request: Request, *, model: CostModel | None = None, grain: str = "segment", all_ranks: bool = False
) -> tuple[Lowered, Timeline]:
    """Lower and simulate ``request``."""
    lowered = lower(request, grain="operator" if grain == "operator" else "segment")
    seconds = seconds_of(lowered.plan, request, model)
    return lowered, simulate(expand(lowered.plan) if all_ranks else lowered.plan, seconds)


def tasks_per_work(plan: Plan, *, row: int = 0) -> list[tuple[Work, int]]:
    """Every work of an operator-grain plan, with the times that ``row`` runs it."""
    assert not plan.segments
    first_lane = plan.lanes[plan.lane_start[:-1]]
    streams = plan.num_lanes // len(plan.ranks)
    counts = np.bincount(plan.cost[first_lane // streams == row], minlength=plan.num_costs)
    for number, overlap in enumerate(plan.overlaps):
        if overlap.waited:
            counts[overlap.work] += counts[len(plan.works) + number]
    return [(work, int(n)) for work, n in zip(plan.works, counts[: len(plan.works)], strict=True) if n]


def collective_bytes(plan: Plan, kind: str, *, row: int = 0) -> float:
    """Bytes of all collectives of ``kind`` that one row takes part in."""
    return sum(
        work.nbytes * count
        for work, count in tasks_per_work(plan, row=row)
        if isinstance(work, Collective) and work.kind == kind
    )


def check_timeline(timeline: Timeline) -> None:
    """What holds for every timeline: times are finite, waits are kept, and no lane does two things at once."""
    plan, start, end = timeline.plan, timeline.start, timeline.end
    assert np.isfinite(end).all()
    assert (start >= 0).all()
    assert (end >= start).all()
    waiting = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    assert (end[plan.predecessors] <= start[waiting]).all()
    spans = timeline.spans()
    lane = spans.row * (plan.num_lanes // len(plan.ranks)) + spans.stream
    order = np.lexsort((spans.end, spans.start, lane))
    lane, begins, ends = lane[order], spans.start[order], spans.end[order]
    same = lane[1:] == lane[:-1]
    assert (ends[:-1][same] <= begins[1:][same]).all()
    assert timeline.step_s == end.max()


def rises(values: Sequence[float]) -> bool:
    """Whether no value is below the one before it."""
    return all(a <= b for a, b in pairwise(values))
