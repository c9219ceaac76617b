"""The cost of stopping and resuming jobs: checkpoints, restores and restarts, by job size."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from traincast.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that stopping and resuming take. Each cost has a fixed part and a part per GPU of the job.

    A job that is preempted is saved and loses no work. It holds its GPUs for the time of saving (``checkpoint_s``) and
    of loading (``restore_s``) when it goes on: the GPU time is that of a checkpoint written before the GPUs are given
    up, while who takes over need not wait for it. A job that a failure stops goes on from its last regular checkpoint,
    one after every ``interval_s`` of execution (0: it has none and begins again from where it last started), and
    pays ``restart_s`` and the restore. Regular checkpoints take ``checkpoint_s`` each.
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
        """Seconds to write a checkpoint."""
        return self.checkpoint_s + self.checkpoint_s_per_gpu * num_gpus

    def loading_s(self, num_gpus: float) -> float:
        """Seconds to read one."""
        return self.restore_s + self.restore_s_per_gpu * num_gpus

    def elapsed_s(self, executing_s: float, num_gpus: float) -> float:
        """Seconds that an execution of that length takes with its regular checkpoints. None is written at the end."""
        saving = self.saving_s(num_gpus)
        if not self.interval_s or not saving:
            return executing_s
        return executing_s + (math.ceil(executing_s / self.interval_s) - 1) * saving

    def executed_s(self, elapsed_s: float, num_gpus: float) -> float:
        """Seconds of execution in an elapsed time that includes writing checkpoints."""
        saving = self.saving_s(num_gpus)
        if not self.interval_s or not saving:
            return elapsed_s
        written, since = divmod(elapsed_s, self.interval_s + saving)
        return written * self.interval_s + min(since, self.interval_s)

    def kept_s(self, elapsed_s: float, num_gpus: float) -> float:
        """Seconds of execution that survive a failure: those up to the last checkpoint."""
        if not self.interval_s:
            return 0.0
        return elapsed_s // (self.interval_s + self.saving_s(num_gpus)) * self.interval_s
