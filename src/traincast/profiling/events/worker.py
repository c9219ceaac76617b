"""One rank that measures events: operators in their model, operators one by one, then messages and interference."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from traincast import files
from traincast.collector import without_collector
from traincast.estimate.events.file import CARD, REAL, EventsCard, Row, contents_of, read_card, row_of
from traincast.estimate.events.keys import P2P, operator_key, text_of, update_key
from traincast.estimate.events.model import PURPOSES
from traincast.graph import Operator, OpKind
from traincast.graph.optimizers import optimizer_called
from traincast.journal import Journal
from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.measure import (
    EventsPlan,
    EventsProfile,
    card_of,
    emulated_interference,
    emulated_rows,
    journal_of,
    plan_of,
    row_of_operator,
    rows_of,
)
from traincast.profiling.events.network import STATISTIC, MessageTimer, interference
from traincast.profiling.events.request import Message, NeededWorks, backend_of, needed_works
from traincast.profiling.events.silent_replica import silent_replica
from traincast.profiling.events.steps import StepTimer, TimedSteps, training_step
from traincast.profiling.machine.device import free_memory
from traincast.profiling.operators.executors import executor_of, memory_of
from traincast.profiling.operators.in_model import CannotRunModelError
from traincast.profiling.operators.tensors import CannotRunError, Make

Replayed = tuple[Operator, float, float, float, int]


def replay(operators: Sequence[Operator], *, device: str, steps: int) -> tuple[list[Replayed], list[str]]:
    """Time operators one after the other, in the order of a step: those that no whole model runs here.

    Every operator has tensors of its own, so the caches are as cold as in a step. The time of an operator is from its
    start to the start of the next. Returns each operator with the mean, low and high of its seconds and the number of
    repeats; and what failed.
    """
    calls: list[tuple[Operator, Callable[[], object]]] = []
    failed: dict[str, int] = {}
    room = 0.5 * free_memory(device)
    for operator in operators:
        try:
            room -= memory_of(operator)
            if room < 0.0:
                raise CannotRunError("there is not enough memory for all operators of a step")
            calls.append((operator, _work_of_a_plan(operator, device) or executor_of(operator, device=device)))
        except CannotRunError as error:
            text = f"{operator.name} was not measured: {error}"
            failed[text] = failed.get(text, 0) + 1
    samples = _run(calls, device=device, steps=steps)
    found: list[Replayed] = []
    for (operator, _), times in zip(calls, samples, strict=True):
        mean = sum(times) / len(times)
        found.append((operator, mean, min(times), max(times), len(times)))
    return found, list(failed)


def _work_of_a_plan(operator: Operator, device: str) -> Callable[[], object] | None:
    """Return the call of a work that a plan adds to the operators of a model, or ``None``."""
    if operator.name not in ("accumulate_gradients", "cast_weights"):
        return None
    make = Make(device)
    tensors = [make(spec) for spec in (*operator.outputs, operator.inputs[-1])]
    if operator.name == "cast_weights":
        return lambda: tensors[0].copy_(tensors[1])
    return lambda: tensors[0].add_(tensors[1])


def _run(calls: Sequence[tuple[Operator, Callable[[], object]]], *, device: str, steps: int) -> list[list[float]]:
    """Return the seconds of each call in each step; one more step warms up."""
    samples: list[list[float]] = [[] for _ in calls]
    with torch.no_grad(), without_collector():
        for step in range(steps + 1):
            marks = []
            for _, call in calls:
                marks.append(_now(device))
                call()
            marks.append(_now(device))
            if step:
                for taken, first, last in zip(samples, marks, marks[1:], strict=False):
                    taken.append(last - first)
    return samples


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


_WAIT: Final = timedelta(minutes=30)
_MODEL_S: Final = 20.0
"""Seconds that the steps of one model may take."""
_FAST: Final = 40e9
_SLOW_STEP_S: Final = 2.0
"""A model whose step would take longer at 40 GFLOP/s for each thread is measured with two of its equal layers."""
_MEMORY_SHARE: Final = 0.6
_KIND: Final = "measured events"


class EventsWorker:
    """One process of a launch; rank 0 decides what is measured next, and keeps the rows."""

    def __init__(self, request: EventsAsk, output: Path, *, say: Callable[[str], None]) -> None:
        self.request = request
        self.output = output
        self.say = say
        self.needed = needed_works(request)
        self.backend = backend_of(self.needed.request.cluster, request.compute)
        self.device = "cuda" if self.backend == "nccl" else "cpu"
        self.rows: list[Row] = []
        self.warnings: list[str] = []

    def run(self) -> EventsProfile | None:
        """Measure everything that is missing."""
        torch.set_num_threads(self.request.threads)
        if self.device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(self.backend, timeout=_WAIT)
        start = time.monotonic()
        try:
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self.together = min(self.size, self.needed.num_ranks)
            if self.rank:
                self._measure(self._told(None), None)
                return None
            with Journal(journal_of(self.output), kind=_KIND, key=_KIND, sync=False) as journal:
                self.warnings += journal.warnings
                plan = plan_of(self.request, self.needed, self.output, world=self.size)
                self._measure(self._told(_as_json(plan)), journal)
                rows = _latest([*rows_of(self.output, self.request, self.needed), *self._parts(journal)])
                seconds = time.monotonic() - start
                files.write_folder(self.output, contents_of(self._card(seconds), rows))
                journal.remove()
            after = plan_of(self.request, self.needed, self.output, world=self.size)
            return EventsProfile(
                output=self.output,
                works=plan.works,
                known=plan.known,
                measured=after.known - plan.known,
                seconds=seconds,
                processes=self.size,
                warnings=tuple(self.warnings),
                failures=tuple(sorted({op.name for op in after.operators})),
            )
        finally:
            dist.destroy_process_group()

    def _told(self, plan: dict[str, Any] | None) -> dict[str, Any]:
        """Return the plan of rank 0 on every rank."""
        told: list[Any] = [plan]
        dist.broadcast_object_list(told)
        found: dict[str, Any] = told[0]
        return found

    def _parts(self, journal: Journal) -> list[Row]:
        return [row for part in journal.parts.values() if isinstance(part, list) for row in part]

    def _measure(self, plan: dict[str, Any], journal: Journal | None) -> None:
        def keep(name: str, rows: Sequence[Row]) -> None:
            if journal is not None and rows:
                journal.keep(name, list(rows))

        if plan["operators"]:
            name = f"operators of {self.request.model}, {self.needed.micro_batch} samples, {self.together} processes"
            self.say(name)
            keep(name, self._operators())
        timer = MessageTimer(device=self.device, repeats=self.request.repeats)
        done: dict[str, Row] = {}
        for fields in plan["messages"]:
            message = Message(**fields)
            self.say(f"{message.collective} of {message.nbytes:.0f} bytes among {message.num_ranks} ranks")
            row = timer.time(message)
            if row is not None:
                done[row["key"]] = row
                keep(row["key"], [row])
        if plan["interference"] and plan["messages"]:
            self.say("compute beside collectives")
            keep("interference", self._interference(timer, [Message(**fields) for fields in plan["messages"]], done))

    def _interference(self, timer: MessageTimer, messages: Sequence[Message], done: Mapping[str, Row]) -> list[Row]:
        if self.request.compute != REAL:
            return [emulated_interference()] if any(m.collective != P2P for m in messages) else []
        return interference(timer, messages, done)

    def _operators(self) -> list[Row]:
        if self.request.compute != REAL:
            return emulated_rows(self.needed, processes=self.together, model=self.request.model)
        operators = OperatorEvents(self.request, self.needed, device=self.device, processes=self.together)
        operators.run(steps=self.request.steps, seconds=_MODEL_S)
        rows = operators.rows()
        self.warnings += operators.warnings
        return rows

    def _card(self, seconds: float) -> EventsCard:
        cost = {"seconds": 0.0, "process_seconds": 0.0}
        if (self.output / CARD).exists():
            cost |= read_card(self.output).cost
        cost["seconds"] += seconds
        cost["process_seconds"] += seconds * self.size
        return card_of(
            self.request, self.needed, statistic=f"operators: mean of whole steps; messages: {STATISTIC}", cost=cost
        )


class OperatorEvents:
    """Times the operators of a plan on this processor: in steps of the whole model where it can run, else one by one.

    All ``processes`` measure at the same time, and do the same. ``warnings`` has what could not be measured.
    """

    def __init__(self, request: EventsAsk, needed: NeededWorks, *, device: str, processes: int) -> None:
        self._request, self._needed = request, needed
        self._device, self._processes = device, processes
        self.warnings: list[str] = []
        self._timer = self._prepared()

    def _prepared(self) -> StepTimer | None:
        """The model with its weights, or ``None`` if it cannot run here."""
        try:
            step = training_step(
                self._request.model,
                batch=self._needed.micro_batch,
                seq=self._request.seq,
                precision=self._request.precision,
                device=self._device,
                fold=self._folds(),
            )
        except CannotRunModelError as error:
            self._cannot_run(error)
            return None
        waits = self._processes > 1 and self._needed.replicated
        if waits:
            step.module = silent_replica(step.module)
        slowest = self._slowest if waits else None
        return StepTimer(step, self._needed.operators, slowest=slowest, whole=self._needed.whole)

    def _cannot_run(self, error: CannotRunModelError) -> None:
        self.warnings.append(f"{self._request.model} cannot run here ({error}): its operators are timed one by one")

    def run(self, *, steps: int, seconds: float) -> None:
        """Run up to ``steps`` steps, plain and watched in turns, for about ``seconds``, but at least three."""
        if self._timer is not None:
            self._timer.run(steps=steps, seconds=seconds, ready=self._agree)

    def warm_up(self) -> None:
        """Run the steps that do not count, before the first :meth:`turn`."""
        if self._timer is not None:
            self._timer.warm_up()

    def turn(self) -> None:
        """Run one plain step and one watched."""
        if self._timer is not None:
            self._timer.turn()

    def rows(self) -> list[Row]:
        """Return the rows of all operators; those that no step of the model ran are timed now."""
        rows: list[Row] = []
        rest: Sequence[Operator] = self._needed.operators
        try:
            if self._timer is not None:
                times = self._timer.result()
                rows = self._rows_of_steps(times)
                rest = [op for op in times.missing if op.kind is not OpKind.OPTIMIZER]
        except CannotRunModelError as error:
            self._cannot_run(error)
        if rest:
            replayed, failed = replay(rest, device=self._device, steps=self._request.steps)
            rows += [self._row(operator_key(op), op, (mean, low, high), n) for op, mean, low, high, n in replayed]
            self.warnings += failed
        rows += [
            row_of("launch", text_of(["launch", name]), mean_s=0.0, low_s=0.0, high_s=0.0, repeats=0, collective=name)
            for name in PURPOSES
        ]  # fmt: skip
        return rows

    def _folds(self) -> bool:
        """Whether runs of equal layers must be cut to two, because the whole model needs too much memory or time."""
        flops = self._needed.micro_batch * sum(op.flops * count for op, count in self._needed.graph)
        slow = self._device == "cpu" and flops / (_FAST * self._request.threads) > _SLOW_STEP_S
        return slow or step_memory(self._needed) * self._processes > _MEMORY_SHARE * free_memory(self._device)

    def _agree(self, count: int) -> int:
        """Return the least ``count`` of all ranks; all ranks continue at the same time."""
        told = torch.tensor([count], device=self._device)
        dist.all_reduce(told, op=dist.ReduceOp.MIN)
        return int(told.item())

    def _slowest(self, values: list[float]) -> list[float]:
        """Return the greatest of all ranks, step by step."""
        told = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        found: list[float] = told.tolist()
        return found

    def _rows_of_steps(self, times: TimedSteps) -> list[Row]:
        low, high = times.spread
        count = len(times.plain_s)
        rows = [self._row(key, op, (s, s * low, s * high), count) for key, (op, s) in times.operators.items()]
        for op in times.missing:
            if op.kind is OpKind.OPTIMIZER:
                s = times.update_s
                row = self._row(update_key(op.name), op, (s, s * low, s * high), count)
                rows.append({**row, "nbytes": times.parameter_bytes})
        return rows

    def _row(self, key: str, op: Operator, times: tuple[float, float, float], repeats: int) -> Row:
        return row_of_operator(key, op, times, repeats=repeats, processes=self._processes, model=self._request.model)


def step_memory(needed: NeededWorks) -> float:
    """Return roughly the bytes that a training step of the whole model takes on one processor, with its optimizer."""
    graph, batch = needed.graph, needed.micro_batch
    states = optimizer_called(next((op.name for op, _ in graph if op.kind is OpKind.OPTIMIZER), "")).states
    kept = sum(t.nbytes for op, count in graph for t in op.with_batch(batch).saved * count)
    return 1.2 * (4.0 * graph.num_parameters * (2 + states) + kept)


def _as_json(plan: EventsPlan) -> dict[str, Any]:
    fields = ("collective", "nbytes", "num_ranks", "num_nodes")
    return {
        "operators": len(plan.operators),
        "messages": [{name: getattr(m, name) for name in fields} for m in plan.messages],
        "interference": plan.interference,
    }


def _latest(rows: Sequence[Row]) -> list[Row]:
    """Return ``rows`` in which a later measurement of the same work replaces the earlier one."""
    return list({(row["kind"], row["key"], row["num_ranks"]): row for row in rows}.values())
