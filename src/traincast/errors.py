"""What can go wrong, as one tree.

::

    TraincastError
    ├── RequestError               the user asked for something that cannot be (exit code 2)
    │   ├── UnknownNameError       a name that is not in a catalog; lists the choices
    │   ├── StrategyError          degrees that do not fit the cluster, the model or the batch
    │   │   ├── EmptyAxisError     limits that leave no value of an axis of the search
    │   │   └── NoneAcceptedError  a filter that accepts none of the strategies found
    │   ├── FileFormatError        a file that is missing, damaged or not what it should be
    │   ├── CaptureError           a model that could not be traced
    │   └── MissingDependencyError an optional package is not installed; says how to install it
    └── SimulationError            a plan that cannot run (our own mistake, exit code 1)

Every message is one line: what was asked, with its numbers; what holds; what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

_ALIKE: Final = 0.6
_NEARLY_ALL: Final = 0.75
_PART: Final = 3


class TraincastError(Exception):
    """Any failure that Traincast itself reports."""


class RequestError(TraincastError):
    """The request cannot be met as it was made; the message says what to change."""


class StrategyError(RequestError):
    """A strategy that does not fit the cluster, the model or the batch."""


class EmptyAxisError(StrategyError):
    """Limits on a search that leave no value of one axis."""


class NoneAcceptedError(StrategyError):
    """A filter that accepts none of the strategies that a search found."""


class FileFormatError(RequestError):
    """A file that is missing, damaged or of another format than expected."""


class CaptureError(RequestError):
    """A model whose operators could not be traced."""


class SimulationError(TraincastError):
    """A plan that cannot be executed."""


class UnknownNameError(RequestError):
    """A name that is not in a catalog."""

    def __init__(self, what: str, name: str, choices: Iterable[str], *, hint: str = "") -> None:
        known = sorted(choices)
        close = _close(name, known)
        short = sorted(sorted(known, key=len)[:12])
        shown = ", ".join(close) if close else ", ".join(short) + (", …" if len(known) > 12 else "")
        lead = "did you mean" if close else "known are"
        tail = f"; {hint}" if hint else ""
        super().__init__(f"unknown {what} {name!r}: {lead} {shown}{tail}")


def _close(name: str, known: list[str]) -> list[str]:
    """Up to three names that were likely meant, the likeliest first.

    Long names are also compared by their beginning, and by what they contain: it may be all that was written. But
    ``tpu`` is no slip of the pen for ``cpu``: unless nearly all letters agree, the first must, or all in another order.
    """
    asked = name.lower()

    def likeness(choice: str) -> tuple[float, int]:
        other = choice.lower()
        heads = (other[: len(asked)], other[: len(asked) + 1])
        whole, *parts = (difflib.SequenceMatcher(None, asked, text).ratio() for text in (other, *heads))
        slip = asked[:1] == other[:1] or sorted(asked) == sorted(other) or whole > _NEARLY_ALL
        contained = float(len(asked) >= _PART and asked in other)
        return max(contained, whole, *parts) if slip else contained, _beginning(asked, other)

    found = sorted((choice for choice in known if likeness(choice)[0] >= _ALIKE), key=likeness, reverse=True)
    return found[:3]


def _beginning(one: str, other: str) -> int:
    """How many letters two texts begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class MissingDependencyError(RequestError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, purpose: str, *, extra: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'traincast[{extra}]'")
