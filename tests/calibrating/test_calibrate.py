"""One function fits a cluster to a table of its own runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calibrating.test_read import GOOD, table
from traincast import RequestError, calibrate, load_cluster

ROWS = (GOOD, GOOD.replace("0.05", "0.06").replace("micro_batch=4", "micro_batch=8"), GOOD.replace("ok", "OOM"))


def test_nothing_is_written_without_an_output_and_the_result_can_be_saved(tmp_path: Path) -> None:
    path = table(tmp_path, *ROWS)
    result = calibrate(path, cluster="dgx-a100:2", curve=())
    assert [p.name for p in tmp_path.iterdir()] == ["runs.csv"]
    assert [run.index for run in result.runs] == [0, 1] and list(result.skipped) == [2]
    assert result.cluster.calibration == result.fit.calibration and result.fit.calibration.runs == 2
    assert (result.base.name, result.cluster.name, result.extends) == ("dgx-a100", "dgx-a100-calibrated", "dgx-a100")
    result.save(tmp_path / "mine.toml")
    loaded = load_cluster(str(tmp_path / "mine.toml"))
    assert (loaded.name, loaded.num_nodes, loaded.source) == (result.cluster.name, 2, result.cluster.source)
    assert loaded.calibration is not None
    assert loaded.calibration.gemm == pytest.approx(result.fit.calibration.gemm, rel=1e-3)


def test_the_output_is_what_save_writes_and_extends_a_file_as_seen_from_its_folder(tmp_path: Path) -> None:
    base = tmp_path / "base.toml"
    base.write_text('extends = "dgx-a100"\n', encoding="utf-8")
    (tmp_path / "deep").mkdir()
    result = calibrate(
        table(tmp_path, *ROWS), cluster=str(base), output=tmp_path / "deep" / "out.toml", curve=()
    )  # fmt: skip
    written = (tmp_path / "deep" / "out.toml").read_text(encoding="utf-8")
    assert written.startswith('extends = "../base.toml"\n')
    result.save(tmp_path / "deep" / "again.toml")
    assert (tmp_path / "deep" / "again.toml").read_text(encoding="utf-8") == written


@pytest.mark.parametrize(
    ("cluster", "output", "said"),
    [
        ("dgx-a100", "out.json", "must end in .toml"),
        ("dgx-a100", "runs.toml", "the table of runs"),
        ("base.toml", "base.toml", "the cluster that it extends"),
        ("dgx-a100:1x4", "out.toml", "whole kind of node"),
        ("dgx-a100+dgx-h100", "out.toml", "whole kind of node"),
    ],
)
def test_a_wrong_output_or_cluster_is_refused_before_anything_is_read(
    cluster: str, output: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs.toml").write_text("this is no table", encoding="utf-8")
    Path("base.toml").write_text('extends = "dgx-a100"\n', encoding="utf-8")
    with pytest.raises(RequestError, match=said):
        calibrate("runs.toml", cluster=cluster, output=output)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base.toml", "runs.toml"]


def test_a_device_is_calibrated_as_the_whole_node_that_it_is_usually_in(tmp_path: Path) -> None:
    """Rows say how many devices they used: eight of a node do not become eight nodes of one device."""
    result = calibrate(table(tmp_path, *ROWS), cluster="a100-sxm4-80gb", curve=())
    assert result.base == load_cluster("a100-sxm4-80gb:1")
    result.save(tmp_path / "mine.toml")
    assert load_cluster(str(tmp_path / "mine.toml")).devices_per_node == 8
