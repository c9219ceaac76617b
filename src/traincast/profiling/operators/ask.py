"""What ``profile operators`` and ``profile opset`` are asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from traincast.ask import Ask, Count, JsonRecord, Option, Seed, option_of, python_only
from traincast.errors import RequestError
from traincast.profiling.ask import DEVICE, REPEATS, SOURCE, THREADS, TIME_LIMIT, TIMED_STEPS

PRECISIONS: Final = ("fp32", "bf16", "fp16")
FULL: Final = "full"
SMALL: Final = "small"
SIZES: Final = (FULL, SMALL)
"""Sizes of operators: as in published networks, or small enough that one core runs each within about 0.1 s."""
_MOST: Final = {
    "batch": 10**9,
    "threads": 4096,
    "repeats": 10**6,
    "timed_steps": 10**6,
    "layers_per_type": 10**4,
    "limit": 10**9,
}
"""Largest values that a request may have: larger ones are typing errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSet(JsonRecord):
    """The operator set: which of its layers are drawn, and for which batch."""

    layers_per_type: Annotated[Count, Option("Layers of each type in the operator set.", "N")] = 40
    size: Annotated[
        str,
        Option(
            "Operators of the operator set: full (as in published networks) or small (for one core of a processor).",
            "NAME",
        ),
    ] = FULL
    seed: Annotated[Seed, Option("Seed of the random numbers. The operator set depends on it.", "N")] = 0
    batch: Annotated[Count, Option("Samples per step on the one device.", "N")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTiming(OperatorSet):
    """How operators are timed, wherever they are from. A later run with the same output measures what is left."""

    seq: Annotated[Count | None, option_of(Ask, "seq")] = None
    precision: Annotated[str, Option("Number formats of the training step: fp32, bf16 or fp16.", "NAME")] = "fp32"
    device: Annotated[str, DEVICE] = "cpu"
    threads: Annotated[Count, THREADS] = 1
    repeats: Annotated[Count, REPEATS] = 20
    timed_steps: Annotated[Count, TIMED_STEPS] = 5
    limit: Annotated[
        Count | None, Option("Time at most N operators alone; the kinds of operators take turns.", "N")
    ] = None
    time_limit_s: Annotated[float | None, TIME_LIMIT] = None
    source: Annotated[str, SOURCE] = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequest(OperatorTiming):
    """The operators to profile: those of ``models``, of operator-set ``files``, and of the operator set (``opset``).

    ``alone`` times each distinct operator by itself, ``repeats`` times; ``in_context`` times ``timed_steps`` steps of
    each model.
    """

    models: Annotated[tuple[str, ...], python_only("Models to take operators from.")] = ()
    files: Annotated[tuple[Path, ...], python_only("Files of saved operator sets.")] = ()
    opset: Annotated[bool, python_only("Whether to take operators from the operator set.")] = False
    alone: Annotated[bool, python_only("Whether to time each distinct operator alone.")] = True
    in_context: Annotated[bool, python_only("Whether to time operators while their model runs.")] = True

    def __post_init__(self) -> None:
        JsonRecord.__post_init__(self)
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise RequestError(f"{name} is {value}: expected a whole number from 1 to {most}")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise RequestError(f"time_limit_s is {self.time_limit_s:g}: expected more than 0")
        if self.precision not in PRECISIONS:
            raise RequestError(f"precision is {self.precision!r}: operators are profiled in {', '.join(PRECISIONS)}")
        if self.size not in SIZES:
            raise RequestError(f"size is {self.size!r}: expected {' or '.join(SIZES)}")
        if not self.models and not self.files and not self.opset:
            raise RequestError("nothing to profile: give models of the zoo, `zoo` or `opset`")
