"""Advice that a forecast gives: settings of the same strategy that shorten the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.report.report import Report
from traincast.strategy import Request
from traincast.strategy.mesh import Mesh
from traincast.strategy.uneven import balanced_shares
from traincast.units import format_seconds

_WORTH: Final = 0.99
"""Uneven shares are proposed if they shorten the step at least to this share."""


def advice_of(
    request: Request,
    mesh: Mesh,
    step_s: float,
    computing_s: npt.NDArray[np.float64],
    forecast: Callable[[Request], Report],
) -> tuple[str, ...]:
    """Return a line with shares of the batch that shorten the step, if replicas differ in speed.

    A step takes ``step_s``. ``computing_s`` has the seconds that each rank computes. ``forecast``
    returns the report of a request with other shares.
    """
    strategy = request.strategy
    if not request.cluster.parts:
        return ()
    if strategy.dp == 1 or strategy.ep > 1 or strategy.shares:
        return ()
    shares = balanced_shares(strategy, mesh, request.global_batch, computing_s)
    if not shares:
        return ()
    balanced = forecast(replace(request, strategy=replace(strategy, shares=shares)))
    if not balanced.fits or balanced.step_s > _WORTH * step_s:
        return ()
    text, now, would = ":".join(map(str, shares)), *map(format_seconds, (step_s, balanced.step_s))
    return (f"replicas differ in speed: with shares={text}, a step would take {would} instead of {now}",)
