"""Learned times against measurements that were not trained on, written into docs/operators.md.

    python -m benchmarks.learned cells                      # what the shipped bundle's card says of every cell
    python -m benchmarks.learned unseen DATA                # products with widths that training has not seen
    python -m benchmarks.learned devices DATA               # a device left out, then with some of its operators
    python -m benchmarks.learned rivals DATA                # shipped cells against tuned LightGBM
    python -m benchmarks.learned collectives DATA           # collectives, and ranks beyond those trained on
    python -m benchmarks.learned local FILE                 # operators of this machine, as profiled
    python -m benchmarks.learned opset [FILE]               # FI-Net and its rivals on the operator set of one core
    python -m benchmarks.learned speed                      # 100,000 distinct operators on one core

DATA is a folder with ``operators.parquet`` and ``collectives.parquet``. Each study prints a Markdown table; with
``--write`` it also replaces the one in docs/operators.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.markers import write
from benchmarks.opset import opset
from traincast.cluster import load_cluster, load_device
from traincast.estimate import AnalyticalCostModel, learned_cost_model
from traincast.estimate.bundle import SHIPPED, load_bundle
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.estimate.operators.cells import beside
from traincast.estimate.operators.features import family_of, shapes_of
from traincast.fitting.boosting import BoostingConfig, grow
from traincast.fitting.collectives.fit import compare_collectives, fit_collectives, predict_rows
from traincast.fitting.collectives.table import read_collectives
from traincast.fitting.operators.adapt import adapt
from traincast.fitting.operators.examples import Rows, cells_of, examples_of, rows_of, table_of, vocabulary_of
from traincast.fitting.operators.fit import FitConfig, fit_cell, fit_general, fit_operators
from traincast.fitting.operators.scores import said_of
from traincast.fitting.rows.dataset import OperatorTable, read_operators
from traincast.fitting.split import Merged, Split, by_unseen_dims, protocol_split
from traincast.fitting.train import TrainConfig
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PAGE: Final = Path(__file__).parents[1] / "docs" / "operators.md"
DEVICES: Final = ("h200-sxm", "a100-sxm4-80gb")
COUNTS: Final = (10, 30, 100)
DRAWS: Final = 5


def main(arguments: list[str] | None = None) -> None:
    """Run one study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("data", type=Path, nargs="?", default=Path())
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    lines = []
    for line in STUDIES[given.study](given.data):
        print(line, flush=True)
        lines.append(line)
    if given.write:
        write(PAGE, given.study, "\n".join(lines))


def _head(columns: Sequence[str]) -> list[str]:
    return [_row(columns), _row(["---", *("---:" for _ in columns[1:])])]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cells(data: Path) -> Iterable[str]:
    """Every cell of the shipped bundle: errors on test rows, as its card has them."""
    card = load_bundle(SHIPPED / "operators").card
    yield from _head(["cell", "trained on", "tested on", "MAPE", "median", "90 %", "in interval", "learner"])
    for name, entry in sorted(card["cells"].items()):
        if entry["device"] == "any":
            continue
        share = entry["share"]
        learner = "trees" if share == 0 else "network" if share == 1 else f"{share:.0%} network"
        if "neighbours" in entry or "base" in entry:
            learner = "adapted"
        s = entry["scores"]["all"]
        yield _row(
            [
                name, f"{entry['rows']:,}", f"{s['n']:,}", f"{s['mape']:.2f} %", f"{s['median']:.2f} %",
                f"{s['p90']:.1f} %", f"{s['coverage']:.2f}", learner,
            ]
        )  # fmt: skip


def _products(data: Path) -> OperatorTable:
    return read_operators(data / "operators.parquet", ops=["gemm"], dtypes=["bf16"], frameworks=None)


def unseen(data: Path) -> Iterable[str]:
    """Products on A100 and H100 with four values of n and k held out."""
    yield from _head(["device", "split", "trained on", "tested on", "MAPE", "median"])
    for device in ("a100-sxm4-80gb", "h100-sxm5-80gb"):
        table = read_operators(data / "operators.parquet", ops=["gemm"], dtypes=["bf16"], devices=[device])
        key = next(k for k in cells_of(table) if k[1] == "serving")
        table = table.take(cells_of(table)[key])
        dims = [np.array([op.inputs[1].shape[axis] for op in table.operators]) for axis in (0, 1)]
        splits = {
            "random 4 : 1": protocol_split(table.key, table.groups, table.seconds),
            "four widths unseen": by_unseen_dims(table.key, table.groups, dims, count=4),
        }
        for name, split in splits.items():
            made = fit_cell(key, table, split.train, split.test, FitConfig(networks=()))
            score = made.scores["all"]
            yield _row([device, name, f"{made.rows:,}", f"{score.n:,}", f"{score.mape:.2f} %", f"{score.median:.2f} %"])


