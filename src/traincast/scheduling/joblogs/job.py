"""A job as its user submits it: when, on how many GPUs, and how long it takes or what it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from traincast.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a queue; validated when made. Times are seconds.

    ``submit_s`` and ``deadline_s`` are absolute. ``duration_s`` is the execution time on the job's reference placement,
    ``estimate_s`` the user's own estimate of it. ``num_gpus`` is a whole number, or below 1 a share of one GPU. A
    larger ``priority`` is more urgent. ``gpu_type`` is the type of GPU that it needs; "" accepts any. ``model``,
    ``batch``, ``strategy`` and ``steps`` say what is trained, if the duration is to be forecast. A job with
    ``min_gpus`` and ``max_gpus`` is elastic: it can run on any number between them. If they are 0, it runs on exactly
    ``num_gpus``.
    """

    job_id: str
    submit_s: float
    num_gpus: float
    duration_s: float
    vc: str = ""
    priority: float = 0.0
    deadline_s: float | None = None
    estimate_s: float | None = None
    gpu_type: str = ""
    user: str = ""
    model: str = ""
    batch: int = 0
    strategy: str = ""
    steps: float = 0.0
    min_gpus: int = 0
    max_gpus: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.submit_s) and self.submit_s >= 0):
            raise RequestError(f"job {self.job_id}: submit_s={self.submit_s}: expected seconds from 0")
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise RequestError(f"job {self.job_id}: duration_s={self.duration_s}: expected seconds above 0")
        gpus = self.num_gpus
        if not (math.isfinite(gpus) and gpus > 0 and (gpus < 1 or gpus == int(gpus))):
            raise RequestError(
                f"job {self.job_id}: num_gpus={gpus}: expected a whole number, or a share of one GPU between 0 and 1"
            )
        if self.estimate_s is not None and not (math.isfinite(self.estimate_s) and self.estimate_s > 0):
            raise RequestError(f"job {self.job_id}: estimate_s={self.estimate_s}: expected seconds above 0, or none")
        if self.deadline_s is not None and not math.isfinite(self.deadline_s):
            raise RequestError(f"job {self.job_id}: deadline_s={self.deadline_s}: expected a time in seconds, or none")
        if not math.isfinite(self.priority):
            raise RequestError(f"job {self.job_id}: priority={self.priority}: expected a number")
        if (self.min_gpus or self.max_gpus) and not 1 <= self.min_gpus <= gpus <= self.max_gpus:
            raise RequestError(
                f"job {self.job_id}: min_gpus={self.min_gpus}, num_gpus={gpus}, max_gpus={self.max_gpus}: "
                "expected 1 ≤ min_gpus ≤ num_gpus ≤ max_gpus, or neither bound"
            )

    @property
    def is_elastic(self) -> bool:
        """Whether the job can run on other numbers of GPUs than it asks for."""
        return self.max_gpus > self.min_gpus
