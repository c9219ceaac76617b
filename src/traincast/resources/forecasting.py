"""What a forecast step draws from its machines: curves of use, and the twelve figures with their intervals.

Curves are also written as a table and as the data of a page.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster.hardware import PROCESSOR
from traincast.estimate.resource_use import FIGURES, RESOURCES, ResourceUse
from traincast.forecast import Forecast
from traincast.resources.ask import HZ
from traincast.resources.curves import CURVES, Curves, curves_of, uses_of
from traincast.simulate import Timeline
from traincast.strategy import Request
from traincast.strategy.memory.timeline import memory_timeline

SPREAD: Final = {
    "compute": {"burst_amount": 0.02, "burst_s": 0.0, "idle_s": 0.0},
    "memory": {"burst_amount": 0.0, "burst_s": 0.14, "idle_s": 0.14},
    "receive": {"burst_amount": 0.07, "burst_s": 0.03, "idle_s": 0.03},
    "send": {"burst_amount": 0.07, "burst_s": 0.03, "idle_s": 0.03},
}
"""How much sampling adds to the ends of an interval, as a logarithm: nine of ten figures of measured runs then lie in
theirs. Small changes divide the many short bursts of memory differently."""
_HOST_MESSAGES: Final = "gloo"
"""The framework whose messages are moved by hosts, not by kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceForecast:
    """The use of each resource in a forecast step, as a monitor on the node of the first rank would see it.

    ``low`` and ``high`` bound each figure: they are the least and the greatest of the expected step and of the steps
    in which every work takes the low or the high end of its interval, widened by :data:`SPREAD` if the use is sampled.
    ``ends`` are the uses of those two steps.
    """

    uses: dict[str, ResourceUse] = field(hash=False)
    low: dict[str, ResourceUse] = field(hash=False)
    high: dict[str, ResourceUse] = field(hash=False)
    ends: tuple[dict[str, ResourceUse], dict[str, ResourceUse]] = field(hash=False)
    curves: Curves
    hz: float | None

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for JSON."""
        return uses_as_dict(self.uses, low=self.low, high=self.high)


def uses_as_dict(
    uses: Mapping[str, ResourceUse], *, low: Mapping[str, ResourceUse], high: Mapping[str, ResourceUse]
) -> dict[str, Any]:
    """Return the figures of each resource, with the ends of their intervals, as plain values for JSON."""
    return {
        name: {
            **asdict(use),
            "low": {figure: low[name].figure(figure) for figure in FIGURES},
            "high": {figure: high[name].figure(figure) for figure in FIGURES},
        }
        for name, use in uses.items()
    }


def resources_of(forecast: Forecast, *, hz: float | None = HZ) -> ResourceForecast:
    """Return what ``forecast`` draws over time, sampled ``hz`` times per second, or finely if ``hz`` is None."""
    report, expected = forecast.report, forecast.detailed()
    if forecast.servers is not None or report.waits:
        low = high = expected  # stretched to the ends of the interval
    else:
        low, high = forecast.detailed(bound="low"), forecast.detailed(bound="high")
    curves = _curves(forecast, expected, report.step_s, hz)
    ends = [_curves(forecast, line, s, hz, RESOURCES) for line, s in ((low, report.low_s), (high, report.high_s))]
    found = [uses_of(each) for each in (curves, *ends)]
    return ResourceForecast(
        uses=found[0],
        low={name: _end(min, name, found, sampled=hz is not None) for name in RESOURCES},
        high={name: _end(max, name, found, sampled=hz is not None) for name in RESOURCES},
        ends=(found[1], found[2]),
        curves=curves,
        hz=hz,
    )


def forecast_curves(forecast: Forecast, *, hz: float | None = HZ) -> Curves:
    """Return the curves of the expected step of ``forecast``."""
    return _curves(forecast, forecast.detailed(), forecast.report.step_s, hz)


def _curves(
    forecast: Forecast, timeline: Timeline, step_s: float, hz: float | None, names: Sequence[str] = CURVES
) -> Curves:
    request = forecast.request
    return curves_of(
        timeline,
        request.cluster,
        hz=hz,
        step_s=step_s,
        on_device=moves_on_device(request),
        servers=forecast.servers.setup if forecast.servers else None,
        held=_held(forecast) if "memory_held" in names else (),
        names=names,
    )


def moves_on_device(request: Request) -> bool:
    """Return whether kernels of the device move messages, not hosts."""
    return request.cluster.device.architecture != PROCESSOR and _HOST_MESSAGES not in request.runtime.frameworks


def _held(forecast: Forecast) -> list[npt.NDArray[np.float64]]:
    """The bytes that a rank of each stage holds in each slot of its schedule."""
    lowered = forecast.lowered
    prepared, strategy = lowered.prepared, lowered.request.strategy
    return [
        np.array(
            [
                moment.total
                for moment in memory_timeline(
                    prepared.held(stage), prepared.slots.order[stage], memory=memory, strategy=strategy
                )
            ]
        )
        for stage, memory in enumerate(lowered.memory)
    ]


def _end(choose: Any, name: str, uses: Sequence[Mapping[str, ResourceUse]], *, sampled: bool) -> ResourceUse:
    """The least or greatest value of each figure of a resource over all ``uses``, widened by the spread of sampling.

    The first of ``uses`` is the expected step. Its pattern is taken, and a figure that it refuses is ``None``. A figure
    that another one refuses is chosen from the rest.
    """
    expected = uses[0][name]
    found: dict[str, float | None] = {}
    for figure in FIGURES:
        known = [value for each in uses if (value := each[name].figure(figure)) is not None]
        spread = SPREAD[name][figure] if sampled and (figure == "burst_amount" or expected.pattern == "bursts") else 0.0
        wider = float(np.exp(spread if choose is max else -spread))
        found[figure] = None if figure in expected.refused else float(choose(known)) * wider
    if found["burst_amount"] is not None:
        found["burst_amount"] = min(found["burst_amount"], 1.0)
    return ResourceUse(**found, pattern=expected.pattern, refused=expected.refused)


Floats = npt.NDArray[np.float64]

_DIGITS: Final = 6
_MOST_SHOWN: Final = 16
"""Most ranks and most nodes whose curves a page has."""
_POINTS: Final = 500
"""Points of a curve in a page."""


def curves_csv(curves: Curves) -> str:
    """Return curves as CSV: one line per sample of each rank, server and node.

    Columns are ``scope`` (rank, server or node), its ``number``, ``time_s`` at which the sampling period ends, and the
    curves by name.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = list(curves.values)
    table.writerow(["scope", "number", "time_s", *names])
    nodes = curves.of_nodes()
    for scope, numbers, values in (
        *((*curves.scope_of(row), {name: value[row] for name, value in curves.values.items()}) for row in curves.rows),
        *(("node", node, {name: value[node] for name, value in nodes.items()}) for node in range(len(curves.on_node))),
    ):
        columns = np.stack([values[name] for name in names], axis=1)
        for sample, levels in enumerate(columns.tolist(), start=1):
            time_s = round(sample * curves.period_s, 9)
            table.writerow([scope, numbers, time_s, *(round(level, _DIGITS) for level in levels)])
    return text.getvalue()


