"""What ``fit operators`` and ``fit collectives`` are asked: tables, a bundle to write, and what is fitted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from traincast.ask import File, Files, JsonRecord, Live, Option, Seed, Workers, python_only
from traincast.errors import RequestError

Kind: TypeAlias = Literal["operators", "collectives"]
Warn: TypeAlias = Callable[[Sequence[str]], None]
"""Is told the sentences on rows that are left out, before anything is fitted."""
Epochs: TypeAlias = Annotated[int, Meta(ge=1, le=10_000)]
BUNDLE: Final = Option("Write to PATH: the bundle, a folder.", "PATH", short="-o")
RIVALS: Final = Option("Also fit the rival models, and print the error of each.")


def conditions(text: str) -> dict[str, set[str]]:
    """Parse ``device=A100,op=gemm`` into the accepted values of each column."""
    found: dict[str, set[str]] = {}
    for pair in text.split(","):
        name, sign, value = pair.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise RequestError(f"--where {pair!r} is not of the form NAME=VALUE")
        found.setdefault(name.strip(), set()).add(value.strip())
    return found


WHERE: Final = Option(
    "Use only rows with this device, op, phase, dtype, source or framework.",
    "NAME=VALUE,…",
    read=conditions,
    joined=",",
    again="A name given twice takes rows with either value.",
)


def _networks(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))


def _cells(text: str) -> tuple[str, ...] | None:
    return tuple(text.split(",")) if text else None


@dataclass(frozen=True, slots=True)
class FitAsk(JsonRecord):
    """What ``fit`` is asked. Some fields apply to one ``kind`` of table alone, and are refused for the other."""

    tables: Annotated[Files, Option("Tables of measurements (.csv, .csv.gz or .parquet).", "FILE…")]
    _: KW_ONLY
    output: Annotated[File, BUNDLE]
    kind: Annotated[Kind, python_only("What the tables hold: operators or collectives.")] = "operators"
    rivals: Annotated[bool, RIVALS] = False
    networks: Annotated[
        Sequence[str] | None,
        Option(
            "Also try a network on cells that match PATTERN, such as 'attention/*,conv/*'; `none` tries none.",
            "PATTERN,…",
            read=_networks,
            whole=True,
        ),
    ] = None
    only: Annotated[
        Sequence[str] | None,
        Option(
            "Fit only cells that match PATTERN, such as 'conv/*,*/v100*'. Default: all cells.",
            "PATTERN,…",
            read=_cells,
            whole=True,
        ),
    ] = None
    keep: Annotated[
        File | None,
        Option("Copy the cells that --only leaves out from BUNDLE, unchanged.", "BUNDLE", flag="--from"),
    ] = None
    epochs: Annotated[Epochs | None, Option("Train each network for N epochs. Default: 40.", "N")] = None
    where: Annotated[Mapping[str, Collection[str]] | None, WHERE] = None
    seed: Annotated[
        Seed, Option("Seed of the random numbers. The held-out rows and the training depend on it.", "N")
    ] = 0
    workers: Annotated[
        Workers | None, Option("Number of processes to use at once. Each fits one cell at a time.", "N")
    ] = None
    adapt: Annotated[
        bool | None,
        Option(
            "Adapt the shipped collectives to the points of one system, or fit curves to them. Default: adapt if FILE "
            "has at most 40 configurations of one system of accelerators."
        ),
    ] = None
    prior: Annotated[
        Sequence[File],
        Option(
            "A table of other systems. The bundle learns from it what to expect of a system that nobody measured.",
            "FILE",
        ),
    ] = ()
    progress: Annotated[
        Callable[[str], None] | None, Live(), python_only("Called with one line for each model that was fitted.")
    ] = None
    warn: Annotated[
        Warn | None, Live(), python_only("Called with the sentences on rows that are left out, before the fit.")
    ] = None


@dataclass(frozen=True, slots=True)
class CollectivesFitAsk(FitAsk):
    """What ``fit collectives`` is asked: a fit to one table."""

    tables: Annotated[File, Option("Table of measured collectives (.csv, .csv.gz or .parquet).", "FILE")]
    _: KW_ONLY
    kind: Annotated[Kind, python_only("What the table holds.")] = "collectives"
    seed: Annotated[Seed, Option("Seed of the random numbers. The held-out configurations depend on it.", "N")] = 0


OPERATORS_ONLY: Final = ("networks", "only", "keep", "epochs", "where", "workers")
COLLECTIVES_ONLY: Final = ("adapt", "prior")
"""Fields that apply to one kind of table alone."""
