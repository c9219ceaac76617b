"""Expected time of a real run, its 90 % interval and warnings, from its simulation and its cluster's calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import FEATURES, MOST_LIKELY, Calibration, Correction
from traincast.estimate import SOURCES, Estimates
from traincast.graph import Operator
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.report.breakdown import Breakdown, breakdowns, mean_breakdown
from traincast.report.doubt import BETWEEN, SCALE
from traincast.report.uncertainty import step_kind, widened
from traincast.simulate import Timeline, interval, simulate
from traincast.strategy import Plan, Request
from traincast.units import format_seconds

_COUNTS: Final = 6
"""Number of leading features that are plain counts, which warnings can name."""
COMPOSED: Final = (0.95, 1.11)
"""What 90 % of runs take of their forecast if all their works were measured: 74 runs of the testbed."""
CARRIED_OVER: Final = (0.85, 1.2)
"""The same if they were measured at another size: steps of half to four times the batch that a trace was taken of."""
UNCALIBRATED: Final = (0.8, 2.3)
"""What 90 % of runs on clusters that are not calibrated take of their forecast, if nothing else is known of them.

Measured by forecasting each published source with parameters fitted to all others; all sources have equal weight. The
interval of a step whose plan is known is that of :mod:`traincast.report.uncertainty`.
"""
_RARE: Final = 0.05
_NEAR: Final = 1.5
"""Beyond this distance from the measured runs, in scales, the interval of a run grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraits:
    """Properties of a simulated step on which the error of its forecast depends.

    ``messages`` is the number of messages that the busiest stage sends and receives, ``tensor_nodes`` the number of
    nodes that a tensor-parallel group spans. ``model`` is the name of the graph.
    """

    features: tuple[float, ...]
    messages: int
    nodes: int
    tensor_nodes: int
    stages: int
    model: str = ""
    precision: str = ""

    def stalls(self, calibration: Calibration) -> float:
        """Return the probability that the run stalls on its cluster."""
        if calibration.stall is None:
            return 0.0
        return calibration.stall.probability(nodes=self.nodes, tensor_nodes=self.tensor_nodes, stages=self.stages)


def look_at(request: Request, timeline: Timeline, seconds: npt.NDArray[np.float64]) -> StepTraits:
    """Return the traits of a simulated step, for corrections and intervals."""
    plan, strategy, graph = timeline.plan, request.strategy, request.graph
    mean = _mean_breakdown(timeline, seconds)
    total = mean.total_s or 1.0
    micro_batch = max(1, strategy.micro_batch(request.global_batch))
    tokens = micro_batch * max(1, graph.tokens_per_sample) / strategy.cp
    flops = sum(op.flops * count for op, count in graph) * request.global_batch / request.cluster.num_devices
    features = (
        math.log2(request.cluster.num_nodes),
        math.log2(strategy.tp),
        math.log2(strategy.pp),
        math.log2(strategy.dp),
        math.log2(strategy.num_microbatches),
        math.log2(tokens),
        math.log2(max(flops, 1.0)) / 2.0,
        10.0 * mean.exposed_communication_s / total,
        10.0 * mean.bubble_s / total,
        10.0 * mean.overhead_s / total,
        10.0 * _products(plan, seconds),
    )
    return StepTraits(
        features=features,
        messages=strategy.num_microbatches * strategy.virtual_stages * 2 * min(2, strategy.pp - 1),
        nodes=request.cluster.num_nodes,
        tensor_nodes=plan.mesh.span("tp").num_nodes,
        stages=strategy.pp,
        model=graph.name,
        precision=request.precision.name,
    )


def _products(plan: Plan, seconds: npt.NDArray[np.float64]) -> float:
    spent = plan.work_counts() * seconds
    operators = np.array([isinstance(work, Operator) for work in plan.works], dtype=bool)
    products = np.array([isinstance(w, Operator) and w.kind in MATRIX_KINDS for w in plan.works], dtype=bool)
    total = float(spent[operators].sum())
    return float(spent[products].sum()) / total if total > 0.0 else 0.0


