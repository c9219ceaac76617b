"""What a schedule is asked: jobs, a cluster, policies, failures and costs in words, and what these words mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from traincast.ask import ALLOW_CODE, Count, JsonRecord, Option, Seed, python_only
from traincast.errors import RequestError, UnknownNameError
from traincast.units import parse_rate, parse_seconds

if TYPE_CHECKING:
    from traincast.scheduling.joblogs.job import Job
    from traincast.scheduling.joblogs.read import JobLog
    from traincast.scheduling.policy import Policy
    from traincast.scheduling.queue.costs import Costs
    from traincast.scheduling.queue.failures import Failures
    from traincast.scheduling.space.cluster import SharedCluster
    from traincast.scheduling.space.placement import Placement

    LiveJobs: TypeAlias = Path | JobLog | Sequence[Job]
    LiveNodes: TypeAlias = Path | SharedCluster
else:  # in JSON there are words and tables alone
    LiveJobs = LiveNodes = Placement = Policy = str
    Costs = Failures = None

_MOST_SEEDS: Final = 1000
_OVERSIZE: Final = ("refuse", "drop", "clip")


def _oversize(text: str) -> str:
    if text not in _OVERSIZE:
        raise UnknownNameError("value of --oversize", text, _OVERSIZE)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings:
    """How often devices, nodes and switches fail, and how long their repairs take, in words."""

    mtbf: Annotated[
        str | None, Option("Mean time between failures of each node, device or switch: node=30d.", "KIND=TIME,…")
    ] = None
    repair: Annotated[str | None, Option("Mean time to repair. Default: 1h.", "TIME|KIND=TIME,…")] = None
    fixed_repair: Annotated[bool, Option("Every repair takes exactly the time of --repair.")] = False
    weibull_shape: Annotated[
        str | None,
        Option("Weibull shape of the times between failures. Default: 1, the exponential distribution.", "K|KIND=K,…"),
    ] = None
    failure_events: Annotated[
        str | None, Option("Known failures (.csv): time_s,kind,target,repair_s[,gpu].", "FILE")
    ] = None

    @property
    def differs(self) -> bool:
        """Whether anything is stated."""
        return self != FailureSettings()

    def read(self) -> Failures | None:
        """Return the failures that the settings describe, or ``None`` if there are none."""
        if self.mtbf is None and self.failure_events is None:
            stated = {
                "--repair": self.repair,
                "--weibull-shape": self.weibull_shape,
                "--fixed-repair": self.fixed_repair or None,
            }
            for option, text in stated.items():
                if text is not None:
                    raise RequestError(f"{option} without failures: give --mtbf, such as --mtbf node=30d")
            return None
        from traincast.scheduling.queue.failures import FailureLaw, Failures, load_failure_events

        means = _pairs([self.mtbf], "--mtbf", "KIND=TIME, such as node=30d,device=1y") if self.mtbf is not None else {}
        repairs = _by_kind("1h" if self.repair is None else self.repair, means, "--repair", "a time, or KIND=TIME")
        shape = "1" if self.weibull_shape is None else self.weibull_shape
        shapes = _by_kind(shape, means, "--weibull-shape", "a number, or KIND=NUMBER")
        laws = [
            FailureLaw(
                kind=kind,  # type: ignore[arg-type]  # the law checks it
                mtbf_s=parse_seconds(text, what=f"--mtbf {kind}"),
                repair_s=parse_seconds(repairs.get(kind, "1h"), what=f"--repair {kind}"),
                shape=_number(shapes.get(kind, "1"), f"--weibull-shape {kind}"),
                repair_is_fixed=self.fixed_repair,
            )
            for kind, text in means.items()
        ]
        events = load_failure_events(self.failure_events) if self.failure_events is not None else ()
        return Failures(laws=tuple(laws), events=events)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """What checkpoints, restores and restarts of jobs cost, in words."""

    checkpoint_interval: Annotated[
        str | None, Option("Execution time between regular checkpoints. Default: none.", "TIME")
    ] = None
    checkpoint_cost: Annotated[str | None, Option("Time to write a checkpoint, such as 10s or 10s+1s/gpu.", "TIME")] = (
        None
    )
    restore_cost: Annotated[str | None, Option("Time to read a checkpoint, such as 20s or 20s+1s/gpu.", "TIME")] = None
    restart_cost: Annotated[str | None, Option("Time to start again after a failure.", "TIME")] = None

    @property
    def differs(self) -> bool:
        """Whether anything is stated."""
        return self != CostSettings()

    def read(self) -> Costs:
        """Return the costs of checkpoints and restarts; a cost that is not stated is 0."""
        from traincast.scheduling.queue.costs import Costs

        saving, saving_per_gpu = _by_size(self.checkpoint_cost, "--checkpoint-cost")
        loading, loading_per_gpu = _by_size(self.restore_cost, "--restore-cost")
        every = self.checkpoint_interval
        return Costs(
            checkpoint_s=saving,
            checkpoint_s_per_gpu=saving_per_gpu,
            restore_s=loading,
            restore_s_per_gpu=loading_per_gpu,
            restart_s=0.0 if self.restart_cost is None else parse_seconds(self.restart_cost, what="--restart-cost"),
            interval_s=0.0 if every is None else parse_seconds(every, what="--checkpoint-interval", zero=False),
        )


@dataclass(frozen=True, slots=True)
class ScheduleAsk(JsonRecord):
    """A log of jobs, the cluster that they share, and how it schedules them."""

    jobs: Annotated[str | LiveJobs, Option("Table of jobs, or a published log.")]
    _: KW_ONLY
    nodes: Annotated[
        int | str | LiveNodes | None,
        Option("Number of nodes, or nodes x GPUs per node: 5x8, 2x8:V100+16x4:T4.", "N|NxGPUS[:TYPE]+…"),
    ] = None
    gpus_per_node: Annotated[int | None, Option("GPUs of each node; needed if --nodes is a number.", "N")] = None
    cluster_file: Annotated[
        str | None, Option("Node list (.csv) instead of --nodes: node,gpu_type,gpus[,rack,switch,vc].", "FILE")
    ] = None
    gpu_type: Annotated[str, Option("GPU type of nodes without one of their own.", "NAME")] = ""
    hardware: Annotated[
        str | Mapping[str, str] | None,
        Option(
            "Device or node type of the catalog that each GPU type means; forecasts of jobs use it.",
            "TYPE=NAME,…",
            whole=True,
        ),
    ] = None
    allow_code: Annotated[bool, ALLOW_CODE] = False
    nodes_per_rack: Annotated[
        int | None, Option("Group the nodes into racks of N; each rack has its own switch.", "N")
    ] = None
    uplink: Annotated[
        str | float | None,
        Option(
            "Rate of the links from each rack's switch to the others, such as 200Gbit, in each direction. Forecast "
            "jobs that span racks get no more, and with --share they divide it among them.",
            "RATE",
        ),
    ] = None
    quota: Annotated[
        tuple[str, ...] | Mapping[str, float],
        Option("Maximum number of GPUs that a virtual cluster may hold at once.", "VC=N,…"),
    ] = ()
    policy: Annotated[
        str | Policy | None,
        Option("Which job runs next: a policy, or your own as package.module:Class. Default: fifo.", "NAME"),
    ] = None
    placement: Annotated[
        str | Placement, Option("Which GPUs a job gets: a placement, or your own as package.module:Class.", "NAME")
    ] = "pooled"
    share: Annotated[
        str | None,
        Option(
            "Let jobs that meet on a node, or at an --uplink, slow one another down; nodes are exclusive, shared "
            "blind, or shared by complementary jobs. Several are compared.",
            "KIND,…",
        ),
    ] = None
    compare: Annotated[str | None, Option("Compare these policies; `all` compares every policy.", "NAME,…")] = None
    estimates: Annotated[
        str,
        Option(
            "Durations that the scheduler expects: exact, predicted, noisy:0.3 or user. Several are compared.",
            "KIND,…",
        ),
    ] = "exact"
    format: Annotated[
        str | None,
        Option("Format of JOBS: native, philly, helios, pai, openb or swf. Detected from the file if omitted.", "NAME"),
    ] = None
    drop_invalid: Annotated[bool, Option("Leave out jobs that cannot be read, instead of refusing the log.")] = False
    oversize: Annotated[
        str,
        Option(
            "Jobs larger than the cluster: refuse the log, drop them, or clip them to its size.", "KIND", read=_oversize
        ),
    ] = "refuse"
    any_gpu: Annotated[bool, Option("Ignore the GPU types that jobs ask for.")] = False
    load: Annotated[
        str | float, Option("Submit jobs X times as fast as in the log. Several loads are compared.", "X,…")
    ] = "1"
    failures: Annotated[
        FailureSettings | Failures | None, python_only("What fails and how long repairs take. Default: nothing fails.")
    ] = None
    costs: Annotated[
        CostSettings | Costs | None, python_only("What checkpoints, restores and restarts cost. Default: nothing.")
    ] = None
    seed: Annotated[
        Seed,
        Option("Seed of the random numbers. Noise, failures and random placements depend on it.", "N"),
    ] = 0
    seeds: Annotated[Count, Option("Run N seeds, counted from --seed, and show means over them.", "N")] = 1

    def every_seed(self) -> range:
        """Return the seeds of all runs."""
        if not 1 <= self.seeds <= _MOST_SEEDS:
            raise RequestError(f"--seeds {self.seeds}: expected a number of runs from 1 to {_MOST_SEEDS}")
        return range(self.seed, self.seed + self.seeds)

    def policies(self) -> list[str | Policy]:
        """Return the policies to run, each once: that of ``--policy`` first, then those of ``--compare``."""
        if self.compare is None:
            return ["fifo" if self.policy is None else self.policy]
        from traincast.scheduling.policies import POLICIES

        names = list(POLICIES) if self.compare.strip() == "all" else [name.strip() for name in self.compare.split(",")]
        if not all(names):
            raise RequestError(f"--compare {self.compare!r}: expected names of policies, such as fifo,sjf,easy, or all")
        return list(dict.fromkeys(names if self.policy is None else [self.policy, *names]))

    def loads(self) -> list[float]:
        """Return the loads to compare."""
        if not isinstance(self.load, str):
            return [self.load]
        return [_number(text, "--load") for text in _listed(self.load, "--load")]

    def beliefs(self) -> list[str]:
        """Return the kinds of estimates to compare."""
        return _listed(self.estimates, "--estimates")

    def hardware_by_type(self) -> dict[str, str] | None:
        """Return the catalog name of each GPU type; refuse a name that the catalog lacks, even if no job needs it."""
        if self.hardware is None:
            return None
        from traincast.scheduling.sharing.step_times import node_of

        stated = self.hardware
        found = _pairs([stated], "--hardware", "TYPE=NAME") if isinstance(stated, str) else dict(stated)
        for name in found.values():
            node_of(name, 1)
        return found

    def shares(self) -> dict[str, str | Placement]:
        """Return the kinds of sharing of ``--share`` with their placements; none if the option is absent."""
        if self.share is None:
            return {}
        from traincast.scheduling.sharing.contention import placement_of

        names = _listed(self.share, "--share")
        if len(names) > 1 and len(self.policies()) > 1:
            raise RequestError("--share and --compare both list several: compare policies, or ways to share nodes")
        return {name: placement_of(name, self.placement) for name in names}

    def nodes_or_file(self) -> int | str | LiveNodes:
        """Return what describes the cluster: ``--nodes``, or the file of ``--cluster-file``."""
        if (self.nodes is None) == (self.cluster_file is None):
            raise RequestError(
                "describe the cluster in exactly one way: --nodes 5 --gpus-per-node 8, --nodes 5x8, or --cluster-file "
                "FILE"
            )
        if self.nodes is not None:
            return self.nodes
        return Path(str(self.cluster_file))

    def quotas(self) -> dict[str, float]:
        """Return the most GPUs of each virtual cluster that has a quota."""
        if isinstance(self.quota, Mapping):
            return dict(self.quota)
        found = _pairs(self.quota, "--quota", "VC=N")
        return {name: _number(value, f"--quota {name}") for name, value in found.items()}

    def uplink_rate(self) -> float:
        """Return the rate of each rack's uplink in bytes/s; 0: uplinks limit nobody."""
        if isinstance(self.uplink, str):
            return parse_rate(self.uplink, what="--uplink")
        return self.uplink or 0.0

    def all_failures(self) -> Failures | None:
        """Return what fails in a run, or ``None`` if nothing does."""
        return self.failures.read() if isinstance(self.failures, FailureSettings) else self.failures

    def all_costs(self) -> Costs:
        """Return the costs of checkpoints and restarts; a cost that is not stated is 0."""
        stated = CostSettings() if self.costs is None else self.costs
        return stated.read() if isinstance(stated, CostSettings) else stated


