"""The insides of the program as the ledger sees them; the only module of the ledger that a redesign has to adapt.

A value is digested by what it says, not by where it is defined: a dataclass is the set of its leaves, by name. Leaves
of nested dataclasses are joined with those of the outer one; a name that occurs twice is told apart by its path. A leaf
that has its default is left out, so that settings which nobody uses may come and go. Floats and whole numbers that are
equal are the same; enumerations are their values; arrays are their dtype, shape and bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast import Answer, Forecast, OperatorGraph, Request, RequestError, Schedule, Timeline, TraincastError
from traincast.cli.main import main
from traincast.export import export as written_for
from traincast.graph.files import graph_to_dict
from traincast.measured import dp_steps, steps
from traincast.measured.table import completed
from traincast.measured.tuning import rows as finetune
from traincast.tables import RowError, read_rows

RENAMED: Final[dict[str, str]] = {
    "launches.operator": "operator_launches",
    "launches.backward": "backward_launches",
    "launches.collective": "collective_launches",
    "launches.block": "block_launches",
    "launches.microbatch": "microbatch_launches",
    "launches.parameter": "parameter_launches",
    "launches.send": "send_launches",
    "launches.wait": "wait_launches",
    "kernels.measured_with": "kernels",
    "experts.overlap": "overlap_experts",
    "memory.low": "memory_low",
    "memory.high": "memory_high",
}
"""Leaves that have another name than when the ledger was made: the new name, or path, and the name of then."""
FORMER_DEFAULTS: Final[dict[str, object]] = {}
"""Leaves whose default has changed: the name of then, and the default of then."""
LEFT_OUT: Final = frozenset({"habits", "further_tokens", "adapter_dropout"})
"""Leaves that are not digested: habits have been applied when a request is made, and the others tell how rows of
published tables are read, which the requests of such rows show."""

_EXACT: Final = 2**53
_MOST_GRAPHS: Final = 64


def digest(text: str | bytes, length: int = 8) -> str:
    """Return the first hexadecimal digits of the digest of ``text``."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:length]


def digest_of(value: object, length: int = 8) -> str:
    """Return the digest of any value: a dataclass, an array, or a collection of them."""
    return digest(canonical(value), length)


def plain(result: Any) -> Any:
    """Return a result of a public function as the plain values that the command line prints as JSON."""
    return result.to_dict()


def digest_of_json(data: Any, length: int = 16) -> str:
    """Return the digest of plain values as JSON with sorted keys; floats are written exactly."""
    return digest(json.dumps(data, sort_keys=True, default=_number), length)


def _number(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a plain value")


def request_parts(request: Request) -> tuple[str, ...]:
    """Return digests of a request: graph, cluster, strategy, runtime, and all the rest."""
    parts = (request.cluster, request.strategy, request.runtime)
    rest = (request.precision, request.global_batch, request.optimizer)
    return (graph_digest(request.graph), *(digest_of(part) for part in parts), digest_of(rest))


def forecast_parts(forecast: Forecast) -> tuple[str, ...]:
    """Return digests of a forecast: of its plan, its works, their estimates, and its timeline."""
    plan = forecast.lowered.plan
    estimates = forecast.estimates
    numbers = (estimates.seconds, estimates.low, estimates.high, estimates.source)
    columns = {name: value for name, value in _fields(plan) if isinstance(value, np.ndarray)}
    composed = (columns, plan.overlaps, plan.segments, plan.labels)
    return (digest_of(composed), digest_of(plan.works), digest_of(numbers), timeline_digest(forecast.timeline))


def timeline_digest(timeline: Timeline) -> str:
    """Return the digest of when every task begins and ends."""
    return digest_of((timeline.start, timeline.end))


_GRAPHS: dict[int, tuple[OperatorGraph, str]] = {}
"""Digests of the graphs seen last, by identity."""


def graph_digest(graph: OperatorGraph) -> str:
    """Return the digest of a graph as a file stores it."""
    found = _GRAPHS.get(id(graph))
    if found is None:
        if len(_GRAPHS) >= _MOST_GRAPHS:
            del _GRAPHS[next(iter(_GRAPHS))]
        found = _GRAPHS[id(graph)] = graph, digest_of_json(graph_to_dict(graph), 8)
    return found[1]


def canonical(value: object) -> str:
    """Return a text that is equal for values that mean the same."""
    if isinstance(value, enum.Enum):
        return canonical(value.value)
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, int | float | np.integer | np.floating):
        return _written(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}{digest(np.ascontiguousarray(value).tobytes(), 32)}"
    if isinstance(value, OperatorGraph):
        return graph_digest(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{canonical(key)}:{canonical(value[key])}" for key in value)) + "}"
    if isinstance(value, Set):
        return "{" + ",".join(sorted(map(canonical, value))) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(canonical, value)) + "]"
    if dataclasses.is_dataclass(value):
        return "(" + ",".join(f"{name}={text}" for name, text in leaves(value)) + ")"
    raise TypeError(f"the ledger cannot digest a {type(value).__name__}")


