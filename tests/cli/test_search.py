"""The verb ``search`` answers people, programs, frameworks and tables, and refuses nonsense in one line."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from traincast.cli import output
from traincast.cli.main import main
from traincast.cli.output import progress_bar

FIRST_LINE_S = output._FIRST_LINE_S
GPT = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=256"
NARROW = "schedule=1f1b|interleaved|gpipe,cp=1,recompute=none|full,offload=none,tp<=2"
PLACE = ["search", GPT, "--cluster", "dgx-a100:1x4", "--global-batch", "16", "--workers", "1"]
SEARCH = [*PLACE, "--constraint", NARROW]
RESNET = ["search", "resnet18", "--cluster", "dgx-a100:1x2", "--global-batch", "64", "--workers", "1"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stopped.value.code == 0, shown.err
    assert shown.err == ""
    return shown.out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def test_search_gives_one_json_document_with_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *SEARCH, "--top", "4")
    assert {
        *("model", "runtime", "precision", "global_batch", "objective", "searcher", "engine", "evaluated", "feasible"),
        *("families", "families_beyond_memory", "families_behind", "families_needless", "works"),
        *("seconds", "cpu_seconds", "sure"),
        *("num_steps", "deadline_s", "budget", "confidence", "clusters"),
        *("best", "fastest", "with_evidence", "reason"),
        *("candidates", "pareto", "naive", "influence", "warnings", "export"),
    } == set(answer)
    assert answer["evaluated"] >= answer["feasible"] > 100
    assert answer["best"] == answer["candidates"][0]
    assert len(answer["candidates"]) == 4
    assert [c["behind"] for c in answer["candidates"][1:]] == sorted(c["behind"] for c in answer["candidates"][1:])
    assert answer["best"]["behind"] == 0
    assert answer["sure"] == answer["best"]["chance"]
    assert answer["export"] is None
    for candidate in (*answer["candidates"], *answer["pareto"]):
        assert candidate["low_s"] <= candidate["step_s"] <= candidate["high_s"]
        assert candidate["fits"] and candidate["peak_memory_bytes"] <= candidate["memory_capacity_bytes"]
        assert sum(candidate["shares"].values()) == pytest.approx(1)
        assert candidate["dp"] * candidate["tp"] * candidate["pp"] * candidate["cp"] == candidate["num_devices"] == 4
    assert {n["name"] for n in answer["naive"]} >= {"data parallel", "first that fits, by habit"}
    assert min(answer["influence"]["tp"].values()) == pytest.approx(answer["best"]["step_s"], rel=1e-6)


def test_every_field_of_the_answer_is_in_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *SEARCH, "--top", "1")
    reference = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
    section = reference.partition("## JSON of search")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    fields = {*answer, *answer["best"], *answer["best"]["shares"], *answer["naive"][0], *answer["clusters"][0]}
    fields |= {*answer["fastest"]["evidence"][0]}
    assert fields <= documented


def test_search_shows_people_the_table_the_ties_and_the_front(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, *SEARCH, "--top", "3")
    for words in ("strategy", "90 % interval", "MFU", "memory", "limited by", "behind", "chance", "without a search"):
        assert words in shown
    assert re.search(r"The first strategy has a \d+% chance of being the best of those compared; (\d|no other)", shown)
    assert "data parallel" in shown
    assert "strategies that no other beats in time, memory and cost" in shown
    assert re.search(r"[\d,]+ strategies evaluated, [\d,]+ fit; families: [\d,]+ evaluated", shown)
    assert "strategies per CPU second, exhaustive, local" in shown
    assert f"traincast predict {GPT} --cluster dgx-a100:1x4 --global-batch 16 --strategy " in shown
    assert re.search(r"^  *3  ", shown, re.M) and not re.search(r"^  *4  ", shown, re.M)


@pytest.mark.long(
    guard="searching/test_search.py::test_the_fastest_of_all_that_fit_is_named_and_the_rest_is_in_the_order_of_expected_times"
)
def test_the_first_is_what_predict_forecasts(capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r"To see the first strategy in detail, run: traincast (.+)", run(capsys, *SEARCH, "--top", "1"))
    assert command
    best = run_json(capsys, *SEARCH)["best"]
    assert run_json(capsys, *command[1].split())["step_s"] == pytest.approx(best["step_s"], rel=1e-6)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("objective", ["time", "cost", "energy", "memory"])
def test_each_objective_has_its_least_first(objective: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *SEARCH, "--objective", objective)
    name = {"time": "step_s", "cost": "cost", "energy": "energy_j", "memory": "peak_memory_bytes"}[objective]
    assert answer["objective"] == objective
    known = [c for c in answer["candidates"] if not c["marked"]] if objective != "memory" else answer["candidates"]
    assert answer["best"][name] == min(c[name] for c in known)
    if objective == "memory":
        assert answer["sure"] == 1


def test_constraints_hold_for_all_that_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *SEARCH, "--constraint", "pp=2|4,zero=1", "--constraint", "memory<=2GB,mbs<=2")
    for c in (*answer["candidates"], *answer["pareto"]):
        assert c["pp"] in (2, 4) and c["zero"] in (0, 1) and c["micro_batch"] <= 2
        assert c["peak_memory_bytes"] <= 2e9
        assert c["schedule"] in ("1f1b", "interleaved", "gpipe")


FEW = f"{NARROW},pp=1,recompute=none"
CHOICES = ["search", GPT, "--cluster", "dgx-a100", "--global-batch", "16", "--constraint", FEW]


@pytest.mark.long(guard="searching/test_search.py::test_of_several_clusters_the_cheapest_within_the_deadline_is_chosen")
def test_a_deadline_asks_for_the_cheapest_cluster_that_meets_it(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--workers", "1", "--nodes", "1..2", "--devices", "a100,h100", "--steps", "1e6"]
    fast = run_json(capsys, *CHOICES, *job, "--budget", "2e6")
    assert fast["objective"] == "time"
    assert {(c["cluster"], c["num_nodes"]) for c in fast["pareto"]} <= {
        (name, nodes) for name in ("dgx-a100", "dgx-h100") for nodes in (1, 2)
    }
    cheap = run_json(capsys, *CHOICES, *job, "--deadline", "30d")
    assert cheap["objective"] == "cost"
    assert cheap["best"]["cost"] <= fast["best"]["cost"]
    assert fast["best"]["job_s"] <= cheap["best"]["job_s"] <= 30 * 86400


def test_cluster_choices_are_named_with_the_job_and_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, *CHOICES, "--nodes", "1,2", "--steps", "1000", "--top", "2")
    assert "on 2 clusters" in shown
    assert re.search(r"1 × dgx-a100 +[\d.]+ ms", shown)
    assert "cost of the job" in shown and "$" in shown
    assert "without a search, on 1 × dgx-a100" in shown


def test_every_candidate_is_kept_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.parquet"
    answer = run_json(capsys, *SEARCH, "--constraint", "memory<=1.04GB", "--all-out", str(path))
    table = pq.read_table(path)
    assert table.num_rows == answer["evaluated"]
    assert table.column_names == [
        *("cluster", "nodes", "dp", "tp", "pp", "cp", "ep", "micro_batch", "num_microbatches", "virtual_stages"),
        *("schedule", "zero", "sequence_parallel", "recompute", "recompute_every", "offload", "layers"),
        *("memory_bytes", "step_s", "fits", "cost"),
    ]
    rows = table.to_pylist()
    fitting = [row for row in rows if row["fits"]]
    assert len(fitting) == answer["feasible"] < len(rows)
    assert all((row["step_s"] is None) == (row["cost"] is None) == (not row["fits"]) for row in rows)
    assert [row["step_s"] for row in fitting] == sorted(row["step_s"] for row in fitting)
    assert {row["cluster"] for row in rows} == {"dgx-a100"}
    assert {row["schedule"] for row in rows} == {"1f1b", "interleaved", "gpipe"}
    best = answer["best"]
    same = ("dp", "tp", "pp", "micro_batch", "zero", "schedule", "virtual_stages", "sequence_parallel", "recompute")
    (row,) = [
        row for row in fitting
        if all(row[name] == best[name] for name in same) and row["layers"] == "/".join(map(str, best["layers"]))
    ]  # fmt: skip
    assert row["step_s"] == pytest.approx(best["step_s"], rel=1e-6)
    assert row["memory_bytes"] == pytest.approx(best["peak_memory_bytes"], rel=1e-6)
    assert row["cost"] == pytest.approx(best["cost"], rel=1e-6)
    assert [p.name for p in tmp_path.iterdir()] == ["all.parquet"]


def test_the_page_holds_the_answer_and_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "search.html"
    shown = run(capsys, *SEARCH, "--html", str(path))
    assert f"page: {path}" in shown
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found
    data = json.loads(found[1])
    assert data["model"].startswith("gpt")
    assert sum(cell[2] for cell in data["plot"]["cells"]) == data["plot"]["drawn"]
    assert data["plot"]["drawn"] + data["plot"]["slower"] == data["feasible"]
    edge = data["plot"]["edge"]
    assert edge == sorted(edge) and [b for _, b in edge] == sorted((b for _, b in edge), reverse=True)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|src=|@import|url\(", text.replace(found[1], ""))
    assert "__TRAINCAST_DATA__" not in text


def test_names_in_the_page_are_text_and_not_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = tmp_path / "odd.toml"
    cluster.write_text('extends = "dgx-a100"\n[cluster]\nname = "</script><b>&"\n', encoding="utf-8")
    page = tmp_path / "page.html"
    run(
        capsys, "search", GPT, "--cluster", f"{cluster}:1x2", "--global-batch", "4", "--workers", "1",
        "--constraint", f"{NARROW},pp=1,tp=1", "--html", str(page),
    )  # fmt: skip
    assert "</script><b>" not in page.read_text(encoding="utf-8")


@pytest.mark.long(guard="searching/test_journal.py::test_a_search_that_is_stopped_goes_on_where_it_was")
def test_a_search_goes_on_from_the_parts_that_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "parts"
    first = run_json(capsys, *SEARCH, "--resume", str(folder))
    (journal,) = folder.glob("*.journal")
    whole = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text("".join(whole[:-1]), encoding="utf-8")
    again = run_json(capsys, *SEARCH, "--resume", str(folder))
    mended = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    assert mended[:-1] == whole[:-1]
    assert len(mended) == len(whole) > 1
    assert without_times(again) == without_times(first)


@pytest.mark.long(guard="searching/test_search.py::test_the_answer_does_not_depend_on_the_workers")
def test_the_answer_does_not_depend_on_the_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    one = run_json(capsys, *SEARCH)
    two = run_json(capsys, *SEARCH, "--workers", "2")
    assert without_times(two) == without_times(one)


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """What is the same in every run; works are counted by worker."""
    return {name: value for name, value in answer.items() if name not in ("seconds", "cpu_seconds", "works")}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("searcher", ["exhaustive", "branch-and-bound", "annealing"])
def test_searchers_can_be_chosen(searcher: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *SEARCH, "--searcher", searcher, "--seed", "3")
    assert answer["searcher"] == searcher
    assert answer["best"]["fits"]


@pytest.mark.long(guard="test_search_gives_one_json_document_with_all_fields")
def test_a_model_without_tokens_is_searched_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *RESNET, "--constraint", "pp=1,offload=none")
    assert answer["best"]["tokens_per_s"] == 0
    assert answer["best"]["dp"] == 2


def test_the_progress_bar_has_no_thread_and_draws_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    before = threading.active_count()
    with progress_bar("strategies") as progress:
        assert progress
        for done in range(1, 301):
            progress(done, 300)
            assert threading.active_count() == before
    shown = capsys.readouterr()
    assert "strategies" in shown.err
    assert shown.out == ""


@pytest.fixture
def _free_timer() -> Iterator[None]:
    """The timer of the process, which limits the time of a test, is free during the test."""
    left, handler = signal.setitimer(signal.ITIMER_REAL, 0.0), signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *left)


@pytest.mark.usefixtures("_free_timer")
def test_where_standard_error_is_no_terminal_a_long_command_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FIRST_LINE_S <= 1.5 and output._NEXT_LINE_S >= 10.0  # something within two seconds, and no flood
    monkeypatch.setattr(output, "_FIRST_LINE_S", 0.05)
    monkeypatch.setattr(output, "_NEXT_LINE_S", 0.05)
    printed = ""
    with progress_bar("parts of the space") as progress:
        assert progress
        with progress_bar("inner") as inner:
            assert inner is None
        progress(3, 1200)
        while printed.count("\n") < 2:  # a command that waits, as for its workers
            time.sleep(0.01)
            shown = capsys.readouterr()
            printed += shown.err
            assert shown.out == ""
    assert re.fullmatch(r"(parts of the space: 3 of 1,200 done after \d s\n)+", printed)
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


FEW = "pp=1,cp=1,tp=1,zero=0|1,micro_batch=4|8,offload=none,recompute=none"
TWO = (*PLACE[:2], "--cluster", "dgx-a100", "--global-batch", "1024", "--nodes", "1,2", "--constraint", FEW)


@pytest.mark.long(guard="test_cluster_choices_are_named_with_the_job_and_its_cost")
def test_the_table_of_clusters_is_told_to_people_programs_and_pages_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A deadline that the one node misses: it is late, and nobody says that nothing fits there."""
    free = run_json(capsys, *TWO, "--steps", "1e6")
    slow, fast = (cluster["best"]["job_s"] for cluster in free["clusters"])
    assert fast != slow
    assert (free["num_steps"], free["deadline_s"], free["confidence"]) == (1_000_000, None, None)
    page = tmp_path / "page.html"
    limits = ("--steps", "1e6", "--deadline", f"{(fast + slow) / 2:.0f}s", "--confidence", "30%", "--html", str(page))
    told = run_json(capsys, *TWO, *limits)
    assert told["confidence"] == 0.3
    late, best = sorted(told["clusters"], key=lambda cluster: cluster["status"])
    assert (late["status"], best["status"]) == ("late", "ok")
    assert late["best"]["in_time"] < 0.3 <= best["best"]["in_time"]
    assert told["best"]["num_nodes"] == best["num_nodes"]
    assert late["reason"].startswith("forecast to take ")
    shown = run(capsys, *TWO, *limits)
    assert f"late: {late['reason'].split(';')[0]}" in shown
    assert re.search(r"It has a \d+% chance of meeting the deadline \(required: 30%\)\.", " ".join(shown.split()))
    assert "budget" not in shown
    for text in (shown, page.read_text(encoding="utf-8")):
        assert "nothing fits" not in text
    assert late["reason"] in page.read_text(encoding="utf-8")