def _listed(text: str, option: str) -> list[str]:
    """Return the values of a comma-separated list, each once."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise RequestError(f"{option} {text!r}: expected values separated by commas; one is empty")
    return names


def _pairs(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
    """Read ``a=1,b=2`` into a dictionary."""
    found: dict[str, str] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, sign, value = (piece.strip() for piece in part.rpartition("="))
        if not (sign and name and value):
            raise RequestError(f"{option} {part!r}: expected {form}")
        if name in found:
            raise RequestError(f"{option} has {name} twice: give it once")
        found[name] = value
    return found


def _number(text: str, what: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"{what} is {text!r}: expected a number above 0")
    return value


def _by_kind(text: str, kinds: Mapping[str, str], option: str, form: str) -> dict[str, str]:
    """Read one value for all kinds of failure, or one value per kind."""
    if "=" not in text:
        return dict.fromkeys(kinds, text)
    found = _pairs([text], option, form)
    for name in found:
        if name not in kinds:
            raise RequestError(
                f"{option} {name}={found[name]}: --mtbf has no {name}; it has {', '.join(kinds) or 'none'}"
            )
    return found


def _by_size(text: str | None, option: str) -> tuple[float, float]:
    """Read ``10s``, ``1s/gpu`` or ``10s+1s/gpu`` as seconds for every job and seconds for each GPU."""
    fixed = per_gpu = 0.0
    for part in () if text is None else text.split("+"):
        amount, slash, unit = part.strip().partition("/")
        if slash and unit.strip().lower() != "gpu":
            raise RequestError(f"{option} is {text!r}: expected a time such as 10s, 1s/gpu or 10s+1s/gpu")
        seconds = parse_seconds(amount, what=option)
        fixed, per_gpu = (fixed, per_gpu + seconds) if slash else (fixed + seconds, per_gpu)
    return fixed, per_gpu
