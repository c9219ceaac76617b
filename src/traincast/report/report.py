"""The report: everything a forecast says about one training step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from traincast.ask import Conditions
from traincast.brief import Brief, BriefTable
from traincast.evidence import Neighbour
from traincast.report.breakdown import Breakdown
from traincast.report.critical_path import PathEntry
from traincast.report.job import JobForecast
from traincast.report.outlook import Mode
from traincast.report.split import TimeSplit
from traincast.strategy import Memory
from traincast.strategy.memory.fits import MemoryFit
from traincast.strategy.memory.timeline import Holder, Moment
from traincast.units import format_bytes, format_count, format_seconds
from traincast.work import Demand

if TYPE_CHECKING:
    from traincast.simulate.servers import ServerRun

_WARNINGS_SHOWN: Final = 3
_LONGEST_SHOWN: Final = 100


def _cut(text: str) -> str:
    """Return the beginning of a text that is too long for a line."""
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The time and memory of one rank; it stands for all replicas of its stage if they do the same."""

    rank: int
    stage: int
    breakdown: Breakdown
    memory: Memory

    @property
    def utilization(self) -> float:
        """The share of the step in which its device computes."""
        total = self.breakdown.total_s
        return (self.breakdown.compute_s + self.breakdown.optimizer_s) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """How long the device of a rank waits in a step; ``for_rank`` is the rank it waits for longest (−1: none)."""

    rank: int
    busy_s: float
    waiting_s: float
    for_rank: int
    for_rank_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleUse:
    """The share of the time that a bundle named by the user estimated: of all works, of operators, of collectives."""

    path: str
    covered: float
    operators: float
    collectives: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsearchedChoice:
    """How Traincast chose a strategy without a search.

    The strategy is the fastest of ``timed`` strategies that fit; if at most one was timed, it is the first that fits.
    If ``fits`` is false, none was found that fits, and this one needs the least memory of those tried. A search could
    shorten the step by at most about the share ``most_gain`` (None: not known).
    """

    fits: bool
    timed: int
    most_gain: float | None = None
    searched: bool = field(default=False, init=False)

    def __str__(self) -> str:
        if not self.fits:
            return "no strategy was found that fits; this one needs the least memory of those tried"
        how = f"the fastest of {self.timed} that fit" if self.timed > 1 else "the first that fits"
        gain = "" if self.most_gain is None else f"; a search could shorten the step by {_at_most(self.most_gain)}"
        return f"{how}, not searched{gain}"


