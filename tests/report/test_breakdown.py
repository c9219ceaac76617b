"""Where a step's time goes, on timelines small enough to add up by hand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

import pytest

from tests.conftest import ChosenSeconds, request_of, run
from traincast import Operator, Report, Timeline
from traincast.forecast import forecast
from traincast.graph import OpKind, Phase
from traincast.report import Breakdown
from traincast.report.breakdown import breakdowns, mean_breakdown
from traincast.strategy import NUM_STREAMS, Category, Stream
from traincast.work import Collective, Launch, Transfer, Work

LAYERS = 4


def report(
    strategy: str,
    *,
    layer: float = 1.0,
    collective: float = 0.0,
    transfer: float = 0.0,
    launch: float = 0.0,
    update: float = 0.0,
    runtime: str = "pytorch",
    global_batch: int = 16,
) -> Report:
    """A report where a layer's GELU takes ``layer`` forward and again backward, and other works as given."""

    def rule(work: Work) -> float:
        if isinstance(work, Collective):
            return collective
        if isinstance(work, Transfer):
            return transfer
        if isinstance(work, Launch):
            return launch
        assert isinstance(work, Operator)
        if work.phase is Phase.OPTIMIZER:
            return update
        return layer if work.kind is OpKind.ACTIVATION else 0.0

    request = request_of(strategy, runtime=runtime, global_batch=global_batch, between_steps=False)
    return forecast(request, cost_model=ChosenSeconds(rule)).report


def test_compute_and_optimizer_are_what_they_take() -> None:
    made = report("dp=1,num_microbatches=2", update=3.0)
    assert made.step_s == 2 * 2 * LAYERS + 3.0
    assert (made.compute_s, made.optimizer_s) == (2 * 2 * LAYERS, 3.0)
    assert made.exposed_communication_s == made.bubble_s == made.overhead_s == 0.0


def test_collectives_in_line_are_exposed() -> None:
    made = report("tp=4", collective=0.5)
    count = 4 * LAYERS + 2
    assert made.exposed_communication_s == pytest.approx(0.5 * count, rel=1e-12)
    assert made.step_s == pytest.approx(2 * LAYERS + 0.5 * count, rel=1e-12)


def test_gradient_traffic_behind_compute_is_hidden_and_only_its_end_shows() -> None:
    # One bucket per step (the model's gradients are below 25 MiB): it starts when backward has ended.
    made = report("dp=4", collective=5.0)
    assert made.compute_s == 2 * LAYERS
    assert made.exposed_communication_s == pytest.approx(made.step_s - 2 * LAYERS, rel=1e-12)
    assert made.step_s == pytest.approx(2 * LAYERS + 5.0, rel=1e-12)


def test_a_pipeline_waits_in_the_bubble() -> None:
    made = report("pp=2,num_microbatches=4")
    assert made.step_s == (4 + 1) * 2 * LAYERS / 2
    assert made.bubble_s == 2 * LAYERS / 2
    assert made.compute_s == 4 * 2 * LAYERS / 2


def test_waiting_for_the_host_is_overhead() -> None:
    made = report("dp=1", layer=0.0, launch=0.25)
    assert made.compute_s == made.exposed_communication_s == 0.0
    assert made.overhead_s == pytest.approx(made.step_s, rel=1e-12)
    assert made.step_s > 0


def test_every_rank_has_its_own_parts() -> None:
    made = report("pp=4,num_microbatches=1")
    assert [r.stage for r in made.ranks] == [0, 1, 2, 3]
    assert [r.rank for r in made.ranks] == [0, 1, 2, 3]
    assert [r.breakdown.compute_s for r in made.ranks] == [2.0] * 4
    assert [r.utilization for r in made.ranks] == [0.25] * 4


def test_the_mean_is_over_ranks() -> None:
    def parts(value: float) -> Breakdown:
        return Breakdown(
            compute_s=value, exposed_communication_s=2 * value, bubble_s=0.0, optimizer_s=1.0, overhead_s=3.0
        )

    mean = mean_breakdown([parts(1.0), parts(3.0)])
    assert mean == parts(2.0)
    assert mean.total_s == 2.0 + 4.0 + 1.0 + 3.0


def test_a_host_that_launches_while_its_device_waits_for_a_neighbour_makes_no_overhead() -> None:
    # The last stage's host has launched all it can long before the first activations arrive.
    made = report("pp=4,num_microbatches=4", layer=1.0, launch=1e-3)
    last = made.ranks[-1].breakdown
    assert last.overhead_s == 0.0
    assert last.bubble_s == pytest.approx(made.step_s - last.compute_s, rel=1e-12)


def test_a_stage_waits_for_its_own_message_in_line_and_for_the_one_that_it_receives() -> None:
    made = report("pp=2,num_microbatches=1", transfer=0.5)
    assert made.step_s == 2 * LAYERS + 2 * 0.5
    for rank in made.ranks:
        assert rank.breakdown.compute_s == LAYERS
        assert rank.breakdown.exposed_communication_s == 2 * 0.5
        assert rank.breakdown.bubble_s == LAYERS


def test_gpt2_on_four_stages_hardly_waits_for_launches() -> None:
    # Devices wait for launches at the start of the first stage alone; hosts run ahead everywhere else.
    made = forecast(request_of("dp=2,pp=4,num_microbatches=4", model="gpt2", runtime="megatron", global_batch=8)).report
    later = [rank.breakdown for rank in made.ranks[1:]]
    assert made.overhead_s < 0.05 * made.bubble_s
    assert [part.overhead_s for part in later] == [0.0] * 3