def correction_at(correction: Correction | None, features: Sequence[float]) -> float:
    """Return the factor by which a correction multiplies the time of a step."""
    if correction is None or not correction.points:
        return 1.0
    distance = (np.array(correction.points) - np.array(features)) / np.array(correction.scales)
    return math.exp(float(np.exp(-0.5 * (distance**2).sum(axis=1)) @ np.array(correction.weights)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A way in which a run may go, ``usual`` or ``stalled``: the seconds of its steps and its probability."""

    name: str
    step_s: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The expected seconds of a step, its 90 % interval, and warnings.

    ``modes`` are the usual and the stalled mode, if a stall is neither rare nor nearly certain; otherwise it is empty.
    ``doubt`` has the share of each cause in the log-width of the interval. Without a calibration it has only those of
    :data:`traincast.report.doubt.BETWEEN` and ``SCALE``; works cause the rest.
    """

    step_s: float
    low_s: float
    high_s: float
    warnings: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ()
    doubt: Mapping[str, float] = field(default_factory=dict, hash=False)

    def scaled(self, factor: float) -> Outlook:
        """Return the outlook of a step that takes ``factor`` times as long."""
        return replace(
            self,
            step_s=self.step_s * factor,
            low_s=self.low_s * factor,
            high_s=self.high_s * factor,
            modes=scaled_modes(self.modes, factor),
        )

    def above(self, floor_s: float) -> Outlook:
        """Return the outlook raised to at least ``floor_s``; add a warning if the step itself was below."""
        warnings = self.warnings
        if self.step_s < floor_s:
            warnings += (
                f"a step of {format_seconds(self.step_s)} would need {floor_s / self.step_s:.0%} of the peak rates of "
                f"devices or links: raised to {format_seconds(floor_s)}; check the calibration and the figures of the "
                "device",
            )
        step_s = max(self.step_s, floor_s)
        low_s, high_s = max(self.low_s, floor_s), max(self.high_s, step_s)
        modes = tuple(replace(mode, step_s=max(mode.step_s, floor_s)) for mode in self.modes)
        return replace(self, step_s=step_s, low_s=low_s, high_s=high_s, warnings=warnings, modes=modes)


def scaled_modes(modes: Sequence[Mode], factor: float) -> tuple[Mode, ...]:
    """Return the modes of a step that takes ``factor`` times as long in each."""
    return tuple(replace(mode, step_s=mode.step_s * factor) for mode in modes)


def outlook(
    request: Request, plan: Plan, estimates: Estimates, timeline: Timeline, breakdown: Breakdown | None = None
) -> Outlook:
    """Return the outlook of ``request``; its ``timeline`` is simulated with ``estimates``, which are calibrated.

    ``breakdown`` is the mean breakdown of the timeline, if it is known already.
    """
    calibration = request.cluster.calibration
    if calibration is None:
        step = timeline.step_s
        mean = breakdown or _mean_breakdown(timeline, estimates.seconds)
        return _uncalibrated(request, plan, estimates, step, mean)
    before = estimates.seconds if estimates.uncalibrated is None else estimates.uncalibrated
    look = look_at(request, simulate(plan, before), before)
    usual = calibration.step(timeline.step_s, nodes=look.nodes)
    slow = usual
    if calibration.stall is not None and estimates.stalled is not None:
        slow = calibration.step(simulate(plan, estimates.stalled).step_s, nodes=look.nodes)
        slow += calibration.stall.seconds * look.messages
    ends = UNCALIBRATED
    if calibration.few is not None:
        mean = breakdown or _mean_breakdown(timeline, estimates.seconds)
        plain = _uncalibrated(request, plan, estimates, timeline.step_s, mean)
        ends = plain.low_s / plain.step_s, plain.high_s / plain.step_s
    name = request.runtime.name
    return expect(calibration, look, usual_s=usual, stalled_s=slow, runtime=name, uncalibrated=ends)


def _mean_breakdown(timeline: Timeline, seconds: npt.NDArray[np.float64]) -> Breakdown:
    """Return the mean breakdown of one rank per stage; ``seconds`` are those of the works."""
    plan = timeline.plan
    rows = range(min(len(plan.ranks), plan.mesh.pp))
    return mean_breakdown(breakdowns(timeline, rows, plan.shares(seconds, plan.communicates())))


def _uncalibrated(request: Request, plan: Plan, estimates: Estimates, step_s: float, mean: Breakdown) -> Outlook:
    """Return the outlook of a step without a calibration.

    The ends are means, weighted by time: :data:`COMPOSED` for works that were measured, :data:`CARRIED_OVER` for works
    that were measured at another size, and the interval of :mod:`traincast.report.uncertainty` for all others. The
    first two are widened if repeats of the measurements differ by more. ``mean`` is the step's breakdown.
    """
    low_s, high_s = interval(plan, estimates)
    step = max(step_s, 1e-12)
    idle = (mean.exposed_communication_s + mean.overhead_s) / (mean.total_s or 1.0)
    below, above = (max(0.0, math.log(ratio)) for ratio in (step / max(low_s, 1e-12), high_s / step))
    kind = step_kind(request.graph, idle_share=idle)
    devices = request.cluster.num_devices
    ends = widened(kind, below=below, above=above, devices=devices)
    spent = estimates.seconds * plan.work_counts()
    total = float(spent.sum()) or 1.0
    here, moved = (
        float(spent[estimates.source == SOURCES.index(name)].sum()) / total for name in ("measured", "carried")
    )
    low, high = (
        widest(one, repeats) * here + widest(other, repeats) * moved + worst * (1 - here - moved)
        for widest, one, other, repeats, worst in zip(
            (min, max), COMPOSED, CARRIED_OVER, (low_s / step, high_s / step), ends, strict=True
        )
    )
    sure, usual = (widened(kind, below=0.0, above=0.0, devices=many) for many in (devices, 1))
    whole, scaled, between = (math.log(high / low) ** 2 for low, high in (ends, sure, usual))
    doubt = {BETWEEN: between / whole, SCALE: (scaled - between) / whole}
    return Outlook(step_s=step_s, low_s=step_s * low, high_s=step_s * high, doubt=doubt)


def expect(
    calibration: Calibration,
    look: StepTraits,
    *,
    usual_s: float,
    stalled_s: float,
    runtime: str,
    uncalibrated: tuple[float, float] = UNCALIBRATED,
) -> Outlook:
    """Return the outlook of a run that takes ``usual_s``, or ``stalled_s`` if it stalls, before the correction.

    ``uncalibrated`` is the 90 % interval without a calibration, as two multiples of the forecast: it counts if a
    handful of runs calibrated the cluster.
    """
    factor = correction_at(calibration.correction, look.features) * calibration.factor_of(look.model, look.precision)
    usual, slow = usual_s * factor, max(stalled_s, usual_s) * factor
    strange = bool(calibration.runtimes) and runtime not in calibration.runtimes  # an empty list holds for all runtimes
    far = 1.0 if strange else unfamiliar(calibration, look)
    ends = min(math.log(calibration.low), 0.0), max(math.log(calibration.high), 0.0)
    below, above = (math.hypot(end, calibration.unknown * far) for end in ends)
    between = 0.0
    if calibration.few is not None:
        kept = calibration.doubt_of(look.model, look.precision)
        left = calibration.few.share * (kept + (1.0 - kept) * far)
        below, above = below - left * math.log(uncalibrated[0]), above + left * math.log(uncalibrated[1])
        between = left * math.log(uncalibrated[1] / uncalibrated[0])
    warnings = []
    if strange:
        warnings.append(
            f"the cluster was calibrated with {', '.join(calibration.runtimes)}, not with {runtime}, which may behave "
            "differently: the interval is wider"
        )
    elif far > _RARE:
        warnings.append(_outside(calibration, look))
    low, high = usual * math.exp(-below), usual * math.exp(above)
    chance = look.stalls(calibration)
    stalls = chance >= MOST_LIKELY
    if chance > _RARE:
        high = slow * math.exp(above)
        warnings.append(
            f"{chance:.0%} of similar runs stalled on this cluster and took {slow / usual:.1f} times as long, for no "
            f"reason in their configuration; this forecast is for a run that "
            f"{'stalls' if stalls else 'does not stall'}"
        )
    modes: tuple[Mode, ...] = ()
    if _RARE < chance < 1.0 - _RARE and slow > usual:
        modes = (
            Mode(name="usual", step_s=usual, probability=1.0 - chance),
            Mode(name="stalled", step_s=slow, probability=chance),
        )
    if chance > 1.0 - _RARE:
        low = slow * math.exp(-below)
    return Outlook(
        step_s=slow if stalls else usual,
        low_s=low,
        high_s=high,
        warnings=tuple(warnings),
        modes=modes,
        doubt=_calibrated_doubt(
            ends, calibration.unknown * far, stalled=math.log(high / low) - below - above, between=between
        ),
    )


def _calibrated_doubt(
    ends: tuple[float, float], unknown: float, *, stalled: float, between: float = 0.0
) -> dict[str, float]:
    """Return the share of each cause in the log-width of a calibrated interval; they add up to 1.

    ``repeats`` is the scatter of the runs that calibrated the cluster, whose interval has these ``ends``;
    ``unfamiliar`` is the distance from them, which adds ``unknown`` to each end, as the root of the sum of squares;
    ``stalls`` is the chance of a stall, which adds ``stalled`` to the width. ``between`` is the part of an uncalibrated
    interval that a handful of runs leaves.
    """
    width = sum(math.hypot(end, unknown) for end in ends)
    repeats = sum(end**2 / (math.hypot(end, unknown) or 1.0) for end in ends)
    total = width + max(0.0, stalled) + between
    if total <= 0.0:
        return {"repeats": 1.0}
    shares = {"repeats": repeats, "unfamiliar": width - repeats, "stalls": max(0.0, stalled)}
    if between > 0.0:
        shares[BETWEEN] = between
    return {name: value / total for name, value in shares.items()}


def unfamiliar(calibration: Calibration, look: StepTraits) -> float:
    """Return how far a run is from those that calibrated its cluster: 0 if near, up to 1."""
    correction = calibration.correction
    if correction is None or not correction.points:
        return 0.0
    distance = (np.array(correction.points) - np.array(look.features)) / np.array(correction.scales)
    beyond = math.sqrt(float((distance**2).sum(axis=1).min())) - _NEAR
    return 1.0 - math.exp(-0.5 * beyond**2) if beyond > 0.0 else 0.0


def _outside(calibration: Calibration, look: StepTraits) -> str:
    """Return a warning that names the features of a run outside the measured range."""
    assert calibration.correction is not None
    points = np.array(calibration.correction.points)
    found = []
    for i, name in enumerate(FEATURES[:_COUNTS]):
        low, high, here = points[:, i].min(), points[:, i].max(), look.features[i]
        if not low - 0.5 <= here <= high + 0.5:
            found.append(f"{2.0**here:.0f} {name} (measured: {2.0**low:.0f} to {2.0**high:.0f})")
    what = ", ".join(found) or "this combination of strategy, size and scale"
    return f"no run that calibrated this cluster is close to this one: {what}; the interval is wider"
