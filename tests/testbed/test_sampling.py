"""Runs that a sampler watches: what it reads is what the ranks did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from benchmarks.forked import ForkedProcess
from click.testing import CliRunner

import traincast
from tests.testbed.conftest import on_linux
from traincast import FileFormatError, RequestError
from traincast.cli.resources.compare import compare as compare_verb
from traincast.cli.resources.real_runs import sampled_run
from traincast.profiling.monitor.device_counter import DeviceCounter, DeviceReader
from traincast.testbed.folder import read_run_folder
from traincast.testbed.rank.serving import CountedPasses, server_job, window_of
from traincast.testbed.request import RunRequest
from traincast.testbed.run import cluster_text, run
from traincast.testbed.sampling import READING_COLUMNS, RESOURCES, RankReading, write_readings
from traincast.work import demand_of

MODEL = "llama:layers=2,hidden=64,heads=4,vocab=128,seq=32"
ASKED = RunRequest(
    model=MODEL, ranks=2, strategy="dp=2,micro_batch=256", global_batch=512, compute="k80", steps=3, warmup=2,
    monitor_hz=100.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with a sampler, on loopback."""
    made = tmp_path_factory.mktemp("sampled") / "run"
    run(ASKED, made)
    return made


def test_what_the_sampler_read_is_what_the_devices_did(folder: Path) -> None:
    record = read_run_folder(folder)
    assert record.monitor_hz == 100.0
    assert record.sampler_cpu_share is not None
    assert 0.0 < record.sampler_cpu_share < 1.0
    assert len(record.windows_s) == 3
    assert [end - start for start, end in record.windows_s] == pytest.approx(record.steps_s)
    spans = pq.read_table(folder / "spans.parquet").to_pandas()
    compute = spans[(spans.stream == "compute") & (spans["rank"] == 0)]
    busy_s = float((compute.end_s - compute.start_s).sum())
    sampled = sampled_run(folder)
    period_s = 1.0 / record.monitor_hz  # what a device did after the last reading is not seen
    assert sampled.counters[0].totals["compute"][-1] == pytest.approx(busy_s, abs=period_s)
    assert sampled.counters[0].totals["memory"][-1] > 0.0
    assert sampled.counters[0].times_s[-1] == pytest.approx(sum(record.steps_s))


def test_counters_of_every_rank_only_rise(folder: Path) -> None:
    table = pq.read_table(folder / RESOURCES).to_pandas()
    assert list(table.columns) == list(READING_COLUMNS)
    assert set(table["rank"]) == {0, 1}
    for _, own in table.groupby("rank"):
        for name in ("time_s", "busy_s", "memory_bytes", "received_bytes", "sent_bytes", "processor_s"):
            assert own[name].is_monotonic_increasing
        assert own.received_bytes.iloc[-1] > own.received_bytes.iloc[0]
        assert (own.resident_bytes > 1e6).all()


