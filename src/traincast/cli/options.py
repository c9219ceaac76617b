"""The options of the command line that several verbs share: one name, one type and one meaning on every verb.

The help of a shared option starts with the same sentence on every verb; a verb may add another. One parser reads each
kind of value: :class:`Count`, :class:`Time`, :class:`Seed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeAlias, TypeVar

import click
from msgspec import Meta

from traincast.ask import Option
from traincast.errors import RequestError
from traincast.profiling.ask import COMPUTE, REPEATS, THREADS
from traincast.units import parse_count, parse_seconds

F = TypeVar("F", bound=Callable[..., Any])


class Decorator(Protocol):
    """Adds one option or more to the function of a verb."""

    def __call__(self, function: F, /) -> F:
        """Return the function with the options added."""


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


CATALOG_CLUSTER: Final = (
    "a name, NAME:NODES or a .toml file (see `traincast clusters`); dgx-h100:1x2 is 1 node with 2 of its devices, "
    "rtx-4090 is 1 device."
)
PRECISIONS: Final = "fp32, tf32, amp, amp-bf16, fp16, bf16, pure-bf16, fp8 or nvfp4."
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
HTML: Final = Option("Write a self-contained HTML page to FILE.", "FILE")
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


def json() -> Decorator:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=JSON.help)


def output(more: str, *, required: bool = True) -> Decorator:
    """``-o/--output``: where the verb writes its result; ``more`` describes the file."""
    return click.option("-o", "--output", required=required, metavar="PATH", help=_text("Write to PATH:", more))


def html() -> Decorator:
    """``--html``."""
    return click.option("--html", metavar=HTML.metavar, help=HTML.help)


def cluster(more: str, *, required: bool = True) -> Decorator:
    """``--cluster``: the hardware; ``more`` says which forms this verb takes."""
    return click.option("--cluster", required=required, metavar="CLUSTER", help=_text("The cluster:", more))


def global_batch(*, required: bool = True) -> Decorator:
    """``--global-batch``."""
    return click.option(
        "--global-batch", required=required, type=COUNT, metavar="N", help="Samples per step, over all devices."
    )


def seq() -> Decorator:
    """``--seq``."""
    return click.option("--seq", type=COUNT, metavar="N", help="Tokens per sample, for sequence models.")


def precision(choices: str, *, default: str | None = None) -> Decorator:
    """``--precision``; ``choices`` lists the precisions that the verb takes."""
    return click.option(
        "--precision",
        default=default,
        show_default=default is not None,
        metavar="NAME",
        help=_text("Number formats of the training step:", choices),
    )


def bundle() -> Decorator:
    """``--bundle``."""
    return click.option(
        "--bundle",
        multiple=True,
        metavar="FOLDER",
        help="Estimate times with this bundle before the shipped ones. May be given several times.",
    )


def compute() -> Decorator:
    """``--compute``."""
    return click.option(
        "--compute",
        default="real",
        show_default=True,
        metavar=COMPUTE.metavar,
        help=COMPUTE.help,
    )


def exports(more: str) -> Option:
    """``--export``; ``more`` says what it changes on this verb."""
    what = "Print the strategy as options or configuration of megatron, torchtitan, deepspeed or nanotron."
    return Option(_text(what, more), "NAME")


def allow_code() -> Decorator:
    """``--allow-code``."""
    return click.option(
        "--allow-code",
        is_flag=True,
        help="Run Python code that the table names as a model or schedule (package.module:factory).",
    )


def where() -> Decorator:
    """``--where``."""
    return click.option(
        "--where",
        multiple=True,
        metavar="NAME=VALUE,…",
        help="Use only rows with this device, op, phase, dtype, source or framework. "
        "A name given twice takes rows with either value.",
    )


def seed(more: str) -> Decorator:
    """``--seed``; ``more`` says what depends on it."""
    return click.option(
        "--seed",
        type=SEED,
        default=0,
        show_default=True,
        metavar="N",
        help=_text("Seed of the random numbers.", more),
    )


def workers_option(more: str) -> Option:
    """``--workers``; ``more`` says what the processes do."""
    return Option(_text("Number of processes to use at once.", more), "N")


def workers(more: str, *, default: int | None = None) -> Decorator:
    """``--workers``; ``more`` says what the processes do. Without a ``default`` the verb chooses."""
    return click.option(
        "--workers",
        type=WORKERS,
        default=default,
        show_default=default is not None,
        metavar="N",
        help=workers_option(more).help,
    )


def engine() -> Decorator:
    """``--engine`` and ``--address``."""

    def decorate(function: F) -> F:
        function = click.option("--address", metavar=ADDRESS.metavar, help=ADDRESS.help)(function)
        return click.option("--engine", default="local", show_default=True, metavar=ENGINE.metavar, help=ENGINE.help)(
            function
        )

    return decorate


def repeats() -> Decorator:
    """``--repeats``."""
    return click.option("--repeats", default=20, show_default=True, type=COUNT, metavar="N", help=REPEATS.help)


def threads() -> Decorator:
    """``--threads``."""
    return click.option("--threads", default=1, show_default=True, type=COUNT, metavar="N", help=THREADS.help)


def source() -> Decorator:
    """``--source``."""
    return click.option(
        "--source",
        default="profile",
        show_default=True,
        metavar="NAME",
        help="Value of the table's source column; errors are grouped by it.",
    )


def rivals() -> Decorator:
    """``--rivals``."""
    return click.option("--rivals", is_flag=True, help="Also fit the rival models, and print the error of each.")


def dialect() -> Decorator:
    """``--dialect FILE``."""
    return click.option(
        "--dialect", metavar="FILE", help="TOML file that says how the table writes its columns and words."
    )


def uncalibrated() -> Decorator:
    """``--uncalibrated``."""
    return click.option("--uncalibrated", is_flag=True, help="Ignore all calibrations of clusters.")
