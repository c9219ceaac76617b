"""Driple's questions: what changes on another GPU, with other numbers of servers and workers, with another batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from traincast.ask import verb
from traincast.cluster import Cluster, load_device
from traincast.cluster.topology import part_of_node
from traincast.errors import RequestError
from traincast.estimate.resource_use import FIGURES, RESOURCES, ResourceUse
from traincast.forecast import Forecast, forecast, predict
from traincast.resources.ask import HZ, WhatIfAsk
from traincast.resources.forecasting import ResourceForecast, resources_of
from traincast.strategy import Request, choose_micro_batch
from traincast.strategy.prepare import for_workers
from traincast.strategy.strategy import says_micro_batch

CHANGE_SPREAD: Final = {
    "compute": {"burst_amount": 0.03, "burst_s": 0.06, "idle_s": 0.1},
    "memory": {"burst_amount": 0.1, "burst_s": 0.33, "idle_s": 0.3},
    "receive": {"burst_amount": 0.1, "burst_s": 0.2, "idle_s": 0.16},
    "send": {"burst_amount": 0.1, "burst_s": 0.2, "idle_s": 0.16},
}
"""How much the sampling of both runs adds to the ends of a change, as a logarithm: nine of ten changes between measured
runs then lie in their range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """What is to be different; a field that is None stays as it is.

    ``gpu`` is the name of another device. ``servers`` and ``workers`` are other numbers of parameter servers and of
    workers; no servers means that workers exchange gradients among themselves. ``global_batch`` is another batch. If
    only the number of workers changes, each keeps its share of the batch.
    """

    gpu: str | None = None
    servers: int | None = None
    workers: int | None = None
    global_batch: int | None = None

    def __post_init__(self) -> None:
        if (self.gpu, self.servers, self.workers, self.global_batch) == (None, None, None, None):
            raise RequestError("nothing changes: give another GPU, other numbers of servers or workers, or a batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A forecast and its changed counterpart, with what each draws; ``changes`` are relative, by resource and figure.

    A figure that was 0 before, or that samples cannot carry on one side, has no relative change: it is None. Durations
    of a resource that is always busy, or always idle, are those of the whole observation. So their change is 0 if the
    resource stays like that, and None otherwise. ``ranges`` are the least and the greatest change if the works of both
    steps take the low, the expected or the high end of their intervals (what a cost model gets wrong, it gets wrong
    before and after), widened by :data:`CHANGE_SPREAD` if use is sampled.
    """

    before: Forecast
    after: Forecast
    drawn_before: ResourceForecast
    drawn_after: ResourceForecast
    changes: dict[str, dict[str, float | None]] = field(hash=False)
    ranges: dict[str, dict[str, tuple[float, float] | None]] = field(hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "before": _side(self.before, self.drawn_before),
            "after": _side(self.after, self.drawn_after),
            "step_change": self.after.report.step_s / self.before.report.step_s - 1.0,
            "changes": self.changes,
            "change_ranges": self.ranges,
        }


@verb(WhatIfAsk)
def whatif_resources(ask: WhatIfAsk) -> WhatIf:
    """Forecast what a model draws as it is, and with another GPU, other servers and workers, or another batch.

    The first arguments describe the step as for :func:`traincast.predict`, those that begin with ``to_`` what changes:
    the name of another device, other numbers of parameter servers (0: all-reduce) and of workers, each of which keeps
    its share of the batch, or another global batch. Both sides are sampled ``hz`` times per second, or as finely as
    they were simulated if it is 0 or None. Unless ``strategy`` states a micro batch, the changed step has the largest
    that fits.
    """
    change = SettingChange(gpu=ask.to_gpu, servers=ask.to_servers, workers=ask.to_workers, global_batch=ask.to_batch)
    keep = isinstance(ask.strategy, str) and says_micro_batch(ask.strategy)
    return what_if(predict(ask), change, keep_micro_batch=keep, hz=ask.hz or None)


def what_if(
    before: Forecast, change: SettingChange, *, keep_micro_batch: bool = False, hz: float | None = HZ
) -> WhatIf:
    """Return what ``change`` does to the twelve figures of a forecast, sampled ``hz`` times per second.

    Unless ``keep_micro_batch``, the changed step has the largest micro batch that fits.
    """
    request = changed_request(before.request, change, keep_micro_batch=keep_micro_batch)
    after = forecast(request, cost_model=before.cost_model, conditions=before.report.conditions)
    drawn = resources_of(before, hz=hz), resources_of(after, hz=hz)
    return WhatIf(
        before=before,
        after=after,
        drawn_before=drawn[0],
        drawn_after=drawn[1],
        changes=_changes(drawn[0].uses, drawn[1].uses),
        ranges=change_ranges(drawn[0], drawn[1]),
    )


def changed_request(request: Request, change: SettingChange, *, keep_micro_batch: bool = False) -> Request:
    """Return ``request`` with ``change``; refuses workers that do not fill nodes, and nodes that are listed singly."""
    cluster, strategy, batch = request.cluster, request.strategy, request.global_batch
    workers = strategy.dp if change.workers is None else change.workers
    servers = strategy.servers if change.servers is None else change.servers
    if workers < 1 or servers < 0:
        raise RequestError(f"{workers} workers, {servers} servers: expected from 1 worker and from 0 servers")
    if cluster.parts and (change.gpu is not None or workers != strategy.dp):
        raise RequestError(f"{cluster.name} lists its nodes one by one: change its file for other GPUs or workers")
    if change.gpu is not None:
        cluster = replace(cluster, device=load_device(change.gpu), calibration=None)
    if workers != strategy.dp:
        if batch % strategy.dp:
            raise RequestError(f"a batch of {batch} does not divide evenly among {strategy.dp} workers; give a batch")
        cluster, batch = _with_workers(cluster, request, workers), batch // strategy.dp * workers
    strategy = replace(strategy, dp=workers, servers=servers)
    if not servers:
        strategy = replace(strategy, server_nodes=0, placement=(), asynchronous=False)
    batch = batch if change.global_batch is None else change.global_batch
    changed = replace(
        request,
        cluster=cluster,
        strategy=strategy,
        global_batch=batch,
        optimizer=request.optimizer or bool(request.strategy.servers),
    )
    if keep_micro_batch:
        return _with_micro_batch(request, changed)
    chosen = choose_micro_batch(for_workers(changed) if servers else changed)
    return replace(changed, strategy=replace(strategy, num_microbatches=chosen.num_microbatches))


def _with_workers(cluster: Cluster, request: Request, workers: int) -> Cluster:
    """The nodes for ``workers`` workers, and those that hold only servers."""
    strategy = request.strategy
    ranks = workers * strategy.num_ranks // strategy.dp
    own = strategy.server_nodes - sum(host.num_nodes for host in cluster.hosts)
    if ranks <= cluster.devices_per_node and cluster.num_nodes - own == 1 and not own:
        return part_of_node(cluster, cluster.device, ranks)
    if ranks % cluster.devices_per_node:
        raise RequestError(
            f"{ranks} ranks do not fill nodes of {cluster.devices_per_node} devices; choose a multiple of "
            f"{cluster.devices_per_node}, or a cluster with other nodes (NAME:NODESxDEVICES)"
        )
    return cluster.with_nodes(ranks // cluster.devices_per_node + own)


def _with_micro_batch(request: Request, changed: Request) -> Request:
    """The request with micro batches as large as before; refuses a batch that is no multiple of them."""
    old, new = request.strategy, changed.strategy
    micro_batch = max(1, request.global_batch // old.dp // old.num_microbatches)
    count, left = divmod(changed.global_batch, new.dp * micro_batch)
    if left or not count:
        raise RequestError(
            f"a batch of {changed.global_batch} among {new.dp} workers is no multiple of the micro batch "
            f"{micro_batch}; leave the micro batch out of the strategy, or choose a multiple"
        )
    return replace(changed, strategy=replace(new, num_microbatches=count))


def _changes(before: Mapping[str, ResourceUse], after: Mapping[str, ResourceUse]) -> dict[str, dict[str, float | None]]:
    return {name: {figure: change_of(before[name], after[name], figure) for figure in FIGURES} for name in RESOURCES}


def change_ranges(
    before: ResourceForecast, after: ResourceForecast
) -> dict[str, dict[str, tuple[float, float] | None]]:
    """Return the ends of each change, as in :class:`WhatIf`; None if one of the three pairs of steps has no change."""
    pairs = zip((before.uses, *before.ends), (after.uses, *after.ends), strict=True)
    found = [_changes(one, other) for one, other in pairs]
    return {name: {figure: _range(name, figure, found, after) for figure in FIGURES} for name in RESOURCES}


def _range(
    name: str, figure: str, found: Sequence[Mapping[str, Mapping[str, float | None]]], after: ResourceForecast
) -> tuple[float, float] | None:
    known = [value for each in found if (value := each[name][figure]) is not None]
    if len(known) < len(found):
        return None
    shown = after.hz is not None and (figure == "burst_amount" or after.uses[name].pattern == "bursts")
    wider = math.exp(CHANGE_SPREAD[name][figure] if shown else 0.0)
    return (1.0 + min(known)) / wider - 1.0, (1.0 + max(known)) * wider - 1.0


def change_of(before: ResourceUse, after: ResourceUse, figure: str) -> float | None:
    """Return the relative change of a figure, as in :class:`WhatIf`."""
    if figure != "burst_amount" and (before.pattern, after.pattern) != ("bursts", "bursts"):
        return 0.0 if before.pattern == after.pattern else None
    return _relative(before.figure(figure), after.figure(figure))


def _relative(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return after / before - 1.0 if before else (0.0 if not after else None)


def _side(made: Forecast, drawn: ResourceForecast) -> dict[str, Any]:
    report = made.report
    return {
        "cluster": report.cluster,
        "strategy": report.strategy,
        "global_batch": report.global_batch,
        "step_s": report.step_s,
        "low_s": report.low_s,
        "high_s": report.high_s,
        "fits": report.fits,
        "resources": drawn.to_dict(),
    }
