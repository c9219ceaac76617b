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
        tail = f"; {hint}" if hint else ""
        super().__init__(f"unknown {what} {name!r}: {nearest(name, choices)}{tail}")


def expect(what: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raise :class:`RequestError` if ``value`` is of none of ``kinds``; True and False are not whole numbers here."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise RequestError(f"{what} is {value!r:.80}: expected {wanted}")


def nearest(name: str, choices: Iterable[str]) -> str:
    """Returns "did you mean …" with the choices most like ``name``, or "known are …" with a dozen if none is."""
    known = sorted(choices)
    close = _close(name, known)
    if close:
        return f"did you mean {', '.join(close)}"
    short = sorted(sorted(known, key=len)[:12])
    return f"known are {', '.join(short)}{', …' if len(known) > 12 else ''}"


def _close(name: str, known: list[str]) -> list[str]:
    """Up to three names that were likely meant, the likeliest first.

    Long names are also compared by their beginning and by any part, because a user may write only that. ``tpu`` is not
    a typing error for ``cpu``: the first letter must agree, or nearly all letters, or all of them in another order.
    """
    asked = name.lower()

    def likeness(choice: str) -> tuple[float, int]:
        other = choice.lower()
        whole = difflib.SequenceMatcher(None, asked, other)
        slip = asked[:1] == other[:1] or sorted(asked) == sorted(other)
        slip = slip or (whole.quick_ratio() > _NEARLY_ALL and whole.ratio() > _NEARLY_ALL)
        contained = float(len(asked) >= _PART and asked in other)
        if not slip:
            return contained, _beginning(asked, other)
        heads = (other[: len(asked)], other[: len(asked) + 1])
        parts = (difflib.SequenceMatcher(None, asked, text).ratio() for text in heads)
        return max(contained, whole.ratio(), *parts), _beginning(asked, other)

    found = sorted((choice for choice in known if likeness(choice)[0] >= _ALIKE), key=likeness, reverse=True)
    return found[:3]


def _beginning(one: str, other: str) -> int:
    """The number of letters at the beginning that two texts have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class MissingDependencyError(RequestError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, purpose: str, *, extra: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'traincast[{extra}]'")
