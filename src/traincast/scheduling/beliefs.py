"""What the scheduler believes about how long jobs take; what is true is another matter."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from traincast.errors import RequestError
from traincast.scheduling.job import Job


class Beliefs(Protocol):
    """Asked once for each job, when it is submitted."""

    def seconds(self, job: Job) -> float:
        """How long the job is believed to execute on its reference placement, from its beginning to its end."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The truth."""

    def seconds(self, job: Job) -> float:
        """Its duration."""
        return job.duration_s


@dataclass(frozen=True, slots=True)
class Noisy:
    """The truth times exp(σ·z), z from the standard normal distribution: each job has its own draw by its name."""

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise RequestError(f"noise of sigma={self.sigma}: expected a number from 0, as 0.3")

    def seconds(self, job: Job) -> float:
        """Its duration, disturbed."""
        draw = random.Random(f"{self.seed} {job.job_id}")  # noqa: S311  (no secret)
        return job.duration_s * math.exp(self.sigma * draw.gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class User:
    """What its user said; a job of which nothing was said is refused."""

    def seconds(self, job: Job) -> float:
        """Its ``estimate_s``."""
        if job.estimate_s is None:
            raise RequestError(
                f"job {job.job_id} has no estimate_s, and estimates are to be its user's: give one, or choose exact"
            )
        return job.estimate_s


@dataclass(frozen=True, slots=True)
class Given:
    """Seconds by job, as a forecast gave them."""

    by_job: Mapping[str, float]

    def seconds(self, job: Job) -> float:
        """What is given for its name."""
        try:
            return self.by_job[job.job_id]
        except KeyError:
            raise RequestError(f"no estimate is given for job {job.job_id}: give one for every job") from None


def load_beliefs(name: str, *, seed: int = 0) -> Beliefs:
    """``exact``, ``user`` or ``noisy:SIGMA``."""
    kind, _, value = name.partition(":")
    if kind == "exact" and not value:
        return Exact()
    if kind == "user" and not value:
        return User()
    if kind == "noisy":
        try:
            return Noisy(float(value), seed)
        except ValueError:
            raise RequestError(f"estimates {name!r}: expected noisy:SIGMA, as noisy:0.3") from None
    raise RequestError(f"estimates {name!r}: expected exact, user or noisy:SIGMA")
