"""``profile machine``: figures of this machine become a cluster file that forecasts accept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.profiling.test_cli import call
from traincast import RequestError, capture, load_cluster, predict
from traincast.profiling.machine import figures as machine_figures
from traincast.profiling.machine import loopback
from traincast.profiling.machine.ask import MachineAsk
from traincast.profiling.machine.figures import Figure, MachineFigures, expected_seconds, measure_machine
from traincast.profiling.machine.file import machine_toml
from traincast.profiling.timing import Timing


def figure(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, spread=0.01)


def figures(devices: int = 4) -> MachineFigures:
    found = MachineFigures(device="cpu", threads=2, rates={"fp32": 2e11, "bf16": 4e11})
    found.facts = {
        "name": "Example CPU (2 of 8 cores)",
        "devices": devices,
        "memory_bytes": 8e9,
        "host_memory_bytes": 32e9,
        "num_sms": 2,
        "cache_bytes": 3e7,
        "clock_hz": 2e9,
    }
    found.figures = [
        figure("convolution fp32", 1e11, "FLOP/s"),
        figure("attention", 5e10, "FLOP/s"),
        figure("attention backward", 4e10, "FLOP/s"),
        figure("memory bandwidth", 1.2e10, "bytes/s"),
        figure("launch", 1.5e-6, "s"),
        figure("shortest operator", 3e-6, "s"),
    ]
    if devices > 1:
        found.figures += [figure("link latency", 6e-5, "s"), figure("link bandwidth", 2e9, "bytes/s")]
    return found


def written(folder: Path, found: MachineFigures) -> str:
    path = folder / "my.toml"
    path.write_text(machine_toml(found, name="my"), encoding="utf-8")
    return str(path)


def test_the_file_says_what_was_measured(tmp_path: Path) -> None:
    found = figures()
    cluster = load_cluster(written(tmp_path, found))
    device = cluster.device
    assert (device.name, device.architecture, device.num_sms) == ("example-cpu-2-of-8-cores", "cpu", 2)
    assert (device.peak("fp32"), device.peak("bf16"), device.memory_bandwidth) == (2.5e11, 5e11, 1.2e10)
    assert device.l2_bytes == 3e7
    assert dict(device.achievable) == pytest.approx(
        {"gemm": 0.8, "conv": 0.4, "attention": 0.2, "attention_backward": 0.16, "memory": 1, "kernel_floor_s": 3e-6}
    )
    assert (cluster.devices_per_node, cluster.num_nodes, cluster.launch_s) == (4, 1, 1.5e-6)
    assert (cluster.intra_node.bandwidth, cluster.intra_node.latency_s) == (2e9, 6e-5)
    assert cluster.host_memory_bytes == 32e9
    assert any("inter_node" in line for line in found.assumed)
    assert any("tdp_w" in line for line in found.assumed)


def test_forecasts_accept_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, figures())
    slow = predict("resnet18", cluster=path, global_batch=8, strategy="dp=4", precision="fp32").report
    assert slow.step_s > 3 * 2 * 1.8e9 * 2 / 2e11  # two images on each device, at its peak rate
    alone = load_cluster(written(tmp_path, figures(devices=1)))
    assert (alone.devices_per_node, alone.intra_topology) == (1, "none")


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(machine_figures.PRODUCTS, "cpu", (32,))
    monkeypatch.setattr(machine_figures, "CONVOLUTIONS", ((8, 8, 3),) * 4)
    monkeypatch.setattr(machine_figures, "COPIES", (1 << 16, 1 << 18))
    monkeypatch.setattr(machine_figures, "_HEADS", (1, 16, 8))
    pair = Timing(median_s=2e-3, min_s=1e-3, dispersion=0.1, count=3)
    names = ("small", "large", "product", "copy", "product_beside", "copy_beside")
    times = dict.fromkeys(names, pair) | {"large": Timing(median_s=9e-3, min_s=5e-3, dispersion=0.1, count=3)}
    monkeypatch.setattr(machine_figures, "measure_pair", lambda *_, **__: times)
    monkeypatch.setattr(machine_figures, "_cores", lambda: 2)
    found = measure_machine(device="cpu", threads=1, repeats=3)
    assert found.rates["fp32"] == found.value("product fp32") > 1e6
    assert found.value("link latency") == 1e-3
    assert found.value("link bandwidth") == pytest.approx(loopback.LARGE_BYTES / 4e-3)
    assert found.value("product beside another") == 1.0
    assert found.facts["devices"] == 2
    assert load_cluster(written(tmp_path, found)).devices_per_node == 2


def test_more_repeats_are_expected_to_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Timing(median_s=1e-3, min_s=1e-3, dispersion=0.0, count=3)
    monkeypatch.setattr(machine_figures, "measure", lambda *_, **__: once)
    few, many = (expected_seconds(MachineAsk(repeats=repeats)) for repeats in (3, 30))
    assert loopback.START_S < few < many


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(RequestError, match="--threads 4096: this machine has"):
        measure_machine(device="cpu", threads=4096, repeats=3)


@pytest.mark.long(
    guard="profiling/test_collectives.py::test_two_local_processes_measure_every_collective_and_go_on_where_a_run_stopped"
)
def test_two_processes_measure_the_link_between_them() -> None:
    found = loopback.measure_pair("cpu", threads=1, repeats=3)
    assert set(found) == {"small", "large", "product", "copy", "product_beside", "copy_beside"}
    assert 0 < found["small"].min_s < found["large"].min_s
    assert {timing.count for timing in found.values()} == {3}


def test_a_failing_process_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RequestError, match="could not measure the link between them: no reason given"):
        loopback.measure_pair("cpu", threads=1, repeats=3)


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        ("my.txt", None, [], "must end in .toml"),
        ("my.toml", "[tool.black]\nline-length = 3\n", [], "is not a cluster file"),
        ("my.toml", "not toml", [], "is not a cluster file"),
        ("my.toml", None, ["--repeats", "1"], "--repeats 1: give 3 or more"),
        ("my.toml", None, ["--device", "tpu"], "unknown device 'tpu'"),
    ],
)
def test_a_wrong_request_gets_one_line_and_changes_nothing(
    name: str, content: str | None, words: list[str], said: str, *, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    code, _, err = call(capsys, "machine", *words, "-o", str(path))
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert said in err
    assert (path.read_text() if path.exists() else None) == content


def test_the_verb_says_how_long_it_takes_and_prints_every_spread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_figures, "expected_seconds", lambda *_, **__: 12.0)
    monkeypatch.setattr(machine_figures, "measure_machine", lambda *_, **__: figures())
    path = tmp_path / "my.toml"
    code, out, err = call(capsys, "machine", "-o", str(path))
    assert (code, err) == (0, "measuring takes about 12 s\n")
    assert "12.00 GB/s" in out
    assert "1.0%" in out
    assert load_cluster(str(path)).name == "my"
    code, out, _ = call(capsys, "machine", "--json", "-o", str(path))
    said = json.loads(out)
    assert (code, said["expected_s"], said["file"]) == (0, 12.0, str(path))
    assert {"name": "launch", "value": 1.5e-6, "unit": "s", "spread": 0.01, "note": ""} in said["figures"]
    assert said["warnings"] == []


def test_a_forecast_at_the_measured_rate_keeps_an_interval_below(tmp_path: Path) -> None:
    found = figures(devices=1)
    found.rates = {"fp32": 2e9}  # products take nearly all of the time
    found.figures[3] = figure("memory bandwidth", 1e12, "bytes/s")
    graph = capture(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(3))), torch.ones(2, 1024))
    report = predict(graph, cluster=written(tmp_path, found), global_batch=1024, precision="fp32").report
    assert 0.6 < report.mfu <= 0.8  # the best product that was timed has 0.8 of the rate called the peak
    assert report.low_s < 0.9 * report.step_s
