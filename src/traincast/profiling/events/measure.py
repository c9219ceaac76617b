"""``profile events``: measures the distinct works of one plan, on this machine or on one or two nodes.

:func:`measure_events` lowers the plan, finds what the folder does not have yet, and starts the processes that measure
it. Each of them runs a :class:`traincast.profiling.events.worker.EventsWorker`. Rank 0 keeps every finished part in a
journal beside the folder, so a run that was killed resumes; when all is done, it writes the folder in one step.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from traincast.errors import RequestError
from traincast.estimate import learned_cost_model
from traincast.estimate.events.file import CARD, REAL, EventsCard, Row, read_card, read_rows, row_of
from traincast.estimate.events.keys import P2P, collective_key, operator_key, update_key
from traincast.estimate.events.model import BESIDE_TRAFFIC
from traincast.graph import Operator, OpKind
from traincast.graph.capture.capture import require_torch
from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.request import Message, NeededWorks, backend_of, messages_of, needed_works
from traincast.profiling.launch import run_locally
from traincast.profiling.machine.device import device_name

_MODEL_S: Final = 20.0
"""Seconds that the steps of one model may take."""
_NINETY: Final = 1.645
"""Standard errors from the mean to either end of a 90 % interval."""


class Launcher(Protocol):
    """Starts :mod:`traincast.profiling.events` in ``ranks`` processes that know each other; returns the exit code.

    ``arguments`` are the ask as JSON, and the folder.
    """

    def __call__(self, arguments: Sequence[str], *, ranks: int) -> int:
        """Return 0 if all processes succeeded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPlan:
    """What is left to measure of the works of a plan, and how long it takes.

    ``works`` counts distinct works, ``known`` those that the folder has. ``operators`` and ``messages`` are missing.
    """

    works: int
    known: int
    operators: tuple[Operator, ...]
    messages: tuple[Message, ...]
    interference: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsProfile:
    """The result of ``profile events``: the folder, what was measured now, and the seconds and processes it took."""

    output: Path
    works: int
    known: int
    measured: int
    seconds: float
    processes: int
    warnings: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def _measuring(arguments: Sequence[str], *, ranks: int) -> int:
    """Start the processes that measure on this machine."""
    return run_locally("traincast.profiling.events", arguments, ranks=ranks)


def journal_of(output: Path) -> Path:
    """Return the path of the journal of a folder of events."""
    return output.with_name(output.name + ".journal")


def measure_events(request: EventsAsk, output: str | Path, *, launcher: Launcher | None = None) -> EventsProfile:
    """Measure the works of ``request`` that the folder ``output`` does not have, and write them to it.

    ``launcher`` starts the processes that measure; by default they run on this machine. Under a launcher such as
    ``torchrun``, every rank runs an ``EventsWorker`` instead. Raises ``RequestError`` if the plan cannot be made, or if
    ``output`` holds events of other hardware.
    """
    require_torch()
    folder = Path(output)
    needed = needed_works(request)
    before = plan_of(request, needed, folder)
    start = time.monotonic()
    processes = 2 if needed.communicates else 1
    if before.operators or before.messages or before.interference:
        code = (launcher or _measuring)([json.dumps(request.to_dict()), str(folder)], ranks=processes)
        if code:
            raise RequestError(f"{processes} processes that measure events failed with exit code {code}: see above")
    else:
        processes = 0
    after = plan_of(request, needed, folder)
    return EventsProfile(
        output=folder,
        works=before.works,
        known=before.known,
        measured=after.known - before.known,
        seconds=time.monotonic() - start,
        processes=processes,
        failures=tuple(sorted({op.name for op in after.operators})),
    )


def plan_events(request: EventsAsk, output: str | Path) -> EventsPlan:
    """Return what :func:`measure_events` would measure, without measuring anything."""
    return plan_of(request, needed_works(request), Path(output))


def plan_of(request: EventsAsk, needed: NeededWorks, folder: Path, *, world: int = 2) -> EventsPlan:
    """Return what ``world`` processes have to measure of the works of ``needed`` that ``folder`` does not have."""
    rows = rows_of(folder, request, needed)
    journal = journal_of(folder)
    if journal.exists():
        rows += _journaled(journal)
    together = min(world, needed.num_ranks)
    have = {(row["kind"] == "operator", row["key"], row["num_ranks"]) for row in rows}
    keys = {operator_wanted(op, request.compute): op for op in needed.operators}
    operators = tuple(
        op for key, op in keys.items() if have.isdisjoint({(True, key, together), (True, operator_key(op), together)})
    )
    messages = messages_of(needed, world=world) if needed.communicates else []
    measured = {row["key"] for row in rows if row["kind"] in ("collective", "transfer")}
    left = tuple(m for m in messages if key_of_message(m) not in measured)
    beside = bool(needed.collectives) and not any(row["kind"] == "interference" for row in rows)
    works = len(keys) + len(messages)
    return EventsPlan(
        works=works,
        known=works - len(operators) - len(left),
        operators=operators,
        messages=left,
        interference=beside,
        seconds=_duration(request, needed, operators, left),
    )


