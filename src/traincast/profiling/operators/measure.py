"""Measure operators: each distinct operator alone, and those of a model while the model runs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from traincast.errors import CaptureError, RequestError
from traincast.estimate.events.keys import operator_key
from traincast.graph import Operator, Scalar, zoo
from traincast.graph.capture.capture import require_torch
from traincast.graph.capture.own_modules import takes_seq
from traincast.graph.load import load_model
from traincast.imports import import_callable
from traincast.profiling.machine.device import check_device, device_name, framework_name, free_memory
from traincast.profiling.operators.ask import OperatorRequest
from traincast.profiling.operators.opset import is_operator_set, load_operator_set, operator_set
from traincast.profiling.output import Profile, ProfileOutput, Progress, Unmeasured
from traincast.profiling.rows import Row, canonical, operator_from_row, row_of
from traincast.profiling.timing import SLOW_RATE, clock_of, measure
from traincast.strategy import load_precision
from traincast.units import format_bytes, format_seconds

ALONE: Final = "alone"
IN_MODEL: Final = "model"
_SPARE: Final = 0.7
_SECONDS_PER_OPERATOR: Final = 10.0


def request_sources(text: str) -> tuple[tuple[str, ...], tuple[Path, ...], bool]:
    """Parse a list of models, files, ``zoo`` and ``opset``; return (models, files, whether ``opset`` is in it).

    A family with dimensions contains commas: an item with ``=`` and without ``:`` belongs to the item before it.
    """
    items: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        if items and "=" in item and ":" not in item:
            items[-1] += f",{item}"
        else:
            items.append(item)
    if not items:
        raise RequestError(f"--from is {text!r}: expected models of the zoo, `zoo` or `opset`")
    models: list[str] = []
    files: list[Path] = []
    for item in items:
        if item == "zoo":
            models += zoo.names()
        elif item.endswith(".json") and is_operator_set(Path(item)):
            files.append(Path(item))
        elif item != "opset":
            of_zoo = item.partition(":")[0] in zoo.FAMILIES or (":" not in item and not item.endswith(".json"))
            models.append(zoo.card(item).name if of_zoo else item)
    return tuple(dict.fromkeys(models)), tuple(files), "opset" in items


def distinct_operators(operators: Iterable[Operator]) -> dict[str, Operator]:
    """Operators by key; of several with one key, the first."""
    found: dict[str, Operator] = {}
    for operator in operators:
        found.setdefault(operator_key(operator), canonical(operator))
    return found


def in_turn(operators: dict[str, Operator]) -> dict[str, Operator]:
    """The same operators, taking one of each kind in turn, so that a limit leaves out no kind."""
    by_kind: defaultdict[str, list[tuple[str, Operator]]] = defaultdict(list)
    for key, operator in operators.items():
        by_kind[operator.kind.value].append((key, operator))
    queues = [list(reversed(items)) for items in by_kind.values()]
    ordered: dict[str, Operator] = {}
    while queues:
        for queue in queues:
            key, operator = queue.pop()
            ordered[key] = operator
        queues = [queue for queue in queues if queue]
    return ordered


def operators_of(request: OperatorRequest) -> tuple[dict[str, Operator], dict[str, str], list[Unmeasured]]:
    """The distinct operators of a request by key, the model that each was first found in, and untraceable models."""
    precision = load_precision(request.precision)
    found: dict[str, Operator] = {}
    home: dict[str, str] = {}
    failures: list[Unmeasured] = []
    sources: list[tuple[str, Iterable[Operator]]] = []
    for model in request.models:
        try:
            graph = load_model(model, seq=request.seq if _takes_seq(model) else None, use_cache=True)
        except CaptureError as error:
            failures.append(Unmeasured(what=model, reason=str(error)))
            continue
        sources.append((model, (precision.apply(op.with_batch(request.batch)) for op in graph.operators)))
    if request.opset:
        chosen = operator_set(
            samples=request.layers_per_type, seed=request.seed, batch=request.batch, size=request.size
        )
        sources.append(("", (precision.apply(op) for op in chosen)))
    sources += [("", map(precision.apply, load_operator_set(path))) for path in request.files]
    for model, operators in sources:
        for key, operator in distinct_operators(operators).items():
            if key not in found:
                found[key] = operator
                home[key] = model
    return in_turn(found), home, failures


def _takes_seq(model: str) -> bool:
    """Whether a model has a sequence length."""
    import importlib
    import inspect

    if model.endswith(".json"):
        return True
    if ":" in model and model.partition(":")[0] not in zoo.FAMILIES:
        return takes_seq(import_callable(model, "model", role="factory"))
    module, _, function = zoo.FAMILIES[zoo.card(model).family].partition(":")
    return "seq" in inspect.signature(getattr(importlib.import_module(module), function)).parameters


def profile_operators(request: OperatorRequest, output: Path, *, progress: Progress | None = None) -> Profile:
    """Measure what ``request`` asks for into the table ``output``; resume an earlier run that was stopped."""
    require_torch()
    check_device(request.device)
    import torch

    began = time.monotonic()
    found = operators_of(request)  # before the journal is created: a model that cannot be read leaves no file
    session = _Session(request, output, progress or (lambda done, total, what: None), began)
    threads = torch.get_num_threads()
    torch.set_num_threads(request.threads)
    try:
        with session.table:
            return session.run(*found)
    finally:
        torch.set_num_threads(threads)


def operator_identity(row: Row) -> str:
    """A text that is equal for rows of the same measurement."""
    key = operator_key(operator_from_row(row))
    model = row["model"] if row["context"] == IN_MODEL else ""
    return "|".join((row["context"], row["device"], row["framework"], row["source"], model, key))


class _Session:
    """One run of the profiler: the request, the table that it writes, and when it must end."""

    def __init__(self, request: OperatorRequest, output: Path, progress: Progress, began: float) -> None:
        self.request = request
        self.device = device_name(request.device, threads=request.threads)
        self.framework = framework_name(request.device)
        self.table = ProfileOutput(output, table="operators", identity=operator_identity)
        self.kept = len(self.table.rows)
        self.failures: list[Unmeasured] = []
        self._progress = progress
        self._end = None if request.time_limit_s is None else began + request.time_limit_s

    def run(self, operators: dict[str, Operator], home: dict[str, str], untraced: list[Unmeasured]) -> Profile:
        """Measure the operators alone, then in their models, and write the table."""
        request = self.request
        self.failures += untraced
        left = self._alone(operators, home) if request.alone else 0
        if request.in_context:
            left += self._in_models()
        rows = self.table.rows
        self.table.finish()
        return Profile(
            output=self.table.output,
            rows=tuple(rows),
            failures=tuple(self.failures),
            measured=len(rows) - self.kept,
            kept=self.kept,
            left=left,
            warnings=tuple(self.table.warnings),
        )

    def _identity(self, context: str, model: str, key: str) -> str:
        return "|".join((context, self.device, self.framework, self.request.source, model, key))

    @property
    def _remaining(self) -> float:
        return float("inf") if self._end is None else self._end - time.monotonic()

    def _alone(self, operators: dict[str, Operator], home: dict[str, str]) -> int:
        """Measure each operator alone; return how many are left for the next run."""
        wanted = list(operators.items())[: self.request.limit]
        total = len(wanted)
        reasons: defaultdict[tuple[str, str], int] = defaultdict(int)
        left = len(operators) - total
        for done, (key, operator) in enumerate(wanted):
            self._progress(done, total, operator.name)
            identity = self._identity(ALONE, "", key)
            if not self.table.has(identity):
                if self._remaining <= 0:
                    left += 1
                    continue
                self._one_alone(operator, identity, home[key])
            reason = self.table.reason(identity)
            if reason is not None:
                reasons[operator.name, reason] += 1
        self._progress(total, total, "")
        self.failures += [Unmeasured(what=w, reason=r, count=n) for (w, r), n in reasons.items()]
        return left

    def _one_alone(self, operator: Operator, identity: str, model: str) -> None:
        from traincast.profiling.operators.executors import executor_of, memory_of
        from traincast.profiling.operators.tensors import CannotRunError

        need, free = memory_of(operator), free_memory(self.request.device) * _SPARE
        if need > free:
            self.table.fail(identity, f"needs {format_bytes(need)} of memory, but {format_bytes(free)} are free")
            return
        slowest = operator.flops / SLOW_RATE
        if (
            self.request.time_limit_s is not None
            and self.request.device == "cpu"
            and slowest > 10 * self.request.time_limit_s
        ):
            self.table.fail(identity, f"may take {format_seconds(slowest)}, far beyond the time limit")
            return
        try:
            call = executor_of(operator, device=self.request.device)
            timing = measure(
                call,
                clock=clock_of(self.request.device),
                repeats=self.request.repeats,
                seconds=min(_SECONDS_PER_OPERATOR, max(0.1, self._remaining)),
            )
        except CannotRunError as error:
            self.table.fail(identity, str(error))
            return
        except (RuntimeError, MemoryError) as error:
            self.table.fail(identity, " ".join(str(error).split())[:160])
            return
        self.table.add(
            row_of(
                operator,
                timing=timing,
                source=self.request.source,
                device=self.device,
                framework=self.framework,
                context=ALONE,
                model=model,
            )
        )

    def _in_models(self) -> int:
        """Run each model and keep the times of its operators; return how many models are left for the next run."""
        from traincast.profiling.operators.in_model import CannotRunModelError, run_model

        left = 0
        request = self.request
        for done, model in enumerate(request.models):
            mark = "|".join(
                (
                    self.device,
                    self.framework,
                    model,
                    f"{request.batch},{request.seq},{request.precision},{request.timed_steps}",
                )
            )
            self._progress(done, len(request.models), model)
            if self.table.marked(mark) or self._is_in_output(model):
                continue
            if self._remaining <= 0:
                left += 1
                continue
            try:
                timed = run_model(
                    model,
                    batch=request.batch,
                    seq=request.seq if _takes_seq(model) else None,
                    precision=request.precision,
                    device=request.device,
                    steps=request.timed_steps,
                    memory=free_memory(request.device) * _SPARE,
                    seconds=self._remaining,
                )
            except (CannotRunModelError, CaptureError) as error:
                self.failures.append(Unmeasured(what=f"{model} (whole model)", reason=str(error)))
                continue
            for operator, timing in timed:
                self.table.add(
                    row_of(
                        operator,
                        timing=timing,
                        source=request.source,
                        device=self.device,
                        framework=self.framework,
                        context=IN_MODEL,
                        model=self._model_name(model),
                    )
                )
            self.table.mark(mark)
        self._progress(len(request.models), len(request.models), "")
        return left

    def _model_name(self, model: str) -> str:
        """The model's name with batch, precision and sequence length: each combination is a measurement of its own."""
        request = self.request
        asked: dict[str, Scalar] = {"batch": request.batch, "precision": request.precision}
        if request.seq is not None:
            asked["seq"] = request.seq
        return f"{model} " + " ".join(f"{name}={value}" for name, value in asked.items())

    def _is_in_output(self, model: str) -> bool:
        name = self._model_name(model)
        here = (IN_MODEL, name, self.device, self.framework, self.request.source)
        columns = ("context", "model", "device", "framework", "source")
        finished = self.table.rows[: self.table.found]
        return any(tuple(row[c] for c in columns) == here for row in finished)


def summary_of(rows: Sequence[Row]) -> list[Row]:
    """For each context and kind: rows, suspect rows, median dispersion, and total time in seconds."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["context"], row["op"]].append(row)
    return [
        {
            "context": context,
            "op": op,
            "n": len(group),
            "suspect": sum(bool(row["suspect"]) for row in group),
            "median_dispersion": sorted(row["dispersion"] for row in group)[len(group) // 2],
            "total_s": sum(row["time_us"] for row in group) * 1e-6,
        }
        for (context, op), group in sorted(groups.items())
    ]
