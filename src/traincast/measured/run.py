"""What a row of measured runs says, once it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traincast.strategy import Request
from traincast.tables import Row, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The request that repeats a run, and one sentence for each thing that the row did not state."""

    request: Request
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured run: what was run, what was measured, and what had to be assumed.

    ``index`` is the number of the row, from 0. ``source`` names who published it ("" if not stated). ``seconds`` is
    the time of one step: ``None`` if the run failed or states no time. ``memory_bytes`` is the memory that the
    framework reported: ``None`` if not stated. ``ran`` is false for a run that failed. ``loading_s`` is the time in
    which a process beside the run prepares the samples of one step: no step is shorter. ``others`` are less likely
    readings of a row that leaves something open: the interval of its forecast covers them.
    """

    index: int
    request: Request
    seconds: float | None
    source: str = ""
    memory_bytes: float | None = None
    ran: bool = True
    loading_s: float = 0.0
    assumed: tuple[str, ...] = ()
    others: tuple[Request, ...] = ()


def source_of(row: Row) -> str:
    """Return what errors are grouped by: the source of the row."""
    return text(row, "source") or "unknown"


def unstated(what: str, value: object) -> str:
    """Return the sentence for something that a row does not state and that is taken to be ``value``."""
    return f"{what} not stated: {value}"


def contradiction(column: str, other: str, taken: object) -> str:
    """Return the sentence for a stated ``column`` that cannot hold beside ``other``, and what was ``taken`` instead.

    ``column`` may be several names joined by "and". Nothing but such a contradiction may replace a stated value.
    """
    return f"{column} {'contradict' if ' and ' in column else 'contradicts'} {other}: {taken}"


def assumption_kind(sentence: str) -> str:
    """Return what an assumption is about: its sentence up to the colon, without the value that was taken."""
    return sentence.partition(":")[0]


def count_assumptions(assumed: Iterable[Sequence[str]]) -> dict[str, int]:
    """Count the rows that made each kind of assumption, given the sentences of each row; the most frequent first."""
    counts = Counter(kind for sentences in assumed for kind in dict.fromkeys(map(assumption_kind, sentences)))
    return dict(counts.most_common())
