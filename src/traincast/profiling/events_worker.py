"""One rank that measures events: operators in their model, operators one by one, then messages and interference."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from traincast import files
from traincast.estimate import learned_cost_model
from traincast.estimate.events import BESIDE_TRAFFIC, PURPOSES
from traincast.estimate.events_file import CARD, REAL, EventsCard, Row, contents_of, read_card, row_of
from traincast.estimate.events_keys import operator_key, text_of, update_key
from traincast.graph import Operator, OpKind
from traincast.journal import Journal
from traincast.profiling.events import (
    EventsPlan,
    EventsProfile,
    journal_of,
    key_of_message,
    plan_of,
    rows_of,
)
from traincast.profiling.events_network import STATISTIC, MessageTimer
from traincast.profiling.events_replay import replay
from traincast.profiling.events_request import EventsRequest, Message, backend_of, needed_works
from traincast.profiling.events_steps import TimedSteps, time_steps, training_step
from traincast.profiling.in_model import STATES, CannotRunModelError
from traincast.profiling.machine import device_name, free_memory
from traincast.profiling.silent_replica import silent_replica

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

    def __init__(self, request: EventsRequest, output: Path, *, say: Callable[[str], None]) -> None:
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
            keep("interference", self._interference(timer, plan["messages"], done))

    def _interference(self, timer: MessageTimer, messages: Sequence[dict[str, Any]], done: dict[str, Row]) -> list[Row]:
        sent = [Message(**fields) for fields in messages if fields["collective"] != "p2p"]
        if not sent:
            return []
        largest = max(sent, key=lambda m: m.nbytes)
        if self.request.compute != REAL:  # compute that sleeps is not slowed down
            zero = row_of("interference", BESIDE_TRAFFIC, mean_s=0.0, low_s=0.0, high_s=0.0, repeats=0)
            return [replace_source(zero, "emulated")]
        alone = Message(
            collective="all_reduce",
            nbytes=largest.nbytes,
            num_ranks=largest.num_ranks,
            num_nodes=largest.num_nodes,
        )
        row = done.get(key_of_message(alone)) if alone in sent else timer.time(alone)  # every rank decides alike
        seconds = timer.agreed(row["mean_s"] if row else 0.0) * timer.size  # only rank 0 knows it
        return timer.beside(alone, seconds)

    def _operators(self) -> list[Row]:
        if self.request.compute != REAL:
            return self._emulated()
        times = self._in_model()
        if times is None:
            rest: Sequence[Operator] = self.needed.operators
            rows = []
        else:
            rows = self._rows_of_steps(times)
            rest = [op for op in times.missing if op.kind is not OpKind.OPTIMIZER]
        if rest:
            replayed, failed = replay(rest, device=self.device, steps=self.request.steps)
            rows += [self._row(operator_key(op), op, (mean, low, high), n) for op, mean, low, high, n in replayed]
            self.warnings += failed
        rows += [
            row_of("launch", text_of(["launch", name]), mean_s=0.0, low_s=0.0, high_s=0.0, repeats=0, collective=name)
            for name in PURPOSES
        ]  # fmt: skip
        return rows

    def _in_model(self) -> TimedSteps | None:
        """Run the model and return the times of its operators, or ``None`` if it cannot run here."""
        try:
            step = training_step(
                self.request.model,
                batch=self.needed.micro_batch,
                seq=self.request.seq,
                precision=self.request.precision,
                device=self.device,
                fold=self._folds(),
            )
            if self.size > 1 and self.needed.replicated:
                step.module = silent_replica(step.module)
            return time_steps(
                step,
                self.needed.operators,
                steps=self.request.steps,
                seconds=_MODEL_S,
                ready=self._agree,
                slowest=self._slowest if self.size > 1 and self.needed.replicated else None,
                whole=self.needed.whole,
            )
        except CannotRunModelError as error:
            self.warnings.append(f"{self.request.model} cannot run here ({error}): its operators are timed one by one")
            return None

    def _folds(self) -> bool:
        """Whether runs of equal layers must be cut to two, because the whole model needs too much memory or time."""
        graph, batch = self.needed.graph, self.needed.micro_batch
        states = STATES.get(next((op.name for op, _ in graph if op.kind is OpKind.OPTIMIZER), ""), 2)
        kept = sum(t.nbytes for op, count in graph for t in op.with_batch(batch).saved * count)
        need = 1.2 * (4.0 * graph.num_parameters * (2 + states) + kept)
        flops = batch * sum(op.flops * count for op, count in graph)
        slow = self.device == "cpu" and flops / (_FAST * self.request.threads) > _SLOW_STEP_S
        return slow or need * self.together > _MEMORY_SHARE * free_memory(self.device)

    def _agree(self, count: int) -> int:
        """Return the least ``count`` of all ranks; all ranks continue at the same time."""
        told = torch.tensor([count], device=self.device)
        dist.all_reduce(told, op=dist.ReduceOp.MIN)
        return int(told.item())

    def _slowest(self, seconds: list[float]) -> list[float]:
        """Return the greatest of all ranks, step by step."""
        told = torch.tensor(seconds, dtype=torch.float64, device=self.device)
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
        """Return the row of an operator; ``times`` are its mean and the ends of its interval."""
        seconds, low, high = times
        return row_of(
            "operator", key, mean_s=seconds, low_s=low, high_s=high, repeats=repeats, num_ranks=self.together,
            dtype=op.dtype.value, model=self.request.model,
        )  # fmt: skip

    def _emulated(self) -> list[Row]:
        """The estimated times of the operators on the device of the cluster."""
        model = replace(learned_cost_model(), framework=self.needed.request.runtime.kernels)
        found = model.estimate(self.needed.operators, self.needed.request.cluster)
        rows: dict[str, Row] = {}
        for op, seconds in zip(self.needed.operators, found.seconds.tolist(), strict=True):
            key = operator_key(op)  # an emulated device takes exactly these times
            rows[key] = replace_source(self._row(key, op, (seconds, seconds, seconds), 0), "emulated")
        return list(rows.values())

    def _card(self, seconds: float) -> EventsCard:
        cost = {"seconds": 0.0, "process_seconds": 0.0}
        if (self.output / CARD).exists():
            cost |= read_card(self.output).cost
        cost["seconds"] += seconds
        cost["process_seconds"] += seconds * self.size
        return EventsCard(
            device=self.needed.request.cluster.device.name,
            machine=device_name(self.device, threads=self.request.threads),
            backend="nccl" if self.backend == "nccl" else "gloo",
            threads=self.request.threads,
            compute=self.request.compute,
            network=self.request.network,
            precision=self.request.precision,
            torch=str(torch.__version__),
            host=platform.node() or "local",
            statistic=f"operators: mean of whole steps; messages: {STATISTIC}",
            link_bandwidth=self.needed.request.cluster.inter_node.bandwidth,
            cost=cost,
        )


def replace_source(row: Row, source: str) -> Row:
    """Return ``row`` with another source."""
    return {**row, "source": source}


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
