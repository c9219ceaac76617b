"""Refuses a bundle that the user named if it covers nothing of the forecast."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from traincast.cluster import Cluster
from traincast.errors import RequestError
from traincast.estimate.bundle import Bundle
from traincast.estimate.collectives.features import KINDS, Route, messages, route_of
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.estimate.learned import WORD, LearnedCostModel
from traincast.estimate.operators.cells import ANY
from traincast.estimate.operators.features import family_of
from traincast.estimate.protocol import CostModel
from traincast.graph import Operator
from traincast.work import Collective, Transfer, Work

_MOST: Final = 3
"""The most devices or routes that a message lists."""


def check_used(
    model: CostModel | None, used: Collection[str], works: Sequence[Work], clusters: Iterable[Cluster]
) -> None:
    """Raise ``RequestError`` if the user named a bundle that is not in ``used``; ``works`` were to be estimated."""
    if not isinstance(model, LearnedCostModel):
        return
    places = list(clusters)
    for path in model.given:
        if str(path) not in used:
            raise RequestError(f"bundle {path} is not used: {_why(model, path, works, places)}")


def check_possible(model: CostModel | None, clusters: Sequence[Cluster]) -> None:
    """Raise ``RequestError`` if the user named a bundle that cannot cover anything on ``clusters``.

    Called before any long work. A bundle must know one of the devices, or a route that a group of ranks can take.
    """
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
            needs = {route: None for cluster in clusters for kind in cluster.kinds() for route in _possible(kind)}
            possible = any(curves.reaches(route) for route in needs)
            covers = _collectives_of(curves)
        if not possible:
            words = [device.name for device in devices] if bundle is not None else [_where(route) for route in needs]
            raise RequestError(f"bundle {path} is not used: {_said(covers, words)}")


def _possible(cluster: Cluster) -> list[Route]:
    """Routes of groups of 2, 4, … ranks in a node, on one node and on all nodes."""
    each = [n for n in range(1, cluster.devices_per_node + 1) if n & (n - 1) == 0 or n == cluster.devices_per_node]
    groups = [(n, nodes) for nodes in {1, cluster.num_nodes} for n in each if n * nodes > 1]
    return [route_of(cluster, ranks=n * nodes, nodes=nodes) for n, nodes in groups]


def unused_warnings(model: CostModel | None, used: Collection[str]) -> tuple[str, ...]:
    """Warnings about bundles of collectives that the best strategies of a search do not use."""
    if not isinstance(model, LearnedCostModel):
        return ()
    left = [m.path for m in model.collectives if m.path in model.given and str(m.path) not in used]
    return tuple(f"bundle {path}: the best strategies send nothing that it covers" for path in left)


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


_BEHIND: Final = "a bundle given before it covers the same part of this forecast; leave it out"


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
    if curves.adapted is not None:
        return [f"collectives {link}" for link in sorted(curves.adapted.links or ())]
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
    return f"{', '.join(dict.fromkeys(kinds))} {_where(route)}"


def _where(route: Route) -> str:
    if route.crosses:
        where = f"between nodes over {route.network} at {route.nic_bandwidth / 1e9:.3g} GB/s"
    else:
        rate = f" at {route.intra_bandwidth / 1e9:.3g} GB/s" if route.intra_bandwidth else ""
        where = f"inside a node ({route.inside}{rate})"
    return f"{where} on {route.device}"
