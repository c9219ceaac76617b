"""The verbs do what they say, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traincast.cli.main import main

GPT = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128"
PREDICT = ["predict", GPT, "--cluster", "dgx-h100:2", "--global-batch", "64"]
FIELDS = {
    *("step_s", "low_s", "high_s", "samples_per_s", "tokens_per_s", "mfu", "compute_s", "exposed_communication_s"),
    *("bubble_s", "optimizer_s", "overhead_s", "peak_memory_bytes", "memory", "fits", "job_s", "cost"),
    *("estimated_by", "warnings"),
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stopped.value.code == 0, shown.err
    assert shown.err == ""
    return shown.out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def test_predict_gives_one_json_document_with_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *PREDICT, "--strategy", "dp=4,tp=2,pp=2,micro_batch=4", "--tokens", "1e9")
    assert set(report) >= FIELDS
    assert report["low_s"] < report["step_s"] < report["high_s"]
    parts = ("compute_s", "exposed_communication_s", "bubble_s", "optimizer_s", "overhead_s")
    assert sum(report[p] for p in parts) == pytest.approx(report["step_s"])
    assert set(report["memory"]) == {"weights", "gradients", "optimizer", "activations", "other"}
    assert sum(report["memory"].values()) == pytest.approx(report["peak_memory_bytes"])
    assert sum(report["estimated_by"].values()) == pytest.approx(1)
    assert report["samples_per_s"] == pytest.approx(64 / report["step_s"])
    assert report["tokens_per_s"] == pytest.approx(64 * 128 / report["step_s"])
    assert report["job"]["num_steps"] == -(-(10**9) // (64 * 128))
    job_parts = ("startup_s", "data_loading_s", "steps_s", "checkpoints_s", "evaluation_s")
    assert sum(report["job"][p] for p in job_parts) == pytest.approx(report["job_s"])
    assert len(report["ranks"]) == 2


def test_predict_shows_people_the_split_the_memory_and_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, *PREDICT)
    for word in (
        "(chosen by Traincast)",
        "step",
        "throughput",
        "MFU",
        "bubble",
        "overhead",
        "memory",
        "critical path",
        "fits",
    ):
        assert word in shown
    assert "job" not in shown


CONDITIONS = ["--slow", "3=1.5", "--jitter", "0.05", "--seed", "7", "--busy-network", "0.3"]
SAID = "rank 3 computes 1.5 times slower, jitter 0.05 (seed 7), other jobs use 30 % of the network"


@pytest.mark.parametrize("strategy", ["dp=16", "dp=16,servers=2", "dp=8,servers=2,server_nodes=1,async"])
def test_conditions_stand_in_the_header_the_json_the_page_and_the_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, strategy: str
) -> None:
    files = ["--trace", str(tmp_path / "t.json"), "--html", str(tmp_path / "p.html")]
    shown = run(capsys, *PREDICT, "--strategy", strategy, *CONDITIONS, *files)
    assert f"under conditions: {SAID}" in " ".join(shown.split())
    assert SAID in (tmp_path / "p.html").read_text()
    about = json.loads((tmp_path / "t.json").read_text())["otherData"]
    said = run_json(capsys, *PREDICT, "--strategy", strategy, *CONDITIONS)["conditions"]
    assert about["conditions"] == said
    assert said["text"] == SAID
    assert said["slow"] == [{"rank": 3, "factor": 1.5}]
    assert (said["jitter"], said["seed"], said["busy_network"], said["share_links"]) == (0.05, 7, 0.3, False)


def test_without_conditions_nothing_is_said_of_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert "conditions" not in run(capsys, *PREDICT, "--strategy", "dp=16")
    assert run_json(capsys, *PREDICT, "--strategy", "dp=16")["conditions"] is None


def test_predict_says_where_servers_stand(capsys: pytest.CaptureFixture[str]) -> None:
    beside = " ".join(run(capsys, *PREDICT, "--strategy", "dp=16,servers=2").split())
    apart = " ".join(run(capsys, *PREDICT, "--strategy", "dp=8,servers=2,server_nodes=1").split())
    assert "servers 2 beside the workers on nodes 0, 1" in beside
    assert "servers 2 on node 1 of their own" in apart


def test_what_is_offloaded_is_shown_with_the_hosts_memory(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*PREDICT, "--strategy", "dp=16,offload=optimizer,micro_batch=4"]
    report = run_json(capsys, *arguments)
    parameters = report["num_parameters"]
    assert report["host_memory_bytes"] == pytest.approx(8 * 16 * parameters)  # 16 bytes each, eight replicas a node
    assert report["host_memory_capacity_bytes"] == 2.199e12
    assert report["fits"] and 0.85 <= report["fits_probability"] <= 1.0
    assert report["memory_low_bytes"] < report["peak_memory_bytes"] < report["memory_high_bytes"]
    assert report["floor_s"] <= report["low_s"]
    shown = run(capsys, *arguments)
    assert "host memory" in shown and "of 2.00 TiB per node" in shown and "fits with over 99 %" in shown
    assert "host memory" not in run(capsys, *PREDICT)


def test_a_model_that_does_not_fit_says_so_and_still_has_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "gpt3-175b", "--cluster", "dgx-a100", "--global-batch", "8", "--strategy", "dp=8"]
    report = run_json(capsys, *arguments)
    assert not report["fits"]
    assert report["step_s"] > 0
    assert any("does not fit" in w for w in report["warnings"])


def test_trace_and_page_are_written_where_asked_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run(capsys, *PREDICT, "--strategy", "dp=4,tp=4", "--trace", "t.json", "--html", "p.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.html", "t.json"]
    assert "t.json" in shown and "p.html" in shown
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events if e["ph"] == "X"} == set(range(16))


def test_the_number_of_traced_ranks_can_be_chosen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run(capsys, *PREDICT, "--strategy", "dp=8,pp=2,micro_batch=4", "--trace", str(path), "--trace-ranks", "3")
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["pid"] for e in events if e["ph"] == "X"} == {0, 1, 8}


def test_a_captured_graph_forecasts_like_its_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    facts = run_json(capsys, "capture", GPT, "-o", str(path))
    assert facts["parameters"] == 1000 * 256 + 128 * 256 + 4 * (12 * 256**2 + 13 * 256) + 2 * 256
    from_file = run_json(capsys, "predict", str(path), *PREDICT[2:])
    assert from_file["step_s"] == run_json(capsys, *PREDICT)["step_s"]


def test_every_cluster_has_one_line_of_120_columns_machines_before_fitted_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = run(capsys, "clusters").splitlines()
    known = [cluster["name"] for cluster in run_json(capsys, "clusters")]
    named = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in known]
    assert max(map(len, lines)) <= 120
    assert sorted(named) == sorted(known)
    heads = [n for n, line in enumerate(lines) if line.strip().endswith(("machines", "fitted to published runs"))]
    assert len(heads) == 2 and "machines" in lines[heads[0]]
    assert named.index("dgx-h100") < named.index("a100-sxm4-40gb-fsdp-llm-foundry")


@pytest.mark.parametrize("verb", ["models", "clusters", "devices", "runtimes"])
def test_a_catalog_lists_and_shows_what_is_known(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_json(capsys, verb)
    assert len(listed) >= 7
    name = listed[0]["name"]
    assert name in run(capsys, verb)
    assert run_json(capsys, verb, name)["name"] == name
    assert name in run(capsys, verb, name)


def test_every_model_is_listed_with_the_parameters_of_its_captured_graph(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {model["name"]: model["parameters"] for model in run_json(capsys, "models")}
    assert all(isinstance(count, int) and count > 1000 for count in counts.values())
    assert counts["gpt2"] == 124_439_808
    assert counts["deepseek-v4-flash"] == 284_332_230_231
    assert run_json(capsys, "models", "dlrm-small")["parameters"] == counts["dlrm-small"]


def test_a_cluster_of_ones_own_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "dgx-h100"\n'
        '[device]\nextends = "h100-sxm5-80gb"\nname = "h100-slow"\nmemory_bandwidth = 1.0e12\n'
        "[node]\ndevices_per_node = 4\n"
    )
    mine = run_json(capsys, "predict", GPT, "--cluster", f"{path}:4", "--global-batch", "64", "--strategy", "dp=16")
    theirs = run_json(capsys, *PREDICT, "--strategy", "dp=16")
    assert mine["num_devices"] == 16
    assert "h100-slow" in mine["cluster"]
    assert mine["compute_s"] > theirs["compute_s"]


def test_validate_shows_a_table_and_gives_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(
        "source,framework,model,n_layers,hidden,heads,seq,gpu,n_gpus,gpus_per_node,dp,tp,pp,micro_batch,step_time_s\n"
        "mine,Megatron-LM,gpt,4,256,8,128,A100,8,8,8,1,1,4,0.01\n"
        "mine,Megatron-LM,unknown,,,,128,A100,8,8,8,1,1,4,0.01\n"
    )
    shown = run(capsys, "validate", "steps", str(path))
    assert "mine" in shown and "1/2" in shown and "skipped 1" in shown
    document = run_json(capsys, "validate", "steps", str(path))
    assert [r["status"] for r in document["rows"]] == ["ok", "skipped"]
    assert document["summary"]["mine"]["n"] == 1
    assert {"n", "mape", "median_ape", "bias", "spearman", "coverage_90", "oom_f1", "memory_mape"} <= set(
        document["summary"]["all"]
    )


@pytest.mark.parametrize("verb", [[], ["validate"], ["fit"], ["profile"]])
def test_a_command_without_a_verb_shows_the_verbs_as_help_does(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*verb, "--help"])
    wanted = capsys.readouterr()
    assert stopped.value.code == 0
    with pytest.raises(SystemExit) as stopped:
        main(verb)
    shown = capsys.readouterr()
    assert stopped.value.code == 0
    assert shown == wanted
    assert len(shown.out.splitlines()) > 8


def test_the_parts_of_a_mixed_cluster_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(run(capsys, "clusters", "dgx-a100:1+dgx-1-v100:2x4").split())
    assert "1 × 8 a100-sxm4-80gb (8 × 200 Gb/s), 2 × 4 v100-sxm2-16gb (2 × 100 Gb/s)" in shown
    found = run_json(capsys, "clusters", "dgx-a100:1+dgx-1-v100:2x4")
    assert found["num_devices"] == 16
    assert [(part["num_nodes"], part["device"]) for part in found["parts"]] == [
        (1, "a100-sxm4-80gb"),
        (2, "v100-sxm2-16gb"),
    ]


def test_five_warnings_are_printed_and_explain_prints_all(capsys: pytest.CaptureFixture[str]) -> None:
    from traincast.cli.output import print_warnings

    many = [f"reason [{n}]" for n in range(8)]
    print_warnings(many, explain=False)
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("warning")] == [f"warning: reason [{n}]" for n in range(5)]
    assert shown[-1] == "3 less important warnings: --explain shows them"
    print_warnings(many, explain=True)
    assert capsys.readouterr().out.splitlines() == [f"warning: reason [{n}]" for n in range(8)]


def test_that_a_step_does_not_fit_is_the_first_warning(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama3-70b", "--cluster", "dgx-h100:1x8", "--strategy", "dp=8", "--global-batch", "8")
    assert run_json(capsys, "predict", *asked)["warnings"][0].startswith("does not fit")
