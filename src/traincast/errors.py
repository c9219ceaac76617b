"""What can go wrong, as one tree.

::

    TraincastError
    ├── RequestError               the user asked for something that cannot be (exit code 2)
    │   ├── UnknownNameError       a name that is not in a catalog; lists the choices
    │   ├── StrategyError          degrees that do not fit the cluster, the model or the batch
    │   ├── FileFormatError        a file that is missing, damaged or not what it should be
    │   ├── CaptureError           a model that could not be traced
    │   └── MissingDependencyError an optional package is not installed; says how to install it
    └── SimulationError            a plan that cannot run (our own mistake, exit code 1)

Every message is one line: what was asked, with its numbers; what holds; what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TraincastError(Exception):
    """Any failure that Traincast itself reports."""


class RequestError(TraincastError):
    """The request cannot be met as it was made; the message says what to change."""


class StrategyError(RequestError):
    """A strategy that does not fit the cluster, the model or the batch."""


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
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        short = sorted(sorted(known, key=len)[:12])
        shown = ", ".join(close) if close else ", ".join(short) + (", …" if len(known) > 12 else "")
        lead = "did you mean" if close else "known are"
        tail = f"; {hint}" if hint else ""
        super().__init__(f"unknown {what} {name!r}: {lead} {shown}{tail}")


class MissingDependencyError(RequestError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, purpose: str, *, extra: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'traincast[{extra}]'")
