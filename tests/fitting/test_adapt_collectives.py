"""A few rows of one system adapt the shipped collectives; many rows get curves of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fitting.test_collectives import Row, grid, row, write
from traincast import RequestError, fit, learned_cost_model, load_cluster
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.fitting.collectives.adapt import FEW, adapt_collectives, should_adapt
from traincast.fitting.collectives.fit import fit_collectives
from traincast.fitting.collectives.table import read_collectives
from traincast.work import Collective

SHIPPED = learned_cost_model().collectives[0]


def lines(count: int = 10, **changes: Any) -> list[Row]:
    """Lines of a log of 2 nodes with 8 GPUs each, whose fabric reaches 120 GB/s after 60 µs."""
    sizes = 2.0 ** np.round(np.linspace(10, 33, count), 1)
    return [
        row(
            float(size),
            16,
            time_us=60.0 + 2 * 15 / 16 * size / 120e3,
            **{
                "n_nodes": 2.0,
                "ranks_per_node": 8.0,
                "system": "lab",
                "interconnect": "NVSwitch + 8x200G RoCE",
                **changes,
            },
        )
        for size in sizes
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "table.parquet"


def test_ten_lines_adapt_and_the_bundle_follows_them(file: Path, tmp_path: Path) -> None:
    made = fit(write(file, lines()), output=tmp_path / "mine", kind="collectives")
    assert made.adapted.startswith(
        "adapted to 10 points of lab: all_reduce of 1,024 to 8,589,934,592 bytes among 16 ranks"
    )
    assert "between nodes over roce on h100-sxm5-80gb" in made.adapted
    assert made.held_out["cells"] == 10
    assert made.to_dict()["adapted"] == made.adapted
    model = learned_cost_model([tmp_path / "mine"]).collectives[0]
    cluster = read_collectives(file).clusters[0]
    sizes = 2.0 ** np.arange(11.0, 33.0)
    works = [Collective(kind="all_reduce", nbytes=float(s), num_ranks=16, num_nodes=2) for s in sizes]
    found = model.estimate(works, cluster)
    assert found.learned.all()
    np.testing.assert_allclose(found.seconds, 60e-6 + 2 * 15 / 16 * sizes / 120e9, rtol=0.15)
    gathered = model.estimate([Collective(kind="all_gather", nbytes=2.0**30, num_ranks=16, num_nodes=2)], cluster)
    assert gathered.learned.all()
    assert gathered.high[0] / gathered.low[0] > found.high[-3] / found.low[-3]
    assert not model.estimate(works[:1], load_cluster("dgx-a100:2")).learned.any()


def test_the_number_of_configurations_decides(file: Path, tmp_path: Path) -> None:
    assert should_adapt(read_collectives(write(file, lines(FEW))), SHIPPED)
    assert not should_adapt(read_collectives(write(file, lines(FEW + 1))), SHIPPED)
    assert not should_adapt(read_collectives(write(file, lines(FEW))), None)
    assert fit(write(file, lines(FEW + 1)), output=tmp_path / "curves", kind="collectives").adapted == ""
    assert fit(write(file, lines(FEW + 1)), output=tmp_path / "mine", kind="collectives", adapt=True).adapted
    assert fit(write(file, lines(10)), output=tmp_path / "few", kind="collectives", adapt=False).adapted == ""


def test_repeats_of_a_configuration_are_one_point(file: Path) -> None:
    weights, card = adapt_collectives(read_collectives(write(file, [*lines(), *lines(), *lines()])), SHIPPED)
    assert card["adapted"]["points"] == len(weights["own_residual"]) == 10
    assert card["rows"] == 30


def test_processors_and_several_systems_get_curves(file: Path) -> None:
    gloo = lines(device="AMD EPYC 7763 64-Core Processor (1 of 64 cores)", n_nodes=1.0, ranks_per_node=16.0)
    assert not should_adapt(read_collectives(write(file, gloo)), SHIPPED)
    two = [*lines(5), *lines(5, system="other")]
    assert not should_adapt(read_collectives(write(file, two)), SHIPPED)
    with pytest.raises(RequestError, match=r"2 systems \(lab, other\): adapt to one"):
        adapt_collectives(read_collectives(file), SHIPPED)


def test_what_cannot_be_adapted_is_refused(file: Path, tmp_path: Path) -> None:
    write(file, [row(time_us=-1.0)])
    with pytest.raises(RequestError, match="no row to adapt to: all 1 rows have problems"):
        adapt_collectives(read_collectives(file), SHIPPED)
    write(file, lines())
    bare = CollectiveModel(
        weights=SHIPPED.weights, card={k: v for k, v in SHIPPED.card.items() if k != "prior"}, path=None
    )
    with pytest.raises(RequestError, match="no prior"):
        adapt_collectives(read_collectives(file), bare)
    with pytest.raises(RequestError, match="leave out rivals and prior"):
        fit(file, output=tmp_path / "b", kind="collectives", adapt=True, rivals=True)
    with pytest.raises(RequestError, match="apply to collectives only"):
        fit(file, output=tmp_path / "b", kind="operators", adapt=True)


def test_patterns_are_points_of_their_own(file: Path) -> None:
    isolated = lines(beside_compute=False)
    slow = [{**each, "time_us": 2 * each["time_us"], "beside_compute": True} for each in isolated]
    weights, card = adapt_collectives(read_collectives(write(file, [*isolated, *slow])), SHIPPED)
    assert len(weights["own_residual"]) == 20
    assert card["adapted"]["condition"]["beside_compute"] is False
    table = read_collectives(file)
    model = CollectiveModel(weights=weights, card=card)
    busy = next(c for c in table.conditions if c.beside_compute)
    works = table.works(range(10))
    alone = model.estimate(works, table.clusters[0]).seconds
    beside = model.estimate(works, table.clusters[0], conditions=[busy] * 10).seconds
    np.testing.assert_allclose(beside / alone, 2.0, rtol=0.15)


def test_curves_measured_with_several_groups_serve_works_that_share_the_nics(file: Path) -> None:
    rows = [row(2**e, 8, system="x", concurrent_groups=1.0) for e in range(12, 28)]
    rows += [{**each, "concurrent_groups": 2.0, "time_us": 3 * each["time_us"], "busbw_GBps": None} for each in rows]
    weights, card = fit_collectives(read_collectives(write(file, rows)))
    model = CollectiveModel(weights=weights, card=card)
    work = Collective(kind="all_reduce", nbytes=2.0**20, num_ranks=8, num_nodes=1)
    both = Collective(kind="all_reduce", nbytes=2.0**20, num_ranks=8, num_nodes=1, sharing=2)
    alone, shared = model.estimate([work, both], load_cluster("dgx-h100")).seconds
    assert shared == pytest.approx(3 * alone, rel=0.05)


def test_a_wrong_number_of_groups_is_said_by_row(file: Path) -> None:
    rows = [{**each, "concurrent_groups": 1.0} for each in grid()[:12]]
    rows[2]["concurrent_groups"] = 0.0
    (problem,) = read_collectives(write(file, rows)).problems
    assert (problem.row, problem.reason) == (2, "concurrent_groups is 0: expected a whole number of 1 or more")
