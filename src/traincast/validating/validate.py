"""``traincast.validate``: compare forecasts with a table of measurements."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from traincast.cluster import Cluster, load_cluster
from traincast.errors import RequestError, expect
from traincast.estimate import CostModel
from traincast.validating.outcome import Validation

TableKind: TypeAlias = Literal["steps", "dp-steps", "finetune", "operators", "collectives"]
"""What a table holds: steps of language models, data-parallel steps, fine-tuning runs, operators, or collectives."""

_TAKES: Final[dict[TableKind, frozenset[str]]] = {
    "steps": frozenset({"cluster", "calibrated", "allow_code", "cost_model", "dialect"}),
    "dp-steps": frozenset({"calibrated", "cost_model", "dialect"}),
    "finetune": frozenset({"calibrated", "cost_model", "dialect"}),
    "operators": frozenset({"bundles", "rows", "where"}),
    "collectives": frozenset({"bundles", "own_points"}),
}
"""The arguments that apply to each kind of table."""


def validate(
    table: str | os.PathLike[str],
    *,
    kind: TableKind = "steps",
    cluster: Cluster | str | None = None,
    calibrated: bool = True,
    allow_code: bool = False,
    cost_model: CostModel | None = None,
    dialect: str | os.PathLike[str] | None = None,
    bundles: Sequence[str | os.PathLike[str]] = (),
    rows: int | None = None,
    where: Mapping[str, Collection[str]] | None = None,
    own_points: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Forecast every row of a table of measurements (``.csv``, ``.csv.gz`` or ``.parquet``) and compare.

    ``kind`` says what the table holds; docs/accuracy.md lists its columns. A row that cannot be forecast is skipped
    with the reason. These arguments apply to some kinds only, and are refused for the others:

    - ``cluster`` (steps): the cluster that all rows ran on; without it, each row describes its machine.
    - ``calibrated`` (steps, dp-steps, finetune): false leaves calibrations of the catalog out.
    - ``allow_code`` (steps): lets rows name models and schedules that are Python code, and runs it.
    - ``cost_model`` (steps, dp-steps, finetune): replaces the usual cost model.
    - ``dialect`` (steps, dp-steps, finetune): a TOML file that says how the table writes its columns and words.
    - ``bundles`` (operators, collectives): folders of learned models that are asked before the shipped ones.
    - ``rows`` (operators): takes an even sample of this many rows.
    - ``where`` (operators): takes the rows with one of the given values in each named column.
    - ``own_points`` (collectives): adapts the estimates of each unmeasured system to this many of its rows.

    ``progress`` is called with the number of rows done and the number of all rows.
    """
    expect("table", table, (str, os.PathLike), "the path of a table")
    if kind not in _TAKES:
        raise RequestError(f"kind {kind!r} is not known: expected one of {', '.join(get_args(TableKind))}")
    given = {
        "cluster": cluster,
        "calibrated": None if calibrated else False,
        "allow_code": allow_code or None,
        "cost_model": cost_model,
        "dialect": dialect,
        "bundles": [Path(bundle) for bundle in bundles] or None,
        "rows": rows,
        "where": where or None,
        "own_points": own_points,
    }
    stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    wrong = sorted(set(stated) - _TAKES[kind])
    if wrong:
        takes = ", ".join(sorted(_TAKES[kind]))
        raise RequestError(f"{', '.join(wrong)} does not apply to a table of {kind}: it takes {takes}")
    if isinstance(cluster, str):
        stated["cluster"] = load_cluster(cluster, whole_nodes=True)
    if dialect is not None:
        from traincast.measured.dialect import load_dialect

        stated["dialect"] = load_dialect(Path(dialect))
    path = Path(table)
    if kind == "operators":
        from traincast.validating.operators import validate_operators

        return validate_operators(path, progress=progress, **stated)
    if kind == "collectives":
        from traincast.validating.collectives import validate_collectives

        return validate_collectives(path, progress=progress, **stated)
    if kind == "finetune":
        from traincast.validating.finetune import validate_finetune

        return validate_finetune(path, progress=progress, **stated)
    from traincast.validating.steps import validate_dp_steps, validate_steps

    compare: Callable[..., Validation] = validate_steps if kind == "steps" else validate_dp_steps
    return compare(path, progress=progress, **stated)
