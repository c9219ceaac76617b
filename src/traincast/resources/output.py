"""Curves as a table, and as the data of a page."""

from __future__ import annotations

import csv
import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.resources.curves import Curves
from traincast.resources.forecasting import ResourceForecast

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