def page_data(forecast: ResourceForecast, exact: Curves) -> dict[str, Any]:
    """Return the figures of ``forecast`` and its ``exact`` curves of one step, as a page draws them."""
    nodes, first = exact.of_nodes(), int(exact.ranks[0])
    every = max(1, len(next(iter(exact.values.values()))[0]) // _POINTS)

    def drawn(name: str, values: dict[str, Floats]) -> dict[str, Any]:
        points = {key: v[: len(v) // every * every].reshape(-1, every).mean(axis=1) for key, v in values.items()}
        return {"name": name, "curves": {key: np.round(v, 4).tolist() for key, v in points.items()}}

    rows = [drawn(f"rank {first}, with the network of its node", exact.of_node_of(first))]
    rows = rows if exact.network.leaves_node else []
    for row in list(exact.rows)[:_MOST_SHOWN]:
        rows.append(drawn(" ".join(map(str, exact.scope_of(row))), {k: v[row] for k, v in exact.values.items()}))
    for node in range(min(_MOST_SHOWN, len(exact.on_node))):
        rows.append(drawn(f"node {node}", {k: v[node] for k, v in nodes.items()}))
    return {
        "uses": forecast.to_dict(),
        "hz": forecast.hz,
        "step_s": exact.step_s,
        "leaves_node": exact.network.leaves_node,
        "rows": rows,
    }
