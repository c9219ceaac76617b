"""Setups of tasks, as engines name them: ``tests.engines.workers:function``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from traincast import RequestError, UnknownNameError
from traincast.imports import import_callable


def powers(payload: dict[str, Any]) -> Callable[[int], Any]:
    """Raises the payload's numbers to the task's power."""
    numbers = np.asarray(payload["numbers"], dtype=np.float64)
    return lambda task: (numbers**task).sum()


def setups(payload: str) -> Callable[[int], tuple[int, int]]:
    """Notes each setup in the folder ``payload``; says which process ran the task, and whether it is pytest's."""
    (Path(payload) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return lambda task: (os.getpid(), int("pytest" in sys.modules))


def killed(payload: dict[str, Any]) -> Callable[[int], int]:
    """Kills itself over the task ``at``, the first ``times`` times; notes every try of any task in ``folder``."""
    folder = Path(payload["folder"])

    def work(task: int) -> int:
        (folder / f"{task}-{time.monotonic_ns()}").touch()
        if task == payload["at"] and len(list(folder.glob(f"{task}-*"))) <= payload["times"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return task * task

    return work


def fails(payload: str) -> Callable[[int], int]:
    """Fails in the way that ``payload`` says, in its setup or over the task 3."""
    if payload == "setup":
        raise RequestError("the setup cannot be")

    def work(task: int) -> Any:
        if task == 3 and payload == "ours":
            raise UnknownNameError("color", "gren", ["green", "blue"])
        if task == 3 and payload == "other":
            raise ValueError("three\nis too much")
        if task == 3 and payload == "exit":
            sys.exit("enough")
        if task == 3 and payload == "result":
            return threading.Lock()
        return task

    return work


def sleeps(payload: float) -> Callable[[float], float]:
    """Sleeps as long as the task says."""

    def work(task: float) -> float:
        time.sleep(task)
        return task + payload

    return work


def stuck(payload: dict[str, Any]) -> Callable[[int], int]:
    """Notes every try of a task in ``folder``, with process and parent; does not end below the parent ``lost``."""

    def work(task: int) -> int:
        (Path(payload["folder"]) / f"{task}-{os.getpid()}-{os.getppid()}").touch()
        time.sleep(600 if os.getppid() == payload["lost"] else 0.1)
        return -task

    return work


def threads(payload: None) -> Callable[[int], list[int]]:
    """Says how many threads the numeric libraries that are loaded may use."""
    info = import_callable("threadpoolctl:threadpool_info", "pools", role="function")
    return lambda task: [pool["num_threads"] for pool in info()]
