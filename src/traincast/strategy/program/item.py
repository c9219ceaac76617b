"""One work of a program, with its launches on the host and the works that it overlaps with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traincast.strategy.mesh import Group
from traincast.work import Launch, Work


class Share(NamedTuple):
    """The elements of one or more parameters that a rank trains, outside and inside experts."""

    dense: float
    experts: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """The works that a communication overlaps with; see :class:`traincast.strategy.plan.Overlap`."""

    works: tuple[Work, ...]
    share: float = 1.0
    interference: float = 0.0
    waited: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One work of a program, its launches on the host, and its label.

    ``core`` marks the core of attention, which selective recomputation runs again. ``weight`` marks works that only
    make gradients of weights; they may run later than the rest of backward. With ``behind``, only the part of the work
    that does not overlap counts. ``completes`` has the parameters whose gradients are complete after the work, in
    order; it is filled only for runtimes that cut buckets between parameters.
    """

    work: Work
    launches: Launch
    label: str
    group: Group = Group.RANK
    core: bool = False
    weight: bool = False
    behind: Behind | None = None
    completes: tuple[Share, ...] = ()
