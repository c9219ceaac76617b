"""Curves from counters at uneven times, and their comparison with a forecast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.resources.told import told
from traincast import FileFormatError, RequestError, ResourceUse
from traincast.estimate.resource_use import RESOURCES
from traincast.resources.comparing import aligned, compared, compared_figures
from traincast.resources.curves import Curves, uses_of
from traincast.resources.draws import WatchedLinks
from traincast.resources.sampled import Counters, RankPeaks, in_time, mean_step, observed, read_counters, use_of_command

Floats = npt.NDArray[np.float64]
STEP_S, BUSY_S, PAUSE_S = 0.5, 0.3, 0.07
STARTS = [n * STEP_S for n in range(8)]
WINDOWS = tuple((n * (STEP_S + PAUSE_S), n * (STEP_S + PAUSE_S) + STEP_S) for n in range(8))


def busy_until(times: Floats) -> Floats:
    """Seconds in which a device was busy that computes for the first part of each step, and pauses between steps."""
    steps = np.floor(times / (STEP_S + PAUSE_S))
    return steps * BUSY_S + np.clip(times - steps * (STEP_S + PAUSE_S), 0.0, BUSY_S)


def counters(*, late_s: float = 0.0, rate: float = 100.0) -> Counters:
    """Readings every 20 ms, some of them late; memory moves 40 bytes in each busy second, and the network is quiet."""
    times = np.arange(-0.1, WINDOWS[-1][1] + 0.1, 0.02)
    times += late_s * np.random.default_rng(1).random(len(times))
    busy = busy_until(np.maximum(times, 0.0))
    totals = {"compute": busy, "memory": 40.0 * busy, "receive": 0.0 * busy, "send": 0.0 * busy}
    return Counters(times_s=times, totals=totals, peaks={"compute": 1.0, "memory": rate, "receive": 1.0, "send": 1.0})


def test_pauses_between_steps_are_cut_out_exactly() -> None:
    cut = counters(late_s=0.015).within(WINDOWS)
    assert cut.times_s[0] == 0.0
    assert cut.times_s[-1] == pytest.approx(len(WINDOWS) * STEP_S)
    assert np.all(np.diff(cut.times_s) >= 0.0)
    assert cut.totals["compute"][-1] == pytest.approx(len(WINDOWS) * BUSY_S)
    ends = STEP_S * np.arange(1, len(WINDOWS))
    assert np.interp(ends, cut.times_s, cut.totals["compute"]) == pytest.approx(BUSY_S * np.arange(1, len(WINDOWS)))


def test_the_figures_of_a_sampled_run_are_those_of_its_device() -> None:
    use = uses_of(observed([counters()], hz=50.0, step_s=STEP_S, windows=WINDOWS))
    assert use["compute"].burst_amount == pytest.approx(1.0, abs=0.02)
    assert use["compute"].burst_s == pytest.approx(BUSY_S, abs=0.011)
    assert use["compute"].idle_s == pytest.approx(STEP_S - BUSY_S, abs=0.011)
    assert use["memory"].burst_amount == pytest.approx(0.4, abs=0.01)
    assert use["receive"].pattern == "idle"


def test_a_sampler_that_wakes_up_late_finds_the_same_figures() -> None:
    exact, late = (
        uses_of(observed([counters(late_s=s)], hz=50.0, step_s=STEP_S, windows=WINDOWS))["compute"]
        for s in (0.0, 0.019)
    )
    assert late.burst_amount == pytest.approx(exact.burst_amount, rel=0.03)
    assert late.burst_s == pytest.approx(exact.burst_s, rel=0.08)


def test_a_device_is_never_busy_for_longer_than_the_time() -> None:
    """Busy until 0.4 s, but the reading at 0.3 s lacks 0.05 s, which come with the next one."""
    times = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    late = np.array([0.0, 0.1, 0.2, 0.25, 0.4, 0.4])
    assert in_time(times, late, 1.0) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4])
    assert in_time(times, 0.5 * times, 1.0) == pytest.approx(0.5 * times)


def test_one_reading_is_too_few() -> None:
    one = Counters(times_s=np.zeros(1), totals={"compute": np.zeros(1)}, peaks={"compute": 1.0})
    with pytest.raises(RequestError, match="two readings"):
        observed([one], hz=50.0, step_s=1.0)


def test_the_mean_step_begins_with_each_step() -> None:
    cut = counters().within(WINDOWS)
    step = mean_step(cut, starts_s=STARTS, step_s=STEP_S, hz=50.0)
    assert len(step["compute"]) == 25
    assert step["compute"][:14] == pytest.approx(1.0)
    assert step["compute"][16:] == pytest.approx(0.0)
    assert step["compute"].sum() * 0.02 == pytest.approx(BUSY_S)


def exact_step(shift: float, length_s: float) -> Curves:
    """A forecast step that is busy for the same part of its time, but begins elsewhere."""
    busy = np.roll((np.arange(2000) < 2000 * BUSY_S / STEP_S).astype(float), round(2000 * shift))
    values = {name: busy[None] if name == "compute" else np.zeros((1, 2000)) for name in RESOURCES}
    return Curves(
        period_s=length_s / 2000, values=values, ranks=np.zeros(1, dtype=np.int64), num_ranks=1, on_node=np.eye(1),
        step_s=length_s, network=WatchedLinks(leaves_node=True), repeats=True,
    )  # fmt: skip


@pytest.mark.parametrize("shift", [0.0, 0.21, -0.4])
@pytest.mark.parametrize("length_s", [STEP_S, 1.1 * STEP_S])
def test_curves_are_laid_over_one_another_by_phase(shift: float, length_s: float) -> None:
    cut = counters().within(WINDOWS)
    edges = np.linspace(0.0, STEP_S, 26)
    step = mean_step(cut, starts_s=STARTS, step_s=STEP_S, hz=50.0)
    found = aligned(step, exact_step(shift, length_s), edges_s=edges)
    correlation = found.correlation("compute")
    assert correlation is not None
    assert correlation > 0.98
    assert found.phase_s == pytest.approx(-shift * length_s, abs=0.006)
    assert found.correlation("receive") is None  # nothing moves on either side


def test_errors_are_relative_to_what_was_measured() -> None:
    measured = observed([counters()], hz=50.0, step_s=STEP_S, windows=WINDOWS)
    step = mean_step(counters().within(WINDOWS), starts_s=STARTS, step_s=STEP_S, hz=50.0)
    found = compared(measured, measured, exact=exact_step(0.0, STEP_S), step=step, edges_s=np.linspace(0.0, STEP_S, 26))
    assert all(error == 0.0 for figures in found.errors().values() for error in figures.values())
    other = ResourceUse(burst_amount=0.5, burst_s=0.3, idle_s=0.4, pattern="bursts")
    figures = compared_figures(measured, dict.fromkeys(RESOURCES, other), known=("compute",), predicted_step_s=0.7)
    errors = figures.errors()
    assert errors["compute"]["idle_s"] == pytest.approx(0.4 / told(figures.measured["compute"].idle_s) - 1.0)
    assert errors["send"] == dict.fromkeys(("burst_amount", "burst_s", "idle_s"))
    assert figures.to_dict()["correlation"]["compute"] is None


def test_figures_that_one_side_refuses_or_lacks_are_not_compared() -> None:
    measured = observed([counters()], hz=50.0, step_s=STEP_S, windows=WINDOWS)
    short = ResourceUse(
        burst_amount=None, burst_s=None, idle_s=0.2, pattern="bursts",
        refused={"burst_amount": "too short", "burst_s": "too short"},
    )  # fmt: skip
    busy = ResourceUse(burst_amount=0.5, burst_s=4.0, idle_s=0.0, pattern="busy")
    known = ("compute", "memory")
    predicted = dict.fromkeys(RESOURCES, busy) | {"compute": short}
    found = compared_figures(measured, predicted, known=known, predicted_step_s=0.7).to_dict()
    assert found["refused"]["compute"] == dict.fromkeys(("burst_amount", "burst_s"), "forecast: too short")
    assert found["errors"]["compute"]["burst_s"] is None
    assert found["errors"]["compute"]["idle_s"] == pytest.approx(0.0, abs=0.06)
    assert found["errors"]["memory"]["burst_amount"] == pytest.approx(0.25, abs=0.05)
    assert found["refused"]["memory"]["idle_s"].startswith("measured bursts, forecast busy")
    assert found["refused"]["send"] == {}


def test_readings_of_a_run_become_counters(tmp_path: Path) -> None:
    names = ("time_s", "busy_s", "memory_bytes", "received_bytes", "sent_bytes", "processor_s")
    rows = {"rank": [1, 0, 0, 1], **{name: [2.0, 1.0, 3.0, 4.0] for name in names}}
    pq.write_table(pa.table(rows), tmp_path / "r.parquet")
    first, second = read_counters(
        tmp_path / "r.parquet", [RankPeaks(memory=10.0, link=5.0), RankPeaks(memory=None, link=None, cores=2)]
    )
    assert first.times_s.tolist() == [1.0, 3.0]
    assert first.peaks == {"compute": 1.0, "memory": 10.0, "receive": 5.0, "send": 5.0}
    assert "memory" not in second.totals
    assert second.peaks["compute"] == 2.0
    assert second.peaks["send"] == 1.0  # the highest rate seen
    with pytest.raises(FileFormatError, match="readings of rank 2"):
        read_counters(tmp_path / "r.parquet", [RankPeaks(memory=1.0, link=None)] * 3)


def command(**changes: Floats) -> dict[str, Floats]:
    """Readings of a command that computes on two processors for a second, then waits for one."""
    times = np.arange(0.0, 10.0, 0.02)
    used = np.cumsum(np.where(times % 2.0 < 1.0, 2.0, 0.0)) * 0.02
    zeros, ones = np.zeros_like(times), np.ones_like(times)
    return {
        "time_s": times, "processor_s": used, "received_bytes": zeros, "sent_bytes": zeros, "loopback_bytes": zeros,
        "namespaces": ones, "device_s": zeros, "device_memory_s": zeros, "devices": zeros, **changes,
    }  # fmt: skip


def test_a_command_without_devices_is_judged_by_its_processors() -> None:
    found = use_of_command(command(), hz=50.0, cores=4)
    assert found.uses["compute"].burst_amount == pytest.approx(0.5, abs=0.01)
    assert found.uses["compute"].burst_s == pytest.approx(1.0, abs=0.03)
    assert found.to_dict()["memory"] is None
    assert "of 4 cores" in found.counted["compute"]
    assert any("memory traffic" in warning for warning in found.warnings)


def test_devices_come_before_processors() -> None:
    times = command()["time_s"]
    found = use_of_command(
        command(devices=2.0 * np.ones_like(times), device_s=times, device_memory_s=times / 2.0), hz=50.0, cores=4
    )
    assert found.uses["compute"].burst_amount == pytest.approx(0.5)
    assert found.uses["memory"].burst_amount == pytest.approx(0.25)
    assert found.uses["compute"].pattern == "busy"


def test_network_amounts_are_shares_of_the_link_or_of_the_highest_rate() -> None:
    times = command()["time_s"]
    moved = command(received_bytes=1e6 * times, sent_bytes=5e5 * times)
    known = use_of_command(moved, hz=50.0, cores=1, link_rate=4e6)
    assert known.uses["receive"].burst_amount == pytest.approx(0.25)
    assert known.uses["send"].burst_amount == pytest.approx(0.125)
    unknown = use_of_command(moved, hz=50.0, cores=1)
    assert unknown.uses["send"].burst_amount == pytest.approx(1.0)
    assert any("highest rate" in warning for warning in unknown.warnings)


def test_loopback_counts_if_nothing_else_moves() -> None:
    times = command()["time_s"]
    found = use_of_command(command(loopback_bytes=1e6 * times), hz=50.0, cores=1, link_rate=4e6)
    assert found.uses["receive"] == found.uses["send"]
    assert found.uses["send"].burst_amount == pytest.approx(0.25)
    both = command(loopback_bytes=1e6 * times, received_bytes=1e6 * times)
    assert use_of_command(both, hz=50.0, cores=1, link_rate=4e6).uses["send"].pattern == "idle"


def test_a_command_shorter_than_a_period_has_nothing_to_tell() -> None:
    with pytest.raises(RequestError, match="longer run"):
        use_of_command({name: column[:1] for name, column in command().items()}, hz=50.0, cores=1)
