"""Readers of the options of ``traincast schedule``: policies, cluster, costs and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traincast.errors import RequestError
from traincast.units import parse_rate, parse_seconds

if TYPE_CHECKING:
    from traincast.engines import Engine
    from traincast.scheduling import Costs, Failures, SharedCluster

_MOST_SEEDS: Final = 1000


def engine_of(name: str, workers: int, address: str | None) -> Engine | None:
    """Return the engine that runs a study; ``None`` if this process runs it."""
    if name == "local" and workers == 1 and address is None:
        return None
    from traincast.engines import load_engine

    return load_engine(name, workers=workers, address=address)


def seeds_of(first: int, count: int) -> range:
    """Return the seeds of ``count`` runs, counted from ``first``."""
    if not 1 <= count <= _MOST_SEEDS:
        raise RequestError(f"--seeds {count}: expected a number of runs from 1 to {_MOST_SEEDS}")
    return range(first, first + count)


def listed(text: str, option: str) -> list[str]:
    """Return the values of a comma-separated list, each once."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise RequestError(f"{option} {text!r}: expected values separated by commas; one is empty")
    return names


def policies_of(policy: str | None, compare: str | None) -> list[str]:
    """Return the policies to run, each once: that of ``--policy`` first, then those of ``--compare``."""
    if compare is None:
        return ["fifo" if policy is None else policy]
    from traincast.scheduling import POLICIES

    names = list(POLICIES) if compare.strip() == "all" else [name.strip() for name in compare.split(",")]
    if not all(names):
        raise RequestError(f"--compare {compare!r}: expected names of policies, such as fifo,sjf,easy, or all")
    return list(dict.fromkeys(names if policy is None else [policy, *names]))


def hardware_of(text: str) -> dict[str, str]:
    """Return the catalog name of each GPU type; refuse a name that the catalog lacks, even if no job needs it."""
    from traincast.scheduling.sharing.step_times import node_of

    found = _pairs([text], "--hardware", "TYPE=NAME")
    for name in found.values():
        node_of(name, 1)
    return found


def shares_of(text: str | None, placement: str, policies: Sequence[str]) -> dict[str, str]:
    """Return the kinds of sharing of ``--share`` with their placements; none if the option is absent."""
    if text is None:
        return {}
    from traincast.scheduling.sharing.contention import placement_of

    names = listed(text, "--share")
    if len(names) > 1 and len(policies) > 1:
        raise RequestError("--share and --compare both list several: compare policies, or ways to share nodes")
    return {name: str(placement_of(name, placement)) for name in names}


def check_names(policies: Sequence[str], placement: str) -> None:
    """Refuse an unknown policy or placement before anything runs."""
    from traincast.scheduling import load_placement, load_policy
    from traincast.scheduling.schedule import blaming

    with blaming(*policies, placement, failures=False):
        for name in policies:
            load_policy(name)
        load_placement(placement)


def cluster_of(
    nodes: str | None,
    gpus_per_node: int | None,
    cluster_file: str | None,
    gpu_type: str,
    nodes_per_rack: int,
    uplink: str | None,
    quota: tuple[str, ...],
) -> tuple[SharedCluster, tuple[str, ...]]:
    """Return the cluster that ``--nodes`` or ``--cluster-file`` describes, and notes on how it was read."""
    from traincast.scheduling.schedule import load_shared_cluster

    if (nodes is None) == (cluster_file is None):
        raise RequestError(
            "describe the cluster in exactly one way: --nodes 5 --gpus-per-node 8, --nodes 5x8, or --cluster-file FILE"
        )
    quotas = {name: number_of(value, f"--quota {name}") for name, value in _pairs(quota, "--quota", "VC=N").items()}
    return load_shared_cluster(
        Path(cluster_file) if cluster_file is not None else str(nodes),
        gpus_per_node=gpus_per_node,
        gpu_type=gpu_type,
        nodes_per_rack=nodes_per_rack,
        uplink=0.0 if uplink is None else parse_rate(uplink, what="--uplink"),
        quotas=quotas,
    )


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


def number_of(text: str, what: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"{what} is {text!r}: expected a number above 0")
    return value


def failures_of(
    mtbf: str | None, repair: str | None, fixed: bool, shape: str | None, events: str | None
) -> Failures | None:
    """Return the failures that the options describe, or ``None`` if there are none."""
    if mtbf is None and events is None:
        for option, text in (("--repair", repair), ("--weibull-shape", shape), ("--fixed-repair", fixed or None)):
            if text is not None:
                raise RequestError(f"{option} without failures: give --mtbf, such as --mtbf node=30d")
        return None
    from traincast.scheduling import FailureLaw, Failures
    from traincast.scheduling.queue.failures import load_failure_events

    means = _pairs([mtbf], "--mtbf", "KIND=TIME, such as node=30d,device=1y") if mtbf is not None else {}
    repairs = _by_kind(repair if repair is not None else "1h", means, "--repair", "a time, or KIND=TIME")
    shapes = _by_kind(shape if shape is not None else "1", means, "--weibull-shape", "a number, or KIND=NUMBER")
    laws = [
        FailureLaw(
            kind=kind,  # type: ignore[arg-type]  # the law checks it
            mtbf_s=parse_seconds(text, what=f"--mtbf {kind}"),
            repair_s=parse_seconds(repairs.get(kind, "1h"), what=f"--repair {kind}"),
            shape=number_of(shapes.get(kind, "1"), f"--weibull-shape {kind}"),
            repair_is_fixed=fixed,
        )
        for kind, text in means.items()
    ]
    return Failures(laws=tuple(laws), events=load_failure_events(events) if events is not None else ())


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


def costs_of(interval: str | None, checkpoint: str | None, restore: str | None, restart: str | None) -> Costs:
    """Return the costs of checkpoints and restarts; a cost whose option is omitted is 0."""
    from traincast.scheduling import Costs

    saving, saving_per_gpu = _by_size(checkpoint, "--checkpoint-cost")
    loading, loading_per_gpu = _by_size(restore, "--restore-cost")
    return Costs(
        checkpoint_s=saving,
        checkpoint_s_per_gpu=saving_per_gpu,
        restore_s=loading,
        restore_s_per_gpu=loading_per_gpu,
        restart_s=0.0 if restart is None else parse_seconds(restart, what="--restart-cost"),
        interval_s=0.0 if interval is None else parse_seconds(interval, what="--checkpoint-interval", zero=False),
    )


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
