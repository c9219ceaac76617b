"""The local engine: processes of this machine, each with one pipe and one task at a time."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from traincast.engines.protocol import TRIES, Engine, TaskFailure, Worker, failure_of, load_setup, lost, set_up
from traincast.errors import RequestError

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Environment variables from which numeric libraries read their number of threads when they are loaded."""
PATIENCE_S: Final = 1.0
"""Seconds that a process may take to end, after it was told to or its pipe closed, before it is killed."""

FORK_UNSAFE: Final = ("ray", "grpc", "jax")
"""Packages whose native threads may hold a lock at any time, even after a shutdown: a fork beside them can hang."""


def _read_only(table: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(table)


ForkingPickler.register(MappingProxyType, lambda table: (_read_only, (dict(table),)))  # payloads may hold them


def local_engine(workers: int | None = None) -> Engine:
    """Return an engine of ``workers`` processes, by default one for each processor that this process may use.

    One worker is the calling process itself: nothing is started, and errors keep their traceback.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise RequestError(f"workers is {workers}: expected at least 1")
    return LocalEngine(workers)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Runs tasks in ``workers`` processes, which are started for each run."""

    workers: int

    def run(self, setup: str, payload: Any, tasks: Sequence[Any], *, done: Callable[[int, Any], None]) -> None:
        """Run all ``tasks``; see :class:`~traincast.engines.protocol.Engine`."""
        if not tasks:
            return
        if self.workers == 1:
            _run_here(setup, payload, tasks, done=done)
        else:
            _run_apart(setup, payload, tasks, workers=self.workers, done=done)


def _run_here(setup: str, payload: Any, tasks: Sequence[Any], *, done: Callable[[int, Any], None]) -> None:
    with _told():
        worker = set_up(setup, payload)
    for index, task in enumerate(tasks):
        with _told():
            result = worker(task)
        done(index, result)


@contextmanager
def _told() -> Iterator[None]:
    """Raise the same errors as a worker in another process, but with their traceback."""
    try:
        yield
    except (Exception, SystemExit) as error:
        told = failure_of(error).error()
        if type(told) is type(error):
            raise
        raise told from error


def _run_apart(
    setup: str, payload: Any, tasks: Sequence[Any], *, workers: int, done: Callable[[int, Any], None]
) -> None:
    load_setup(setup)  # a wrong name fails here at once; processes that are forked have it imported
    waiting = deque(range(len(tasks)))
    losses: Counter[int] = Counter()
    with _Crew(setup, payload) as crew:
        while waiting or crew.busy:
            while waiting and len(crew.busy) < workers:
                index = waiting.popleft()
                crew.give(index, tasks[index])
            for index, answer, ending in crew.answers():
                if ending:
                    losses[index] += 1
                    if losses[index] == TRIES:
                        raise lost(index, tasks[index], ending)
                    waiting.appendleft(index)
                elif isinstance(answer, TaskFailure):
                    raise answer.error()
                else:
                    done(index, answer)


class _Crew:
    """The processes of one run: those that are busy with a task, and those that are idle."""

    def __init__(self, setup: str, payload: Any) -> None:
        self.busy: dict[Connection, int] = {}
        self._idle: list[Connection] = []
        self._processes: dict[Connection, BaseProcess] = {}
        self._setup = setup
        self._payload = payload
        # A fork takes 9 ms and has everything imported, a new interpreter takes 0.7 s for Numba alone, and a
        # fork server takes the same once and stays behind. A fork is safe while no other thread of Python can
        # hold a lock; the threads of BLAS and Arrow are not in the way, both prepare for it themselves.
        alone = threading.active_count() == 1 and not any(map(sys.modules.get, FORK_UNSAFE))
        fork = sys.platform == "linux" and alone
        self._context: ForkContext | SpawnContext = get_context("fork") if fork else get_context("spawn")
        if not fork and hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # else it is started beside the first process, and lets interrupts in

    def give(self, index: int, task: Any) -> None:
        """Send a task to an idle process, or to a new one."""
        message = ForkingPickler.dumps(task)
        pipe = self._idle.pop() if self._idle else self._start()
        self.busy[pipe] = index
        with suppress(OSError):  # it died while waiting: its pipe will say so
            pipe.send_bytes(message)

    def answers(self) -> Iterator[tuple[int, Any, str]]:
        """Wait until a task ends; yield index, answer, and how the process ended if it did (else an empty text)."""
        for pipe in wait(list(self.busy)):
            assert isinstance(pipe, Connection)
            index = self.busy.pop(pipe)
            try:
                message = pipe.recv_bytes()
            except (EOFError, OSError):
                yield index, None, self._bury(pipe)
                continue
            self._idle.append(pipe)
            yield index, ForkingPickler.loads(message), ""

    def _start(self) -> Connection:
        with interrupts_held(), warnings.catch_warnings():
            # newer Pythons warn about any fork beside native threads; the comment above says why these are harmless
            warnings.filterwarnings("ignore", "This process .* multi-threaded", DeprecationWarning)
            pipe, far_end = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(far_end, self._setup, self._payload), daemon=True)
            process.start()
            far_end.close()
            self._processes[pipe] = process
        return pipe

    def _bury(self, pipe: Connection) -> str:
        process = self._processes.pop(pipe)
        pipe.close()
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        process.close()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with interrupts_held():
            for pipe, process in self._processes.items():
                with suppress(OSError):
                    if kind is None:
                        pipe.send_bytes(b"")
                    else:
                        process.kill()
            for pipe in list(self._processes):
                self._bury(pipe)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended, and hide it from processes started in the block.

    Without this, Ctrl-C could hit between the start of a process and its registration, or a second Ctrl-C could
    interrupt the cleanup after the first. Started processes inherit the mask; threads without the mask are covered by
    the handler.
    """
    pressed: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def _serve(pipe: Connection, setup: str, payload: Any) -> None:
    """Run in a worker process: answer tasks until an empty message arrives or the caller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    one_thread()
    worker: Worker | None = None

    def answer(message: bytes) -> bytes:
        nonlocal worker
        try:
            if worker is None:
                worker = set_up(setup, payload)
            return bytes(ForkingPickler.dumps(worker(ForkingPickler.loads(message))))
        except BaseException as error:
            return bytes(ForkingPickler.dumps(failure_of(error)))

    with suppress(EOFError, OSError):
        while message := pipe.recv_bytes():
            pipe.send_bytes(answer(message))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def one_thread() -> None:
    """Limit the numeric libraries of this process to one thread: other workers use the other processors."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if "numpy" in sys.modules:  # already loaded: it does not read the variables again
        with suppress(ImportError):
            importlib.import_module("threadpoolctl").threadpool_limits(1)
