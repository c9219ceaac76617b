"""Which calibrated cluster of the catalog a forecast of a measured run uses, and whether it was fitted to that run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from traincast.cluster import Cluster, find_calibrated
from traincast.strategy import Request
from traincast.strategy.model_kind import model_kind

_SAME_NETWORK: Final = 2.0
"""Ratio of the bandwidths between nodes, per device, up to which a calibration of one tells something of the other."""


def with_calibration(request: Request) -> Request:
    """Return ``request`` with the calibration of the cluster most like its own; a calibrated cluster keeps its own.

    A cluster whose devices have more than twice the bandwidth between nodes, or less than half of it, is not alike.
    """
    cluster = request.cluster
    if cluster.calibration is not None:
        return request
    known = _calibrated(request)
    return replace(request, cluster=replace(cluster, calibration=known.calibration if known else None))


def without_calibration(request: Request) -> Request:
    """Return ``request`` on the same cluster without its calibration."""
    return replace(request, cluster=replace(request.cluster, calibration=None))


def calibrated_by(request: Request) -> str:
    """Return the name of the cluster whose calibration :func:`with_calibration` uses; "" if there is none."""
    if request.cluster.calibration is not None:
        return request.cluster.name
    known = _calibrated(request)
    return known.name if known else ""


def _calibrated(request: Request) -> Cluster | None:
    """Return the calibrated cluster most like that of ``request``; ``None`` if the best one has another network."""
    cluster = request.cluster
    known = find_calibrated(cluster, request.runtime.name, models=model_kind(request.graph))
    if known is None or cluster.num_nodes == 1:
        return known
    own, other = (p.nics_per_node * p.inter_node.bandwidth / p.devices_per_node for p in (cluster, known))
    return known if max(own / other, other / own) <= _SAME_NETWORK else None


def may_have_seen(calibrated: str, source: str) -> bool:
    """Return whether the calibrated cluster named ``calibrated`` may have been fitted to runs of ``source``.

    The name of a calibrated cluster ends in that of the source that published its runs. A row without a source may be
    from any.
    """
    return not source or calibrated.endswith(f"-{re.sub(r'[^a-z0-9]+', '-', source.lower())}")
