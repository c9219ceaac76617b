"""A study runs its cells, resumes, keeps going when one fails, and writes tables and plots."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.testbed.runs import Span, write_run
from traincast import RequestError, UnknownNameError
from traincast.strategy import parse_strategy
from traincast.testbed.request import rate_of
from traincast.testbed.study.grid import MODELS, NETWORKS, SINGLE, Kind, StudyCell, cells_of
from traincast.testbed.study.output import markdown, write_study
from traincast.testbed.study.study import study


def cell(strategy: str, kind: Kind = "emulated", *, steps: int = 8) -> StudyCell:
    return StudyCell(
        kind=kind, model="tiny", spec="gpt:layers=2,hidden=128,heads=4,vocab=512,seq=64", strategy=strategy,
        global_batch=8, network="500Mbit", steps=steps,
    )  # fmt: skip


class Pretended:
    """A testbed that writes folders of runs 10 % slower than their forecast, and fails for tensor parallelism."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, cell: StudyCell, folder: Path) -> None:
        """Write the folder of a run."""
        self.ran.append(cell.name)
        if "tp" in cell.strategy:
            raise RequestError("tensor parallelism is\nnot for today")
        if "zero" in cell.strategy:
            raise KeyError("forgotten")

        def slower(span: Span) -> Span:
            return {**span, "start_s": span["start_s"] * 1.1, "end_s": span["end_s"] * 1.1}

        made = write_run(folder, cell.strategy, cell.ranks, runtime="pytorch", change=slower, steps=2)
        step = made.report.step_s * 1.1
        content = json.loads((folder / "run.json").read_text())
        content |= {"step_s": step, "steps_s": [step, step]}
        if "dp=4" in cell.strategy:
            content |= {"cannot_carry": "too many ranks"}
        (folder / "run.json").write_text(json.dumps(content))


def test_cells_are_compared_and_failures_are_named(tmp_path: Path) -> None:
    said: list[str] = []
    cells = [cell("dp=2"), cell("tp=2"), cell("dp=2,zero=3"), cell("pp=2,num_microbatches=4")]
    found = study(cells, tmp_path / "study", runner=Pretended(), say=said.append)
    assert [one.strategy for one in found.done] == ["dp=2", "pp=2,num_microbatches=4"]
    assert found.failed == {
        "tiny · tp=2 · 500Mbit": "tensor parallelism is not for today",
        "tiny · dp=2,zero=3 · 500Mbit": "KeyError: 'forgotten'",
    }
    for one in found.done:
        assert one.batch_error == pytest.approx(1 / 1.1 - 1)
        assert one.job_error == pytest.approx(1 / 1.1 - 1)
        assert 0.01 < one.activity_error < 0.1
        assert one.is_beyond_noise
    assert len(said) == 4 and said[1].endswith("failed: tensor parallelism is not for today")
    summary = found.summaries()["emulated"]
    assert (summary.cells, summary.noise, summary.beyond_noise) == (2, 0.0, 2)
    assert summary.batch_error == pytest.approx(1 - 1 / 1.1)


def test_a_study_resumes_without_running_what_it_has(tmp_path: Path) -> None:
    cells = [cell("dp=2"), cell("pp=2,num_microbatches=4")]
    study(cells[:1], tmp_path / "study", runner=Pretended())
    second = Pretended()
    found = study(cells, tmp_path / "study", runner=second)
    assert second.ran == [cells[1].name]
    assert [one.name for one in found.done] == [one.name for one in cells]


def test_cells_that_the_machine_cannot_carry_are_named_and_do_not_count(tmp_path: Path) -> None:
    said: list[str] = []
    found = study([cell("dp=2"), cell("dp=4")], tmp_path / "study", runner=Pretended(), say=said.append)
    assert [one.strategy for one in found.carried] == ["dp=2"]
    assert found.summaries()["emulated"].cells == 1
    assert said[1].endswith("this machine cannot carry it: too many ranks")
    told = found.to_dict()["cells"][1]
    assert (told["cannot_carry"], told["batch_error"], told["job_error"]) == ("too many ranks", None, None)
    assert "## Not carried by this machine" in markdown(found)


def test_a_cell_with_other_settings_runs_again(tmp_path: Path) -> None:
    study([cell("dp=2")], tmp_path / "study", runner=Pretended())
    other = Pretended()
    study([cell("dp=2", steps=20)], tmp_path / "study", runner=other)
    assert len(other.ran) == 1


