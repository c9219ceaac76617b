"""Lowering: which tasks a step has, in what order, and on which lanes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import GPT, devices, graph_of, request_of, run, tasks_per_work
from traincast import Operator, Strategy, StrategyError, load_runtime
from traincast.graph import Phase
from traincast.graph.capture.capture import capture
from traincast.graph.zoo import Traceable
from traincast.strategy import NUM_STREAMS, Category, Group, Plan, Stream, lower
from traincast.strategy.prepare import need_only
from traincast.work import Collective, Launch, Transfer

STRATEGIES = ["dp=1", "dp=4,zero=3", "tp=4,sp", "pp=4,num_microbatches=8", "dp=2,tp=2,pp=2,num_microbatches=4,zero=1"]


@pytest.mark.parametrize("grain", ["segment", "operator"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tasks_stand_in_program_order(strategy: str, grain: str) -> None:
    plan = run(request_of(strategy), grain=grain)[0].plan
    waiting = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    assert (plan.predecessors < waiting).all()
    assert (plan.predecessors >= 0).all()
    assert ((plan.cost >= 0) & (plan.cost < plan.num_costs)).all()
    assert ((plan.lanes >= 0) & (plan.lanes < plan.num_lanes)).all()
    assert (np.diff(plan.lane_start) >= 1).all()
    assert ((plan.label >= 0) & (plan.label < len(plan.labels))).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_works_are_distinct_and_all_used(strategy: str) -> None:
    plan = lower(request_of(strategy), grain="operator").plan
    assert len(set(plan.works)) == len(plan.works)
    used = {int(c) for c in plan.cost}
    # The last stage's transfer has nowhere to go; for optimizers see test_every_stage_updates_its_own_parameters.
    spare = [w for i, w in enumerate(plan.works) if i not in used]
    assert [w for w in spare if not isinstance(w, Transfer) and getattr(w, "phase", None) is not Phase.OPTIMIZER] == []


def test_a_deeper_model_has_more_tasks_and_no_more_works() -> None:
    few, many = (
        lower(request_of("dp=2", model=f"gpt:layers={n},hidden=256,heads=8,vocab=1000,seq=128"), grain="operator").plan
        for n in (4, 16)
    )
    assert many.num_tasks > 3 * few.num_tasks
    kinds = [sum(isinstance(w, Operator) and w.phase is not Phase.OPTIMIZER for w in p.works) for p in (few, many)]
    assert kinds[0] == kinds[1]


def test_collectives_of_tensor_groups_hold_compute_and_gradient_traffic_does_not() -> None:
    plan = lower(request_of("dp=2,tp=2"), grain="operator").plan
    for task in range(plan.num_tasks):
        work = plan.works[plan.cost[task]]
        streams = {int(v) % NUM_STREAMS for v in plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]]}
        if isinstance(work, Collective):
            assert streams == (
                {Stream.DATA} if plan.group[task] == Group.DATA else {Stream.COMPUTE, Stream.COMMUNICATION}
            )
        elif isinstance(work, Launch):
            last = plan.category[task] == Category.OPTIMIZER and streams == {Stream.COMPUTE}  # small updates of weights
            assert streams == {Stream.HOST} or last
        else:
            assert streams == {Stream.COMPUTE}


@pytest.mark.parametrize("overlap", [True, False])
def test_sends_hold_compute_unless_they_overlap(overlap: bool) -> None:
    runtime = load_runtime("pytorch").patched(exchange={"overlap_sends": overlap})
    plan = lower(request_of("pp=2,num_microbatches=2", runtime=runtime), grain="operator").plan
    sends = [t for t in range(plan.num_tasks) if isinstance(plan.works[plan.cost[t]], Transfer)]
    assert len(sends) == 4
    for task in sends:
        streams = {int(v) % NUM_STREAMS for v in plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]]}
        assert (Stream.COMPUTE in streams) is not overlap


def test_gradients_are_reduced_in_buckets_as_backward_goes() -> None:
    small = load_runtime("pytorch").patched(exchange={"bucket_bytes": 1e6})
    plan = lower(request_of("dp=2", runtime=small), grain="operator").plan
    buckets = [t for t in range(plan.num_tasks) if plan.group[t] == Group.DATA]
    assert len(buckets) >= 4
    last = int(np.flatnonzero(plan.category == Category.BACKWARD)[-1])
    assert buckets[0] < last
    whole = load_runtime("pytorch").patched(exchange={"bucket_bytes": 1e15})
    single = lower(request_of("dp=2", runtime=whole), grain="operator").plan
    assert int((single.group == Group.DATA).sum()) == 1


def test_overlapped_gradients_hide_behind_backward() -> None:
    base = load_runtime("pytorch").patched(exchange={"bucket_bytes": 1e6})
    hidden, exposed = (
        run(request_of("dp=16", runtime=base.patched(exchange={"overlap_gradients": o}), global_batch=512))[1].step_s
        for o in (True, False)
    )
    assert hidden < exposed


def test_the_optimizer_waits_for_every_gradient() -> None:
    for strategy in ("dp=4", "dp=4,zero=1", "dp=4,zero=3", "dp=2,pp=2,num_microbatches=4"):
        _, timeline = run(request_of(strategy, runtime="megatron"), grain="operator")
        plan = timeline.plan
        rows = plan.lanes[plan.lane_start[:-1]] // NUM_STREAMS
        for row in range(len(plan.ranks)):
            update = timeline.start[(plan.category == Category.OPTIMIZER) & (rows == row)].min()
            labels = np.array([plan.labels[n] for n in plan.label])
            gradients = (rows == row) & np.isin(labels, ("dp gradients", "dp reduce_scatter"))
            assert gradients.any()
            assert timeline.end[gradients].max() <= update


def test_without_an_optimizer_there_is_no_update() -> None:
    plan = lower(request_of("dp=2,zero=1", optimizer=False, between_steps=False), grain="operator").plan
    assert not (plan.category == Category.OPTIMIZER).any()


@pytest.mark.parametrize("zero", [0, 1])
def test_a_replica_updates_its_share_of_the_parameters(zero: int) -> None:
    plan = lower(request_of(f"dp=4,zero={zero}"), grain="operator").plan
    (update,) = [w for w in plan.works if isinstance(w, Operator) and w.phase is Phase.OPTIMIZER]
    parameters = graph_of(GPT).num_parameters
    assert update.inputs[0].numel == parameters // (4 if zero else 1)


def updated_per_stage(plan: Plan) -> list[int]:
    """Parameters that each stage's optimizer updates."""
    return [
        sum(
            work.inputs[0].numel * count
            for work, count in tasks_per_work(plan, row=row)
            if isinstance(work, Operator) and work.phase is Phase.OPTIMIZER
        )
        for row in range(len(plan.ranks))
    ]


