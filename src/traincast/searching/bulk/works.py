"""All distinct works of a search; each is estimated once, many in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from traincast.work import Work

Floats = npt.NDArray[np.float64]


class Works:
    """Assigns a number to each distinct work; :meth:`settle` estimates the new ones."""

    def __init__(self, estimate: Callable[[Sequence[Work]], Floats]) -> None:
        self._estimate = estimate
        self._numbers: dict[Work, int] = {}
        self._seen: dict[int, tuple[int, Work]] = {}  # by identity: hashing an operator takes longer than most lookups
        self._new: list[Work] = []
        self.seconds: Floats = np.zeros(0)

    def number(self, work: Work) -> int:
        """Return the number of a work: its index in :attr:`seconds` after :meth:`settle`."""
        seen = self._seen.get(id(work))
        if seen is not None:
            return seen[0]
        number = self._numbers.setdefault(work, len(self._numbers))
        if number == len(self.seconds) + len(self._new):
            self._new.append(work)
        self._seen[id(work)] = number, work
        return number

    def settle(self) -> Floats:
        """Estimate the new works; return the seconds of all works so far."""
        if self._new:
            self.seconds = np.concatenate([self.seconds, self._estimate(self._new)])
            self._new = []
        return self.seconds

    def __len__(self) -> int:
        return len(self._numbers)
