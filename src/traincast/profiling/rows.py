"""Rows of tables of measurements: their columns, and operators as rows and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from traincast.errors import FileFormatError
from traincast.estimate.events.keys import PHASES, tensors_of, text_of
from traincast.graph import DType, Operator, OpKind, Scalar, TensorSpec
from traincast.graph.work_amount import gemm_dims, grouped_gemm_dims
from traincast.profiling.timing import SUSPECT_DISPERSION, Timing

Row: TypeAlias = dict[str, Any]
Columns: TypeAlias = Mapping[str, str]

OPERATOR_COLUMNS: Final[Columns] = {
    "source": "string",
    "device": "string",
    "dtype": "string",
    "op": "string",
    "phase": "string",
    "b": "int64",
    "m": "int64",
    "n": "int64",
    "k": "int64",
    "params": "string",
    "time_us": "double",
    "time_us_min": "double",
    "n_meas": "int64",
    "framework": "string",
    "split": "string",
    "tflops": "double",
    "suspect": "bool",
    "dispersion": "double",
    "context": "string",
    "model": "string",
}
"""Columns of a table of operators, with the Arrow type of each."""

COLLECTIVE_COLUMNS: Final[Columns] = {
    "source": "string",
    "system": "string",
    "device": "string",
    "collective": "string",
    "bytes": "int64",
    "n_ranks": "int64",
    "n_nodes": "int64",
    "ranks_per_node": "int64",
    "interconnect": "string",
    "library": "string",
    "dtype": "string",
    "variant": "string",
    "stat": "string",
    "time_us": "double",
    "busbw_GBps": "double",
    "suspect": "bool",
    "dispersion": "double",
    "n_meas": "int64",
    "time_us_min": "double",
    "beside_compute": "bool",
    "concurrent_groups": "int64",
    "node_set": "string",
}
"""Columns of a table of collectives, with the Arrow type of each.

The last three say what ran at the same time, and where: whether the ranks computed during the collective, how many
groups ran it at once, and the nodes of the group.
"""

ISOLATED: Final[Row] = {"beside_compute": False, "concurrent_groups": 1, "node_set": ""}
"""The values of rows of older tables, which lack these columns."""

SPLIT: Final = "train"
"""Value of the column ``split``: profiled rows are for training."""

_MAX_DIM: Final = 10**15


def canonical(operator: Operator) -> Operator:
    """``operator`` as a table keeps it: without its scope, saved tensors and batch dims."""
    return replace(
        operator,
        scope="",
        saved=(),
        inputs=_without_batch(operator.inputs),
        outputs=_without_batch(operator.outputs),
        parameters=_without_batch(operator.parameters),
        attributes=dict(operator.attributes),
    )


def _without_batch(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(t.shape, t.dtype) for t in specs)


def params_of(operator: Operator) -> str:
    """The rest of ``operator``, beyond the columns ``op``, ``phase`` and ``dtype``, as canonical JSON."""
    params: dict[str, Any] = {
        "name": operator.name,
        "inputs": tensors_of(operator.inputs),
        "outputs": tensors_of(operator.outputs),
        "attributes": dict(operator.attributes),
    }
    if operator.parameters:
        params["parameters"] = tensors_of(operator.parameters)
    return text_of(params)


def row_of(
    operator: Operator,
    *,
    timing: Timing,
    source: str,
    device: str,
    framework: str,
    context: str,
    model: str = "",
) -> Row:
    """The row of a measured operator; ``context`` is ``alone`` or ``model``."""
    b, m, n, k = _product_dims(operator)
    return {
        "source": source,
        "device": device,
        "dtype": operator.dtype.value,
        "op": operator.kind.value,
        "phase": PHASES[operator.phase],
        "b": b,
        "m": m,
        "n": n,
        "k": k,
        "params": params_of(operator),
        "time_us": timing.median_s * 1e6,
        "time_us_min": timing.min_s * 1e6,
        "n_meas": timing.count,
        "framework": framework,
        "split": SPLIT,
        "tflops": operator.flops / timing.median_s / 1e12,
        "suspect": timing.dispersion > SUSPECT_DISPERSION,
        "dispersion": timing.dispersion,
        "context": context,
        "model": model,
    }


def _product_dims(operator: Operator) -> tuple[int | None, int | None, int | None, int | None]:
    if operator.kind in (OpKind.GEMM, OpKind.BATCHED_GEMM):
        return gemm_dims(operator)
    if operator.kind is OpKind.GROUPED_GEMM:
        return grouped_gemm_dims(operator)
    return None, None, None, None


def operator_of(op: str, phase: str, dtype: str, params: str) -> Operator:
    """The operator that a row describes; raises :class:`FileFormatError` with the reason if there is none."""
    try:
        data = json.loads(params)
        operator = Operator(
            name=_text(data["name"]),
            kind=OpKind(op),
            phase={text: value for value, text in PHASES.items()}[phase],
            inputs=_specs(data["inputs"]),
            outputs=_specs(data["outputs"]),
            parameters=_specs(data.get("parameters", [])),
            attributes=_attributes(data["attributes"]),
        )
        if operator.dtype.value != dtype:
            raise ValueError(f"dtype is {dtype!r}, but that of its first tensor is {operator.dtype.value!r}")
        if not math.isfinite(operator.flops + operator.nbytes):
            raise ValueError("its cost is not finite")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        reason = f"missing or unknown {error}" if isinstance(error, KeyError) else str(error)
        raise FileFormatError(f"a row with op {op!r} does not describe a profiled operator: {reason}") from error
    return operator


def operator_from_row(row: Mapping[str, Any]) -> Operator:
    """The operator of a row of a table of operators, as :func:`row_of` wrote it."""
    missing = [name for name in ("op", "phase", "dtype", "params") if not isinstance(row.get(name), str)]
    if missing:
        raise FileFormatError(f"a row of profiled operators needs {', '.join(missing)}")
    return operator_of(row["op"], row["phase"], row["dtype"], row["params"])


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"name is {value!r}")
    return value


def _specs(data: Any) -> tuple[TensorSpec, ...]:
    specs = []
    for shape, dtype in data:
        for size in shape:
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_DIM:
                raise ValueError(f"{size!r} is not a size")
        specs.append(TensorSpec(tuple(shape), DType(dtype)))
    return tuple(specs)


def _attributes(data: Any) -> dict[str, Scalar]:
    for name, value in data.items():
        if not isinstance(value, int | float | str | bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"attribute {name!r} is {value!r}")
    return dict(data)