def test_every_stage_updates_its_own_parameters() -> None:
    # Several pipelines, because what a freed template's number is used for again differs from run to run.
    for microbatches, runtime in itertools.product((1, 2, 4, 8), ("pytorch", "megatron")):
        request = request_of(f"pp=4,num_microbatches={microbatches}", runtime=runtime)
        lowered = lower(request, grain="operator")
        assert updated_per_stage(lowered.plan) == [int(m.weights / 2) for m in lowered.memory]


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_every_microbatch_runs_once_each_way(microbatches: int) -> None:
    plan = lower(request_of(f"pp=2,num_microbatches={microbatches}")).plan
    for category in (Category.FORWARD, Category.BACKWARD):
        chosen = plan.microbatch[plan.category == category]
        assert sorted(chosen.tolist()) == sorted(list(range(microbatches)) * 2)


def test_fsdp_gathers_a_block_ahead() -> None:
    _, timeline = run(request_of("dp=4,zero=3", runtime="fsdp"), grain="operator")
    plan = timeline.plan
    labels = np.array([plan.labels[n] for n in plan.label])
    gathers = np.flatnonzero(labels == "dp all_gather")
    computes = np.flatnonzero(plan.category == Category.FORWARD)
    # With one block prefetched, two gathers are issued before the first compute.
    assert int((gathers < computes[0]).sum()) == 1 + load_runtime("fsdp").defaults.prefetch_blocks


def test_memory_alone_is_that_of_the_fullest_stage() -> None:
    request = request_of("pp=4,num_microbatches=8")
    assert need_only(request).forecast == max(m.total for m in lower(request).memory)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("dp=2,ep=2", "has no experts to divide"),
        ("cp=3", "cp=3 does not divide the sequence of 128 tokens"),
        ("tp=3,sp", "tp=3"),
        ("dp=3", "global batch 16 is not divisible by dp·num_microbatches = 3·1 = 3"),
        ("pp=5,num_microbatches=4", "5 stages, but"),
        ("pp=4,vp=2,num_microbatches=4", "8 stages, but"),
        ("pp=4,vp=1,num_microbatches=6,schedule=gpipe,dp=1", "not divisible"),
        ("pp=2,vp=2,num_microbatches=1", "num_microbatches=1 is not a multiple of pp=2"),
    ],
)
def test_what_does_not_fit_the_model_or_the_batch_is_refused_with_numbers(strategy: str, said: str) -> None:
    with pytest.raises(StrategyError) as caught:
        lower(request_of(strategy))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_cluster_must_have_as_many_devices_as_ranks() -> None:
    with pytest.raises(StrategyError, match="4 ranks, but"):
        lower(replace(request_of("dp=4"), cluster=devices(8)))


