"""The verb: one clear line for a wrong request, and figures for people and programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from traincast.cli.main import main
from traincast.profiling.operators import measure as operators
from traincast.profiling.operators.opset import operator_set_by_type, save_operator_set
from traincast.profiling.timing import Timing, measure

TINY = "gpt:layers=2,hidden=16,heads=2,vocab=50,seq=8"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["profile", *words])
    shown = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, shown.out, shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["operators", "--from", "nosuch", "-o", "t.parquet"], "unknown model 'nosuch'"),
        (["operators", "--from", "gpt:layers", "-o", "t.parquet"], "name=value"),
        (["operators", "--from", "missing.json", "-o", "t.parquet"], "cannot read missing.json"),
        (["operators", "--repeats", "-3", "-o", "t.parquet"], "--repeats is '-3'"),
        (["operators", "--device", "tpu", "-o", "t.parquet"], "unknown device 'tpu'"),
        (["operators", "--precision", "fp12", "-o", "t.parquet"], "precision is 'fp12'"),
        (["operators", "--batch", "0", "-o", "t.parquet"], "--batch is '0'"),
        (["operators", "--time-limit", "-1s", "-o", "t.parquet"], "--time-limit is '-1s'"),
        (["operators", "-o", "no/t.parquet"], "does not exist"),
        (["operators", "-o", "t.csv"], "must end in .parquet"),
        (["operators"], "Missing option"),
        (
            ["collectives", "-o", "t.parquet"],
            "torchrun --nproc-per-node 4 -m traincast profile collectives -o t.parquet",
        ),
        (["collectives", "--sizes", "foo", "-o", "t.parquet"], "size is 'foo'"),
        (["collectives", "--local", "1", "-o", "t.parquet"], "--local 1"),
        (["collectives", "--local", "2", "--groups", "4", "-o", "t.parquet"], "--local 2"),
        (["collectives", "--ops", "reduce", "-o", "t.parquet"], "unknown collective"),
        (["collectives", "--backend", "mpi", "-o", "t.parquet"], "unknown backend"),
        (["opset", "--layers-per-type", "0"], "--layers-per-type is '0'"),
        (["opset", "-o", "set.txt"], "must end in .json"),
    ],
)
def test_a_wrong_request_gets_one_clear_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *words)
    assert code == 2
    assert out == ""
    assert said in err
    assert err.startswith("traincast: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_operators_for_programs_and_then_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "t.parquet")
    words = ["operators", "--from", TINY, "--repeats", "3", "--timed-steps", "2", "--source", "lab", "-o", path]
    code, out, err = call(capsys, *words, "--json")
    facts: dict[str, Any] = json.loads(out)
    assert (code, err) == (0, "")
    assert facts["measured"] == facts["rows"] == pq.read_table(path).num_rows
    assert (facts["kept"], facts["left"], facts["failures"]) == (0, 0, [])
    assert {line["context"] for line in facts["summary"]} == {"alone", "model"}
    assert set(pq.read_table(path).column("source").to_pylist()) == {"lab"}
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert f"0 rows measured, {facts['rows']} kept" in out
    assert "median dispersion" in out
    assert "gemm" in out


def test_an_interruption_keeps_what_is_done_and_says_where(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    words = ("operators", "--from", TINY, "--alone", "--repeats", "1", "-o", str(path))
    runs = 0

    def interrupted(call: Callable[[], object], **settings: Any) -> Timing:
        nonlocal runs
        runs += 1
        if runs > 5:
            raise KeyboardInterrupt
        return measure(call, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(operators, "measure", interrupted)
        code, out, err = call(capsys, *words)
    assert (code, out) == (130, "")
    assert f"finished rows are kept in {path}.journal" in err
    assert not path.exists()
    code, out, _ = call(capsys, *words, "--json")
    assert (code, json.loads(out)["kept"]) == (0, 5)
    assert list(tmp_path.iterdir()) == [path]


def test_alone_and_in_context_choose(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for flag, context in (("--alone", "alone"), ("--in-context", "model")):
        path = str(tmp_path / f"{context}.parquet")
        words = ("operators", "--from", TINY, "--repeats", "2", "--timed-steps", "1", "--limit", "4", flag, "-o", path)
        assert call(capsys, *words)[0] == 0
        assert set(pq.read_table(path).column("context").to_pylist()) == {context}


def test_the_operator_set_can_be_counted_listed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "set.json")
    code, out, _ = call(capsys, "opset", "--layers-per-type", "2", "-o", path, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["operators"] == sum(facts["types"].values()) == sum(facts["kinds"].values())
    assert call(capsys, "opset", "--layers-per-type", "2", "--list")[1].count("\n") == facts["operators"]
    assert f"{facts['operators']} distinct operators" in call(capsys, "opset", "--layers-per-type", "2")[1]


def test_an_operator_set_file_is_profiled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, table = tmp_path / "set.json", str(tmp_path / "t.parquet")
    chosen = operator_set_by_type(samples=2)
    save_operator_set({name: chosen[name] for name in ("Mean", "Transpose")}, path, settings={})
    code, out, _ = call(capsys, "operators", "--from", str(path), "--repeats", "1", "-o", table, "--json")
    assert code == 0
    assert json.loads(out)["measured"] == len(chosen["Mean"]) + len(chosen["Transpose"])
    assert set(pq.read_table(table).column("op").to_pylist()) == {"reduction", "elementwise", "copy"}


def test_asking_for_help_does_not_load_pytorch() -> None:
    code = (
        "import sys\nfrom traincast.cli.main import main\n"
        "try:\n    main(['profile', 'operators', '--help'])\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "sys.stderr.write(str('torch' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "False"
    assert "--in-context" in done.stdout
