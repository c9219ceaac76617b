"""Fits the law of grouped products of training and shows its errors: ``python -m benchmarks.grouped TABLE``.

Reads the rows of kind ``grouped_gemm``, fits the constants of :mod:`traincast.estimate.operators.grouped` (a factor for
newer and for older architectures, seconds per expert), and prints the error on what each fit has not seen: other shapes
of weights, other numbers of experts, more or fewer rows per expert, another device.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from traincast.cluster import find_device, find_node
from traincast.estimate.analytical import AnalyticalCostModel
from traincast.estimate.learned import learned_cost_model
from traincast.estimate.operators import grouped
from traincast.estimate.operators.efficiency import achievable
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.tables import read_arrow

Floats = npt.NDArray[np.float64]

START: Final = np.log([1.4, 1.0, 4e-6])
"""Where a fit begins: c of newer and of older architectures, seconds per expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Measured grouped products as columns."""

    measured: Floats
    product: Floats
    traffic: Floats
    experts: Floats
    rows: Floats
    older: npt.NDArray[np.bool_]
    shape: npt.NDArray[np.str_]
    law: Floats
    analytical: Floats

    def take(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Some of the rows."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.__slots__})


def read(path: Path) -> Rows:
    """Read the grouped products of a table, with the learned time of one product of all rows of each."""
    wants = ("op", "device", "phase", "dtype", "b", "m", "n", "k", "params", "time_us")
    table = read_arrow(path, needs=wants, wants=wants)
    found = table.filter(pc.equal(table["op"], "grouped_gemm")).to_pylist()
    model, physics = learned_cost_model(), AnalyticalCostModel()
    columns: dict[str, list[Any]] = {name: [] for name in Rows.__slots__}
    for row in found:
        device = find_device(str(row["device"]))
        cluster = replace(find_node(device, 8, None), device=device)
        op = _operator(row)
        product_s = float(model.estimate([grouped.as_product(op)], cluster).seconds[0])
        bandwidth = device.memory_bandwidth * achievable(device).memory
        values = {
            "measured": float(row["time_us"]) * 1e-6,
            "product": product_s,
            "traffic": grouped.weight_bytes(op) / bandwidth,
            "experts": float(row["b"]),
            "rows": float(row["m"]),
            "older": grouped.slowdown(op, device) == grouped.OLDER_SLOWDOWN["looped"],
            "shape": f"{row['n']}x{row['k']}",
            "law": grouped.grouped_seconds(op, device, product_s=product_s),
            "analytical": float(physics.estimate([op], cluster).seconds[0]),
        }
        for name, value in values.items():
            columns[name].append(value)
    return Rows(**{name: np.array(values) for name, values in columns.items()})


def _operator(row: dict[str, Any]) -> Operator:
    """The product of a row, as a step has it: with the sums of gradients that it adds to."""
    experts, m, n, k = (int(row[name]) for name in ("b", "m", "n", "k"))
    dtype, of_weights = DType(row["dtype"]), row["phase"] == "bwd_grad_w"
    x, y, weights = (TensorSpec(shape, dtype) for shape in ((experts * m, k), (experts * m, n), (experts, k, n)))
    said = json.loads(row["params"] or "{}")
    marks = {"adds_to": said["main_grad_dtype"]} if of_weights and said.get("accumulate") == "True" else {}
    return Operator(
        name="grouped_mm",
        kind=OpKind.GROUPED_GEMM,
        phase=Phase.BACKWARD if of_weights else Phase.FORWARD,
        inputs=(x, y) if of_weights else (x, weights),
        outputs=(weights,) if of_weights else (y,),
        attributes={"kernel": "looped", **marks},
    )


def estimated(rows: Rows, constants: Floats) -> Floats:
    """Seconds by the law with other constants."""
    newer, older, start = np.exp(constants)
    seconds: Floats = np.hypot(np.where(rows.older, older, newer) * rows.product, rows.traffic) + start * rows.experts
    return seconds


def fit(rows: Rows) -> Floats:
    """Constants with the least absolute error in logarithm, found one at a time with ever smaller steps."""

    def cost(constants: Floats) -> float:
        return float(np.abs(np.log(estimated(rows, constants) / rows.measured)).mean())

    best, step = START.copy(), 0.4
    while step > 1e-3:
        tried = [best + step * sign * np.eye(len(best))[i] for i in range(len(best)) for sign in (-1.0, 1.0)]
        nearest = min(tried, key=cost)
        best, step = (nearest, step) if cost(nearest) < cost(best) - 1e-9 else (best, step / 2.0)
    return best


def _each(values: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.bool_]]:
    return (values == value for value in np.unique(values))


SPLITS: Final[dict[str, Callable[[Rows], Iterable[npt.NDArray[np.bool_]]]]] = {
    "another shape of weights": lambda rows: _each(rows.shape),
    "another number of experts": lambda rows: _each(rows.experts),
    "more rows per expert (above 616)": lambda rows: [rows.rows > 616],
    "fewer rows per expert (below 512)": lambda rows: [rows.rows < 512],
    "another device (A100)": lambda rows: [rows.older],
}
"""What a fit leaves out, each part in turn."""


def main() -> None:
    """Fit, and print constants and errors."""
    parser = argparse.ArgumentParser(prog="benchmarks.grouped", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, help="table of measured operators")
    rows = read(parser.parse_args().table)
    newer, older, start = np.exp(fit(rows))
    print(f"{len(rows.measured)} products; c {newer:.3f}, older {older:.3f}; {start * 1e6:.2f} us per expert")
    for name, seconds in (("as shipped, over learned products", rows.law), ("as shipped, analytical", rows.analytical)):
        print(f"{name:36} {_errors(rows, seconds)}")
    for name, parts in SPLITS.items():
        found = [(part, estimated(rows.take(part), fit(rows.take(~part)))) for part in parts(rows)]
        seconds, chosen = np.concatenate([s for _, s in found]), [part for part, _ in found]
        kept = replace(rows, measured=np.concatenate([rows.measured[part] for part in chosen]))
        print(f"{name:36} {_errors(kept, seconds)}")


def _errors(rows: Rows, seconds: Floats) -> str:
    off = np.abs(seconds / rows.measured - 1.0)
    low, high = np.quantile(rows.measured / seconds, [0.05, 0.95])
    return f"mean {off.mean():6.1%}  median {np.median(off):6.1%}  measured/estimated {low:.2f} to {high:.2f}"


if __name__ == "__main__":
    main()
