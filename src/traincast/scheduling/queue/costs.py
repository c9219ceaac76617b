"""The cost of stopping and resuming jobs: checkpoints, restores and restarts, by job size."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from traincast.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that stopping and resuming a job take. Saving and loading have a fixed part and a part per GPU.

    While a job runs, it writes a checkpoint after every ``interval_s`` of execution; with 0 it writes none. Each takes
    ``checkpoint_s``.

    A preempted job is saved and loses no work. It leaves its GPUs at once, so the next job does not wait. When it runs
    again, it first holds its GPUs for ``checkpoint_s`` (the saving at preemption) and ``restore_s``.

    A job that a failure stops resumes from its last checkpoint, or without checkpoints from where it last started. It
    first holds its GPUs for ``restart_s`` and ``restore_s``.
    """

    checkpoint_s: float = 0.0
    checkpoint_s_per_gpu: float = 0.0
    restore_s: float = 0.0
    restore_s_per_gpu: float = 0.0
    restart_s: float = 0.0
    interval_s: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value >= 0):
                raise RequestError(f"{item.name}={value}: expected seconds from 0")

    def saving_s(self, num_gpus: float) -> float:
        """Return the seconds to write a checkpoint."""
        return self.checkpoint_s + self.checkpoint_s_per_gpu * num_gpus

    def loading_s(self, num_gpus: float) -> float:
        """Return the seconds to read a checkpoint."""
        return self.restore_s + self.restore_s_per_gpu * num_gpus

    def elapsed_s(self, executing_s: float, num_gpus: float) -> float:
        """Return the seconds of an execution with its regular checkpoints; none is written at the end."""
        saving = self.saving_s(num_gpus)
        if not self.interval_s or not saving:
            return executing_s
        return executing_s + (math.ceil(executing_s / self.interval_s) - 1) * saving

    def executed_s(self, elapsed_s: float, num_gpus: float) -> float:
        """Return the seconds of execution in ``elapsed_s``, which includes writing checkpoints."""
        saving = self.saving_s(num_gpus)
        if not self.interval_s or not saving:
            return elapsed_s
        written, since = divmod(elapsed_s, self.interval_s + saving)
        return written * self.interval_s + min(since, self.interval_s)

    def kept_s(self, elapsed_s: float, num_gpus: float) -> float:
        """Return the seconds of execution that survive a failure: those before the last checkpoint."""
        if not self.interval_s:
            return 0.0
        return elapsed_s // (self.interval_s + self.saving_s(num_gpus)) * self.interval_s
