"""Takes turns: steps of several processes alternate, so that all of them see the same noise of the machine.

    python -m benchmarks.own_machine_turns LOCK traincast ARGUMENT…

runs ``traincast`` with the arguments, and takes a turn for every training step and every timed message. A turn is a
lock on the file LOCK. In a launch of several ranks, rank 0 takes the turn for all of them. The times of the timed steps
are written to LOCK.steps.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_YIELD_S: Final = 0.002
"""How long a process leaves the lock alone after its turn, so that others get theirs."""


class Turns:
    """The turns of one process, by a lock on the file ``path``."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  (open as long as the process runs)
        self.ended: list[float] = []
        self._depth = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for this process's turn, and end it afterwards; a turn within a turn is the same turn."""
        self._depth += 1
        try:
            if self._depth == 1:
                self._begin()
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._end()

    def _begin(self) -> None:
        if os.environ.get("RANK", "0") == "0":
            fcntl.flock(self._file, fcntl.LOCK_EX)
        _meet()

    def _end(self) -> None:
        _meet()
        if os.environ.get("RANK", "0") == "0":
            fcntl.flock(self._file, fcntl.LOCK_UN)
        time.sleep(_YIELD_S)

    def taking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` in a turn of its own."""

        def called(*args: Any, **named: Any) -> Any:
            with self.turn():
                result = function(*args, **named)
                self.ended.append(time.monotonic())
                return result

        return called


def _meet() -> None:
    """Wait for the other ranks, if there are any."""
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


def main() -> None:
    """Run ``traincast`` with turns."""
    lock = sys.argv[1]
    turns = Turns(lock)
    from traincast.cli.main import run
    from traincast.profiling.events.network import MessageTimer
    from traincast.profiling.events.steps import TrainingStep

    steps = Turns(lock)
    TrainingStep.__call__ = steps.taking(TrainingStep.__call__)  # type: ignore[method-assign]
    changes: Any = ((MessageTimer, "time"), (MessageTimer, "beside"))
    for owner, name in changes:
        setattr(owner, name, turns.taking(getattr(owner, name)))
    sys.argv = sys.argv[2:]
    atexit = os._exit

    def leave(code: int) -> None:
        if os.environ.get("RANK", "0") == "0":
            Path(f"{lock}.steps").write_text(json.dumps(steps.ended), encoding="utf-8")
        atexit(code)

    os._exit = leave  # type: ignore[assignment]
    run()


if __name__ == "__main__":
    main()
