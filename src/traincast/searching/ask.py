"""What a search is asked: a training, the clusters to choose from, what is best, and how to search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from traincast.ask import Count, File, Live, Option, Progress, Seed, Training, python_only
from traincast.errors import RequestError, UnknownNameError
from traincast.units import parse_count

if TYPE_CHECKING:
    from traincast.engines import Engine
    from traincast.strategy import Request
else:
    Engine = Request = object

Objective: TypeAlias = Literal["time", "cost", "energy", "memory", "robust"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("time", "cost", "energy", "memory", "robust")
CONFIDENCE: Final = 0.8
"""Chance with which a job meets its deadline and budget, unless another is asked for."""
_MOST_NODES: Final = 1_000_000


def parse_nodes(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes in a list (``8,12,16``), a range (``8..128``: 8, its doublings and 128), or both."""
    found: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        low, dots, high = part.partition("..")
        try:
            first, last = int(low), int(high) if dots else int(low)
        except ValueError:
            raise RequestError(f"nodes {part!r}: expected a number, or a range such as 8..128") from None
        if not 1 <= first <= last <= _MOST_NODES:
            raise RequestError(f"nodes {part!r}: expected numbers from 1 to {_MOST_NODES}, the smaller one first")
        found |= {first << n for n in range((last // first).bit_length())} | {last}
    if not found:
        raise RequestError(f"nodes {text!r}: expected numbers of nodes, such as 8..128")
    return tuple(sorted(found))


def _names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise RequestError(f"--devices {text!r}: expected names of devices or node types, such as h100,h200")
    return found


def _objective(text: str) -> Objective:
    for objective in OBJECTIVES:
        if text == objective:
            return objective
    raise UnknownNameError("objective", text, OBJECTIVES)


def _dollars(text: str) -> float:
    return float(parse_count(text, what="--budget"))


def _chance(text: str) -> float:
    """Read ``0.9`` or ``90%``, strictly between 0 and 1."""
    try:
        chance = float(text.removesuffix("%")) * (0.01 if text.endswith("%") else 1.0)
    except ValueError:
        chance = 0.0
    if not 0.0 < chance < 1.0:
        raise RequestError(f"--confidence {text}: expected a chance between 0 and 1, such as 0.9 or 90%")
    return chance


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAsk(Training):
    """What ``search`` is asked."""

    objective: Annotated[
        Objective,
        Option(
            "Minimize time, cost, energy, memory, or the loss expected where forecasts err (robust). Default: cost "
            "with --deadline, time otherwise.",
            "NAME",
            read=_objective,
        ),
    ] = "time"
    top: Annotated[Count, Option("Show N strategies.", "N")] = 10
    constraint: Annotated[
        str,
        Option(
            "Consider only strategies within these limits, such as memory<=70GB,tp<=8,zero=1|3.",
            "LIMIT,…",
            joined=",",
        ),
    ] = ""
    nodes: Annotated[
        Sequence[int],
        Option(
            "Also choose the number of nodes: from a list (2,4,6) or from the doublings of a range (8..128).",
            "N,…|N..N",
            read=parse_nodes,
            whole=True,
        ),
    ] = ()
    devices: Annotated[
        Sequence[str],
        Option(
            "Also choose the device: from these devices or node types, such as h100,h200.",
            "NAME,…",
            read=_names,
            whole=True,
        ),
    ] = ()
    deadline_s: Annotated[
        float | None,
        Option(
            "Longest time that the job may take, such as 14d. By default, the cheapest strategy that meets it comes "
            "first.",
            "TIME",
            flag="--deadline",
            time=True,
        ),
    ] = None
    budget: Annotated[
        float | None,
        Option(
            "Most that the job may cost, in US dollars, such as 2e6. By default, the fastest strategy within it comes "
            "first.",
            "DOLLARS",
            read=_dollars,
        ),
    ] = None
    confidence: Annotated[
        float,
        Option(
            "Required chance that the job meets its deadline and its budget, such as 0.9 or 90%.",
            "CHANCE",
            read=_chance,
        ),
    ] = CONFIDENCE
    searcher: Annotated[str, Option("Search method: auto, exhaustive, branch-and-bound or annealing.", "NAME")] = "auto"
    engine: Annotated[Engine | None, Live(), python_only("Where the workers run, from load_engine.")] = None
    engine_name: Annotated[str, python_only("The name of the engine, for the answer.")] = "local"
    resume: Annotated[
        File | None,
        Option("Save finished parts in FOLDER; a later run with the same folder resumes from them.", "FOLDER"),
    ] = None
    progress: Annotated[
        Progress | None, Live(), python_only("Called with the number of finished parts and of all parts.")
    ] = None
    accepts: Annotated[
        Callable[[Request], bool] | None, Live(), python_only("Returns False for requests to leave out.")
    ] = None
    seed: Annotated[
        Seed, Option("Seed of the random numbers. Annealing and the draws that estimate chances use it.", "N")
    ] = 0