def test_lowering_has_no_memory_of_what_was_lowered_before() -> None:
    first = lower(request_of("dp=2,tp=2"))
    lower(request_of("tp=4,sp"))
    again = lower(request_of("dp=2,tp=2"))
    assert first.plan.works == again.plan.works
    assert (first.plan.cost == again.plan.cost).all()
    assert first.memory == again.memory


def test_a_users_shard_rules_reach_the_plan() -> None:
    rules = (("layers.*.mlp.*", "replicate"),)
    plan = lower(request_of(Strategy(tp=2, shard_rules=rules)), grain="operator").plan
    assert int((plan.group == Group.TENSOR).sum()) == 2 * 4 + 2


def test_selective_recomputation_goes_by_what_an_operator_is_not_by_what_its_module_is_called() -> None:
    module = nn.Sequential()
    module.add_module("attention", nn.Linear(64, 64))
    graph = capture(Traceable(module=module, inputs=lambda batch: (torch.empty(batch, 64),)), name="named")
    plain, selective = (
        lower(replace(request_of("dp=1"), graph=graph, strategy=Strategy(recompute=recompute))).plan
        for recompute in ("none", "selective")
    )
    assert any(label.startswith("attention:") for label in plain.labels)
    assert [len(s.works) for s in selective.segments] == [len(s.works) for s in plain.segments]


def test_small_updates_take_time_by_the_number_of_parameters_and_of_ranks_on_a_host() -> None:
    runtime = load_runtime("pytorch").patched(launches={"step": 0.0, "parameter": 10.0, "crowding": 0.1})
    seen = []
    for strategy in ("dp=1", "dp=4"):
        request = replace(request_of(strategy, model="resnet50"), runtime=runtime)
        works = {w.blocks for w in lower(request).plan.works if isinstance(w, Launch) and w.blocks}
        parameters = sum(b.count * len(b.optimizer) for b in request.graph.blocks)
        seen.append(max(works) / (10.0 * parameters))
    assert seen == pytest.approx([1.0, 1.3])


def test_detectors_launch_more_for_each_image_and_other_models_do_not() -> None:
    def launches(model: str, batch: int) -> float:
        plan = lower(replace(request_of("dp=1", model=model), global_batch=batch)).plan
        works = zip(plan.works, plan.work_counts().tolist(), strict=True)
        return float(sum(w.kernels * n for w, n in works if isinstance(w, Launch)))

    assert launches("mask-rcnn-r50-fpn", 2) - launches("mask-rcnn-r50-fpn", 1) == pytest.approx(8000.0)
    assert launches("resnet50", 2) == launches("resnet50", 1)


@pytest.mark.parametrize(
    ("strategy", "tied", "stages"),
    [
        ("pp=4,num_microbatches=4", True, [0, 3]),
        ("dp=2,pp=2,num_microbatches=4,zero=3", True, [0, 1]),
        ("pp=4,num_microbatches=4", False, []),
        ("dp=4", True, []),
    ],
)
def test_the_ends_of_a_pipeline_add_up_the_gradients_of_tied_weights(
    strategy: str, tied: bool, stages: list[int]
) -> None:
    model = f"gpt:layers=4,hidden=64,heads=4,vocab=1000,seq=32,tied={str(tied).lower()}"
    plan = lower(request_of(strategy, model=model), grain="operator").plan
    tasks = [task for task in range(plan.num_tasks) if plan.labels[plan.label[task]] == "pp gradients of tied weights"]
    assert sorted(int(plan.lanes[plan.lane_start[task]]) // NUM_STREAMS for task in tasks) == stages
    for task in tasks:
        work = plan.works[plan.cost[task]]
        assert isinstance(work, Collective)
        whole = request_of(strategy, model=model).precision.gradient_bytes(1000 * 64)
        assert (work.kind, work.num_ranks) == ("all_reduce", 2)
        assert work.nbytes == (whole / 2 if "zero=3" in strategy else whole)
