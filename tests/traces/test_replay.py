"""Recordings replayed: dependencies of threads, launches, streams, waits and ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.traces.made import ENGINE, MAIN, Made, device_bound, host_bound, pair_of_ranks
from traincast.traces.changes.edit import scale, select
from traincast.traces.recording.couple import couple
from traincast.traces.recording.record import record
from traincast.traces.recording.recording import Recording, TaskRole
from traincast.traces.replay import measured_pace_s, replay, run, to_plan
from traincast.work import Recorded


def recorded(made: Made, folder: Path) -> Recording:
    return record(made.trace(folder))


def slower(recording: Recording, name: str, factor: float) -> float:
    """Seconds of the first step if kernels of this name take ``factor`` times as long."""
    chosen = select(recording, name=name, roles=(TaskRole.DEVICE,))
    assert chosen.any()
    return run(scale(recording, chosen, factor)).step_s[0][0]


@pytest.mark.parametrize("made", [host_bound(), device_bound()], ids=["host-bound", "device-bound"])
def test_a_replay_with_unchanged_durations_gives_the_trace_back(made: Made, tmp_path: Path) -> None:
    report = replay(recorded(made, tmp_path))
    assert report.error == pytest.approx(0, abs=1e-9)
    assert report.worst_step_error == pytest.approx(0, abs=1e-9)
    assert report.strict_error == pytest.approx(0, abs=0.02)
    assert report.measured_steps_s == pytest.approx([1e-4] * 3)
    assert report.opaque_share < 0.02


def test_every_task_of_a_replay_starts_when_it_was_recorded(tmp_path: Path) -> None:
    recording = recorded(device_bound(), tmp_path)
    done = run(recording)
    start = done.timeline.start[done.planned.place] * 1e9
    device = recording.role == TaskRole.DEVICE
    assert np.allclose(start[device], recording.start[device])


def test_the_plan_has_one_row_per_thread_and_stream_and_works_that_state_their_time(tmp_path: Path) -> None:
    plan = to_plan(recorded(host_bound(), tmp_path)).plan
    assert plan.ranks.tolist() == [0, 0]
    assert all(isinstance(work, Recorded) for work in plan.works)
    assert Recorded(name="gemm", nanoseconds=5000) in plan.works


def test_half_the_host_time_halves_a_host_bound_step(tmp_path: Path) -> None:
    recording = recorded(host_bound(), tmp_path)
    faster = run(scale(recording, select(recording, roles=(TaskRole.HOST, TaskRole.CALL)), 0.5))
    assert faster.pace_s == pytest.approx(measured_pace_s(recording) / 2, rel=0.02)


def test_the_host_hardly_matters_to_a_device_bound_step(tmp_path: Path) -> None:
    recording = recorded(device_bound(), tmp_path)
    faster = run(scale(recording, select(recording, roles=(TaskRole.HOST, TaskRole.CALL)), 0.5))
    assert faster.pace_s > 0.93 * measured_pace_s(recording)


def test_a_synchronizing_call_waits_for_longer_kernels(tmp_path: Path) -> None:
    recording = recorded(device_bound(), tmp_path)
    assert slower(recording, "gemm", 2.0) == pytest.approx(145e-6, rel=0.01)


def test_threads_hand_over_in_both_directions(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    made.op("aten::linear", 0, 20)
    made.op("MmBackward", 25, 70, tid=ENGINE)  # the main thread sleeps meanwhile
    made.kernel("dgrad", (60, 65), (67, 69), tid=ENGINE)
    made.op("aten::add_", 75, 100)
    recording = recorded(made, tmp_path)
    threads = {lane.name: i for i, lane in enumerate(recording.lanes) if not lane.on_device}
    engine = recording.lane == threads[f"thread {ENGINE}"]
    assert run(recording).total_s == pytest.approx(100e-6)
    faster = run(scale(recording, engine, 0.5))
    own = recording.duration[engine].sum()
    assert faster.total_s * 1e9 == pytest.approx(100_000 - own / 2, abs=10)
    assert threads[f"thread {MAIN}"] != threads[f"thread {ENGINE}"]


def test_a_thread_that_only_asks_takes_no_part(tmp_path: Path) -> None:
    made = host_bound(steps=1)
    for at in range(0, 100, 10):
        made.call("cudaEventQuery", at, at + 1, tid=99)
    assert {lane.name for lane in recorded(made, tmp_path).lanes} == {f"thread {MAIN}", "stream 7"}


def test_threads_that_work_at_the_same_time_do_not_wait_for_one_another(tmp_path: Path) -> None:
    made = Made()
    for at in range(0, 400, 20):
        made.op("aten::add", at, at + 15)
        made.op("aten::load", at + 4, at + 19, tid=12)
    recording = recorded(made, tmp_path)
    loader = next(i for i, lane in enumerate(recording.lanes) if lane.name == "thread 12")
    slow = run(scale(recording, recording.lane == loader, 10.0))
    main = (recording.lane != loader) & (recording.role == TaskRole.HOST)
    assert slow.timeline.end[slow.planned.place][main].max() == pytest.approx(399e-6)


def test_a_pageable_copy_holds_its_caller(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    number = made.call("cudaMemcpyAsync", 10, 60)
    made.device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 20, 55, stream=7, correlation=number, bytes=1000)
    made.op("aten::add", 61, 100)
    recording = recorded(made, tmp_path)
    assert slower(recording, "Memcpy", 2.0) == pytest.approx(135e-6)


def test_a_launch_waits_while_the_queue_is_full(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 130_000)
    at = 0.0
    for number in range(1300):  # kernels of 100 µs, launched every µs until 1000 are outstanding
        launch = (at, max(at + 0.5, 100.0 * (number - 1000) + 2.5))
        made.kernel("k", launch, (100.0 * number + 2, 100.0 * number + 101))
        at = launch[1] + 0.5
    recording = recorded(made, tmp_path)
    base = run(recording)
    assert base.total_s == pytest.approx(0.130, rel=1e-3)
    calls = recording.role == TaskRole.CALL
    assert recording.duration[calls].sum() < 2_000_000  # the waits are not the calls' own time
    kernels = select(recording, name="^k$", roles=(TaskRole.DEVICE,))
    faster = run(scale(recording, kernels, 0.5))
    done = faster.timeline.end[faster.planned.place]
    assert done[kernels].max() == pytest.approx(0.066, rel=0.02)
    assert done[calls].max() < 0.5 * base.timeline.end[base.planned.place][calls].max() + 2e-3


def two_streams(*, steps: int, recorded_waits: bool = False) -> Made:
    """Steps in which a kernel on stream 20 waits for one on stream 7, 30 µs after its launch."""
    made = Made()
    for step in range(steps):
        at = 200.0 * step
        made.range(f"ProfilerStep#{step}", at, at + 200)
        made.kernel("first", (at + 1, at + 5), (at + 6, at + 50))
        made.kernel("next", (at + 7, at + 10), (at + 51, at + 60 + step))
        record_call = made.call("cudaEventRecord", at + 11, at + 12)
        wait = made.call("cudaStreamWaitEvent", at + 13, at + 14)
        if recorded_waits:
            made.device(
                "cuda_sync", "Stream Wait Event", at + 13, at + 14, stream=20, correlation=wait,
                cuda_sync_kind="Stream Wait Event", wait_on_stream=7, wait_on_cuda_event_record_corr_id=record_call,
            )  # fmt: skip
        made.kernel("side", (at + 15, at + 20), (at + 61 + step, at + 80 + step), stream=20)
        made.call("cudaDeviceSynchronize", at + 30, at + 190)
    return made


@pytest.mark.parametrize("recorded_waits", [True, False], ids=["recorded", "inferred"])
def test_a_stream_waits_for_another(recorded_waits: bool, tmp_path: Path) -> None:
    recording = recorded(two_streams(steps=3, recorded_waits=recorded_waits), tmp_path)
    side = select(recording, name="side", roles=(TaskRole.DEVICE,))
    nexts = select(recording, name="next", roles=(TaskRole.DEVICE,))
    longer = run(scale(recording, nexts, 10.0))
    start = longer.timeline.start[longer.planned.place]
    end = longer.timeline.end[longer.planned.place]
    assert (start[side] >= end[nexts]).all()
    assert any("inferred" in note for note in recording.notes) != recorded_waits


def test_waits_inferred_from_some_steps_hold_on_the_others(tmp_path: Path) -> None:
    trace = two_streams(steps=6).trace(tmp_path)
    report = replay(record(trace, fit=range(0, 6, 2)))
    assert report.error == pytest.approx(0, abs=0.025)
    assert report.strict_worst_step_error == pytest.approx(0, abs=0.025)


@pytest.mark.parametrize("fit", [range(0, 9, 2), range(1, 9, 2)], ids=["even", "odd"])
def test_one_step_cannot_judge_its_own_waits_which_is_noted(fit: range, tmp_path: Path) -> None:
    trace = two_streams(steps=1).trace(tmp_path)
    some, whole = record(trace, fit=fit), record(trace)
    assert some.edges.tolist() == whole.edges.tolist()
    assert set(some.notes) - set(whole.notes) == {
        "the trace has too few steps: waits between streams are inferred from all, and no other step judges them"
    }


def test_a_kernel_is_held_until_the_last_wave_of_another(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 200)
    made.kernel("large", (1, 5), (6, 106))
    made.kernel("small", (10, 15), (100, 110), stream=20)  # nothing recorded says that it waits
    made.op("aten::add", 120, 200)
    recording = recorded(made, tmp_path)
    small = select(recording, name="small", roles=(TaskRole.DEVICE,))
    longer = run(scale(recording, select(recording, name="large", roles=(TaskRole.DEVICE,)), 2.0))
    assert longer.timeline.start[longer.planned.place][small][0] == pytest.approx(194e-6, abs=1e-6)
    assert replay(recording).opaque_share == pytest.approx(0)


def test_a_graph_launch_owns_many_kernels(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    number = made.call("cudaGraphLaunch", 5, 15)
    for k in range(3):
        made.device("kernel", f"k{k}", 20 + 10 * k, 29 + 10 * k, stream=7, correlation=number)
    made.op("aten::add", 80, 100)
    report = replay(recorded(made, tmp_path))
    assert report.error == pytest.approx(0, abs=1e-9)


def test_work_launched_before_the_trace_keeps_its_time(tmp_path: Path) -> None:
    made = host_bound(steps=1)
    made.device("kernel", "orphan", 3, 9, stream=7, correlation=999)
    recording = recorded(made, tmp_path)
    assert replay(recording).error == pytest.approx(0, abs=1e-9)
    assert any("before the trace" in note for note in recording.notes)


def test_ranks_are_coupled_by_their_collectives(tmp_path: Path) -> None:
    recording = couple([record(made.trace(tmp_path)) for made in pair_of_ranks()])
    transfer = np.flatnonzero(recording.communicates)
    assert recording.duration[transfer].tolist() == [20_000]  # the rest of rank 0's 60 µs is waiting
    assert replay(recording).error == pytest.approx(0, abs=1e-9)
    doubled = run(scale(recording, recording.communicates, 2.0)).total_s
    assert doubled == pytest.approx(run(recording).total_s + 20e-6)


def test_a_late_rank_makes_the_others_wait(tmp_path: Path) -> None:
    recording = couple([record(made.trace(tmp_path)) for made in pair_of_ranks()])
    on_time = run(scale(recording, select(recording, rank=1, roles=(TaskRole.HOST,)), 0.1))
    assert on_time.step_s[0][0] < run(recording).step_s[0][0] - 15e-6


def test_clocks_of_ranks_are_set_by_the_ends_of_collectives(tmp_path: Path) -> None:
    first, second = pair_of_ranks()
    for event in second.events:
        event["ts"] += 5000.0
    recording = couple([record(made.trace(tmp_path)) for made in (first, second)])
    assert any("clocks" in note for note in recording.notes)
    assert recording.duration[recording.communicates].tolist() == [20_000]


def test_ranks_without_a_common_collective_run_side_by_side(tmp_path: Path) -> None:
    made = [host_bound(rank=rank, world_size=2) for rank in (0, 1)]
    recording = couple([record(one.trace(tmp_path)) for one in made])
    assert any("side by side" in note for note in recording.notes)
    assert replay(recording).error == pytest.approx(0, abs=1e-9)


def test_clocks_are_set_even_if_one_record_begins_earlier(tmp_path: Path) -> None:
    first, second = pair_of_ranks()
    for made in (first, second):
        made.kernel("ncclDevKernel_AllReduce_Sum", (120, 125), (130, 150), stream=20)
    first.device("kernel", "ncclDevKernel_Broadcast", 0, 3, stream=20, correlation=900)
    for event in second.events:
        event["ts"] += 7000.0
    recording = couple([record(made.trace(tmp_path)) for made in (first, second)])
    assert int((recording.communicates & (recording.role == TaskRole.DEVICE)).sum()) == 3  # two joined, one alone
    assert len(recording.others) == 2


def test_clocks_that_contradict_one_another_do_not_stop_a_replay(tmp_path: Path) -> None:
    made = device_bound(steps=4)
    for number, event in enumerate(made.events):
        if event["cat"] == "kernel":
            event["ts"] -= 7.0 * (number % 3)
    report = replay(recorded(made, tmp_path))
    assert report.error == pytest.approx(0, abs=0.1)


def test_waits_that_form_a_loop_are_broken_at_the_earliest_task(tmp_path: Path) -> None:
    recording = recorded(host_bound(steps=1), tmp_path)
    first, second = np.flatnonzero(recording.role == TaskRole.DEVICE).tolist()
    looped = replace(recording, edges=np.concatenate([recording.edges, [[first, second]]]))
    assert run(looped).total_s == pytest.approx(run(recording).total_s)
