"""Pages of sampled runs: a monitored command, and a run of the testbed with its forecast over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.estimate.resource_use import RESOURCES
from traincast.pages import page_text
from traincast.resources.bursts import resampled
from traincast.resources.comparing import ResourceComparison
from traincast.resources.sampled import MonitoredUse

Floats = npt.NDArray[np.float64]

_POINTS: Final = 1500
"""Points of a curve in a page."""
_DIGITS: Final = 5


def monitored_page(used: MonitoredUse, columns: Mapping[str, npt.ArrayLike], about: Mapping[str, Any]) -> str:
    """Return the page of a monitored command; ``columns`` are the readings of its sampler."""
    seen = used.curves.of_node_of(0)
    curves = {name: _thinned(seen[name]) for name in used.uses}
    times = np.asarray(columns["time_s"])
    if used.peaks and int(about["devices"]):  # beside the devices, what their hosts do
        curves["processor"] = _thinned(
            resampled(times, np.asarray(columns["processor_s"]), period_s=used.curves.period_s)
        )
    held = np.interp(np.linspace(times[0], times[-1], _POINTS), times, np.asarray(columns["resident_bytes"]))
    data = {
        "about": dict(about),
        "seconds": float(times[-1] - times[0]),
        "hz": 1.0 / used.curves.period_s,
        "curves": [{"name": name, "measured": values} for name, values in curves.items()],
        "held": {"peak": float(max(1.0, held.max())), "values": np.round(held / max(1.0, held.max()), 4).tolist()},
        "uses": used.to_dict(),
    }
    return page_text("sampled", data)


def compared_page(found: ResourceComparison, about: Mapping[str, Any]) -> str:
    """Return the page of a run with its forecast: one mean step of the run, and the forecast step over it."""
    step = found.step
    assert step is not None, "a page needs curves"
    data = {
        "about": dict(about),
        "seconds": float(step.edges_s[-1]),
        "hz": found.hz,
        "curves": [
            {
                "name": name,
                "measured": _rounded(step.measured[name]) if name in step.measured else None,
                "predicted": _rounded(step.predicted[name]) if name in step.predicted else None,
                "correlation": step.correlation(name),
            }
            for name in RESOURCES
        ],
        "comparison": found.to_dict(),
    }
    return page_text("sampled", data)


def _thinned(values: Floats) -> list[float]:
    """Thin a curve out to at most as many points as a page shows: means of equal parts."""
    parts = np.array_split(values, min(len(values), _POINTS))
    return _rounded(np.array([part.mean() for part in parts]))


def _rounded(values: Floats) -> list[float]:
    rounded: list[float] = np.round(values, _DIGITS).tolist()
    return rounded
