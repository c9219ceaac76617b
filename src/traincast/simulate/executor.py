"""The executor: start and end of every task. No domain words in it.

Tasks come in program order. A task starts when all its lanes are free and all its predecessors have
ended, and holds its lanes until it ends. Lanes are first in, first out, so this is a max-plus system:
no end falls when any duration grows.

The same function runs as plain Python on small plans, where compiling would cost more than it saves, and compiled by
Numba on large ones. A search runs it as well, slot by slot.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def execute_tasks(  # noqa: PLR0917  (Numba takes positional arguments)
    first: Any,
    last: Any,
    earliest: Any,
    duration: Any,
    lane_start: Any,
    lanes: Any,
    predecessor_start: Any,
    predecessors: Any,
    free: Any,
    start: Any,
    end: Any,
) -> None:
    """Fill ``start`` and ``end`` of the tasks from number ``first`` up to, and without, ``last``.

    No task starts before ``earliest``. ``free`` has the time from which each lane is free, before and after: tasks can
    be run in several calls.
    """
    for task in range(first, last):
        ready = earliest
        for at in range(lane_start[task], lane_start[task + 1]):
            ready = max(ready, free[lanes[at]])
        for at in range(predecessor_start[task], predecessor_start[task + 1]):
            ready = max(ready, end[predecessors[at]])
        done = ready + duration[task]
        start[task] = ready
        end[task] = done
        for at in range(lane_start[task], lane_start[task + 1]):
            free[lanes[at]] = done


execute_compiled: Final = Compiled(execute_tasks, pays_from=60_000)
"""The loop in machine code, and the number of tasks from which it pays."""


def execute(
    duration: Floats,
    *,
    lane_start: Ints,
    lanes: Ints,
    predecessor_start: Ints,
    predecessors: Ints,
    num_lanes: int,
) -> tuple[Floats, Floats]:
    """Start and end of every task, in the unit of ``duration``."""
    size = len(duration)
    if execute_compiled.pays(size):
        start, end = np.empty(size), np.empty(size)
        execute_compiled(
            0, size, 0.0, duration, lane_start, lanes, predecessor_start, predecessors, np.zeros(num_lanes), start, end
        )
        return start, end
    starts, ends = [0.0] * size, [0.0] * size
    execute_tasks(
        0,
        size,
        0.0,
        duration.tolist(),
        lane_start.tolist(),
        lanes.tolist(),
        predecessor_start.tolist(),
        predecessors.tolist(),
        [0.0] * num_lanes,
        starts,
        ends,
    )
    return np.array(starts), np.array(ends)
