"""Which calibration speaks for a measured run, and whether it may have been fitted to that very run."""

from __future__ import annotations

import re
from dataclasses import replace

from traincast.cluster import find_calibrated
from traincast.strategy import Request


def with_calibration(request: Request) -> Request:
    """``request`` with what was learned on a cluster like its own, unless that has been calibrated itself."""
    cluster = request.cluster
    if cluster.calibration is not None:
        return request
    known = find_calibrated(cluster, request.runtime.name)
    return replace(request, cluster=replace(cluster, calibration=known.calibration if known else None))


def calibrated_by(request: Request) -> str:
    """The name of the calibrated cluster whose parameters `with_calibration` uses; "" where there is none."""
    if request.cluster.calibration is not None:
        return request.cluster.name
    known = find_calibrated(request.cluster, request.runtime.name)
    return known.name if known else ""


def may_have_seen(calibrated: str, source: str) -> bool:
    """Whether runs of ``source`` may be among those that a calibrated cluster of the catalog was fitted to.

    Its name ends in that of the source that published them. A row without a source may be any.
    """
    return not source or calibrated.endswith(f"-{re.sub(r'[^a-z0-9]+', '-', source.lower())}")
