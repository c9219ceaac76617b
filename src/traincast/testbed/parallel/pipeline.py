"""Pipelines: ``torch.distributed.pipelining`` over gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.utils._python_dispatch import _disable_current_modes

from traincast.errors import RequestError
from traincast.testbed.parallel.bed import Bed
from traincast.testbed.rank.recorder import now

SCHEDULES: Final = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}
"""Schedules that PyTorch has, by our names."""


def schedule_of(
    name: str,
    modules: Sequence[nn.Module],
    indices: Sequence[int],
    *,
    num_stages: int,
    microbatches: int,
    group: Any,
    loss: Callable[[Any], torch.Tensor],
    bed: Bed,
) -> Any:
    """PyTorch's schedule ``name`` for the stages ``indices`` of this rank, with their ``modules``."""
    if name not in SCHEDULES:
        raise RequestError(f"schedule {name}: the testbed runs {', '.join(SCHEDULES)}")
    _record_messages(bed)
    device = torch.device("cpu")
    stages = [
        pipelining.PipelineStage(module, index, num_stages, device, group=group)
        for module, index in zip(modules, indices, strict=True)
    ]
    for stage in stages:
        _record_microbatches(stage, bed)
        _record_contents(stage)
    loss_fn = lambda output, target: loss(output)  # noqa: E731
    first = stages if name == "interleaved" else stages[0]
    schedule = SCHEDULES[name](first, microbatches, loss_fn=loss_fn, scale_grads=False)
    for method in ("_initialize_stage", "_initialize_stages"):
        if hasattr(schedule, method):
            setattr(schedule, method, _really(getattr(schedule, method)))
    return schedule


def _really(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` outside any emulation: before the first step, stages tell each other the shapes of their messages."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return call(*args, **kwargs)

    return run


def _record_microbatches(stage: Any, bed: Bed) -> None:
    """Let spans know their microbatch."""
    for name in ("forward_one_chunk", "backward_one_chunk"):
        original = getattr(stage, name)

        def call(chunk: int, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            bed.recorder.microbatch = chunk
            with bed.span("forward" if _original.__name__.startswith("forward") else "backward"):
                return _original(chunk, *args, **kwargs)

        setattr(stage, name, call)


def _record_contents(stage: Any) -> None:
    """Let messages know what they carry."""
    for name, label in (("get_fwd_send_ops", "pp send activations"), ("get_bwd_send_ops", "pp send gradients")):
        original = getattr(stage, name)

        def call(chunk: int, _original: Any = original, _label: str = label) -> list[Any]:
            operations: list[Any] = _original(chunk)
            for operation in operations:
                operation.carries = _label
            return operations

        setattr(stage, name, call)


_numbers = count()


class _Message:
    """A send or a receive under way; the span ends when it has been waited for.

    Messages are numbered in the order in which they are issued: the receiver of a pair gets them in that order.
    """

    def __init__(self, work: Any, operation: Any, bed: Bed, start: float) -> None:
        self._work, self._operation, self._bed, self._start = work, operation, bed, start
        self._step, self._number = bed.recorder.step, next(_numbers)
        self.sends = operation.op is torch.distributed.isend

    def wait(self) -> None:
        self._work.wait()
        operation = self._operation
        nbytes = float(operation.tensor.numel() * operation.tensor.element_size())
        label = getattr(operation, "carries", "pp send activations")
        self._bed.recorder.add(
            "communication", "message", label, "send" if self.sends else "receive", self._start, now(),
            nbytes=nbytes, peer=operation.peer, at=(self._step, self._number),
        )  # fmt: skip


def _record_messages(bed: Bed) -> None:
    """Record when each message is issued and when it has been waited for."""
    original: Any = getattr(schedules._batch_p2p, "original", schedules._batch_p2p)

    def batch(operations: list[Any], desc: str | None = None) -> list[Any]:
        bed.device_done()
        start = now()
        works: list[Any] = original(operations, desc)
        if len(works) != len(operations):
            return works
        return [_Message(work, operation, bed, start) for work, operation in zip(works, operations, strict=True)]

    def wait(works: list[Any]) -> None:
        for work in sorted(works, key=lambda work: getattr(work, "sends", True)):  # receives tell when bytes arrived
            work.wait()
        bed.device_waited()

    batch.original = original  # type: ignore[attr-defined]
    schedules._batch_p2p, schedules._wait_batch_p2p = batch, wait
