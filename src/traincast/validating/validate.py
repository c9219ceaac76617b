"""``traincast.validate``: compare forecasts with a table of measurements."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from traincast.ask import verb
from traincast.cluster import load_cluster
from traincast.errors import RequestError, expect
from traincast.validating.ask import TAKES, TableKind, ValidateAsk
from traincast.validating.outcome import Validation


@verb(ValidateAsk)
def validate(ask: ValidateAsk) -> Validation:
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
    """
    expect("table", ask.table, (str, os.PathLike), "the path of a table")
    kind, progress = ask.kind, ask.progress
    if kind not in TAKES:
        raise RequestError(f"kind {kind!r} is not known: expected one of {', '.join(get_args(TableKind))}")
    given = {
        "cluster": ask.cluster,
        "calibrated": None if ask.calibrated else False,
        "allow_code": ask.allow_code or None,
        "cost_model": ask.cost_model,
        "dialect": ask.dialect,
        "bundles": [Path(bundle) for bundle in ask.bundles] or None,
        "rows": ask.rows,
        "where": ask.where or None,
        "own_points": ask.own_points,
    }
    stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    wrong = sorted(set(stated) - TAKES[kind])
    if wrong:
        takes = ", ".join(sorted(TAKES[kind]))
        raise RequestError(f"{', '.join(wrong)} does not apply to a table of {kind}: it takes {takes}")
    if isinstance(ask.cluster, str):
        stated["cluster"] = load_cluster(ask.cluster, whole_nodes=True)
    if ask.dialect is not None:
        from traincast.measured.dialect import load_dialect

        stated["dialect"] = load_dialect(Path(ask.dialect))
    path = Path(ask.table)
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
