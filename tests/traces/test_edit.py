"""Edits of a recording: select, scale, remove, insert and move."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.made import Made, device_bound, host_bound
from traincast import RequestError
from traincast.traces.changes.edit import insert, move, remove, scale, select
from traincast.traces.recording.record import record
from traincast.traces.recording.recording import Recording, TaskRole
from traincast.traces.replay import run


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return record(device_bound(steps=2).trace(tmp_path))


def test_tasks_are_selected_by_name_operator_range_rank_and_lane(tmp_path: Path) -> None:
    found = record(host_bound(steps=2).trace(tmp_path))
    assert select(found, name="^gemm$").sum() == 2
    assert select(found, operator="aten::mm").sum() == 2
    assert select(found, lane="stream 7").sum() == 4
    assert select(found, rank=1).sum() == 0
    assert found.duration[select(found, within="ProfilerStep#0", roles=(TaskRole.HOST, TaskRole.CALL))].sum() == 100_000


def test_a_lane_or_a_pattern_that_cannot_be_is_refused(recording: Recording) -> None:
    with pytest.raises(RequestError, match=r"no lane is named 'stream 9'; known are stream 7, thread 10"):
        select(recording, lane="stream 9")
    with pytest.raises(RequestError, match="no regular expression"):
        select(recording, name="(")
    with pytest.raises(RequestError, match="cannot be scaled by -1"):
        scale(recording, select(recording), -1.0)


def test_a_removed_kernel_takes_no_time_and_no_launch(recording: Recording) -> None:
    without = run(remove(recording, select(recording, name="^gemm$", roles=(TaskRole.DEVICE,))))
    assert without.step_s[0][0] == pytest.approx(58e-6, abs=8e-6)


def test_what_follows_on_a_stream_waits_for_an_inserted_task(recording: Recording) -> None:
    first = int(select(recording, name="^gemm$", roles=(TaskRole.DEVICE,)).nonzero()[0][0])
    longer = run(insert(recording, after=first, seconds=30e-6))
    assert longer.step_s[0][0] == pytest.approx(130e-6, abs=2e-6)


def test_a_task_inserted_on_a_stream_of_its_own_delays_nothing(recording: Recording) -> None:
    first = int(select(recording, name="^gemm$", roles=(TaskRole.DEVICE,)).nonzero()[0][0])
    beside = run(insert(recording, after=first, seconds=30e-6, lane="stream 99"))
    assert beside.step_s[0][0] == pytest.approx(100e-6)


def test_a_kernel_moved_to_another_stream_runs_beside_the_others(recording: Recording) -> None:
    moved = move(recording, select(recording, name="^add$", roles=(TaskRole.DEVICE,)), lane="stream 8")
    done = run(moved)
    start = done.timeline.start[done.planned.place]
    add, gemm = (select(moved, name=f"^{name}$", roles=(TaskRole.DEVICE,)) for name in ("add", "gemm"))
    assert start[add][0] < done.timeline.end[done.planned.place][gemm][0]
    assert done.total_s < run(recording).total_s


def test_what_followed_a_moved_kernel_follows_the_one_before_it(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    for k in range(3):
        made.kernel(f"k{k}", (2.0 * k, 2.0 * k + 1), (10 + 20.0 * k, 29 + 20.0 * k))
    made.op("aten::add", 90, 100)
    recording = record(made.trace(tmp_path))
    done = run(move(recording, select(recording, name="k1", roles=(TaskRole.DEVICE,)), lane="side"))
    start = done.timeline.start[done.planned.place]
    last = select(recording, name="k2", roles=(TaskRole.DEVICE,))
    assert start[last][0] == pytest.approx(30e-6, abs=2e-6)
