"""How much longer than forecast a strategy may take if it uses a technique that no measured run near it has used.

Every such technique multiplies the step by a factor of its own. Its logarithm is the absolute value of a normal
variable with the standard deviation :data:`TECHNIQUE`: what a forecast leaves out only makes a step longer. So the
expected time of a strategy is its forecast, times :data:`EXPECTED` for each technique without evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from traincast.evidence import Support, Traits, measured_runs, near_runs, support, traits_of
from traincast.searching.bulk.columns import StrategyColumns
from traincast.searching.bulk.family import EvaluatedFamily
from traincast.searching.problem import Best
from traincast.searching.space import Family
from traincast.strategy import Request, Strategy

Floats = npt.NDArray[np.float64]

TECHNIQUE: Final = 0.18
"""Standard deviation of the logarithm of a technique's factor, before the absolute value.

Within one source, model and device, runs that use a technique are this much further from their forecasts than runs that
do not: the root mean square over 44 pairs of a source and a technique, all of sources that may guide choices. Those
techniques were measured elsewhere; how wrong a forecast is about one that nobody measured cannot be known.
``python -m benchmarks.regret`` measures it.
"""
EXPECTED: Final = math.exp(0.5 * TECHNIQUE**2) * (1.0 + math.erf(TECHNIQUE / math.sqrt(2.0)))
"""Mean of the factor of one technique: 1.16."""
_SCHEDULES: Final = ("gpipe", "1f1b", "interleaved")
"""Schedules of measured runs; no published table states another."""
_LEARNED: Final = frozenset({"tp", "tp across nodes", "sequence_parallel", "pp", "virtual_stages"})
"""Techniques that a calibration judges itself, by the distance from the runs of its own cluster."""


class Doubts:
    """Counts the techniques of strategies for one model on one cluster that no measured run near them has used.

    A technique depends on few settings, so each combination of these is looked up once. If no run is near at all, no
    technique is doubted more than another, so none is counted.
    """

    def __init__(self, request: Request) -> None:
        self._plain = replace(_alone(traits_of(request)), dp=1, replicas=1)
        self._compares = bool(near_runs(self._plain, measured_runs()).any())
        self._sharded_over = request.strategy.shard
        self._calibrated = request.cluster.calibration is not None
        self._joined = request.cluster.devices_per_node * request.cluster.domain_nodes
        self._kept: dict[tuple[Any, ...], tuple[Support, ...]] = {}

    def of(self, s: Strategy) -> tuple[Support, ...]:
        """Return what measured runs say about each technique of a strategy."""
        found = [
            *self._mesh(s.tp, s.cp, s.pp, s.ep),
            *self._family(s.sequence_parallel, s.recompute, "activations" in s.offload),
            *self._sharing(s.zero, s.dp * s.cp, "optimizer" in s.offload),
            *self._way(s.schedule if s.pp > 1 else "1f1b", s.virtual_stages),
        ]
        return tuple(found)

    def least(self, family: Family) -> int:
        """Return how many techniques without evidence every member of a family uses."""
        at = family.degrees
        recompute = family.recompute.partition("/")[0]
        return _lacking(self._mesh(at.tp, at.cp, at.pp, at.ep)) + _lacking(
            self._family(family.sequence_parallel, recompute, family.offloads_activations)
        )

    def best(self, entry: EvaluatedFamily) -> Best:
        """Return the best step times among the members of a family."""
        base = self.least(entry.family)
        replicas = entry.family.dp * entry.family.degrees.cp
        shared = np.array([_lacking(self._sharing(s.zero, replicas, "optimizer" in s.offload)) for s in entry.sharings])
        fastest = expected = evident = math.inf
        for batch in entry.batches:
            way = batch.way
            missing = shared + (base + _lacking(self._way(way.schedule, way.virtual_stages)))
            fastest = min(fastest, float(batch.seconds.min(initial=math.inf)))
            expected = min(expected, float((batch.seconds * EXPECTED**missing).min(initial=math.inf)))
            evident = min(evident, float(batch.seconds[missing == 0].min(initial=math.inf)))
        return Best(fastest, expected, evident)

    def shortest(self, columns: StrategyColumns) -> Best:
        """Return the best step times among the rows."""
        missing, seconds = self.counted(columns), columns.seconds
        return Best(
            float(seconds.min(initial=math.inf)),
            float((seconds * EXPECTED**missing).min(initial=math.inf)),
            float(seconds[missing == 0].min(initial=math.inf)),
        )

    def counted(self, columns: StrategyColumns) -> npt.NDArray[np.int64]:
        """Return the number of techniques without evidence of every row."""
        total = np.zeros(len(columns), dtype=np.int64)

        def add(names: tuple[str, ...], found: Callable[..., tuple[Support, ...]]) -> None:
            key = np.zeros(len(columns), dtype=np.int64)
            for name in names:
                column = getattr(columns, name).astype(np.int64)
                key = key * (1 + int(column.max())) + column
            _, first, place = np.unique(key, return_index=True, return_inverse=True)
            values = [[columns.value(name, row) for name in names] for row in first.tolist()]
            np.add(total, np.array([_lacking(found(*each)) for each in values])[place], out=total)

        if len(columns):
            add(("tp", "cp", "pp", "ep"), self._mesh)
            add(
                ("sequence_parallel", "recompute", "offload"),
                lambda sp, recompute, offload: self._family(
                    sp, recompute.partition("/")[0], offload in ("activations", "both")
                ),
            )
            add(
                ("zero", "dp", "cp", "offload"),
                lambda zero, dp, cp, offload: self._sharing(zero, dp * cp, offload in ("optimizer", "both")),
            )
            add(
                ("pp", "schedule", "virtual_stages"),
                lambda pp, schedule, virtual: self._way(schedule if pp > 1 else "1f1b", virtual),
            )
        return total

    def _mesh(self, tp: int, cp: int, pp: int, ep: int) -> tuple[Support, ...]:
        across = -(-tp // self._joined)
        return (
            *self._look(tp=tp, tensor_nodes=across),
            *self._look(cp=cp),
            *self._look(pp=pp),
            *self._look(ep=ep),
        )

    def _family(self, sequence_parallel: bool, recompute: str, activations: bool) -> tuple[Support, ...]:
        return (
            *self._look(sequence_parallel=sequence_parallel),
            *self._look(recompute=recompute),
            *self._look(offload="activations" if activations else ""),
        )

    def _sharing(self, zero: int, replicas: int, optimizer: bool) -> tuple[Support, ...]:
        sharded = (self._sharded_over or replicas) if zero else 1
        return (
            *self._look(zero=zero, sharded=sharded, replicas=replicas),
            *self._look(offload="optimizer" if optimizer else ""),
        )

    def _way(self, schedule: str, virtual_stages: int) -> tuple[Support, ...]:
        found = self._look(virtual_stages=virtual_stages)
        if schedule in _SCHEDULES or not self._compares:
            return found
        name = f"schedule={schedule}"
        return (*found, Support(technique=name, runs=0, sources=0, words=f"{name}: no measured run has used it"))

    def _look(self, **settings: Any) -> tuple[Support, ...]:
        """Return what measured runs say about these settings of a strategy, all others being plain."""
        key = tuple(settings.items())
        if key not in self._kept:
            found = support(replace(self._plain, **settings)) if self._compares else ()
            if self._calibrated:
                found = tuple(each for each in found if each.technique not in _LEARNED)
            self._kept[key] = found
        return self._kept[key]


def lacking(evidence: Iterable[Support]) -> tuple[str, ...]:
    """Return the names of the techniques without evidence."""
    return tuple(each.technique for each in evidence if not each.supported)


def _alone(traits: Traits) -> Traits:
    """Return the traits with a strategy that uses no technique."""
    return replace(
        traits,
        tp=1,
        pp=1,
        cp=1,
        ep=1,
        virtual_stages=1,
        zero=0,
        sharded=1,
        tensor_nodes=1,
        sequence_parallel=False,
        recompute="none",
        offload="",
        servers=0,
    )


def _lacking(found: Iterable[Support]) -> int:
    return len(lacking(found))