def counted(timeline: Timeline, row: int) -> dict[str, float]:
    """Seconds in which the compute lane of ``row`` does nothing, by what it lacks, instant by instant."""
    plan, start, end = timeline.plan, timeline.start.tolist(), timeline.end.tolist()
    needs: list[list[int]] = []
    lanes: dict[int, int] = {}
    rows: list[list[tuple[int, int]]] = []
    for task in range(plan.num_tasks):
        held = plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]].tolist()
        needed = plan.predecessors[plan.predecessor_start[task] : plan.predecessor_start[task + 1]].tolist()
        needs.append([*needed, *(lanes[lane] for lane in held if lane in lanes)])
        rows.append([divmod(lane, NUM_STREAMS) for lane in held])
        lanes |= dict.fromkeys(held, task)
    moments = sorted({0.0, *start, *end})

    def lacks(task: int, instant: float) -> str:
        """What ``task``, which has not ended, lacks at ``instant``; nothing of another rank but its messages counts."""
        streams = {stream for _, stream in rows[task]}
        sends = bool(streams & {Stream.SEND_FORWARD, Stream.SEND_BACKWARD})
        message = plan.category[task] == Category.COMMUNICATION and (Stream.COMPUTE not in streams or sends)
        if not message and (plan.category[task] != Category.HOST or rows[task][0][0] != row):
            return "bubble"
        if start[task] <= instant:
            return "bytes" if message else "host"
        return lacks(max(needs[task], key=lambda other: (end[other], launches(other))), instant)

    def launches(task: int) -> bool:
        return bool(plan.category[task] == Category.HOST and rows[task][0][0] == row)

    def work_lacks(task: int, instant: float) -> str:
        """What a work of the row lacks: its launch only where nothing else is missing."""
        missing = [other for other in needs[task] if end[other] > instant]
        others = [other for other in missing if plan.category[other] != Category.HOST]
        return lacks(max(others or list(filter(launches, missing)) or missing, key=lambda other: end[other]), instant)

    total = {"bytes": 0.0, "host": 0.0, "bubble": 0.0}
    own = [task for task in range(plan.num_tasks) if (row, int(Stream.COMPUTE)) in rows[task]]
    free = [0.0, *(end[task] for task in own)]
    mine = max((task for task in range(plan.num_tasks) if row in dict(rows[task])), key=lambda task: end[task])
    for since, task in zip(free, [*own, -1], strict=True):
        until = start[task] if task >= 0 else timeline.step_s
        inside = moments[bisect_left(moments, since) : bisect_right(moments, until)]
        for left, right in pairwise(inside):
            if task >= 0:
                total[work_lacks(task, left)] += right - left
            else:
                total[lacks(mine, left) if end[mine] > left else "bubble"] += right - left
    return total


COUNTED = [
    ("dp=1", "pytorch"),
    ("dp=4,num_microbatches=2", "pytorch"),
    ("dp=2,zero=3", "fsdp"),
    ("dp=2,tp=2,sp,zero=1", "megatron"),
    ("pp=4,num_microbatches=4", "pytorch"),
    ("dp=2,pp=4,num_microbatches=4", "megatron"),
    ("dp=2,pp=2,num_microbatches=4,zero=1", "megatron-deepspeed"),
    ("pp=2,vp=2,num_microbatches=4,schedule=interleaved", "nanotron"),
    ("tp=2,pp=2,num_microbatches=3,schedule=zb-h1", "megatron"),
]


@pytest.mark.long(but=6)
@pytest.mark.parametrize("all_ranks", [False, True])
@pytest.mark.parametrize(("strategy", "runtime"), COUNTED)
def test_gaps_are_what_a_count_of_every_instant_says(strategy: str, runtime: str, all_ranks: bool) -> None:
    for launch_share in (0.05, 1.0, 5.0):  # hosts far ahead of their devices, beside them, and behind
        model = ChosenSeconds(lambda work: _uneven(work, launch_share))  # noqa: B023  (used within the loop)
        request = request_of(strategy, runtime=runtime, global_batch=24)
        fine = run(request, model=model, grain="operator", all_ranks=all_ranks)[1]
        coarse = run(request, model=model, grain="segment", all_ranks=all_ranks)[1]
        rows = range(0, len(fine.plan.ranks), 3 if all_ranks else 1)
        for row, small, large in zip(rows, _parts(fine, rows, model), _parts(coarse, rows, model), strict=True):
            want = counted(fine, row)
            assert small.overhead_s == pytest.approx(want["host"], rel=1e-9, abs=1e-9)
            assert small.bubble_s == pytest.approx(want["bubble"], rel=1e-9, abs=1e-9)
            assert small.total_s == pytest.approx(fine.step_s, rel=1e-9)
            assert large.overhead_s == pytest.approx(small.overhead_s, rel=1e-9, abs=1e-9)
            assert large.bubble_s == pytest.approx(small.bubble_s, rel=1e-9, abs=1e-9)


def _uneven(work: Work, launch_share: float) -> float:
    """Seconds that differ from work to work, so that nothing ends at the same time by chance."""
    if isinstance(work, Launch):
        return launch_share * 0.1 * work.launches
    if isinstance(work, Operator):
        return 0.2 + (work.flops % 97 + work.nbytes % 89) / 97
    return 0.7 + (getattr(work, "nbytes", 0.0) % 83) / 83


def _parts(timeline: Timeline, rows: range, model: ChosenSeconds) -> list[Breakdown]:
    plan = timeline.plan
    seconds = model.estimate(plan.works, request_of().cluster).seconds
    return breakdowns(timeline, rows, plan.shares(seconds, plan.communicates()))
