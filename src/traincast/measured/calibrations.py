"""Which calibrated cluster of the catalog a forecast of a measured run uses, and whether it was fitted to that run."""

from __future__ import annotations

import re
from dataclasses import replace

from traincast.cluster import find_calibrated
from traincast.strategy import Request
from traincast.strategy.model_kind import kind_of


def with_calibration(request: Request) -> Request:
    """Return ``request`` with the calibration of the cluster most like its own; a calibrated cluster keeps its own."""
    cluster = request.cluster
    if cluster.calibration is not None:
        return request
    known = find_calibrated(cluster, request.runtime.name, models=kind_of(request.graph))
    return replace(request, cluster=replace(cluster, calibration=known.calibration if known else None))


def without_calibration(request: Request) -> Request:
    """Return ``request`` on the same cluster without its calibration."""
    return replace(request, cluster=replace(request.cluster, calibration=None))


def calibrated_by(request: Request) -> str:
    """Return the name of the cluster whose calibration :func:`with_calibration` uses; "" if there is none."""
    if request.cluster.calibration is not None:
        return request.cluster.name
    known = find_calibrated(request.cluster, request.runtime.name, models=kind_of(request.graph))
    return known.name if known else ""


def may_have_seen(calibrated: str, source: str) -> bool:
    """Return whether the calibrated cluster named ``calibrated`` may have been fitted to runs of ``source``.

    The name of a calibrated cluster ends in that of the source that published its runs. A row without a source may be
    from any.
    """
    return not source or calibrated.endswith(f"-{re.sub(r'[^a-z0-9]+', '-', source.lower())}")
