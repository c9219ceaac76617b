"""Rows of measured collectives find their cluster by their own columns, and outcomes come in order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fitting.test_collectives import Row, grid, row, write
from traincast.estimate.learned_collectives import CollectiveModel
from traincast.fitting.collectives import fit_collectives, read_collectives
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
    learned, plain = validate_collectives(other, model).rows[0], validate_collectives(other).rows[0]
    assert learned.predicted == plain.predicted
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