def operator_wanted(op: Operator, compute: str) -> str:
    """Return the key under which an operator of a plan is measured: all real updates by one optimizer share one."""
    return update_key(op.name) if op.kind is OpKind.OPTIMIZER and compute == REAL else operator_key(op)


def key_of_message(message: Message) -> str:
    """Return the key of the row of ``message``."""
    return collective_key(message.collective, message.nbytes, message.num_ranks, message.num_nodes)


def row_of_message(message: Message, mean_s: float, *, error: float, repeats: int) -> Row:
    """Return the row of ``message`` whose mean of ``repeats`` runs has the standard error ``error``."""
    return row_of(
        "transfer" if message.collective == P2P else "collective",
        key_of_message(message),
        mean_s=mean_s,
        low_s=max(0.1 * mean_s, mean_s - _NINETY * error),
        high_s=mean_s + _NINETY * error,
        repeats=repeats,
        nbytes=message.nbytes,
        num_ranks=message.num_ranks,
        num_nodes=message.num_nodes,
        collective=message.collective,
    )


def row_of_operator(
    key: str, op: Operator, times: tuple[float, float, float], *, repeats: int, processes: int, model: str
) -> Row:
    """Return the row of an operator; ``times`` are its mean and the ends of its interval."""
    seconds, low, high = times
    return row_of(
        "operator", key, mean_s=seconds, low_s=low, high_s=high, repeats=repeats, num_ranks=processes,
        dtype=op.dtype.value, model=model,
    )  # fmt: skip


def emulated_rows(needed: NeededWorks, *, processes: int, model: str) -> list[Row]:
    """Return the rows of operators that an emulated device runs: their estimated times, which it takes exactly."""
    estimator = replace(learned_cost_model(), framework=needed.request.runtime.kernels.measured_with)
    found = estimator.estimate(needed.operators, needed.request.cluster)
    rows: dict[str, Row] = {}
    for op, seconds in zip(needed.operators, found.seconds.tolist(), strict=True):
        key = operator_key(op)
        row = row_of_operator(key, op, (seconds, seconds, seconds), repeats=0, processes=processes, model=model)
        rows[key] = {**row, "source": "emulated"}
    return list(rows.values())


def emulated_interference() -> Row:
    """Return the row that says that compute which sleeps is not slowed down by traffic."""
    row = row_of("interference", BESIDE_TRAFFIC, mean_s=0.0, low_s=0.0, high_s=0.0, repeats=0)
    return {**row, "source": "emulated"}


def card_of(request: EventsAsk, needed: NeededWorks, *, statistic: str, cost: dict[str, float]) -> EventsCard:
    """Return the card of the events of ``request``, measured on this machine."""
    import torch

    cluster, backend = needed.request.cluster, backend_of(needed.request.cluster, request.compute)
    return EventsCard(
        device=cluster.device.name,
        machine=device_name("cuda" if backend == "nccl" else "cpu", threads=request.threads),
        backend="nccl" if backend == "nccl" else "gloo",
        threads=request.threads,
        compute=request.compute,
        network=request.network,
        precision=request.precision,
        torch=str(torch.__version__),
        host=platform.node() or "local",
        statistic=statistic,
        link_bandwidth=cluster.inter_node.bandwidth,
        cost=cost,
    )


def _duration(
    request: EventsAsk, needed: NeededWorks, operators: Sequence[Operator], messages: Sequence[Message]
) -> float:
    """Return roughly how many seconds it takes to measure what is left."""
    seconds = 4.0  # processes start and import PyTorch
    if operators and request.compute == REAL:
        flops = sum(op.flops * count for op, count in needed.graph) * needed.micro_batch
        seconds += min(2.2 * request.steps * flops / (20e9 * request.threads), 2.0 * _MODEL_S)
    link = needed.request.cluster.inter_node
    for message in messages:
        once = message.nbytes / link.bandwidth + link.latency_s + 1e-4
        seconds += max(7 * once, min(1.0, request.repeats * once))
    return seconds


def rows_of(folder: Path, request: EventsAsk, needed: NeededWorks) -> list[Row]:
    """Return the rows of a folder that exists; refuse one of other hardware."""
    if not (folder / CARD).exists():
        if folder.exists() and any(folder.iterdir()):
            raise RequestError(f"cannot write {folder}: it is a folder of other files; choose another name")
        return []
    card = read_card(folder)
    cluster = needed.request.cluster
    wanted = {
        "device": cluster.device.name,
        "backend": backend_of(cluster, request.compute),
        "threads": request.threads,
        "compute": request.compute,
        "network": request.network,
    }
    for name, value in wanted.items():
        if getattr(card, name) != value:
            raise RequestError(
                f"{folder} has events with {name} {getattr(card, name)!r}, not {value!r}: choose another folder"
            )
    return read_rows(folder)


def _journaled(path: Path) -> list[Row]:
    """Return the rows in a journal, without locking it."""
    rows: list[Row] = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            with suppress(ValueError):
                _, part = json.loads(line)
                rows += part if isinstance(part, list) else []
    return rows
