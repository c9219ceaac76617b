"""What several verbs of the command line share: readers of values, and options of how results are shown.

One parser reads each kind of value: :class:`Count`, :class:`Time`, :class:`Seed`. The help of a shared option starts
with the same sentence on every verb; a verb may add another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from traincast.ask import HTML, Option
from traincast.errors import RequestError
from traincast.units import parse_count, parse_seconds

_LARGEST_SEED: Final = 2**31 - 1

if TYPE_CHECKING:
    _Whole = click.ParamType[int]
    _Seconds = click.ParamType[float]
else:  # generic only in later releases of click
    _Whole = _Seconds = click.ParamType


class Count(_Whole):
    """A whole number from 1 to ``most``, such as ``256``, ``4k`` or ``1e12``."""

    name = "count"

    def __init__(self, most: float = math.inf) -> None:
        self.most = most

    def __repr__(self) -> str:
        return f"Count({self.most:g})"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; text is read by :func:`traincast.units.parse_count`, a default is a number already."""
        count = parse_count(value, what=_name(param)) if isinstance(value, str) else int(value)
        if count > self.most:
            raise RequestError(f"{_name(param)} is {value!r}: expected a whole number from 1 to {self.most}")
        return count


class Time(_Seconds):
    """A time above zero, such as ``30min`` or ``14d``: see :func:`traincast.units.parse_seconds`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time in seconds; text is read by :func:`traincast.units.parse_seconds`."""
        return parse_seconds(value, what=_name(param), zero=False) if isinstance(value, str) else float(value)


class Seed(_Whole):
    """A whole number from 0 to 2147483647."""

    name = "seed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; refuse other text."""
        text = str(value).strip()
        if not (text.isascii() and text.isdigit() and int(text) <= _LARGEST_SEED):
            raise RequestError(f"{_name(param)} is {value!r}: expected a whole number from 0 to {_LARGEST_SEED}")
        return int(text)


def _name(param: click.Parameter | None) -> str:
    """Return the long name of an option, for errors."""
    return param.opts[-1] if param else "value"


COUNT: Final = Count()
WORKERS: Final = Count(most=1024)
TIME: Final = Time()
SEED: Final = Seed()


def example(words: str) -> str:
    """Return the end of a verb's help: one command that can be run unchanged."""
    return f"\b\nExample:\n  traincast {words}"


def _text(first: str, more: str) -> str:
    """Return the sentence that an option has on every verb, followed by the addition of this verb."""
    return f"{first} {more}".rstrip()


JSON: Final = Option("Print one JSON document to standard output.", flag="--json")
EXPLAIN: Final = Option("Print all warnings, not only the five most important ones.")
ENGINE: Final = Option("Where the workers run: local (this machine) or ray (a Ray cluster).", "NAME")
ADDRESS: Final = Option("Address of the Ray cluster. A local one is started if omitted.", "ADDRESS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a verb shows its result."""

    as_json: Annotated[bool, JSON] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastShown(Shown):
    """How a verb that forecasts shows its result."""

    html: Annotated[str | None, HTML] = None
    explain: Annotated[bool, EXPLAIN] = False


def exports(more: str) -> Option:
    """``--export``; ``more`` says what it changes on this verb."""
    what = "Print the strategy as options or configuration of megatron, torchtitan, deepspeed or nanotron."
    return Option(_text(what, more), "NAME")


def workers_option(more: str) -> Option:
    """``--workers``; ``more`` says what the processes do."""
    return Option(_text("Number of processes to use at once.", more), "N")
