"""One rank's part in the events of a run: rounds of messages, and steps of the model, between the counted steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from traincast.collector import without_collector
from traincast.estimate.events.file import REAL, Row
from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.network import MessageTimer, call_of, interference
from traincast.profiling.events.request import Message, needed_works
from traincast.profiling.events.worker import OperatorEvents
from traincast.profiling.timing import longest_delay_s, thread_delays_s
from traincast.testbed.events import groups_of
from traincast.testbed.rank.recorder import now, sleep_until

_PAUSE_S: Final = 0.006
"""Pause before a message: as after a pass of a step, the bucket of a shaped link has filled, and ranks must wake up."""
_ROUND_S: Final = (0.5, 3.0)
"""A round of messages takes about as long as a step, but not less or more than this, if every message is sent once."""
_MOST: Final = 8
_LEAST: Final = 5


class EventRounds:
    """Measures messages and operators; :meth:`round` after every step, :meth:`facts` at the end. Every rank does both.

    ``measured`` is what :meth:`traincast.testbed.events.RunEvents.to_json` wrote, ``None`` if nothing is measured.
    """

    def __init__(self, measured: Mapping[str, Any] | None, *, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._seconds = 0.0
        self._messages = [Message(**fields) for fields in measured["messages"]] if measured else []
        self._calls = self._prepared()
        self._repeats = [1] * len(self._messages)
        self._samples: list[list[tuple[float, float, float]]] = [[] for _ in self._messages]
        self._asked = EventsAsk(**measured["asked"]) if measured else None
        self._operators = self._prepared_operators()

    def _prepared(self) -> list[Callable[[], object] | None]:
        """What this rank runs for each message; ``None`` if it is in no group."""
        made: dict[int, Any] = {}
        calls: list[Callable[[], object] | None] = []
        for message in self._messages:
            n = message.num_ranks
            groups = groups_of(n, self._ranks)
            if n not in made:
                every = [dist.new_group(list(group)) for group in groups]
                made[n] = next((g for g, group in zip(every, groups, strict=True) if self._rank in group), None)
            mine = next((group for group in groups if self._rank in group), None)
            calls.append(None if mine is None else call_of(message, made[n], "cpu", pair=(mine[0], mine[-1])))
        return calls

    def _prepared_operators(self) -> OperatorEvents | None:
        if self._asked is None or self._asked.compute != REAL:
            return None
        operators = OperatorEvents(self._asked, needed_works(self._asked), device="cpu", processes=self._ranks)
        operators.warm_up()
        return operators

    def warm_up(self, step_s: float) -> None:
        """Send every message once, and decide how often each is sent in a round beside steps of ``step_s`` seconds."""
        self.round()
        own = [step_s, *(end - start for ((start, end, _),) in self._samples)]
        agreed = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(agreed, dist.ReduceOp.MAX)  # every rank must send equally often
        step_s, *taken = agreed.tolist()
        least, most = _ROUND_S
        each = max(least, min(most, step_s)) / max(1, len(self._messages))
        self._repeats = [max(1, min(_MOST, int(each / (s + 2 * _PAUSE_S)))) for s in taken]
        self._samples = [[] for _ in self._messages]

    def round(self) -> None:
        """Send all messages, then run the model if operators are measured."""
        begin = now()
        for call, count, samples in zip(self._calls, self._repeats, self._samples, strict=True):
            dist.barrier()
            samples += [self._timed(call) for _ in range(count)]
        if self._operators is not None:
            dist.barrier()
            self._operators.turn()
        self._seconds += now() - begin

    def _timed(self, call: Callable[[], object] | None) -> tuple[float, float, float]:
        """Start, end and seconds waited for a core of one message; a rank without a part in it only takes a pause.

        A rank that was late goes on being late, as in a step, where each computes as soon as its own part has ended.
        """
        sleep_until(now() + _PAUSE_S)
        before = thread_delays_s()
        with without_collector() if call is not None else contextlib.nullcontext():
            start = now()
            if call is not None:
                call()
            end = now()
        return start, end, longest_delay_s(before)

    def facts(self) -> dict[str, Any]:
        """What this rank measured, for :func:`traincast.testbed.events.write_events`."""
        begin = now()
        rows: list[Row] = []
        warnings: Sequence[str] = ()
        if self._operators is not None:
            rows = self._operators.rows() + interference(MessageTimer(device="cpu", repeats=_LEAST), self._messages)
            warnings = self._operators.warnings
        return {
            "messages": self._samples,
            "operators": rows,
            "warnings": list(warnings),
            "seconds": self._seconds + now() - begin,
        }
