"""A stochastic search: simulated annealing over families, each of which is solved in full.

A step changes one axis of a family to a neighbouring value; a family that is better is always taken, a worse one with a
chance that falls as the search cools down. Families that were seen are not evaluated again.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from traincast.searching.bulk import Bulk
from traincast.searching.columns import StrategyColumns, columns_of
from traincast.searching.evaluated_family import EvaluatedFamily
from traincast.searching.problem import Problem, SpaceCounts
from traincast.searching.space import Axes, Degrees, Family, divisors_of

T = TypeVar("T")

_HOT: Final = 0.3
_COLD: Final = 0.005
"""Logarithm of the ratio of times that is taken with a chance of 1/e, at the beginning and at the end."""
_STARTS: Final = 4


def anneal(bulk: Bulk, problem: Problem, *, steps: int = 1200, seed: int = 0) -> tuple[StrategyColumns, SpaceCounts]:
    """Families met on several walks through the space of ``problem``."""
    began = time.process_time()
    random = np.random.default_rng(seed)
    seen: dict[Family, EvaluatedFamily | None] = {}
    counts = SpaceCounts()

    def best(family: Family) -> float:
        """Seconds of the best member; those that do not fit are worse the more they are beyond."""
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
        least = min(float(batch.seconds.min()) for batch in found.batches)
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
    """A family drawn at random."""
    while True:
        at = Degrees(**{name: _one(random, getattr(problem.axes, name)) for name in ("tp", "cp", "pp", "ep")})
        made = _family(problem, at, None, random)
        if made is not None:
            return made


def _neighbour(random: np.random.Generator, problem: Problem, here: Family) -> Family | None:
    """The family with one axis changed; none where that is not legal."""
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
    """A family of a mesh, as much like another one as its numbers allow."""
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
    """The value before or after one of an axis."""
    at = values.index(value) + (1 if random.random() < 0.5 else -1)
    return values[min(max(at, 0), len(values) - 1)]
