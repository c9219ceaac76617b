"""Operators that run without data."""

from __future__ import annotations

from traincast.graph import Operator
from traincast.profiling.operators.executors import executor_of
from traincast.profiling.operators.tensors import CannotRunError


def reason_not_to_run(operator: Operator) -> str | None:
    """Return why ``operator`` cannot be run, or ``None`` if it can. It runs on fake tensors, which take no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            executor_of(operator)
    except CannotRunError as error:
        return str(error)
    return None