def devices(data: Path) -> Iterable[str]:
    """A device left out of training altogether, and after adapting to some of its operators."""
    table = _products(data)
    table = table.take(np.concatenate([rows for key, rows in cells_of(table).items() if key[1] == "serving"]))
    split = protocol_split(table.key, table.groups, table.seconds)
    cells = cells_of(table)
    config = FitConfig(networks=(), general_rows=6000, general_epochs=12)
    yield from _head(
        ["device left out", "nothing of it", *(f"{n} of its operators" for n in COUNTS), "a cell of its own"]
    )
    own = {key[3]: fit_cell(key, table, *_sides(table, split, cells[key]), config) for key in cells}
    for device in DEVICES:
        made = fit_general("product", table, split, cells, config, without=[device])
        assert made is not None
        others = [(load_device(name), fitted.cell) for name, fitted in own.items() if name != device]
        cell = beside(made.cell, load_device(device), "bf16", others)
        assert cell.network is not None
        key = next(k for k in cells if k[3] == device)
        train, test = (rows_of("product", table, side, by_setting=True) for side in _sides(table, split, cells[key]))
        said = said_of(cell, test)
        figures = [_mape(said, test)]
        examples, known = examples_of(train, cell.vocabulary), said_of(cell, train)
        judged = examples_of(test, cell.vocabulary)
        for count in COUNTS:
            errors = []
            for seed in range(DRAWS):
                few = np.random.default_rng(seed).permutation(len(known))[:count]
                moved, _ = adapt(cell.network, examples.take(few), known[few])
                errors.append(_mape(said + moved(*judged[:3], share=0.0), test))
            figures.append(float(np.mean(errors)))
        yield _row([device, *(f"{x:.1f} %" for x in figures), f"{own[device].scores['all'].mape:.1f} %"])


