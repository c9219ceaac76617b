"""What all kinds of parallelism share in one rank: its clock, its recorder, and communication that both know of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from traincast.graph import Phase
from traincast.testbed.rank.emulate import DeviceClock, Emulation
from traincast.testbed.rank.recorder import SpanRecorder, now

_T = TypeVar("_T")


@dataclass(slots=True)
class Bed:
    """One rank: where it records spans, and its emulated device if it has one.

    ``reduced`` is when the last all-reduce beside compute ended.
    """

    recorder: SpanRecorder
    clock: DeviceClock | None = None
    emulation: Emulation | None = None
    reduced: float = 0.0

    def device_done(self) -> None:
        """Wait for the emulated device, before something else depends on it."""
        if self.clock is not None:
            self.clock.finish()

    def device_waited(self) -> None:
        """Say that the process has waited for other ranks."""
        if self.clock is not None:
            self.clock.resume()

    @contextmanager
    def span(self, category: str) -> Iterator[None]:
        """Run a pass: as one span, or with an emulated device that records each operator."""
        start = now()
        if self.emulation is not None:
            self.emulation.phase = Phase.FORWARD if category == "forward" else Phase.BACKWARD
        yield
        if self.clock is None:
            self.recorder.add("compute", category, category, category, start, now())

    def blocking(self, label: str, nbytes: float, call: Callable[[], _T]) -> _T:
        """Run a communication that compute waits for, and record it."""
        self.device_done()
        start = now()
        result = call()
        self.device_waited()
        self.recorder.add("communication", "communication", label, label, start, now(), nbytes=nbytes)
        return result

    def asynchronous(self, label: str, tensor: torch.Tensor, group: Any) -> torch.futures.Future[torch.Tensor]:
        """All-reduce ``tensor`` while compute goes on; the span ends when the result is there."""
        self.device_done()
        start, nbytes = now(), float(tensor.numel() * tensor.element_size())
        at = self.recorder.step, self.recorder.microbatch
        work = dist.all_reduce(tensor, group=group, async_op=True)

        def done(future: Any) -> torch.Tensor:
            self.reduced = now()
            self.recorder.add(
                "communication", "communication", label, "all_reduce", start, self.reduced, nbytes=nbytes, at=at
            )
            return future.value()[0]

        return work.get_future().then(done)
