"""``traincast.fit``: one function for operators and collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fitting.test_collectives import grid, write
from tests.fitting.test_operators import DEVICES, rows
from traincast import FileFormatError, RequestError, UnknownNameError, fit
from traincast.estimate.bundle import load_bundle
from traincast.estimate.operators.features import FEATURES_VERSION


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One device's operators in two tables, with one row that is wrong."""
    made = rows(400, dict(list(DEVICES.items())[:1]))
    made[3]["time_us"] = -1.0
    folder = tmp_path_factory.mktemp("fit")
    paths = [folder / "a.parquet", folder / "b.parquet"]
    for path, part in zip(paths, (made[:200], made[200:]), strict=True):
        pq.write_table(pa.Table.from_pylist(part), path)
    return paths


def test_operators_become_a_bundle_with_its_errors(tables: list[Path], tmp_path: Path) -> None:
    warned: list[str] = []
    said: list[str] = []
    found = fit(tables, output=tmp_path / "mine", networks=(), progress=said.append, warn=warned.extend)
    (cell,) = found.cells
    assert cell.cell.id == "product/serving/bf16/a100-sxm4-80gb"
    assert cell.scores["all"].mape < 10
    assert warned == list(found.left_out)
    assert "row 3: the time is zero or negative" in warned[0]
    assert len(said) == 1
    assert set(load_bundle(tmp_path / "mine").card["data"]["files"]) == {"a.parquet", "b.parquet"}
    assert set(json.loads(json.dumps(found.to_dict()))) == {"bundle", "cells", "rivals", "left_out"}


@pytest.mark.long(guard="test_operators_become_a_bundle_with_its_errors")
def test_equal_tables_and_seeds_give_equal_bundles(tables: list[Path], tmp_path: Path) -> None:
    cards = []
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        fit(tables[0], output=tmp_path / name, networks=(), seed=seed)
        cards.append(load_bundle(tmp_path / name).card["sha256"])
    assert cards[0] == cards[1] != cards[2]


def test_collectives_become_a_bundle_with_the_errors_on_what_was_held_out(tmp_path: Path) -> None:
    path = write(tmp_path / "c.parquet", grid(noise=0.02))
    found = fit(path, output=tmp_path / "mine", kind="collectives")
    assert found.held_out["cells"] > 0
    assert 0 < found.held_out["mape"] < 20
    assert found.cells == ()
    assert set(found.to_dict()) == {"bundle", "adapted", "held_out", "rivals", "left_out"}
    assert load_bundle(tmp_path / "mine").card["model"]["held_out"] == found.held_out


def test_impossible_requests_are_refused_before_anything_is_written(tables: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "b"
    with pytest.raises(UnknownNameError, match="kind of measurements 'steps'"):
        fit(tables[0], output=target, kind="steps")  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="epochs, workers: collectives are fitted to one table"):
        fit(tables[0], output=target, kind="collectives", epochs=3, workers=2)
    with pytest.raises(RequestError, match="2 tables: collectives are fitted to one table"):
        fit(tables, output=target, kind="collectives")
    with pytest.raises(RequestError, match="cannot choose rows by colour"):
        fit(tables, output=target, where={"colour": ["red"]})
    with pytest.raises(RequestError, match="nothing to fit"):
        fit(tables, output=target, networks=(), where={"op": ["conv2d"]})
    assert list(tmp_path.iterdir()) == []


def test_a_fit_of_some_cells_keeps_the_others_unchanged(tables: list[Path], tmp_path: Path) -> None:
    made = rows(400, dict(list(DEVICES.items())[:2]))
    path = tmp_path / "two.parquet"
    pq.write_table(pa.Table.from_pylist(made), path)
    fit(path, output=tmp_path / "whole", networks=())
    found = fit(path, output=tmp_path / "mixed", networks=(), only=["product/*/h100*"], keep=tmp_path / "whole", seed=5)
    old, new = load_bundle(tmp_path / "whole"), load_bundle(tmp_path / "mixed")
    assert [made.cell.id for made in found.cells] == ["product/serving/bf16/h100-sxm5-80gb"]
    assert set(old.card["cells"]) == set(new.card["cells"]) and len(old.card["cells"]) == 2
    kept, fitted = "product/serving/bf16/a100-sxm4-80gb", "product/serving/bf16/h100-sxm5-80gb"
    assert new.card["cells"][kept] == old.card["cells"][kept]
    assert new.card["cells"][fitted] != old.card["cells"][fitted]
    before, after = old.arrays(f"{kept}:"), new.arrays(f"{kept}:")
    assert before and all((after[name] == array).all() for name, array in before.items())
    assert set(before) == set(after)


def test_cells_of_changed_features_must_be_fitted_again(
    tables: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tables, output=tmp_path / "old", networks=())
    monkeypatch.setattr("traincast.estimate.bundle.CHANGED", {"product": FEATURES_VERSION + 1})
    with pytest.raises(FileFormatError, match=r"fitted to features \d+ of product; this version computes"):
        load_bundle(tmp_path / "old")
    with pytest.raises(RequestError, match="fitted to features that have changed since: fit it again as well"):
        fit(tables, output=tmp_path / "new", networks=(), only=["traffic/*"], keep=tmp_path / "old")
    with pytest.raises(RequestError, match="give only"):
        fit(tables, output=tmp_path / "new", networks=(), keep=tmp_path / "old")
    with pytest.raises(RequestError, match="no family matches nonsense/x: families are product, grouped"):
        fit(tables, output=tmp_path / "new", networks=(), only=["nonsense/x"])
    fit(tables, output=tmp_path / "new", networks=(), only=["product/*"], keep=tmp_path / "old")
