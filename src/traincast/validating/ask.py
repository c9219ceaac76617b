"""What ``validate`` is asked: a table of measurements, and how its rows are forecast."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from traincast.ask import ALLOW_CODE, Ask, Count, File, JsonRecord, Live, Option, Progress, option_of, python_only
from traincast.fitting.ask import WHERE

if TYPE_CHECKING:
    from traincast.cluster import Cluster
    from traincast.estimate import CostModel
else:  # in JSON there are words alone
    Cluster = CostModel = str

TableKind: TypeAlias = Literal["steps", "dp-steps", "finetune", "operators", "collectives"]
"""What a table holds: steps of language models, data-parallel steps, fine-tuning runs, operators, or collectives."""


@dataclass(frozen=True, slots=True)
class ValidateAsk(JsonRecord):
    """What ``validate`` is asked. :data:`TAKES` says which fields apply to a ``kind`` of table; others are refused."""

    table: Annotated[File, Option("Table of measurements (.csv, .csv.gz or .parquet).", "FILE")]
    _: KW_ONLY
    kind: Annotated[TableKind, python_only("What the table holds; docs/accuracy.md lists its columns.")] = "steps"
    cluster: Annotated[
        Cluster | str | None,
        Option(
            "The cluster: a name or a .toml file; all rows ran on it. If omitted, each row names its own.", "CLUSTER"
        ),
    ] = None
    calibrated: Annotated[
        bool, Option("Ignore all calibrations of clusters.", flag="--uncalibrated", turns_off=True)
    ] = True
    allow_code: Annotated[bool, ALLOW_CODE] = False
    cost_model: Annotated[CostModel | None, Live(), python_only("Replaces the usual cost model.")] = None
    dialect: Annotated[
        File | None, Option("TOML file that says how the table writes its columns and words.", "FILE")
    ] = None
    bundles: Annotated[
        Sequence[File], Option(option_of(Ask, "bundle").help, option_of(Ask, "bundle").metavar, flag="--bundle")
    ] = ()
    rows: Annotated[Count | None, Option("Use an even sample of N rows.", "N")] = None
    where: Annotated[Mapping[str, Collection[str]] | None, WHERE] = None
    own_points: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Option(
            "Adapt the estimates of each system without a fit of its own to K of its rows, chosen evenly over sizes "
            "and ranks. These rows are skipped, the others are compared.",
            "K",
        ),
    ] = None
    progress: Annotated[Progress | None, Live(), python_only("Called with the number of finished rows and of all.")] = (
        None
    )


TAKES: Final[dict[TableKind, frozenset[str]]] = {
    "steps": frozenset({"cluster", "calibrated", "allow_code", "cost_model", "dialect"}),
    "dp-steps": frozenset({"calibrated", "cost_model", "dialect"}),
    "finetune": frozenset({"calibrated", "cost_model", "dialect"}),
    "operators": frozenset({"bundles", "rows", "where"}),
    "collectives": frozenset({"bundles", "own_points"}),
}
"""The fields that apply to each kind of table."""


def refused(kind: TableKind) -> frozenset[str]:
    """Return the fields that apply to other kinds of tables, but not to this one."""
    return frozenset().union(*TAKES.values()) - TAKES[kind]
