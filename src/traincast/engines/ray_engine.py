"""The Ray engine: each task runs on one processor of a Ray cluster."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from traincast.engines.local import interrupts_held, one_thread
from traincast.engines.protocol import (
    TRIES,
    Engine,
    TaskFailure,
    Worker,
    failure_of,
    load_setup,
    lost,
    one_line,
    set_up,
)
from traincast.errors import MissingDependencyError, RequestError, SimulationError

TASKS_PER_CPU: Final = 2
"""Tasks given to Ray for each of its processors: one that runs, and one that is ready when it ends."""
GLANCE_S: Final = 0.2
"""Seconds of one wait for results: Ray itself notices an interrupt only once a second."""
KNOCK_S: Final = 5.0
"""Seconds that a cluster may take to answer at its address."""
_QUIET: Final[dict[str, Any]] = {"log_to_driver": False, "logging_level": logging.ERROR}


def ray_engine(address: str | None = None, *, workers: int | None = None) -> Engine:
    """Return an engine on the Ray cluster at ``address``; without an address, each run starts Ray on this machine.

    If this process is already connected to Ray, that connection is used and left open. At most ``workers`` tasks run
    at once, if given. The package of the setup must be installed on all nodes.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError("ray", "running on a Ray cluster", extra="ray")
    if workers is not None and workers < 1:
        raise RequestError(f"workers is {workers}: expected at least 1")
    return RayEngine(address, workers)


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Runs tasks on a Ray cluster, each on one processor; Ray runs a task again if its worker or node is lost."""

    address: str | None
    workers: int | None

    def run(self, setup: str, payload: Any, tasks: Sequence[Any], *, done: Callable[[int, Any], None]) -> None:
        """Run all ``tasks``; see :class:`~traincast.engines.protocol.Engine`."""
        if not tasks:
            return
        load_setup(setup)  # a wrong name fails here, before Ray is started
        with _connected(self.address, self.workers):
            _run(setup, payload, tasks, workers=self.workers, done=done)


@contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[None]:
    """Connect to Ray, quietly and without usage reports; disconnect at the end, unless we were connected before."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # else Ray reports every lost worker on standard output
    import ray

    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)  # some messages come before Ray reads its level
    try:
        _knock(address or "local")
        with _nothing_left_over():
            if address is None:
                ray.init("local", num_cpus=workers, include_dashboard=False, **_QUIET)
            else:
                ray.init(address, **_QUIET)
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if address is None else f"at {address}"
        raise RequestError(f"cannot reach Ray {where}: {one_line(error)}; start it with ray start --head") from error
    try:
        yield
    finally:
        with interrupts_held():
            ray.shutdown()


def _knock(address: str) -> None:
    """Fail at once if nothing listens at the address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


@contextmanager
def _nothing_left_over() -> Iterator[None]:
    """If the block fails, end the processes that were started in it: Ray itself leaves some of them running."""
    import ray

    psutil = importlib.import_module("psutil")  # comes with Ray
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
    except BaseException:
        with interrupts_held():
            ray.shutdown()
            for process in set(psutil.Process().children(recursive=True)) - before:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        raise


def _run(
    setup: str, payload: Any, tasks: Sequence[Any], *, workers: int | None, done: Callable[[int, Any], None]
) -> None:
    import ray

    answer = ray.remote(_answer).options(num_cpus=1, max_retries=TRIES - 1)
    shared = [ray.put(payload)]  # in a list: so it stays a reference until a worker fetches it
    running: dict[Any, int] = {}
    following = 0
    try:
        while running or following < len(tasks):
            # asked each time: nodes come and go
            room = workers or TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while following < len(tasks) and len(running) < room:
                running[answer.remote(setup, shared, tasks[following])] = following
                following += 1
            for reference in ray.wait(list(running), timeout=GLANCE_S)[0]:
                index = running.pop(reference)
                try:
                    found = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise SimulationError(
                        f"task {index} failed on a node of Ray: {one_line(error.cause)}; "
                        f"all nodes need Traincast and the package of {setup}"
                    ) from error
                except ray.exceptions.RayError as error:
                    raise lost(index, tasks[index], f"with {one_line(error)}") from error
                if isinstance(found, TaskFailure):
                    raise found.error()
                done(index, found)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _answer(setup: str, shared: list[Any], task: Any) -> Any:
    """Run a task on a node of the cluster; return its result or its failure."""
    try:
        return _worker(setup, shared[0])(task)
    except BaseException as error:
        return failure_of(error)


@lru_cache(maxsize=1)
def _worker(setup: str, payload: Any) -> Worker:
    """Return the worker of this Ray process, made once for each payload; references to one value are equal."""
    import ray

    one_thread()
    return set_up(setup, ray.get(payload))
