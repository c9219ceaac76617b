"""``--bundle``: what was measured here is used here, and a bundle that is not used is said, not passed over."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traincast import RequestError, UnknownNameError, learned_cost_model, load_cluster, predict
from traincast.cli.main import main
from traincast.cluster.hardware import joined
from traincast.cluster.match import is_processor, measured_name
from traincast.fitting.collectives.table import read_collectives
from traincast.fitting.rows.dataset import read_operators

RYZEN = "AMD Ryzen 9 7950X 16-Core Processor (1 of 16 cores)"
NAME = "amd-ryzen-9-7950x-16-core-processor-1-of-16-cores"
GPT = "gpt:layers=2,hidden=256,heads=8,vocab=1000,seq=128"
PREDICT = ["predict", GPT, "--precision", "fp32", "--global-batch", "4", "--strategy", "dp=2", "--cluster"]


def operator_rows(device: str, count: int = 400) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    made = []
    for _ in range(count):
        m, n, k = (int(2 ** draw.uniform(5, 12)) for _ in range(3))
        seconds = 2.0 * m * n * k / 5e10 + 1e-5
        made.append({
            "source": "profile", "device": device, "dtype": "fp32", "op": "gemm", "phase": "fwd", "b": 1, "m": m,
            "n": n, "k": k, "params": None, "time_us": seconds * 1e6, "framework": "PyTorch 2.13.0 cpu",
        })  # fmt: skip
    return made


def collective_rows(device: str, *, ranks: int = 2) -> list[dict[str, Any]]:
    return [
        {
            "source": "profile", "system": "here", "device": device, "collective": kind, "bytes": 2**exponent,
            "n_ranks": ranks, "n_nodes": 1, "ranks_per_node": ranks, "interconnect": "TCP loopback",
            "library": "gloo (torch.distributed 2.13.0)", "dtype": "float", "variant": "packed", "suspect": False,
            "time_us": 1e6 * (2e-4 + 2**exponent / 3e8),
        }
        for kind in ("all_reduce", "all_gather")
        for exponent in range(10, 26)
    ]  # fmt: skip


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stopped.value.code == code, shown.err
    if code == 0:
        return shown.out
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables of a profile of one processor, and the bundles that were fitted to them."""
    folder = tmp_path_factory.mktemp("profile")
    operators = written(folder / "operators.parquet", operator_rows(RYZEN))
    links = written(folder / "links.parquet", collective_rows(RYZEN))
    for arguments in (
        ["operators", str(operators), "-o", str(folder / "operators.bundle"), "--networks", "none"],
        ["collectives", str(links), "-o", str(folder / "links.bundle")],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["fit", *arguments])
        assert stopped.value.code == 0
    return folder


@pytest.mark.parametrize(
    "text",
    [RYZEN, "Intel(R) Xeon(R) Processor (1 of 2 cores)", "Apple M2 (4 of 8 cores)", "AMD EPYC 7763 64-Core Processor"],
)
def test_both_halves_of_a_profile_name_a_processor_alike(text: str, tmp_path: Path) -> None:
    operators = read_operators(written(tmp_path / "o.parquet", operator_rows(text, 20)), derive=True)
    collectives = read_collectives(written(tmp_path / "c.parquet", collective_rows(text)))
    assert not collectives.problems
    assert list(operators.devices) == [measured_name(text)]
    assert {route.device for route in collectives.routes} == {measured_name(text)}
    assert is_processor(measured_name(text))


