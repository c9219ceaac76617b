"""Times collectives and messages between the processes of a launch, and what they cost compute that runs beside them.

All ranks go through the same list of messages. Every rank makes the same number of runs, which rank 0 chose after a
first one. The time of a message is the mean of the middle 60 % of its repeats, averaged over the ranks of the group;
its interval is from the 5th to the 95th percentile of that mean, estimated by its standard error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from traincast.collector import without_collector
from traincast.estimate.events.file import Row, row_of
from traincast.estimate.events.keys import P2P, text_of
from traincast.estimate.events.model import BESIDE_TRAFFIC
from traincast.profiling.collectives.cases import ELEMENT_BYTES, elements_of
from traincast.profiling.events.measure import key_of_message, row_of_message
from traincast.profiling.events.request import Message

STATISTIC: Final = "mean of the middle 60 % of the repeats; interval: 1.64 standard errors of that mean"
_WARMUP: Final = 2
_LEAST: Final = 5
_SECONDS: Final = 1.0
"""Seconds that the repeats of one message may take."""
_BUSY_S: Final = 0.25


class MessageTimer:
    """The processes of one launch, seen from one of them; ``repeats`` is the largest number of timed runs."""

    def __init__(self, *, device: str, repeats: int) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = device
        self._repeats = repeats
        self._groups: dict[int, Any] = {}

    def group(self, num_ranks: int) -> Any:
        """Return the group of the first ``num_ranks`` ranks; every rank must ask for it."""
        if num_ranks not in self._groups:
            self._groups[num_ranks] = dist.new_group(list(range(num_ranks)))
        return self._groups[num_ranks]

    def time(self, message: Message) -> Row | None:
        """Run and time ``message``; return its row on rank 0, ``None`` on others."""
        group = self.group(message.num_ranks)
        if self.rank >= message.num_ranks:
            return None
        run = call_of(message, group, self._device)
        once = self._samples(run, _WARMUP)[-1]
        count = max(_LEAST, min(self._repeats, int(_SECONDS / max(self.agreed(once, group), 1e-6))))
        share = 0.5 if message.collective == P2P else 1.0  # there and back is two messages
        mean, error = trimmed(np.array(self._samples(run, count)) * share)
        mean, error = self.agreed(mean, group), self.agreed(error, group)
        if self.rank:
            return None
        return row_of_message(message, mean, error=error, repeats=count)

    def agreed(self, value: float, group: Any = None) -> float:
        """Return the mean of ``value`` over the ranks of ``group``: the same number on each."""
        told = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(told, group=group)
        return float(told.item() / dist.get_world_size(group))

    def _samples(self, run: Callable[[], object], count: int) -> list[float]:
        samples = []
        with without_collector():
            for _ in range(count):
                start = self._now()
                run()
                samples.append(self._now() - start)
        return samples

    def _now(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def beside(self, message: Message, seconds: float) -> list[Row]:
        """Time ``message`` and a loop of matrix products side by side, on every rank at once; return rows on rank 0.

        The first row has the seconds by which compute is delayed for each second that the message takes alone. The
        second has the time of the message beside compute, over its time alone. Compute is long enough to outlast the
        message.
        """
        group = self.group(message.num_ranks)
        if self.rank >= message.num_ranks:
            return []
        size = 384
        left, right = torch.randn(size, size, device=self._device), torch.randn(size, size, device=self._device)

        def compute(times: int) -> None:
            for _ in range(times):
                torch.mm(left, right)

        compute(3)
        start = self._now()
        compute(10)
        one = self.agreed((self._now() - start) / 10, group)
        number = max(10, math.ceil(max(_BUSY_S, 3.0 * seconds) / one))
        data = torch.zeros(elements_of(message.collective, int(message.nbytes), message.num_ranks), device=self._device)
        delays, stretches = [], []
        for _ in range(_LEAST):
            self.agreed(0.0, group)
            start = self._now()
            compute(number)
            alone = self._now() - start
            self.agreed(0.0, group)
            start = self._now()
            work = dist.all_reduce(data, group=group, async_op=True)
            done: list[float] = []
            work.get_future().add_done_callback(lambda _, done=done: done.append(time.perf_counter()))
            compute(number)
            both = self._now() - start
            work.wait()
            delays.append((both - alone) / seconds)
            stretches.append((done[0] - start if done else self._now() - start) / seconds)
        delay, stretch = (self.agreed(float(np.median(values)), group) for values in (delays, stretches))
        if self.rank:
            return []
        ranges = [(max(0.0, min(values)), max(0.0, *values)) for values in (delays, stretches)]
        keys = (BESIDE_TRAFFIC, text_of(["traffic", "beside", "compute"]))
        return [
            row_of(
                "interference", key, mean_s=max(0.0, value), low_s=low, high_s=high, repeats=_LEAST,
                nbytes=message.nbytes, num_ranks=message.num_ranks, num_nodes=message.num_nodes,
                collective=message.collective,
            )
            for key, value, (low, high) in zip(keys, (delay, stretch), ranges, strict=True)
        ]  # fmt: skip


def interference(timer: MessageTimer, messages: Sequence[Message], timed: Mapping[str, Row] | None = None) -> list[Row]:
    """Time compute beside an all-reduce as large as the largest collective of ``messages``; return rows on rank 0.

    If ``timed`` is given, ``messages`` have been timed, and rank 0 has their rows there. Every rank must call this.
    """
    sent = [message for message in messages if message.collective != P2P]
    if not sent:
        return []
    alone = replace(max(sent, key=lambda m: m.nbytes), collective="all_reduce")
    row = timer.time(alone) if timed is None or alone not in sent else timed.get(key_of_message(alone))
    seconds = timer.agreed(row["mean_s"] if row else 0.0) * timer.size  # only rank 0 knows it
    return timer.beside(alone, seconds)


def trimmed(samples: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """Return the mean of the middle 60 % of ``samples``, and the standard error of that mean.

    >>> trimmed([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    (1.0, 0.0)
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    cut = len(ordered) // 5  # a message that the machine delayed is not the network's
    middle = ordered[cut : len(ordered) - cut]
    error = float(middle.std(ddof=1)) / math.sqrt(len(middle)) if len(middle) > 1 else 0.0
    return float(middle.mean()), error


def call_of(message: Message, group: Any, device: str, *, pair: tuple[int, int] = (0, 1)) -> Callable[[], object]:
    """Return a function that runs ``message`` once on this rank's buffers.

    A message from one rank to another goes there and back between the ranks of ``pair``.
    """
    n = message.num_ranks
    elements = elements_of(message.collective, int(message.nbytes), n)
    data = torch.zeros(elements, device=device)
    match message.collective:
        case "all_reduce":
            return lambda: dist.all_reduce(data, group=group)
        case "all_gather":
            whole = torch.empty(elements * n, device=device)
            return lambda: dist.all_gather_into_tensor(whole, data, group=group)
        case "reduce_scatter":
            part = torch.empty(elements // n, device=device)
            return lambda: dist.reduce_scatter_tensor(part, data, group=group)
        case "all_to_all":
            received = torch.empty(elements, device=device)
            return lambda: dist.all_to_all_single(received, data, group=group)
        case "broadcast":
            return lambda: dist.broadcast(data, src=pair[0], group=group)
        case _:
            return _there_and_back(torch.zeros(max(1, int(message.nbytes) // ELEMENT_BYTES), device=device), *pair)


def _there_and_back(data: torch.Tensor, first: int, second: int) -> Callable[[], object]:
    if dist.get_rank() == first:

        def run() -> None:
            dist.send(data, second)
            dist.recv(data, second)

    else:

        def run() -> None:
            dist.recv(data, first)
            dist.send(data, first)

    return run
