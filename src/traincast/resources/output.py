"""Curves as a table, and as the data of a page."""

from __future__ import annotations

import csv
import io
from typing import Any, Final

import numpy as np

from traincast.resources.curves import Curves
from traincast.resources.forecasting import ResourceForecast

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
    nodes = exact.of_nodes()
    every = max(1, len(next(iter(exact.values.values()))[0]) // _POINTS)

    def line(values: Any) -> list[float]:
        return [round(v, 4) for v in values[: len(values) // every * every].reshape(-1, every).mean(axis=1).tolist()]

    first = int(exact.ranks[0])
    seen = {name: line(value) for name, value in exact.of_node_of(first).items()}
    rows = (
        [{"name": f"rank {first}, with the network of its node", "curves": seen}] if exact.network.leaves_node else []
    )
    rows += [
        {
            "name": " ".join(map(str, exact.scope_of(row))),
            "curves": {name: line(value[row]) for name, value in exact.values.items()},
        }
        for row in list(exact.rows)[:_MOST_SHOWN]
    ]
    rows += [
        {"name": f"node {node}", "curves": {name: line(value[node]) for name, value in nodes.items()}}
        for node in range(min(_MOST_SHOWN, len(exact.on_node)))
    ]
    return {
        "uses": forecast.as_dict(),
        "hz": forecast.hz,
        "step_s": exact.step_s,
        "leaves_node": exact.network.leaves_node,
        "rows": rows,
    }
