"""The protocol that every engine follows, and the code that all engines share."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from traincast.errors import SimulationError, TraincastError
from traincast.imports import import_callable

Worker = Callable[[Any], Any]
"""The function that a setup returns: it takes a task and returns its result."""

TRIES: Final = 3
"""A run fails when one task has lost this many workers."""


class Engine(Protocol):
    """Runs independent tasks on workers: processes here or on other machines.

    ``setup`` is ``package.module:function``. Every worker calls ``worker = function(payload)`` once, and then
    ``worker(task)`` for each of its tasks. Payload, tasks and results must be picklable. A task should take several
    milliseconds, because sending one takes 0.1 ms to a local process and 2 ms to Ray.
    """

    def run(self, setup: str, payload: Any, tasks: Sequence[Any], *, done: Callable[[int, Any], None]) -> None:
        """Call ``done(index, result)`` here, once for each task, in the order in which they finish.

        The first error ends the run: a :class:`TraincastError` is raised unchanged, any other error as a
        :class:`SimulationError` that names it. A lost worker is replaced and its task run again, up to :data:`TRIES`
        times in all. However the run ends, also by an interrupt or an error in ``done``, its workers end with it.
        """
        ...


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error on its way from a worker to the caller: its class and its message."""

    kind: type[TraincastError]
    message: str

    def error(self) -> TraincastError:
        """Return the error, made without its constructor, which may take other arguments than the message."""
        return self.kind.__new__(self.kind, self.message)


def failure_of(error: BaseException) -> TaskFailure:
    """Return the failure to report for ``error``: a Traincast error unchanged, any other in one line."""
    if isinstance(error, TraincastError):
        return TaskFailure(type(error), str(error))
    return TaskFailure(SimulationError, f"a task failed: {one_line(error)}; run with one local worker to see where")


def one_line(error: BaseException) -> str:
    """Return the class and message of any error, on one line of bounded length."""
    text = " ".join(str(error).split())[:300].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def lost(index: int, task: Any, reason: str) -> SimulationError:
    """Return the error for a task that lost :data:`TRIES` workers."""
    name = " ".join(reprlib.repr(task).split())
    return SimulationError(
        f"task {index} ({name}) lost its worker {TRIES} times, the last one {reason}: "
        "if memory is short, use fewer workers"
    )


def set_up(setup: str, payload: Any) -> Worker:
    """Call the function that ``setup`` names with ``payload``; return the worker."""
    worker: Worker = load_setup(setup)(payload)
    return worker


def load_setup(setup: str) -> Callable[[Any], Worker]:
    """Import and return the function that ``setup`` names."""
    return import_callable(setup, "setup of tasks", role="function")
