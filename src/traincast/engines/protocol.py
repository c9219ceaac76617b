"""Many independent tasks of one function: the protocol every engine follows, and what all of them share."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from traincast.errors import SimulationError, TraincastError
from traincast.imports import import_callable

Worker = Callable[[Any], Any]
"""What a setup gives: takes a task, gives its result."""

TRIES: Final = 3
"""How often a task is given to a worker, when the workers before are lost with it."""


class Engine(Protocol):
    """Runs tasks on workers, wherever these are.

    ``setup`` is ``package.module:function``. Every worker calls ``worker = function(payload)`` once, and then
    ``worker(task)`` for each task that it gets. Payload, tasks and results are plain values that can be pickled;
    a task should take some milliseconds at least, since handing it over takes 0.1 ms to a process and 2 ms to Ray.
    """

    def run(self, setup: str, payload: Any, tasks: Sequence[Any], *, done: Callable[[int, Any], None]) -> None:
        """Call ``done(index, result)`` here, once for each task, in the order in which they finish.

        The first error ends the run: a :class:`TraincastError` as the worker raised it, any other as a
        :class:`SimulationError` that names it. A worker that is lost is replaced, and its task tried again, up to
        :data:`TRIES` times in all. Whatever ends the run, an interrupt or an error in ``done`` among it, also
        ends the workers.
        """
        ...


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error on its way from a worker to the caller: its class and its line."""

    kind: type[TraincastError]
    message: str

    def error(self) -> TraincastError:
        """The error itself; made without its constructor, which may ask for more than the line."""
        return self.kind.__new__(self.kind, self.message)


def failure_of(error: BaseException) -> TaskFailure:
    """What the caller is told about ``error``."""
    if isinstance(error, TraincastError):
        return TaskFailure(type(error), str(error))
    return TaskFailure(SimulationError, f"a task failed: {one_line(error)}; one local worker shows where")


def one_line(error: BaseException) -> str:
    """Class and message of an error of any kind, on one line of bounded length."""
    text = " ".join(str(error).split())[:300].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def lost(index: int, task: Any, reason: str) -> SimulationError:
    """The error for a task that took all its workers with it."""
    name = " ".join(reprlib.repr(task).split())
    return SimulationError(
        f"task {index} ({name}) lost its worker {TRIES} times, the last one {reason}: "
        "where memory is short, take fewer workers"
    )


def set_up(setup: str, payload: Any) -> Worker:
    """The worker that ``setup`` makes of ``payload``."""
    worker: Worker = load_setup(setup)(payload)
    return worker


def load_setup(setup: str) -> Callable[[Any], Worker]:
    """The function named by ``setup``, imported."""
    return import_callable(setup, "setup of tasks", role="function")
