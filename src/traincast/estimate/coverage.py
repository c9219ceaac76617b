"""What bundles that a user named cover of a forecast: a bundle that covers nothing of it is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from traincast.cluster import Cluster
from traincast.errors import RequestError
from traincast.estimate.bundle import Bundle
from traincast.estimate.cells import ANY
from traincast.estimate.collective_features import KINDS, Route, messages
from traincast.estimate.features import family_of
from traincast.estimate.learned import WORD, LearnedCostModel
from traincast.estimate.learned_collectives import CollectiveModel
from traincast.estimate.protocol import CostModel
from traincast.graph import Operator
from traincast.work import Collective, Transfer, Work

_MOST: Final = 3
"""Devices or routes that a message names."""


def check_used(
    model: CostModel | None, used: Collection[str], works: Sequence[Work], clusters: Iterable[Cluster]
) -> None:
    """Refuse a bundle that a user named and that is not among those ``used``; ``works`` is what was to be estimated."""
    if not isinstance(model, LearnedCostModel):
        return
    places = list(clusters)
    for path in model.given:
        if str(path) not in used:
            raise RequestError(f"bundle {path} is not used: {_why(model, path, works, places)}")


def check_possible(model: CostModel | None, clusters: Sequence[Cluster]) -> None:
    """Refuse a bundle that a user named and that knows none of the devices of ``clusters``, before any long work."""
    if not isinstance(model, LearnedCostModel):
        return
    devices = list(dict.fromkeys(kind.device for cluster in clusters for kind in cluster.kinds()))
    for path in model.given:
        bundle = next((b for b in model.bundles if b.path == path), None)
        if bundle is not None:
            known = {entry["device"] for entry in bundle.card["cells"].values()}
            possible = ANY in known or any(bundle.name_of(device) in known for device in devices)
            covers = _operators_of(bundle)
        else:
            curves = next(m for m in model.collectives if m.path == path)
            possible = any(r.architecture == device.architecture for r in curves.routes for device in devices)
            covers = _collectives_of(curves)
        if not possible:
            raise RequestError(f"bundle {path} is not used: {_said(covers, [device.name for device in devices])}")


def _why(model: LearnedCostModel, path: Path, works: Sequence[Work], clusters: Sequence[Cluster]) -> str:
    bundle = next((b for b in model.bundles if b.path == path), None)
    operators = [work for work in works if isinstance(work, Operator)]
    if bundle is not None:
        alone = replace(model, bundles=(bundle,), collectives=())
        if any(alone.knows(operators, cluster).any() for cluster in clusters):
            return _BEHIND
        return _said(_operators_of(bundle), _operators_needed(operators, clusters))
    curves = next(m for m in model.collectives if m.path == path)
    sent = [work for work in works if isinstance(work, Collective | Transfer) and work.nbytes > 0]
    if any(curves.knows(sent, cluster).any() for cluster in clusters):
        return _BEHIND
    return _said(_collectives_of(curves), _collectives_needed(sent, clusters))


_BEHIND: Final = "all that it covers of this forecast is covered by a bundle given before it; leave it out"


def _said(covers: Iterable[str], needs: Iterable[str]) -> str:
    return (
        f"it covers {_listed(covers) or 'nothing'}; the forecast needs {_listed(needs) or 'nothing of that kind'}; "
        "leave the bundle out, or describe what was measured in the cluster's file"
    )


def _listed(texts: Iterable[str]) -> str:
    found = list(dict.fromkeys(texts))
    return " and ".join(found[:_MOST]) + (f" and {len(found) - _MOST} more" if len(found) > _MOST else "")


def _operators_of(bundle: Bundle) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in bundle.card["cells"].values():
        groups.setdefault((entry["device"], entry["dtype"]), []).append(WORD[entry["family"]])
    return [_operators(families, dtype, device) for (device, dtype), families in groups.items()]


def _operators_needed(operators: Sequence[Operator], clusters: Sequence[Cluster]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for op in operators:
        family = family_of(op)
        if family is not None:
            groups.setdefault(op.dtype.value, []).append(WORD[family])
    devices = dict.fromkeys(kind.device.name for cluster in clusters for kind in cluster.kinds())
    return [_operators(families, dtype, device) for device in devices for dtype, families in groups.items()]


def _operators(families: Sequence[str], dtype: str, device: str) -> str:
    where = "devices that were not measured" if device == ANY else device
    return f"{', '.join(dict.fromkeys(families))} in {'any dtype' if dtype == ANY else dtype} on {where}"


def _collectives_of(curves: CollectiveModel) -> list[str]:
    groups: dict[Route, list[str]] = {}
    for route, kind in zip(curves.weights["curve_route"].tolist(), curves.weights["curve_kind"].tolist(), strict=True):
        groups.setdefault(curves.routes[route], []).append(KINDS[kind])
    return [_collectives(kinds, route) for route, kinds in groups.items()]


def _collectives_needed(sent: Sequence[Collective | Transfer], clusters: Sequence[Cluster]) -> list[str]:
    groups: dict[Route, list[str]] = {}
    for cluster in clusters:
        found = messages(sent, cluster)
        for kind, route in zip(found.kind.tolist(), found.route.tolist(), strict=True):
            groups.setdefault(found.routes[route], []).append(KINDS[kind])
    return [_collectives(kinds, route) for route, kinds in groups.items()]


def _collectives(kinds: Sequence[str], route: Route) -> str:
    if route.crosses:
        where = f"between nodes over {route.network} at {route.nic_bandwidth / 1e9:.3g} GB/s"
    else:
        rate = f" at {route.intra_bandwidth / 1e9:.3g} GB/s" if route.intra_bandwidth else ""
        where = f"inside a node ({route.inside}{rate})"
    return f"{', '.join(dict.fromkeys(kinds))} {where} on {route.device}"
