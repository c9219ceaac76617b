"""What a run of the testbed is asked to do."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from traincast.errors import RequestError

REAL: Final = "real"
"""Compute that really runs on this machine's processor."""
LOOPBACK: Final = "loopback"
"""The network of processes that share a machine, without shaping."""
MOST_RANKS: Final = 16
LEAST_HZ: Final = 10.0
MOST_HZ: Final = 100.0
"""Readings per second that a sampler takes."""
_RATE: Final = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([kmg]?)bit(?:/s)?", re.IGNORECASE | re.ASCII)
_SCALE: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def rate_of(text: str, what: str = "rate") -> float:
    """Return a rate in bytes per second from text such as ``1Gbit`` or ``200Mbit``; loopback is infinitely fast."""
    if text == LOOPBACK:
        return math.inf
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) * _SCALE[found[2].lower()] / 8.0 if found else 0.0
    if not 0.0 < rate < 1e15:
        raise RequestError(f"{what} {text!r}: expected a rate such as 1Gbit or 200Mbit")
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A training run on this machine.

    ``strategy`` is text, as ``predict`` takes it. ``compute`` is ``real`` or the name of a device of the catalog that
    is emulated. ``network`` is ``loopback``, or the rate of every rank's link in text (``1Gbit``); ``link_rates`` are
    rates of single ranks in bytes/s, and ``slow`` the factors by which single ranks compute more slowly.
    ``warmup`` steps come before the ``steps`` that count. ``threads`` are those of each process. ``monitor_hz`` is how
    often a sampler reads devices, networks and processes in a second; without it, none does. With ``back_to_back``,
    a rank begins its next step when it has done the last, as in real training; otherwise all ranks first agree on a
    common start, so that steps are measured one by one. With ``events``, ranks also measure the works of their plan
    between the steps.
    """

    model: str
    ranks: int
    strategy: str
    global_batch: int
    seq: int | None = None
    compute: str = REAL
    network: str = LOOPBACK
    link_rates: tuple[tuple[int, float], ...] = ()
    slow: tuple[tuple[int, float], ...] = ()
    steps: int = 10
    warmup: int = 3
    threads: int = 1
    monitor_hz: float | None = None
    back_to_back: bool = False
    events: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("ranks", 1, MOST_RANKS),
            ("steps", 1, 100_000),
            ("warmup", 2, 1000),
            ("threads", 1, 64),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise RequestError(f"{name} is {value!r}: expected a whole number from {low} to {high:,}")
        if self.monitor_hz is not None and not LEAST_HZ <= self.monitor_hz <= MOST_HZ:
            raise RequestError(
                f"{self.monitor_hz:g} readings per second: expected {LEAST_HZ:g} to {MOST_HZ:g} (--monitor HZ)"
            )
        if self.events and self.back_to_back:
            raise RequestError("events between steps that follow one another at once: measure them apart")
        for what, pairs in (("link rate", self.link_rates), ("slow factor", self.slow)):
            for rank, value in pairs:
                if not 0 <= rank < self.ranks:
                    raise RequestError(f"{what} of rank {rank}: ranks go from 0 to {self.ranks - 1}")
                if not value > 0.0:
                    raise RequestError(f"{what} of rank {rank} is {value:g}: expected a positive number")

    @property
    def rate(self) -> float:
        """Bytes/s of the links that have no rate of their own."""
        return rate_of(self.network)

    @property
    def emulated(self) -> bool:
        """Whether compute is emulated."""
        return self.compute != REAL

    def factor(self, rank: int) -> float:
        """How many times slower ``rank`` computes."""
        return dict(self.slow).get(rank, 1.0)

    def to_json(self) -> str:
        """The request as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> RunRequest:
        """The request that :meth:`to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        known = {f.name for f in fields(cls)}
        for name in ("link_rates", "slow"):
            data[name] = tuple((int(rank), float(value)) for rank, value in data.get(name, ()))
        return cls(**{name: value for name, value in data.items() if name in known})