def test_files_of_a_study_agree_with_it(tmp_path: Path) -> None:
    found = study([cell("dp=2"), cell("dp=2", "job"), cell("tp=2")], tmp_path / "study", runner=Pretended())
    paths = write_study(found, tmp_path / "study")
    assert [path.name for path in paths] == ["study.json", "study.md", "study-steps.svg", "study-errors.svg"]
    data = json.loads(paths[0].read_text())
    assert [one["name"] for one in data["cells"]] == [one.name for one in found.done]
    assert data["failed"] == found.failed
    assert data["costs"][0]["strategies"] == 1
    text = paths[1].read_text()
    assert "−9.1 %" in text and "| Long jobs | 1 |" in text and "not for today" in text
    for path in paths[2:]:
        root = ElementTree.fromstring(path.read_text())
        assert root.tag.endswith("svg")
    dots = ElementTree.fromstring(paths[2].read_text()).findall("{*}circle")
    assert len(dots) == 2 + 2  # cells and entries of the legend
    bars = ElementTree.fromstring(paths[3].read_text()).findall("{*}rect")
    assert len(bars) == 1 + 2 * len(found.done)  # the background, and two errors for each cell


def test_a_study_without_results_can_be_written(tmp_path: Path) -> None:
    found = study([cell("tp=2")], tmp_path / "study", runner=Pretended())
    assert found.done == ()
    assert "## Failed" in markdown(found)
    assert all(path.exists() for path in write_study(found, tmp_path / "study"))


def test_the_grid_has_what_the_study_promises() -> None:
    cells = cells_of()
    grid = [one for one in cells if one.kind == "emulated"]
    assert len(grid) >= 30
    assert {one.network for one in grid} == set(NETWORKS) and len(NETWORKS) >= 3
    strategies = [parse_strategy(one.strategy, global_batch=one.global_batch) for one in cells]
    assert {s.schedule for s in strategies if s.pp > 1} == {"gpipe", "1f1b", "interleaved"}
    assert any(s.zero == 3 for s in strategies) and any(s.tp > 1 for s in strategies)
    assert any(s.dp > 1 and s.pp > 1 for s in strategies)
    assert {s.asynchronous for s in strategies if s.servers} == {True, False}
    assert all(2 <= one.ranks <= 4 for one in cells)
    kinds = Counter(one.kind for one in SINGLE)
    assert set(kinds) == {"mixed", "servers", "real", "job"}
    assert all(one.steps >= 200 for one in SINGLE if one.kind == "job")
    assert len({one.folder for one in cells}) == len(cells)


def test_every_cell_has_a_plan() -> None:
    from tests.testbed.runs import forecast_for

    for one in {(each.spec, each.strategy, each.global_batch): each for each in cells_of()}.values():
        made = forecast_for(one.strategy, one.ranks, model=one.spec, batch=one.global_batch, runtime="pytorch")
        assert made.report.step_s > 0


def test_choices_narrow_the_grid() -> None:
    chosen = cells_of(models=["llama"], networks=["1Gbit"], ranks=4)
    assert {(one.model, one.network, one.ranks) for one in chosen} == {("llama", "1Gbit", 4)}
    own = cells_of(models=["gpt:layers=2,hidden=64,heads=2"], strategies=["dp=2"], networks=["10Mbit"])
    assert [one.strategy for one in own] == ["dp=2"] and own[0].spec.startswith("gpt:layers=2")
    assert len(cells_of(quick=True)) == 5
    with pytest.raises(UnknownNameError, match="unknown model of the study 'gtp': did you mean gpt"):
        cells_of(models=["gtp"])
    with pytest.raises(RequestError, match="no cell of the study is left"):
        cells_of(ranks=99)
    with pytest.raises(RequestError, match="--rates 'fast': expected a rate such as 1Gbit"):
        cells_of(networks=["fast"])


def test_a_model_of_the_user_gets_steps_as_long_as_those_of_the_study() -> None:
    ours = MODELS["gpt"]
    (same,) = cells_of(models=[ours.spec], strategies=["dp=2"], networks=["1Gbit"])
    assert same.global_batch == ours.global_batch
    spec = "gpt:layers=2,hidden=128,heads=4,vocab=512,seq=64"
    (small,) = cells_of(models=[spec], strategies=["dp=2"], networks=["1Gbit"])
    assert small.global_batch > ours.global_batch


@pytest.mark.parametrize(("text", "rate"), [("1Gbit", 125e6), ("200Mbit", 25e6), ("1.5 gbit", 187.5e6), ("8bit", 1.0)])
def test_rates_are_read_in_bytes_per_second(text: str, rate: float) -> None:
    assert rate_of(text) == rate