def _written(value: float | np.integer[Any] | np.floating[Any]) -> str:
    number = value.item() if isinstance(value, np.generic) else value
    return float(number).hex() if isinstance(number, float) or abs(number) <= _EXACT else str(number)


def leaves(value: object) -> list[tuple[str, str]]:
    """Return the leaves of a dataclass that do not have their default, by name, sorted."""
    found = list(_leaves(value, ""))
    often = Counter(path.rpartition(".")[2] for path, _ in found)
    named = []
    for path, leaf in found:
        name = path.rpartition(".")[2]
        chosen = RENAMED.get(path) or RENAMED.get(name) or (name if often[name] == 1 else path)
        if chosen not in FORMER_DEFAULTS or leaf != FORMER_DEFAULTS[chosen]:
            named.append((chosen, canonical(leaf)))
    return sorted(named)


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    for name, leaf in _fields(value):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, OperatorGraph):
            yield from _leaves(leaf, f"{path}{name}.")
        else:
            yield f"{path}{name}", leaf


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the fields of a dataclass that do not have their default."""
    for item in dataclasses.fields(value):
        leaf = getattr(value, item.name)
        if not item.compare or item.name in LEFT_OUT or (item.name not in FORMER_DEFAULTS and _has_default(item, leaf)):
            continue
        yield item.name, leaf


def _has_default(item: dataclasses.Field[Any], leaf: object) -> bool:
    if item.default_factory is not dataclasses.MISSING:
        return bool(leaf == item.default_factory())
    if item.default is dataclasses.MISSING or isinstance(leaf, np.ndarray):
        return False
    return bool(leaf == item.default)


def zoo() -> list[tuple[str, int]]:
    """Return the name and the parameters of every model of the zoo."""
    return [(entry["name"], entry["parameters"]) for entry in command("models", "--json")]


def command(*words: str) -> Any:
    """Return what a command prints, read as JSON; raise ``RequestError`` with its message if it fails."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(list(words))
        except SystemExit as stop:
            if stop.code:
                raise RequestError(said.getvalue().strip()) from stop
    return json.loads(printed.getvalue())


def export(forecast: Forecast, framework: str) -> str:
    """Return the text that ``framework`` reads, of a forecast's strategy."""
    return written_for(forecast.request, framework)


def requests_of(path: Path, kind: str) -> list[Request | None]:
    """Return the request that each row of a table of measured runs becomes; None if it is refused."""
    readers: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "steps": (steps.NEEDS, lambda row: steps.read_run(0, row)),
        "dp-steps": (dp_steps.NEEDS, lambda row: dp_steps.read_run(0, row)),
        "finetune": (finetune.NEEDS, lambda row: finetune.read_tuning(0, row).run),
    }
    needs, read = readers[kind]
    rows = read_rows(path, needs=needs)
    found: list[Request | None] = []
    for row in completed(rows) if kind == "steps" else rows:
        try:
            found.append(read(row).request)
        except (RowError, TraincastError):
            found.append(None)
    return found


def search_columns(answer: Answer) -> list[tuple[str, str]]:
    """Return the digest of each column of the strategies that a search has evaluated, by name."""
    return sorted((name, digest_of(column, 16)) for name, column in _fields(answer.columns))


def job_outcomes(schedule: Schedule) -> str:
    """Return the digest of the outcome of every job: when it started and ended, and where."""
    return digest_of(list(schedule.fates), 16)


def without(value: Any, folder: str) -> Any:
    """Return plain values without the name of a folder, which differs between machines."""
    if isinstance(value, dict):
        return {name: without(each, folder) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without(each, folder) for each in value]
    return value.replace(folder, "") if isinstance(value, str) else value
