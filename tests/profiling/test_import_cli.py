"""``profile import``: the table that it writes is one that fits and validations read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.profiling import nccl_samples as samples
from tests.profiling.test_cli import call
from traincast.fitting.collectives.table import read_collectives

LOGS = Path(__file__).parents[3] / "shared" / "data" / "nccl_logs"


def written(folder: Path, name: str = "run.txt", lines: list[str] | None = None) -> str:
    (folder / name).write_text("\n".join(lines or samples.log()), encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_table_is_one_that_fits_read(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / f"t.{suffix}"
    code, out, _ = call(capsys, "import", written(tmp_path), "--interconnect", "NVLink, 8x400G IB", "-o", str(table))
    assert code == 0
    assert "5 rows from 1 log\n" in out
    found = read_collectives(table)
    assert not found.problems
    assert (found.nbytes.tolist(), set(found.ranks), set(found.nodes)) == (list(samples.SIZES), {16}, {2})
    assert found.clusters[0].device.name == "h100-sxm5-80gb"
    assert found.seconds.tolist() == pytest.approx([samples.seconds(size) for size in samples.SIZES], rel=1e-3)


def test_a_folder_is_read_and_json_says_what_was_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    written(folder, "a.log")
    written(folder, "b.log", ["nothing here"])
    code, out, _ = call(capsys, "import", str(folder), "--system", "lab", "--json", "-o", str(tmp_path / "t.csv"))
    said = json.loads(out)
    assert code == 0
    assert said["rows"] == 5
    assert said["files"] == [{"file": str(folder / "a.log"), "rows": 5, "runs": 1}]
    assert said["assumed"] == [{"file": str(folder / "a.log"), "what": "collective all_reduce, from its columns"}]
    assert said["errors"] == [f"{folder / 'b.log'} has no row of nccl-tests or rccl-tests: no line looks like one"]
    assert said["skipped"] == []


@pytest.mark.parametrize(
    ("lines", "words", "said"),
    [
        (["nothing"], [], "has no row of nccl-tests or rccl-tests"),
        (samples.log(), ["--nodes", "99"], "--nodes 99"),
        (samples.log(), ["--ranks", "0"], "--ranks is '0'"),
    ],
)
def test_a_refusal_is_one_line_and_writes_nothing(
    lines: list[str], words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    code, _, err = call(capsys, "import", written(tmp_path, lines=lines), *words, "-o", str(table))
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert said in err
    assert not table.exists()


def test_the_output_has_a_known_format_and_is_not_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, "log.csv")
    assert "must end in .csv or .parquet" in call(capsys, "import", log, "-o", str(tmp_path / "t.txt"))[2]
    assert "would be overwritten" in call(capsys, "import", log, "-o", log)[2]
    assert "5" in call(capsys, "import", log, "-o", str(tmp_path / "t.csv"))[1]


@pytest.mark.skipif(not LOGS.is_dir(), reason="the published logs are not here")
def test_published_logs_are_read_without_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "import", str(LOGS), "--json", "-o", str(tmp_path / "t.csv"))
    said = json.loads(out)
    assert code == 0
    assert len(said["files"]) >= 0.95 * len(list(LOGS.glob("*.txt")))