def _with(*extra: str) -> list[str]:
    return [*PLACE, *extra]


BAD: dict[str, tuple[list[str], str]] = {
    # what is asked for: arguments, a word the message must have
    "no cluster": (["search", GPT, "--global-batch", "16"], "--cluster"),
    "no batch": (["search", GPT, "--cluster", "dgx-a100"], "--global-batch"),
    "an unknown model": (["search", "gtp2", "--cluster", "dgx-a100", "--global-batch", "8"], "gtp2"),
    "an unknown cluster": (["search", GPT, "--cluster", "dgx-a10", "--global-batch", "8"], "dgx-a100"),
    "a batch of zero": (["search", GPT, "--cluster", "dgx-a100", "--global-batch", "0"], "--global-batch"),
    "a strategy": (_with("--strategy", "dp=4"), "--strategy"),
    "a top of zero": (_with("--top", "0"), "--top"),
    "a top that is a word": (_with("--top", "all"), "all"),
    "an unknown objective": (_with("--objective", "speed"), "speed"),
    "an unknown searcher": (_with("--searcher", "genetic"), "genetic"),
    "an unknown engine": (_with("--engine", "slurm"), "slurm"),
    "an address of the local engine": (_with("--address", "host:6379"), "host:6379"),
    "no workers": (_with("--workers", "0"), "--workers"),
    "an unknown runtime": (_with("--runtime", "megaton"), "megatron"),
    "an unknown precision": (_with("--precision", "bf17"), "bf17"),
    "a framework that is not known": (_with("--export", "fairseq"), "fairseq"),
    "a constraint that is none": (_with("--constraint", "tp"), "tp<=8"),
    "a constraint on nothing": (_with("--constraint", "colour=3"), "colour"),
    "a constraint that nothing meets": (_with("--constraint", "tp>1000"), "tp"),
    "a constraint on memory from below": (_with("--constraint", "memory>=1GB"), "memory"),
    "memory without a unit that exists": (_with("--constraint", "memory<=70XB"), "70XB"),
    "less memory than anything needs": (_with("--constraint", "memory<=1MB"), "fits"),
    "what the framework lacks": (_with("--export", "nanotron", "--constraint", "zero=3"), "nanotron"),
    "a model that the framework does not train": (
        [*RESNET, "--constraint", "pp=1,offload=none", "--export", "megatron"],
        "language models",
    ),
    "nodes that are a word": (_with("--nodes", "many"), "many"),
    "nodes from more to fewer": (_with("--nodes", "8..2"), "8..2"),
    "no nodes": (_with("--nodes", ","), "nodes"),
    "too many clusters": (_with("--nodes", ",".join(map(str, range(1, 80)))), "79"),
    "an unknown device": (_with("--devices", "h1000"), "h1000"),
    "no devices": (_with("--devices", ","), "--devices"),
    "a deadline without a job": (_with("--deadline", "14d"), "deadline"),
    "a deadline of nothing": (_with("--deadline", "0", "--steps", "10"), "14d"),
    "a deadline in the past": (_with("--deadline", "-1d", "--steps", "10"), "-1d"),
    "a deadline nobody can meet": (_with("--deadline", "1s", "--steps", "1e9", "--constraint", NARROW), "deadline"),
    "a chance that is a word": (
        _with("--confidence", "high", "--deadline", "1d", "--steps", "10"),
        "--confidence high",
    ),
    "a certainty": (_with("--confidence", "100%", "--deadline", "1d", "--steps", "10"), "between 0 and 1"),
    "a chance beyond one": (_with("--confidence", "80", "--deadline", "1d", "--steps", "10"), "--confidence 80:"),
    "a budget without a job": (_with("--budget", "2e6"), "budget"),
    "a budget that is a word": (_with("--budget", "little", "--steps", "10"), "--budget"),
    "two lengths of a job": (_with("--steps", "10", "--samples", "10"), "steps"),
    "tokens that are a word": (_with("--tokens", "many"), "--tokens"),
    "a negative seed": (_with("--seed", "-1"), "--seed"),
    "a seed that is a word": (_with("--seed", "x"), "--seed"),
    "a table that is no Parquet": (_with("--all-out", "all.csv"), ".parquet"),
    "a table in a folder that is not there": (_with("--all-out", "no/all.parquet"), "no"),
    "a page in a folder that is not there": (_with("--html", "no/page.html"), "no"),
    "a page that is a folder": (_with("--html", "."), "folder"),
    "a bundle that is not there": (_with("--bundle", "missing"), "missing"),
}


@pytest.mark.parametrize(("arguments", "word"), BAD.values(), ids=BAD)
def test_nonsense_is_refused_in_one_line(
    arguments: list[str],
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    shown = capsys.readouterr()
    assert stopped.value.code == 2, shown.err
    assert shown.out == ""
    assert shown.err.startswith("traincast: ")
    assert shown.err.count("\n") == 1
    assert word in shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder_for_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "parts"
    place.write_text("", encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(_with("--resume", str(place)))
    assert stopped.value.code == 2
    assert "not a folder" in capsys.readouterr().err