def test_devices_of_the_catalog_keep_their_names_and_others_are_unknown() -> None:
    assert measured_name("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert not is_processor("a100-sxm4-80gb")
    with pytest.raises(UnknownNameError):
        measured_name("frobnicator 9000")


def test_collectives_measured_here_change_the_forecast(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = str(made / "links.bundle")
    without = run_json(capsys, *PREDICT, "cpu-server:1x2")
    report = run_json(capsys, *PREDICT, "cpu-server:1x2", "--bundle", links)
    sent = 4 * report["num_parameters"]
    assert report["exposed_communication_s"] > 0.5 * sent / 3e8 > 5 * without["exposed_communication_s"]
    assert without["bundles"] == []
    (use,) = report["bundles"]
    assert (use["path"], use["operators"], use["collectives"]) == (links, 0.0, 1.0)
    assert 0.0 < use["covered"] <= report["estimated_by"]["learned"] + 0.1
    assert f"all_reduce on cpu-server: times measured on {NAME} are used, scaled" in report["warnings"]
    shown = " ".join(run(capsys, *PREDICT, "cpu-server:1x2", "--bundle", links).split())
    assert "links.bundle" in shown
    assert "0% of operators' time, 100% of collectives' time" in shown


@pytest.mark.parametrize("bandwidth", [1e9, 20e9, 500e9])
def test_a_cluster_file_that_names_the_processor_is_what_was_measured(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], bandwidth: float
) -> None:
    lab = tmp_path / "lab.toml"
    lab.write_text(
        f'extends = "cpu-server"\n[device]\nextends = "cpu"\nname = "{NAME}"\n[node]\ndevices_per_node = 2\n'
        f'intra_node = {{ name = "loopback", bandwidth = {bandwidth}, latency_s = 1e-6 }}\n'
    )
    bundles = [str(made / "operators.bundle"), str(made / "links.bundle")]
    report = run_json(capsys, *PREDICT, str(lab), "--bundle", bundles[0], "--bundle", bundles[1])
    operators, links = report["bundles"]
    assert [operators["path"], links["path"]] == bundles
    assert links["collectives"] == 1.0
    assert operators["operators"] > 0.2
    assert operators["collectives"] == links["operators"] == 0.0
    assert operators["covered"] + links["covered"] == pytest.approx(report["estimated_by"]["learned"], abs=0.05)
    assert not any("times measured on" in warning for warning in report["warnings"])
    other = run_json(capsys, *PREDICT, "cpu-server:1x2", "--bundle", bundles[0], "--bundle", bundles[1])
    assert other["compute_s"] == pytest.approx(report["compute_s"])
    assert f"matrix products on cpu take the times measured on {NAME}" in other["warnings"]


def test_a_bundle_that_covers_nothing_says_what_it_covers_and_what_is_needed(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links, operators = str(made / "links.bundle"), str(made / "operators.bundle")
    for cluster, bundle, said in (
        ("dgx-h100:1x2", operators, f"it covers matrix products in fp32 on {NAME}; the forecast needs "),
        ("dgx-h100:1x2", operators, "fp32 on h100-sxm5-80gb"),
        ("dgx-h100:1x2", links, f"it covers all_reduce, all_gather inside a node (host) on {NAME}; "),
        ("dgx-h100:1x2", links, "needs all_reduce inside a node (switch at 450 GB/s) on h100-sxm5-80gb; "),
        ("cpu-server:2", links, "needs all_reduce between nodes over 10G Ethernet at 1.25 GB/s on cpu; "),
    ):
        line = run(capsys, *PREDICT, cluster, "--bundle", bundle, code=2)
        assert line.startswith(f"traincast: bundle {bundle} is not used: ")
        assert said in line
    alone = [*PREDICT[:6], "--strategy", "dp=1", "--cluster", "cpu-server"]
    assert "the forecast needs nothing of that kind" in run(capsys, *alone, "--bundle", links, code=2)
    model = learned_cost_model([Path(links)])
    with pytest.raises(RequestError, match="is not used"):
        predict(GPT, cluster="dgx-h100:1x2", global_batch=4, cost_model=model, use_cache=True)


def test_on_unlike_nodes_a_bundle_covers_the_mean_of_what_it_covers_on_each(made: Path) -> None:
    model = learned_cost_model([made / "operators.bundle"])
    asked = {"global_batch": 4, "strategy": "dp=4", "precision": "fp32", "cost_model": model, "use_cache": True}
    alike = predict(GPT, cluster="cpu-server:2x2", **asked).report.bundles[0]  # type: ignore[call-overload]
    both = joined([load_cluster("cpu-server:1x2"), load_cluster("dgx-h100:1x2")])
    unlike = predict(GPT, cluster=both, **asked).report.bundles[0]  # type: ignore[call-overload]
    assert unlike.operators == pytest.approx(alike.operators / 2, rel=0.02)


def test_a_bundle_behind_one_that_covers_the_same_is_said(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.bundle"
    shutil.copytree(made / "links.bundle", copy)
    given = ["--bundle", str(made / "links.bundle"), "--bundle", str(copy)]
    assert "a bundle given before it covers the same part" in run(capsys, *PREDICT, "cpu-server:1x2", *given, code=2)
    twice = ["--bundle", str(copy), "--bundle", str(copy)]
    assert len(run_json(capsys, *PREDICT, "cpu-server:1x2", *twice)["bundles"]) == 1


@pytest.mark.long(guard="test_a_bundle_that_covers_nothing_says_what_it_covers_and_what_is_needed")
def test_a_search_says_what_bundles_cover_and_refuses_those_that_cover_nothing(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["search", GPT, "--precision", "fp32", "--global-batch", "4", "--cluster"]
    links, operators = str(made / "links.bundle"), str(made / "operators.bundle")
    given = ["--bundle", links, "--bundle", operators]
    answer = run_json(capsys, *search, "cpu-server:1x2", *given, "--constraint", "pp=1,recompute=none")
    uses = [use for c in answer["candidates"] for use in c["bundles"]]
    assert {use["path"] for use in uses if use["collectives"] == 1.0} == {links}
    assert {use["path"] for use in uses if use["operators"] > 0.1} == {operators}
    untied = ["search", f"{GPT},tied=false", *search[2:]]  # tied weights are added up between the ends of a pipeline
    answer = run_json(capsys, *untied, "cpu-server:1x2", "--bundle", links, "--constraint", "pp=2,recompute=none")
    assert f"bundle {links}: the best strategies send nothing that it covers" in answer["warnings"]
    for cluster, bundle in (("dgx-h100:1x2", operators), ("dgx-h100:1x2", links), ("cpu-server:2", links)):
        line = run(capsys, *search, cluster, "--bundle", bundle, code=2)
        assert line.startswith(f"traincast: bundle {bundle} is not used: it covers ")


def test_validation_refuses_a_bundle_that_knows_none_of_its_rows(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links, operators = str(made / "links.bundle"), str(made / "operators.bundle")
    for what, good, bad in (("operators", operators, links), ("collectives", links, operators)):
        table = str(made / ("links.parquet" if what == "collectives" else "operators.parquet"))
        judged = run_json(capsys, "validate", what, table, "--bundle", good)
        assert judged["summary"]["all"]["mape"] < 5
        assert "is not used" in run(capsys, "validate", what, table, "--bundle", bad, code=2)
    other = str(written(tmp_path / "h100.parquet", operator_rows("NVIDIA H100-SXM5-80GB", 20)))
    assert "is not used: it covers" in run(capsys, "validate", "operators", other, "--bundle", operators, code=2)


@pytest.mark.long(guard="test_collectives_measured_here_change_the_forecast")
def test_a_profile_of_this_machine_changes_a_forecast_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, bundle = tmp_path / "links.parquet", str(tmp_path / "links.bundle")
    command = "profile collectives --local 2 --ops all_reduce --sizes 1KiB..1MiB:8 --repeats 3 -o".split()
    done = subprocess.run(
        [sys.executable, "-m", "traincast", *command, str(table)], capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(table).to_pylist()
    written(table, [{**row, "suspect": False} for row in rows])  # as if nothing else had used the machine
    run(capsys, "fit", "collectives", str(table), "-o", bundle)
    without = run_json(capsys, *PREDICT, "cpu-server:1x2")
    report = run_json(capsys, *PREDICT, "cpu-server:1x2", "--bundle", bundle)
    assert report["step_s"] != without["step_s"]
    assert report["bundles"][0]["collectives"] == 1.0


def test_kernels_that_no_bundle_has_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text('extends = "pytorch"\n[kernels]\nmeasured_with = "frobflow"\n')
    report = run_json(capsys, *PREDICT, "dgx-h100:1x2", "--runtime", str(tmp_path / "mine.toml"))
    assert "no bundle has operators measured under 'frobflow'; those of other frameworks are used" in report["warnings"]


def test_ranks_of_a_trace_that_is_not_asked_for_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, *PREDICT, "dgx-h100:1x2", "--trace-ranks", "2", code=2)
    assert said == "traincast: --trace-ranks 2 without a trace: give --trace FILE as well\n"


def test_a_backend_without_a_gpu_advises_an_option_that_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    arguments = ["profile", "collectives", "--local", "2", "--backend", "nccl", "-o", str(tmp_path / "a.parquet")]
    assert run(capsys, *arguments, code=2).endswith("sees no GPU here; use --backend gloo\n")