def _sides(
    table: OperatorTable, split: Split, rows: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[Merged, Merged]:
    inside = np.zeros(len(table), dtype=bool)
    inside[rows] = True
    return split.train.take(inside[split.train.first]), split.test.take(inside[split.test.first])


def _mape(said: Floats, rows: Rows) -> float:
    return float(np.abs(np.exp(said - rows.target) - 1.0).mean()) * 100


def rivals(data: Path) -> Iterable[str]:
    """Cells of the shipped bundle that mix a network in, against trees alone, tuned on the same validation rows."""
    bundle = load_bundle(SHIPPED / "operators")
    tuned = [BoostingConfig(rounds=rounds, leaves=leaves, rate=rate) for rounds, leaves, rate in TUNED]
    yield from _head(["cell", "shipped", "tuned LightGBM", "better"])
    wins = total = 0
    for name, entry in sorted(bundle.card["cells"].items()):
        family, setting, dtype, device = name.split("/")[0], entry["setting"], entry["dtype"], entry["device"]
        if (setting != "pytorch" and not name.startswith("grouped/serving/bf16/h100")) or entry["rows"] < 1000:
            continue
        table = read_operators(data / "operators.parquet", devices=[device], dtypes=[dtype])
        key = next(k for k in cells_of(table) if k[0] == family and k[1] == setting)
        table = table.take(cells_of(table)[key])
        split = protocol_split(table.key, table.groups, table.seconds)
        train, test = (rows_of(family, table, side, by_setting=False) for side in (split.train, split.test))
        held = np.arange(len(train)) % 8 == 0
        learn, check = train.take(np.flatnonzero(~held)), train.take(np.flatnonzero(held))
        vocabulary = vocabulary_of(learn)
        best = min(
            (grow(table_of(learn, vocabulary), learn.target, config) for config in tuned),
            key=lambda trees: _mape(trees(table_of(check, vocabulary)), check),
        )
        theirs = _mape(best(table_of(test, vocabulary)), test)
        ours = entry["scores"]["all"]["mape"]
        wins, total = wins + (ours < theirs), total + 1
        yield _row([name, f"{ours:.2f} %", f"{theirs:.2f} %", "yes" if ours < theirs else "no"])
    yield ""
    yield f"Better in {wins} of {total} cells."


TUNED: Final = ((400, 63, 0.08), (800, 63, 0.05), (800, 31, 0.08), (1200, 127, 0.04))


def collectives(data: Path) -> Iterable[str]:
    """Rivals on held-out configurations; all-reduce on H100; ranks beyond those trained on."""
    table = read_collectives(data / "collectives.parquet")
    yield from _head(["model", "tested on", "MAPE", "median", "90 %"])
    for rival in compare_collectives(table):
        errors = (rival.mape, rival.median_ape, rival.p90_ape)
        yield _row([rival.name, f"{rival.cells:,}", *(f"{e:.1f} %" for e in errors)])
    yield ""
    few = table.take(table.ranks <= 64)
    weights, card = fit_collectives(few)
    model = CollectiveModel(weights=weights, card=card)
    yield from _head(["all-reduce on Alps, trained on up to 64 ranks", "tested on", "MAPE", "median"])
    alps = np.array([s == "alps-nccl" for s in table.source])
    for ranks in (128, 256):
        rows = table.take(alps & (table.ranks == ranks))
        sizes = np.unique(rows.nbytes)
        said = predict_rows(model, rows)
        error = np.array(
            [np.median(said[rows.nbytes == s]) / np.median(rows.seconds[rows.nbytes == s]) - 1.0 for s in sizes]
        )
        error = np.abs(error) * 100
        yield _row([f"{ranks} ranks", f"{len(sizes)}", f"{error.mean():.1f} %", f"{np.median(error):.1f} %"])


def local(data: Path) -> Iterable[str]:
    """Operators of one's own machine: DATA is a table of ``traincast profile operators``."""
    table = read_operators(data, derive=True)
    spread = {
        row["index"]: row["dispersion"]
        for row in pq.read_table(data, columns=["dispersion"]).append_column("index", [range_of(data)]).to_pylist()
    }
    fitted = fit_operators(table, FitConfig(general=False, training=TrainConfig(epochs=60)))
    yield from _head(["cell", "operator", "trained on", "tested on", "MAPE", "median", "repeats differ by"])
    names = np.array([shapes_of(family_of(op) or "traffic", [op]).names[0] for op in table.operators], dtype=object)
    for made in fitted:
        for name, score in made.scores.items():
            if name == "all" or score.n >= FEW:
                own = table.index if name == "all" else table.index[names == name]
                differ = 100 * float(np.median([spread[int(i)] for i in own]))
                yield _row(
                    [
                        made.cell.id if name == "all" else "", name, f"{made.rows:,}" if name == "all" else "",
                        f"{score.n:,}", f"{score.mape:.1f} %", f"{score.median:.1f} %", f"{differ:.1f} %",
                    ]
                )  # fmt: skip


FEW: Final = 12


def range_of(path: Path) -> pa.Array:
    """Row numbers of a table."""
    return pa.array(range(pq.read_metadata(path).num_rows))


def speed(data: Path) -> Iterable[str]:
    """Distinct products on one core, learned and analytical, in the same run."""
    draw = np.random.default_rng(0)
    sizes = np.unique(2 ** draw.uniform(5, 13, (130_000, 3)).astype(np.float64), axis=0).astype(int)
    sizes = np.unique(sizes, axis=0)
    draw.shuffle(sizes)
    works = [_product(*row) for row in sizes[:100_000].tolist()]
    cluster = load_cluster("dgx-h100")
    models: dict[str, Callable[[], object]] = {
        "learned": lambda: learned_cost_model().estimate(works, cluster),
        "analytical": lambda: AnalyticalCostModel().estimate(works, cluster),
    }
    learned_cost_model().estimate(works[:5000], cluster)
    yield from _head(["cost model", "distinct operators", "seconds"])
    for name, run in models.items():
        taken = []
        for _ in range(3):
            begin = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begin)
        yield _row([name, f"{len(works):,}", f"{min(taken):.2f}"])


def _product(m: int, n: int, k: int) -> Operator:
    a, b, c = (TensorSpec(shape, DType.BF16) for shape in ((m, k), (k, n), (m, n)))
    return Operator(name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=(a, b), outputs=(c,))


STUDIES: Final[dict[str, Callable[[Path], Iterable[str]]]] = {
    "cells": cells,
    "unseen": unseen,
    "devices": devices,
    "rivals": rivals,
    "collectives": collectives,
    "local": local,
    "opset": opset,
    "speed": speed,
}

if __name__ == "__main__":
    main()
