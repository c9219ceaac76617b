"""The part ``asks``: forecasts of all families, through ``traincast.predict``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import traincast
from benchmarks.ledger import canonical
from benchmarks.ledger.asks import Ask, all_asks, key_of, small_asks
from benchmarks.ledger.entries import REFUSED, Entry, Part, Scope
from traincast import Forecast, OperatorGraph


def _entries(scope: Scope) -> Iterator[Entry]:
    asks = all_asks(canonical.zoo())
    for family, ask in small_asks(asks) if scope.small else asks:
        yield key_of(family, ask), answer(ask)


def answer(ask: Ask) -> tuple[str, ...]:
    """Return what the program answers: digests and figures, or its refusal."""
    try:
        made = predicted(ask)
        exported = canonical.digest(canonical.export(made, ask["export"])) if "export" in ask else "-"
    except traincast.TraincastError as error:
        return (f"{REFUSED}{error}",)
    report = canonical.plain(made.report)
    words = report.pop("warnings")
    figures = (report[name] for name in ("step_s", "low_s", "high_s", "peak_memory_bytes"))
    return (
        *canonical.request_parts(made.request),
        *canonical.forecast_parts(made),
        canonical.digest_of_json(report),
        canonical.digest_of_json(words, 8),
        exported,
        *(float(figure).hex() for figure in figures),
    )


def predicted(ask: Ask) -> Forecast:
    """Return the forecast of an ask."""
    given: dict[str, Any] = {name: value for name, value in ask.items() if name != "export"}
    model = given.pop("model")
    if "conditions" in given:
        given["conditions"] = traincast.Conditions(**given["conditions"])
    if "job" in given:
        given["job"] = traincast.JobSettings(**given["job"])
    if "cost_model" in given:
        given["cost_model"] = traincast.AnalyticalCostModel() if given["cost_model"] == "analytical" else None
    graph = _graph(model) if ":" in model and "seq" not in ask else model
    return traincast.predict(graph, **given)


@cache
def _graph(model: str) -> OperatorGraph:
    return traincast.capture(model)


PART = Part(
    name="asks",
    columns=(
        "graph", "cluster", "strategy", "runtime", "rest", "plan", "works", "estimates", "timeline", "report", "words",
        "export", "step_s", "low_s", "high_s", "memory",
    ),
    firm=("graph", "cluster", "strategy", "runtime", "rest", "plan", "works", "export"),
    entries=_entries,
)  # fmt: skip
