"""A stochastic search: simulated annealing over families; every member of a visited family is evaluated.

A step changes one axis of the family to a neighbouring value. A better family is always accepted, a worse one with a
probability that falls as the search cools down. No family is evaluated twice.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from traincast.searching.bulk.columns import StrategyColumns, columns_of
from traincast.searching.bulk.evaluate import Bulk
from traincast.searching.bulk.family import EvaluatedFamily
from traincast.searching.doubts import Doubts
from traincast.searching.problem import Problem, SpaceCounts
from traincast.searching.space import Axes, Degrees, Family, divisors_of

T = TypeVar("T")

_HOT: Final = 0.3
_COLD: Final = 0.005
"""Temperature at the beginning and the end: the logarithm of a ratio of times accepted with probability 1/e."""
_STARTS: Final = 4


def anneal(bulk: Bulk, problem: Problem, *, steps: int = 1200, seed: int = 0) -> tuple[StrategyColumns, SpaceCounts]:
    """Return all members of the families visited on several random walks through the space, and counts."""
    began = time.process_time()
    random = np.random.default_rng(seed)
    seen: dict[Family, EvaluatedFamily | None] = {}
    counts = SpaceCounts()
    doubts = None if problem.lean else Doubts(problem.request)

    def best(family: Family) -> float:
        """Return the expected seconds of the best member; if none fits, a large value that grows with its memory."""
        if family not in seen:
            entry = seen[family] = bulk.prepare(family)
            if entry:
                bulk.estimate([entry])
                bulk.enter(entry)
                bulk.run([entry])
                counts.families += 1
        found = seen[family]
        if found is None or not found.batches:
            return math.inf
        least = doubts.best(found).expected_s if doubts else min(float(b.seconds.min()) for b in found.batches)
        if math.isfinite(least):
            return least
        return 1e6 * min(float(batch.load.min()) for batch in found.batches)

    for _ in range(_STARTS):
        here = _anywhere(random, problem)
        now = best(here)
        for step in range(steps // _STARTS):
            there = _neighbour(random, problem, here)
            if there is None:
                continue
            then = best(there)
            heat = _HOT * (_COLD / _HOT) ** (step / max(1, steps // _STARTS - 1))
            if then <= now or (math.isfinite(then) and random.random() < math.exp(-math.log(then / now) / heat)):
                here, now = there, then
    entries = [entry for entry in seen.values() if entry and entry.batches]
    for entry in entries:
        counts.evaluated += entry.count
        counts.feasible += sum(int(np.isfinite(batch.seconds).sum()) for batch in entry.batches)
    counts.works = len(bulk.works)
    counts.cpu_s = time.process_time() - began
    return columns_of(entries), counts


def _anywhere(random: np.random.Generator, problem: Problem) -> Family:
    """Return a random family."""
    while True:
        at = Degrees(**{name: _one(random, getattr(problem.axes, name)) for name in ("tp", "cp", "pp", "ep")})
        made = _family(problem, at, None, random)
        if made is not None:
            return made


def _neighbour(random: np.random.Generator, problem: Problem, here: Family) -> Family | None:
    """Return the family with one axis changed, or ``None`` if that is not legal."""
    axes, at = problem.axes, here.degrees
    name = _one(random, ("tp", "cp", "pp", "ep", "micro_batch", "recompute", "sequence_parallel", "offload"))
    if name in ("tp", "cp", "pp", "ep"):
        value = _beside(random, getattr(axes, name), getattr(at, name))
        return _family(problem, replace(at, **{name: value}), here, random)
    if name == "micro_batch":
        each = problem.request.global_batch // here.dp
        sizes = [size for size in axes.micro_batch if each % size == 0]
        size = _beside(random, tuple(sizes), here.micro_batch)
        return replace(here, micro_batch=size, num_microbatches=each // size)
    if name == "recompute":
        return replace(here, recompute=_one(random, axes.recompute))
    if name == "sequence_parallel":
        shares = at.ep > 1 or _one(random, axes.sequence_parallel)  # experts beside tensor groups need it
        return replace(here, sequence_parallel=at.tp > 1 and shares)
    return replace(here, offloads_activations=_offloads(random, axes))


def _family(problem: Problem, at: Degrees, like: Family | None, random: np.random.Generator) -> Family | None:
    """Return a family of the mesh ``at``, as close to ``like`` as is legal, or ``None`` if the mesh is not legal."""
    devices, batch = problem.request.cluster.num_devices, problem.request.global_batch
    ranks = at.tp * at.cp * at.pp
    if devices % ranks or batch % (devices // ranks) or (devices // at.pp) % at.ep:
        return None
    dp = devices // ranks
    sizes = [size for size in problem.axes.micro_batch if size in divisors_of(batch // dp)]
    if not sizes:
        return None
    size = min(sizes, key=lambda s: abs(math.log(s / like.micro_batch))) if like else _one(random, tuple(sizes))
    shares = like.sequence_parallel if like else _one(random, problem.axes.sequence_parallel)
    return Family(
        degrees=at,
        dp=dp,
        micro_batch=size,
        num_microbatches=batch // dp // size,
        sequence_parallel=at.tp > 1 and (shares or at.ep > 1),
        recompute=like.recompute if like else _one(random, problem.axes.recompute),
        offloads_activations=like.offloads_activations if like else _offloads(random, problem.axes),
    )


def _offloads(random: np.random.Generator, axes: Axes) -> bool:
    return _one(random, axes.offload) in ("activations", "both")


def _one(random: np.random.Generator, values: tuple[T, ...]) -> T:
    return values[int(random.integers(len(values)))]


def _beside(random: np.random.Generator, values: tuple[T, ...], value: T) -> T:
    """Return the value before or after ``value`` among ``values``; at an end, it may be ``value`` itself."""
    at = values.index(value) + (1 if random.random() < 0.5 else -1)
    return values[min(max(at, 0), len(values) - 1)]
