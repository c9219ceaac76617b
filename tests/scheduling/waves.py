"""Programs of jobs that use a resource in turns."""

from __future__ import annotations

import numpy as np

from traincast.scheduling.sharing.together import StepProgram


def square_wave(*, busy_s: float, idle_s: float, resource: str = "send", weight: float = 1.0) -> StepProgram:
    """A program that uses ``weight`` of one resource for ``busy_s`` seconds, then nothing for ``idle_s`` seconds."""
    return StepProgram(
        duration=np.array([busy_s, idle_s]),
        lane=np.zeros(2, dtype=np.int64),
        after=((), (0,)),
        weights={resource: np.array([weight, 0.0])},
    )