def test_a_run_is_compared_with_its_forecast(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(compare_verb, [str(folder), "--json", "--html", str(page)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["errors"]) == {"compute", "memory", "receive", "send"}
    assert set(found["measured"]["compute"]) == {"burst_amount", "burst_s", "idle_s", "pattern", "refused"}
    assert found["measured"].keys() == found["predicted"].keys()
    assert found["measured_step_s"] == read_run_folder(folder).step_s
    assert "comparison" in page.read_text()
    told = CliRunner().invoke(compare_verb, [str(folder), "--hz", "20"])
    assert "20 samples per second" in told.output
    for name, reasons in found["refused"].items():
        assert all(found["errors"][name][figure] is None for figure in reasons)
    assert traincast.compare_resources(folder).to_dict() == found


def test_a_run_is_not_judged_more_finely_than_it_was_sampled(folder: Path) -> None:
    rate = read_run_folder(folder).monitor_hz
    assert rate is not None
    refused = CliRunner().invoke(compare_verb, [str(folder), "--hz", str(2 * rate)])
    assert isinstance(refused.exception, RequestError)
    assert f"the run was sampled {rate:g} times a second" in str(refused.exception)


def test_a_run_is_compared_with_figures_of_a_file(folder: Path, tmp_path: Path) -> None:
    use = {"burst_amount": 0.5, "burst_s": 0.1, "idle_s": 0.1, "pattern": "bursts", "low": {}, "high": {}}
    forecast = tmp_path / "forecast.json"
    forecast.write_text(
        json.dumps({"step_s": 0.2, "resources": dict.fromkeys(("compute", "memory", "receive", "send"), use)})
    )
    found = json.loads(CliRunner().invoke(compare_verb, [str(forecast), str(folder), "--json"]).stdout)
    measured = found["measured"]["compute"]["burst_amount"]
    assert found["errors"]["compute"]["burst_amount"] == pytest.approx(0.5 / measured - 1.0)
    assert found["correlation"] == dict.fromkeys(("compute", "memory", "receive", "send"))
    forecast.write_text('{"step_s": 1}')
    refused = CliRunner().invoke(compare_verb, [str(forecast), str(folder)])
    assert isinstance(refused.exception, FileFormatError)
    assert "--resources --json" in str(refused.exception)


def test_a_run_without_a_sampler_is_refused(folder: Path, tmp_path: Path) -> None:
    plain = json.loads((folder / "run.json").read_text()) | {"monitor_hz": None}
    (tmp_path / "run.json").write_text(json.dumps(plain))
    with pytest.raises(FileFormatError, match="--monitor"):
        sampled_run(tmp_path)


@pytest.mark.parametrize("hz", [5.0, 1000.0])
def test_samplers_that_are_too_slow_or_too_fast_are_refused(hz: float) -> None:
    with pytest.raises(RequestError, match="10 to 100"):
        RunRequest(model=MODEL, ranks=1, strategy="dp=1", global_batch=1, monitor_hz=hz)


def test_readings_far_from_the_steps_are_left_out(tmp_path: Path) -> None:
    readings = [RankReading(0, float(t), *[float(t)] * 6) for t in range(100)]
    write_readings(readings, tmp_path / "r.parquet", windows=[(40.0, 42.0), (43.0, 44.0)])
    assert pq.read_table(tmp_path / "r.parquet").column("time_s").to_pylist() == [float(t) for t in range(38, 47)]


def test_a_worker_with_servers_counts_the_bytes_of_all_its_operators(tmp_path: Path) -> None:
    request = RunRequest(model=MODEL, ranks=2, strategy="dp=2,servers=1", global_batch=64, compute="k80")
    (tmp_path / "cluster.toml").write_text(cluster_text(request))
    job = server_job(request, tmp_path / "cluster.toml")
    device = CountedPasses(job, 0, DeviceCounter(tmp_path / "1"))
    now = time.monotonic()
    for piece, program in enumerate(job.programs[0]):
        device.run(piece, backward=False, start_s=now - 1.0, end_s=now - 0.5)
        works = [demand_of(item.work).memory_access_bytes for item in program.forward]
        busy_s, nbytes, _ = DeviceReader(tmp_path / "1").read(now)
        assert busy_s == pytest.approx(0.5 * (piece + 1))
        assert nbytes >= sum(works)


def test_the_window_of_servers_has_whole_steps_of_all_workers() -> None:
    from traincast.strategy.servers.tasks import ServerRole
    from traincast.testbed.parallel.servers import ServerSpan

    spans = [
        ServerSpan(role, step, worker, -1, 0, -1, step + 0.1 * worker + late, step + 0.1 * worker + late + 0.2, 0.0)
        for step in range(4)
        for worker in range(2)
        for role, late in ((ServerRole.FORWARD, 0.0), (ServerRole.BACKWARD, 0.5))
    ]
    assert list(window_of(spans, warmup=2)) == pytest.approx([2.1, 3.7])


@on_linux
def test_a_copy_of_this_process_is_watched_and_ended_like_a_program() -> None:
    done = ForkedProcess(lambda: None)
    assert done.wait(timeout=30.0) == 0
    assert ForkedProcess(lambda: os._exit(3)).wait(timeout=30.0) == 3
    sleeping = ForkedProcess(lambda: time.sleep(60.0))
    assert sleeping.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        sleeping.wait(timeout=0.05)
    sleeping.kill()
    assert sleeping.wait(timeout=30.0) == -signal.SIGKILL
    sleeping.send_signal(signal.SIGTERM)  # nobody is there any more
