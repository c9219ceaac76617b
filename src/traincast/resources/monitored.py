"""What a monitored command drew: curves and the twelve figures, from the counters of its sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.resources.bursts import RESOURCES, ResourceUse, resampled
from traincast.resources.curves import Curves, uses_of
from traincast.resources.sampled import Counters, observed
from traincast.units import format_bytes

Floats = npt.NDArray[np.float64]

_QUIET: Final = 0.01
"""If interfaces move less than this share of what loopback moves, the command talks over loopback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredUse:
    """The use of each resource that could be read, as shares of ``peaks``: devices or cores, and bytes per second.

    ``counted`` says for every resource what was counted, and against what. ``memory`` is missing if no device tells
    its memory traffic.
    """

    uses: dict[str, ResourceUse] = field(hash=False)
    curves: Curves
    peaks: dict[str, float] = field(hash=False)
    counted: dict[str, str] = field(hash=False)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for JSON; ``None`` for a resource that could not be read."""
        return {name: asdict(self.uses[name]) if name in self.uses else None for name in RESOURCES}


def use_of_command(
    columns: Mapping[str, npt.ArrayLike], *, hz: float, cores: int, link_rate: float | None = None
) -> MonitoredUse:
    """Return the use of a command from the readings of its sampler.

    Compute is the use of devices or, if the command has none, processor time on its ``cores``. Network amounts are
    shares of ``link_rate`` in bytes per second for each of its networks; without it, of the highest rate seen.
    """
    values = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    times = values["time_s"]
    if len(times) < 2 or times[-1] - times[0] < 1.0 / hz:
        raise RequestError(
            f"the command ended within one period of {1.0 / hz:g} s: there is nothing to sample; monitor a longer run, "
            "or give a higher --hz"
        )
    totals, peaks, counted, warnings = _devices(values, cores)
    for name, total, what in _networks(values, warnings):
        totals[name] = total
        networks = max(1.0, float(values["namespaces"].max()))
        if link_rate is not None:
            peaks[name] = link_rate * networks
            counted[name] = f"{what}, of {format_bytes(link_rate)}/s for each of {networks:.0f} networks"
        else:
            peaks[name] = max(1.0, float(resampled(times, total, period_s=1.0 / hz).max()))
            counted[name] = f"{what}, of the highest rate seen, {format_bytes(peaks[name])}/s"
    if link_rate is None:
        warnings.append("the rate of the link is not known: network amounts are shares of the highest rate seen")
    curves = observed([Counters(times_s=times, totals=totals, peaks=peaks)], hz=hz, step_s=float(times[-1] - times[0]))
    uses = uses_of(curves)
    return MonitoredUse(
        uses={name: uses[name] for name in RESOURCES if name in totals},
        curves=curves,
        peaks=peaks,
        counted=counted,
        warnings=tuple(warnings),
    )


def _devices(
    values: Mapping[str, Floats], cores: int
) -> tuple[dict[str, Floats], dict[str, float], dict[str, str], list[str]]:
    """Totals, peaks and names of compute and memory, and warnings."""
    devices = float(values["devices"].max())
    if devices:
        return (
            {"compute": values["device_s"], "memory": values["device_memory_s"]},
            {"compute": devices, "memory": devices},
            {
                "compute": f"time in which devices are busy, of {devices:.0f} devices",
                "memory": f"memory traffic, of the peak of {devices:.0f} devices",
            },
            [],
        )
    return (
        {"compute": values["processor_s"]},
        {"compute": float(cores)},
        {"compute": f"processor time, of {cores} cores"},
        ["memory traffic was not read: the command uses no GPU, and processors do not tell theirs"],
    )


def _networks(values: Mapping[str, Floats], warnings: list[str]) -> list[tuple[str, Floats, str]]:
    """The counters of both directions, and what they count."""
    moved = sum(float(values[name][-1] - values[name][0]) for name in ("received_bytes", "sent_bytes"))
    local = values["loopback_bytes"]
    if local[-1] > local[0] and moved < _QUIET * float(local[-1] - local[0]):
        warnings.append("the command talks over the loopback interface: received and sent bytes are the same")
        return [(name, local, "bytes on loopback") for name in ("receive", "send")]
    return [
        ("receive", values["received_bytes"], "bytes received"),
        ("send", values["sent_bytes"], "bytes sent"),
    ]