def _at_most(share: float) -> str:
    return f"at most about {share * 100:.0f} %" if share >= 0.005 else "less than 1 %"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(Brief):
    """The result of a forecast, in seconds, bytes, and shares from 0 to 1.

    Memory is that of the fullest rank. ``host_memory_bytes`` is used on the host of the fullest node;
    ``host_memory`` is its breakdown by part, for one rank of the stage that offloads most. ``fits`` says that both
    suffice: the device's memory with a probability of at least ``fits_margin``, the host's if its capacity is known.
    ``fit`` distinguishes strategies that may not fit from those that do not. ``floor_s`` is a lower bound on the step
    time of this plan on these devices. ``modes`` are the two ways in which a run may go, on a cluster where some runs
    stall. ``choice`` says how the strategy was chosen, unless it was stated. ``split`` divides the step by what bounds
    it, and the time of every operator. Products take ``power_slowdown`` times as long as at full clock, because a
    device may draw only ``power_limit_w`` watts; the times include it. ``evidence`` are the measured runs nearest to
    this one, ``evidence_words`` says how far away they are and what was never measured, and ``doubt`` has the share of
    each unknown in the log-width of the interval; the shares add up to 1.

    It is flat, because each field is one key of the JSON that users read by its name (``report.step_s``): nested tables
    would need a property for every figure to keep both.
    """

    model: str
    cluster: str
    strategy: str
    runtime: str
    precision: str
    num_devices: int
    global_batch: int
    micro_batch: int
    tokens_per_sample: int
    num_parameters: int
    num_trainable_parameters: int
    step_s: float
    low_s: float
    high_s: float
    floor_s: float
    samples_per_s: float
    tokens_per_s: float
    mfu: float
    compute_s: float
    exposed_communication_s: float
    bubble_s: float
    optimizer_s: float
    overhead_s: float
    calibrated_s: float
    split: TimeSplit
    peak_memory_bytes: float
    memory_capacity_bytes: float
    memory_low_bytes: float
    memory_high_bytes: float
    memory: Memory
    host_memory_bytes: float
    host_memory_capacity_bytes: float | None
    host_memory: dict[str, float] = field(hash=False)
    fits: bool
    fits_probability: float
    fits_margin: float
    verdict: str
    fit: MemoryFit
    demand: Demand
    power_limit_w: float
    power_slowdown: float
    estimated_by: dict[str, float] = field(hash=False)
    ranks: tuple[RankReport, ...]
    critical_path: tuple[PathEntry, ...]
    warnings: tuple[str, ...]
    modes: tuple[Mode, ...] = ()
    fullest_stage: int = 0
    memory_over_time: tuple[Moment, ...] = ()
    peak_tensors: tuple[Holder, ...] = ()
    waits: tuple[RankWaits, ...] = ()
    bundles: tuple[BundleUse, ...] = ()
    servers: ServerRun | None = None
    conditions: Conditions | None = None
    job: JobForecast | None = None
    choice: UnsearchedChoice | None = None
    evidence: tuple[Neighbour, ...] = ()
    evidence_words: tuple[str, ...] = ()
    doubt: dict[str, float] = field(default_factory=dict, hash=False)

    @property
    def num_servers(self) -> int:
        """The number of parameter servers; 0 unless the strategy has them."""
        return len(self.servers.nodes) if self.servers else 0

    def brief(self) -> BriefTable:
        """Return the step and its parts, memory and the first warnings."""
        parts = (
            ("compute", self.compute_s),
            ("exposed communication", self.exposed_communication_s),
            ("bubble", self.bubble_s),
            ("optimizer", self.optimizer_s),
            ("overhead", self.overhead_s),
        )
        rows = [
            ("step", format_seconds(self.step_s), f"{format_seconds(self.low_s)} … {format_seconds(self.high_s)}"),
            ("throughput", f"{format_count(self.samples_per_s)} samples/s", f"MFU {self.mfu:.1%}"),
            *((name, format_seconds(value), f"{value / self.step_s:.1%}") for name, value in parts if value),
            (
                "memory",
                format_bytes(self.peak_memory_bytes),
                f"of {format_bytes(self.memory_capacity_bytes)}: {self.verdict}",
            ),
        ]
        if self.job is not None:
            rows.append(("job", format_seconds(self.job.job_s), f"${self.job.cost:,.0f}"))
        rows += [("warning", "", _cut(warning)) for warning in self.warnings[:_WARNINGS_SHOWN]]
        if len(self.warnings) > _WARNINGS_SHOWN:
            rows.append(("", "", f"and {len(self.warnings) - _WARNINGS_SHOWN} more in .warnings"))
        title = f"{self.model} on {self.cluster}: {self.strategy}, global batch {self.global_batch}, {self.precision}"
        return BriefTable(f"{title}, {self.runtime}", rows)

    def summary(self) -> dict[str, Any]:
        """Return the request, its conditions and the step time, which a trace stores."""
        names = ("model", "cluster", "strategy", "runtime", "precision", "global_batch", "step_s")
        values = {name: getattr(self, name) for name in names}
        return {**values, "conditions": self.conditions.to_dict() if self.conditions else None}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        data = asdict(self)
        del data["fit"]  # ``verdict`` says it in words
        data["memory"] = self.memory.to_dict()
        data["memory_parts"] = dict(self.memory.parts)
        data["memory_over_time"] = [{"label": m.label, **m.components} for m in self.memory_over_time]
        data["ranks"] = [
            {
                "rank": r.rank,
                "stage": r.stage,
                "utilization": r.utilization,
                **asdict(r.breakdown),
                "peak_memory_bytes": r.memory.total,
            }
            for r in self.ranks
        ]
        data["servers"] = asdict(self.servers) if self.servers else None
        data["conditions"] = self.conditions.to_dict() if self.conditions else None
        data["job"] = self.job.to_dict() if self.job else None
        data["job_s"] = self.job.job_s if self.job else None
        data["cost"] = self.job.cost if self.job else None
        data["energy_j"] = self.job.energy_j if self.job else None
        return data
