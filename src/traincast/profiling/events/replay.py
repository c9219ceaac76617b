"""Times operators one after the other, in the order of a step: shares of operators that no whole model runs here.

Every operator has tensors of its own, so the caches are as cold as in a step. The time of an operator is from its start
to the start of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from traincast.collector import without_collector
from traincast.graph import Operator
from traincast.profiling.machine.device import free_memory
from traincast.profiling.operators.executors import executor_of, memory_of
from traincast.profiling.operators.tensors import CannotRunError, Make

Replayed = tuple[Operator, float, float, float, int]


def replay(operators: Sequence[Operator], *, device: str, steps: int) -> tuple[list[Replayed], list[str]]:
    """Return each operator with the mean, low and high of its seconds and the number of repeats; and what failed."""
    calls: list[tuple[Operator, Callable[[], object]]] = []
    failed: dict[str, int] = {}
    room = 0.5 * free_memory(device)
    for operator in operators:
        try:
            room -= memory_of(operator)
            if room < 0.0:
                raise CannotRunError("there is not enough memory for all operators of a step")
            calls.append((operator, _plain(operator, device) or executor_of(operator, device=device)))
        except CannotRunError as error:
            text = f"{operator.name} was not measured: {error}"
            failed[text] = failed.get(text, 0) + 1
    samples = _run(calls, device=device, steps=steps)
    found: list[Replayed] = []
    for (operator, _), times in zip(calls, samples, strict=True):
        mean = sum(times) / len(times)
        found.append((operator, mean, min(times), max(times), len(times)))
    return found, list(failed)


def _plain(operator: Operator, device: str) -> Callable[[], object] | None:
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
