"""How long the scheduler believes jobs take. The simulation runs on true durations; policies see only these."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from traincast.errors import RequestError
from traincast.scheduling.joblogs.job import Job


class Beliefs(Protocol):
    """Gives the believed duration of a job. The simulation asks once per job, when it is submitted."""

    def seconds(self, job: Job) -> float:
        """Return how long the whole job is believed to execute on its reference placement."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Every job is believed to take its true duration."""

    def seconds(self, job: Job) -> float:
        """Return the job's true duration."""
        return job.duration_s


@dataclass(frozen=True, slots=True)
class Noisy:
    """The true duration times exp(σ·z), with z drawn from the standard normal distribution, once per job name."""

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise RequestError(f"noise of sigma={self.sigma}: expected 0 or more, such as 0.3")

    def seconds(self, job: Job) -> float:
        """Return the job's duration times its random factor."""
        draw = random.Random(f"{self.seed} {job.job_id}")  # noqa: S311  (no secret)
        return job.duration_s * math.exp(self.sigma * draw.gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class User:
    """The user's own estimate, ``estimate_s``. A job without one is refused."""

    def seconds(self, job: Job) -> float:
        """Return the job's ``estimate_s``, or raise ``RequestError`` if it has none."""
        if job.estimate_s is None:
            raise RequestError(
                f"job {job.job_id} has no estimate_s, which --estimates user needs: give one, or choose exact"
            )
        return job.estimate_s


@dataclass(frozen=True, slots=True)
class Given:
    """Seconds by job name, such as those of a forecast; ``notes`` say which of them are no forecasts."""

    by_job: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def seconds(self, job: Job) -> float:
        """Return the seconds given for the job's name, or raise ``RequestError`` if there are none."""
        try:
            return self.by_job[job.job_id]
        except KeyError:
            raise RequestError(f"no estimate is given for job {job.job_id}: give one for every job") from None


def load_beliefs(name: str, *, seed: int = 0) -> Beliefs:
    """Return the beliefs called ``exact``, ``user`` or ``noisy:SIGMA``."""
    kind, _, value = name.partition(":")
    if kind == "exact" and not value:
        return Exact()
    if kind == "user" and not value:
        return User()
    if kind == "noisy":
        try:
            return Noisy(float(value), seed)
        except ValueError:
            raise RequestError(f"estimates {name!r}: expected noisy:SIGMA, such as noisy:0.3") from None
    raise RequestError(f"estimates {name!r}: expected exact, user or noisy:SIGMA")
