"""Fitting operator times: cells, choice, intervals, adaptation, bundles; on a synthetic device whose law is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traincast import FileFormatError, LearnedCostModel, RequestError, TraincastError
from traincast.cluster import find_device
from traincast.engines import local_engine
from traincast.estimate import SOURCES
from traincast.estimate.bundle import load_bundle, save_bundle
from traincast.estimate.operators.cells import ANY
from traincast.estimate.operators.families import Rates
from traincast.estimate.operators.features import shapes_of
from traincast.fitting.boosting import BoostingConfig
from traincast.fitting.operators.bundle import bundle_of
from traincast.fitting.operators.fit import Base, FitConfig, FittedCell, fit_operators
from traincast.fitting.operators.scores import conformal
from traincast.fitting.rows.dataset import OperatorTable, read_operators
from traincast.fitting.rows.operator import RowConfig, operator_of
from traincast.fitting.train import TrainConfig
from traincast.validating.operators import one_device, validate_operators

QUICK = FitConfig(
    networks=(),
    general=False,
    boosting=BoostingConfig(rounds=60, leaves=31),
    training=TrainConfig(epochs=6),
)
DEVICES = {"NVIDIA A100-SXM4-80GB": 0.6, "NVIDIA H100-SXM5-80GB": 0.5, "NVIDIA V100-SXM2-16GB": 0.7}


def seconds_of(device: str, share: float, m: int, n: int, k: int) -> float:
    """The law of the synthetic laboratory: a share of the peak, tiles of 128 filled or not, and 5 µs."""
    found = find_device(device)
    tiles = -(-m // 128) * -(-n // 128) * 128 * 128
    return 2.0 * tiles * k / (share * found.peak("bf16")) + 5e-6


def rows(count: int, devices: dict[str, float], seed: int = 0) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    made = []
    for device, share in devices.items():
        for _ in range(count):
            m, n, k = (int(2 ** draw.uniform(5, 12)) for _ in range(3))
            seconds = seconds_of(device, share, m, n, k) * float(np.exp(draw.normal(0, 0.01)))
            made.append(
                {
                    "source": "lab", "device": device, "dtype": "bf16", "op": "gemm", "phase": "fwd", "b": 1, "m": m,
                    "n": n, "k": k, "params": None, "time_us": seconds * 1e6, "framework": "vllm", "suspect": False,
                }
            )  # fmt: skip
    return made


def table_of(path: Path, made: list[dict[str, Any]], **options: Any) -> OperatorTable:
    pq.write_table(pa.Table.from_pylist(made), path)
    return read_operators(path, **options)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OperatorTable, list[FittedCell]]:
    path = tmp_path_factory.mktemp("lab") / "lab.parquet"
    table = table_of(path, rows(700, dict(list(DEVICES.items())[:1])))
    return path, table, fit_operators(table, QUICK)


def saved(path: Path, table: OperatorTable, fitted: list[FittedCell]) -> Path:
    card, arrays = bundle_of(fitted, table, data={"rows": len(table)}, config=QUICK)
    save_bundle(path, card, arrays)
    return path


def test_a_cell_learns_the_law_and_its_interval_holds_90_per_cent(
    lab: tuple[Path, OperatorTable, list[FittedCell]],
) -> None:
    (made,) = lab[2]
    assert made.cell.id == "product/serving/bf16/a100-sxm4-80gb"
    score = made.scores["all"]
    assert score.mape < 8
    assert 0.8 <= score.coverage <= 0.99
    assert made.scores["gemm.fwd"].n == score.n == pytest.approx(140, abs=40)


def test_a_bundle_says_after_loading_what_was_fitted(
    lab: tuple[Path, OperatorTable, list[FittedCell]], tmp_path: Path
) -> None:
    path, table, fitted = lab
    bundle = load_bundle(saved(tmp_path / "b", table, fitted))
    model = LearnedCostModel(bundles=(bundle,))
    result = validate_operators(path, model_for=lambda framework: replace(model, framework=framework))
    figures = result.summary()["all"]
    assert figures["n"] == 700
    assert figures["mape"] < 6
    assert bundle.card["cells"]["product/serving/bf16/a100-sxm4-80gb"]["scores"]["all"]["mape"] == pytest.approx(
        fitted[0].scores["all"].mape, abs=1e-3
    )


def test_learned_where_measured_and_analytical_elsewhere(
    lab: tuple[Path, OperatorTable, list[FittedCell]], tmp_path: Path
) -> None:
    model = LearnedCostModel(bundles=(load_bundle(saved(tmp_path / "b", *lab[1:])),))
    gemm = operator_of(RowConfig(op="gemm", phase="fwd", dtype="bf16", b=1, m=1024, n=1024, k=1024))
    half = operator_of(RowConfig(op="gemm", phase="fwd", dtype="fp16", b=1, m=1024, n=1024, k=1024))
    other = operator_of(RowConfig(op="gemm", phase="fwd", dtype="fp32", b=1, m=1024, n=1024, k=1024))
    here = model.estimate([gemm, other, half], one_device(find_device("A100-SXM4-80GB")))
    assert [SOURCES[i] for i in here.source] == ["learned", "analytical", "learned"]
    assert here.seconds[0] == pytest.approx(seconds_of("A100-SXM4-80GB", 0.6, 1024, 1024, 1024), rel=0.1)
    assert (here.low <= here.seconds).all()
    assert (here.seconds <= here.high).all()
    there = model.estimate([gemm], one_device(find_device("V100-SXM2-16GB")))
    assert [SOURCES[i] for i in there.source] == ["analytical"]


def test_outside_what_was_measured_it_warns_and_widens(
    lab: tuple[Path, OperatorTable, list[FittedCell]], tmp_path: Path
) -> None:
    model = LearnedCostModel(bundles=(load_bundle(saved(tmp_path / "b", *lab[1:])),))
    cluster = one_device(find_device("A100-SXM4-80GB"))
    inside, beyond = (
        operator_of(RowConfig(op="gemm", phase="fwd", dtype="bf16", b=1, m=m, n=2048, k=2048)) for m in (2048, 1 << 20)
    )
    near = model.estimate([inside], cluster)
    assert near.warnings == ()
    far = model.estimate([inside, beyond], cluster)
    assert "1 of 2 matrix products has a size outside the range measured on" in far.warnings[0]
    assert far.high[1] / far.seconds[1] > far.high[0] / far.seconds[0]
    assert far.seconds[1] == pytest.approx(seconds_of("A100-SXM4-80GB", 0.6, 1 << 20, 2048, 2048), rel=0.2)


def test_the_same_seed_gives_the_same_bytes(lab: tuple[Path, OperatorTable, list[FittedCell]], tmp_path: Path) -> None:
    _, table, fitted = lab
    again = fit_operators(table, QUICK)
    one, two = saved(tmp_path / "one", table, fitted), saved(tmp_path / "two", table, again)
    assert (one / "weights.safetensors").read_bytes() == (two / "weights.safetensors").read_bytes()
    assert (one / "card.json").read_text() == (two / "card.json").read_text()


def test_cells_fitted_in_several_processes_are_the_same_in_the_same_order(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.parquet", rows(400, dict(list(DEVICES.items())[:2])))
    lines: list[str] = []
    fitted = {n: fit_operators(table, QUICK, engine=local_engine(n), progress=lines.append) for n in (1, 2)}
    assert [made.cell.id for made in fitted[1]] == [made.cell.id for made in fitted[2]]
    assert len(fitted[1]) == 2
    bundles = [saved(tmp_path / f"{n}", table, made) for n, made in fitted.items()]
    assert len({tuple(file.read_bytes() for file in sorted(path.iterdir())) for path in bundles}) == 1
    assert sorted(lines[:2]) == sorted(lines[2:])


def test_a_network_joins_the_trees_only_where_validation_says_so(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.parquet", rows(500, dict(list(DEVICES.items())[:1])))
    (made,) = fit_operators(table, replace(QUICK, networks=("product/*",)))
    assert made.cell.share in (0.0, 0.3, 0.5, 0.7, 1.0)
    assert (made.cell.network is None) == (made.cell.share == 0.0)
    assert (made.cell.trees is None) == (made.cell.share == 1.0)


def test_a_few_operators_of_a_new_device_adapt_the_network_of_all(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.parquet", rows(400, DEVICES))
    config = replace(QUICK, general=True, general_epochs=15)
    fitted = fit_operators(table, config)
    base = Base(
        general={m.cell.family: m.cell for m in fitted if m.cell.device == ANY},
        measured=[(find_device(m.cell.device), m.cell) for m in fitted if m.cell.device != ANY],
    )
    few = table_of(tmp_path / "few.parquet", rows(120, {"NVIDIA H200": 0.3}, seed=5))
    (made,) = fit_operators(few, QUICK, base=base)
    assert made.cell.device == "h200-sxm"
    assert list(made.curve) == [0, 10, 30]
    assert made.curve[30] < made.curve[0] / 2
    assert made.scores["all"].median < made.curve[0]
    model = LearnedCostModel(bundles=(load_bundle(saved(tmp_path / "b", few, [made])),))
    gemm = operator_of(RowConfig(op="gemm", phase="fwd", dtype="bf16", b=1, m=1024, n=1024, k=1024))
    found = model.estimate([gemm], one_device(find_device("H200")))
    assert [SOURCES[i] for i in found.source] == ["learned"]
    assert found.seconds[0] == pytest.approx(seconds_of("H200", 0.3, 1024, 1024, 1024), rel=0.5)


def test_a_device_of_no_catalog_takes_its_rates_from_its_own_rows(tmp_path: Path) -> None:
    made = [{**row, "device": "My Own Chip 9"} for row in rows(350, dict(list(DEVICES.items())[:1]))]
    path = tmp_path / "own.parquet"
    assert len(table_of(path, made)) == 0
    table = read_operators(path, derive=True)
    assert [d.name for d in table.devices.values()] == ["my-own-chip-9"]
    bundle = saved(tmp_path / "b", table, fit_operators(table, QUICK))
    result = validate_operators(path, bundles=[bundle])
    assert result.summary()["all"]["n"] == 350
    assert result.summary()["all"]["mape"] < 12


def test_intervals_are_conformal() -> None:
    draw = np.random.default_rng(0)
    held = draw.normal(0.02, 0.1, 2000)
    low, high = conformal(held, ["gemm.fwd"] * 2000)["gemm.fwd"]
    fresh = draw.normal(0.02, 0.1, 20000)
    assert np.mean((fresh >= low) & (fresh <= high)) == pytest.approx(0.9, abs=0.02)
    assert list(conformal(held[:10], ["rare"] * 10)) == [ANY]


def test_nothing_to_fit_is_said(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.parquet", [{**rows(1, DEVICES)[0], "time_us": float("nan")}])
    with pytest.raises(RequestError, match="no row"):
        fit_operators(table, QUICK)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: (p / "weights.safetensors").write_bytes(b"\0" * 64), "does not match the hash"),
        (lambda p: (p / "card.json").write_text("{"), "cannot be read"),
        (lambda p: (p / "card.json").write_text("[" * 100_000), "cannot be read"),
        (lambda p: (p / "card.json").write_text("{}"), "lacks format, kind, sha256"),
        (lambda p: (p / "weights.safetensors").unlink(), "is no bundle"),
        (lambda p: edit(p, format=99), "reads format 2"),
        (lambda p: edit(p, kind="soup"), "known are operators, collectives"),
        (lambda p: edit(p, features=-1), "fit it again"),
    ],
)
def test_a_bundle_that_does_not_match_is_refused(
    damage: Any, says: str, lab: tuple[Path, OperatorTable, list[FittedCell]], tmp_path: Path
) -> None:
    path = saved(tmp_path / "b", *lab[1:])
    damage(path)
    with pytest.raises(FileFormatError, match=says) as found:
        load_bundle(path)
    assert "\n" not in str(found.value)


def edit(path: Path, **fields: Any) -> None:
    card = json.loads((path / "card.json").read_text())
    (path / "card.json").write_text(json.dumps({**card, **fields}))


def test_only_a_bundle_is_replaced(lab: tuple[Path, OperatorTable, list[FittedCell]], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("do not lose")
    with pytest.raises(TraincastError, match="exists and is no bundle"):
        saved(folder, *lab[1:])
    assert (folder / "thesis.txt").read_text() == "do not lose"
    twice = saved(saved(tmp_path / "b", *lab[1:]), *lab[1:])
    assert sorted(p.name for p in twice.iterdir()) == ["card.json", "weights.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "mine"]


@pytest.mark.long(guard="test_a_few_operators_of_a_new_device_adapt_the_network_of_all")
def test_an_adapted_cell_beside_its_network_is_kept_as_its_move_alone(tmp_path: Path) -> None:
    made = [*rows(320, DEVICES), *rows(60, {"NVIDIA H200": 0.3}, seed=7)]
    table = table_of(tmp_path / "t.parquet", made)
    fitted = fit_operators(table, replace(QUICK, general=True, general_epochs=8))
    (adapted,) = (m for m in fitted if m.cell.device == "h200-sxm")
    bundle = load_bundle(saved(tmp_path / "b", table, fitted))
    entry = bundle.card["cells"][adapted.cell.id]
    assert entry["base"] == "product/any/any/any"
    assert list(bundle.arrays(f"{adapted.cell.id}:")) == ["network.adapted"]
    gemm = operator_of(RowConfig(op="gemm", phase="fwd", dtype="bf16", b=1, m=1000, n=500, k=700))
    shapes, rates = shapes_of("product", [gemm]), Rates.of(find_device("H200"), "bf16")
    kept = bundle.cell(adapted.cell.id).estimate(shapes, rates).seconds[0]
    assert kept == pytest.approx(adapted.cell.estimate(shapes, rates).seconds[0], rel=0.01)
    assert kept == pytest.approx(seconds_of("H200", 0.3, 1000, 500, 700), rel=0.4)
