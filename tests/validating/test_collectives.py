"""Rows of measured collectives find their cluster by their own columns, and outcomes come in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fitting.test_collectives import Row, grid, row, write
from traincast import AnalyticalCostModel, RequestError, learned_cost_model
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.fitting.collectives.fit import fit_collectives, read_collectives
from traincast.validating.collectives import validate_collectives


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "collectives.parquet"


def test_every_row_has_an_outcome_in_order_and_bad_ones_their_reason(file: Path) -> None:
    rows = [row(2**e) for e in range(12, 24)]
    rows[3]["time_us"] = -1.0
    seen: list[tuple[int, int]] = []
    found = validate_collectives(write(file, rows), progress=lambda done, of: seen.append((done, of)))
    assert [r.index for r in found.rows] == list(range(12))
    assert found.rows[3].status == "skipped"
    assert "-1" in found.rows[3].reason
    assert all(r.predicted and r.low and r.high and r.low <= r.predicted <= r.high for r in found.rows if r.index != 3)
    assert seen[-1] == (12, 12)
    assert found.summary()["all"]["n"] == 11


def test_a_learned_model_is_nearer_than_the_analytical_one(file: Path) -> None:
    write(file, grid(noise=0.01))
    weights, card = fit_collectives(read_collectives(file))
    learned = validate_collectives(file, CollectiveModel(weights=weights, card=card)).summary()["mine"]
    assert learned["mape"] < 2 < validate_collectives(file).summary()["mine"]["mape"]


def test_what_was_not_learned_is_estimated_analytically_and_says_so(file: Path, tmp_path: Path) -> None:
    weights, card = fit_collectives(read_collectives(write(file, grid())))
    model = CollectiveModel(weights=weights, card=card)
    other = write(tmp_path / "other.parquet", [row(2**20, 4, device="V100", interconnect="NVLink")])
    learned, table = validate_collectives(other, model).rows[0], read_collectives(other)
    physics = AnalyticalCostModel().estimate(table.works([0]), table.clusters[0])
    assert learned.predicted == physics.seconds[0]
    assert "analytically" in learned.reason


def test_the_source_has_no_influence(file: Path, tmp_path: Path) -> None:
    rows = grid()[:30]
    renamed = [{**r, "source": "somebody else"} for r in rows]
    ours = validate_collectives(write(file, rows))
    theirs = validate_collectives(write(tmp_path / "renamed.parquet", renamed))
    assert [r.predicted for r in ours.rows] == [r.predicted for r in theirs.rows]


def test_point_to_point_rows_are_transfers(file: Path) -> None:
    rows: list[Row] = [row(2**20, 2, collective="p2p", n_nodes=n, time_us=t) for n, t in ((1.0, 20.0), (2.0, 60.0))]
    pq.write_table(pa.Table.from_pylist(rows), file)
    inside, outside = (r.predicted for r in validate_collectives(file).rows)
    assert inside is not None
    assert outside is not None
    assert inside < outside


def lab(count: int = 24, **changes: Any) -> list[Row]:
    """A system of two nodes whose network is half as fast as its datasheet, and slow to begin."""
    made = {
        "system": "lab",
        "n_nodes": 2.0,
        "ranks_per_node": 8.0,
        "interconnect": "NVSwitch + 8x400G NDR IB",
        **changes,
    }
    return [row(2.0**e, 16, time_us=90.0 + 2 * 15 / 16 * 2.0**e / 190e3, **made) for e in range(10, 10 + count)]


def test_a_system_that_was_not_measured_is_estimated_from_others_and_says_so(file: Path) -> None:
    found = validate_collectives(write(file, lab()))
    assert {r.reason for r in found.rows} == {"estimated from other systems: this one was not measured"}
    assert all(r.status == "ok" for r in found.rows)


def test_own_points_are_skipped_and_the_rest_comes_nearer(file: Path) -> None:
    write(file, lab())
    none, ten = validate_collectives(file), validate_collectives(file, own_points=10)
    used = [r for r in ten.rows if r.status == "skipped"]
    assert {r.reason for r in used} == {"used to adapt"}
    assert len(used) == 10
    assert used[0].index == 0
    assert used[-1].index == len(ten.rows) - 1
    assert {r.reason for r in ten.rows if r.status == "ok"} == {"adapted to 10 points of its system"}
    assert ten.summary()["all"]["n"] == 14
    assert ten.summary()["all"]["median_ape"] < 5 < none.summary()["all"]["median_ape"]
    assert ten.summary()["all"]["coverage_90"] == 1.0


def test_every_system_gets_its_own_points(file: Path) -> None:
    rows = [*lab(12), *lab(3, system="small"), *lab(12, system="third")]
    found = validate_collectives(write(file, rows), own_points=5)
    used = [rows[r.index]["system"] for r in found.rows if r.status == "skipped"]
    assert {name: used.count(name) for name in set(used)} == {"lab": 5, "small": 3, "third": 5}


def test_the_choice_of_own_points_does_not_depend_on_the_times(file: Path, tmp_path: Path) -> None:
    rows = lab()
    other = [{**r, "time_us": 3 * r["time_us"]} for r in rows]
    found = [
        [r.index for r in validate_collectives(path, own_points=6).rows if r.status == "skipped"]
        for path in (write(file, rows), write(tmp_path / "b.parquet", other))
    ]
    assert found[0] == found[1]


def test_a_system_with_a_fit_of_its_own_needs_no_points(file: Path) -> None:
    known = next(iter(learned_cost_model().collectives[0].card["systems"]))
    assert known == "CSCS Alps"
    alps = {"device": "GH200-120GB", "interconnect": "NVLink4 intra, Slingshot-11 (4x200Gb/s per node) inter"}
    rows = [row(2.0**e, 8, system=known, n_nodes=2.0, ranks_per_node=4.0, time_us=400.0, **alps) for e in range(12, 20)]
    found = validate_collectives(write(file, rows), own_points=5)
    assert [(r.status, r.reason) for r in found.rows] == [("ok", "")] * 8


def test_a_negative_number_of_own_points_is_refused(file: Path) -> None:
    with pytest.raises(RequestError, match="own_points is -1: expected 0 or more"):
        validate_collectives(write(file, lab()), own_points=-1)
