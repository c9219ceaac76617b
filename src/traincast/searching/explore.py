"""The exhaustive search and branch and bound: evaluate the families of one part of the space, lowest bound first.

All strategies of a family run the same works in the blocks of the model. Whatever the schedule and sharding, the
busiest stage computes at least its even share of them, one after the other. This is a lower bound on the step time of
every member (the page on search has the proof). Families are evaluated in the order of this bound; once it exceeds the
time worth finding, the remaining families are skipped. With an infinite limit the same loop is exhaustive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.forecast import estimates_of
from traincast.searching.bulk.columns import StrategyColumns, columns_of
from traincast.searching.bulk.evaluate import Bulk
from traincast.searching.bulk.family import EvaluatedFamily, Fitting
from traincast.searching.doubts import EXPECTED, Doubts
from traincast.searching.problem import Best, Problem, SpaceCounts, Task
from traincast.searching.space import Family, families
from traincast.work import Work

Floats = npt.NDArray[np.float64]

_AT_ONCE: Final = 64
"""Number of families whose works are estimated in one call."""


def worker(problem: Problem) -> Callable[[Task], tuple[StrategyColumns, SpaceCounts]]:
    """Return the function that searches one part of a problem's space; engines call it in their workers."""
    bulk = bulk_of(problem)
    return lambda task: explore(bulk, problem, task)


def bulk_of(problem: Problem) -> Bulk:
    """Return the evaluator of a problem's strategies."""
    request = problem.request

    def seconds(works: Sequence[Work]) -> Floats:
        return estimates_of(request, works, cost_model=problem.cost_model).seconds

    return Bulk(request, problem.axes, seconds, most_memory=problem.most_memory)


def explore(bulk: Bulk, problem: Problem, task: Task) -> tuple[StrategyColumns, SpaceCounts]:
    """Return the evaluated members of the families of ``task``, and counts.

    With a finite reach, families whose bound is too high are skipped. So are families that only add recomputation or
    offloading to one whose members all fit: they can only be slower.
    """
    began = time.process_time()
    devices, batch = problem.request.cluster.num_devices, problem.request.global_batch
    reach = float("inf") if task.whole else problem.reach
    bounded = np.isfinite(reach)
    series = [found for at in task.degrees for found in families(problem.axes, at, devices, batch)]
    every = [family for found in series for family in found]
    bounds = dict(zip(every, bulk.bounds(every), strict=True)) if bounded else {}
    series.sort(key=lambda found: (not found[0].keeps_all, min(bounds.get(family, 0.0) for family in found)))
    counts, entries, best = SpaceCounts(), [], task.best
    doubts = None if problem.lean else Doubts(problem.request)

    def most_s(family: Family) -> float:
        """Return the longest step of the family that is worth finding."""
        return best.most_s(reach, EXPECTED ** doubts.least(family) if doubts else 1.0)

    fitting: dict[tuple[object, ...], Fitting] = {}
    for some in _batches(series):
        worth = [[f for f in found if bounds.get(f, 0.0) <= most_s(f)] for found in some]
        needed = [[f for f in found if f.keeps_all or not _all(fitting.get(f.place))] for found in worth]
        counts.behind += sum(map(len, some)) - sum(map(len, worth))
        counts.needless += sum(map(len, worth)) - sum(map(len, needed))
        seen = [[entry for family in found if (entry := bulk.prepare(family))] for found in needed]
        bulk.estimate(entry for found in seen for entry in found)
        running: list[EvaluatedFamily] = []
        for found in seen:
            for n, entry in enumerate(found):
                counts.families += 1
                family = entry.family
                larger = bulk.enter(entry, most_s(family), None if family.keeps_all else fitting.get(family.place))
                if bounded and family.keeps_all and not problem.lean:
                    fitting[family.place] = bulk.fitting(entry)
                running.append(entry)
                if not larger:
                    counts.beyond += len(found) - n - 1
                    break
        bulk.run(running)
        for entry in running:
            best = best.least(_best(entry, doubts))
            entry.forget()
        entries += [entry for entry in running if entry.batches]
    for entry in entries:
        counts.evaluated += entry.count
        counts.feasible += sum(int(np.isfinite(batch.seconds).sum()) for batch in entry.batches)
    counts.works = len(bulk.works)
    counts.cpu_s = time.process_time() - began
    return columns_of(entries), counts


def _batches(series: list[list[Family]]) -> Iterator[list[list[Family]]]:
    """Group series into lists; the works of a list are estimated in one call."""
    some: list[list[Family]] = []
    for found in series:
        some.append(found)
        if sum(map(len, some)) >= _AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _best(entry: EvaluatedFamily, doubts: Doubts | None) -> Best:
    """Return the best step times of a family; without ``doubts``, all three are the shortest forecast."""
    if doubts is None:
        return Best(*[min((float(batch.seconds.min()) for batch in entry.batches), default=math.inf)] * 3)
    return doubts.best(entry)


def _all(fitting: Fitting | None) -> bool:
    return fitting is not None and len(fitting) > 0 and all(fitting.values())
