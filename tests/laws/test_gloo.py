"""What PyTorch does over gloo, in closed form: buckets, blocking shards, messages that wait for both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import GPT, ChosenSeconds, check_timeline, request_of, run
from traincast import Operator, Request, Strategy, Timeline, load_runtime
from traincast.graph import OpKind, Phase
from traincast.strategy import NUM_STREAMS, Category, Stream
from traincast.work import Collective, Transfer, Work

DEEP = "gpt:layers=8,hidden=512,heads=8,vocab=1000,seq=128"
LAYERS = 8
GLOO = load_runtime("gloo")


def gloo(strategy: str | Strategy, *, model: str = DEEP, global_batch: int = 16) -> Request:
    """A request with the runtime ``gloo`` on devices that traffic does not slow down."""
    request = request_of(strategy, model=model, global_batch=global_batch, runtime="gloo", precision="fp32")
    device = replace(request.cluster.device, interference=0.0)
    return replace(request, cluster=replace(request.cluster, device=device))


def seconds(
    *, forward: float = 0.0, backward: float = 0.0, traffic: float = 0.0, message: float = 0.0
) -> ChosenSeconds:
    """Seconds of a layer's passes (all in its GELU), of a byte of a collective, and of a message between stages."""

    def rule(work: Work) -> float:
        if isinstance(work, Collective):
            return traffic * work.nbytes
        if isinstance(work, Transfer):
            return message
        if isinstance(work, Operator) and work.kind is OpKind.ACTIVATION:
            return backward if work.phase is Phase.BACKWARD else forward
        return 0.0

    return ChosenSeconds(rule)


def sent(timeline: Timeline, label: str) -> list[float]:
    """Bytes of the collectives with this label, in the order of the plan."""
    plan = timeline.plan
    tasks = np.flatnonzero(plan.label == plan.labels.index(label))
    works = [plan.works[int(plan.cost[task])] for task in tasks]
    return [work.nbytes for work in works if isinstance(work, Collective)]


def test_buckets_are_those_of_the_reducer() -> None:
    """Sizes that DistributedDataParallel of PyTorch 2.13 reported after it had rebuilt its buckets for this model."""
    _, timeline = run(gloo("dp=2"))
    assert sent(timeline, "dp gradients") == [4198400, 29415424, 26279936, 28366848, 14929920]


@pytest.mark.parametrize(("first", "others"), [(1 << 20, 25 << 20), (0.0, 4 << 20), (1.0, 1.0), (1e12, 1e12)])
def test_a_bucket_closes_with_the_parameter_that_fills_it(first: float, others: float) -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    runtime = GLOO.patched(exchange={"first_bucket_bytes": first, "bucket_bytes": others})
    request = replace(gloo("dp=2"), runtime=runtime)
    head, ends = [(512,), (512,)], [(128, 512), (1000, 512)]
    layer = [(512, 2048), (512,), (2048, 512), (2048,), (512,), (512,)]
    layer += [(512, 512), (512,), (1536, 512), (1536,), (512,), (512,)]
    shapes = [*head, *(layer * LAYERS), *ends]
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    limits = [int(first or others), int(others)]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    _, timeline = run(request)
    wanted = [sum(4 * tensors[i].numel() for i in bucket) for bucket in buckets]
    assert sent(timeline, "dp gradients") == wanted


def test_a_bucket_leaves_while_the_rest_of_its_layer_runs() -> None:
    """The first bucket closes with the last layer's second product of the MLP, before its activation runs backward."""
    _, timeline = run(gloo("dp=2"), model=seconds(forward=1.0, backward=2.0, traffic=1e-6), grain="operator")
    plan, start = timeline.plan, timeline.start
    buckets = np.flatnonzero(plan.label == plan.labels.index("dp gradients"))
    assert start[buckets[0]] == LAYERS * 1.0
    assert start[buckets[1]] == max(LAYERS * 1.0 + 3 * 2.0, timeline.end[buckets[0]])
    assert (start[buckets[1:]] >= timeline.end[buckets[:-1]]).all()


@pytest.mark.parametrize("microbatches", [1, 3])
def test_only_the_last_microbatch_exchanges_gradients(microbatches: int) -> None:
    _, timeline = run(gloo(Strategy(dp=2, num_microbatches=microbatches), global_batch=12))
    assert sum(sent(timeline, "dp gradients")) == 103190528
    tasks = np.flatnonzero(timeline.plan.label == timeline.plan.labels.index("dp gradients"))
    assert set(timeline.plan.microbatch[tasks].tolist()) == {microbatches - 1}


@pytest.mark.parametrize("microbatches", [1, 2])
def test_blocking_shards_take_the_sum_of_compute_and_traffic(microbatches: int) -> None:
    """Per microbatch, layers are gathered twice, the root group once, and all gradients are reduced."""
    strategy = Strategy(dp=2, zero=3, num_microbatches=microbatches)
    _, timeline = run(gloo(strategy), model=seconds(forward=1.0, backward=2.0, traffic=1e-6))
    layer, root = 4 * 3152384, 4 * (1000 * 512 + 128 * 512 + 2 * 512)
    traffic = 2 * LAYERS * layer + root + LAYERS * layer + root
    assert timeline.step_s == pytest.approx(microbatches * (3.0 * LAYERS + 1e-6 * traffic), rel=1e-12)
    check_timeline(timeline)


def test_the_root_group_is_gathered_first_and_reduced_last() -> None:
    _, timeline = run(gloo("dp=2,zero=3"), grain="operator")
    root = 4 * (1000 * 512 + 128 * 512 + 2 * 512)
    gathers, reductions = sent(timeline, "dp all_gather"), sent(timeline, "dp reduce_scatter")
    assert gathers == [root, *[4 * 3152384] * (2 * LAYERS)]
    assert reductions == [*[4 * 3152384] * LAYERS, root]
    plan = timeline.plan
    order = [
        plan.labels[plan.label[task]]
        for task in np.argsort(timeline.start, kind="stable")
        if plan.category[task] == Category.COMMUNICATION and timeline.start[task] >= 0
    ]
    # The next layer is gathered before the current one runs backward and is reduced.
    assert order[LAYERS + 1 : LAYERS + 6] == [
        "dp all_gather", "dp all_gather", "dp reduce_scatter", "dp all_gather", "dp reduce_scatter"
    ]  # fmt: skip
    assert order[-2:] == ["dp reduce_scatter", "dp reduce_scatter"]


def test_without_a_root_group_every_block_is_gathered_twice() -> None:
    request = replace(gloo("dp=2,zero=3"), runtime=GLOO.patched(exchange={"root_shard": False}))
    _, timeline = run(request, model=seconds(traffic=1e-6))
    layer, root = 4 * 3152384, 4 * (1000 * 512 + 128 * 512 + 2 * 512)
    tied = 4 * 1000 * 512  # the head has no parameters of its own
    assert tied < root
    assert timeline.step_s == pytest.approx(1e-6 * 3 * (LAYERS * layer + root), rel=1e-12)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("microbatches", [4, 7])
@pytest.mark.parametrize("message", [0.0, 0.25])
def test_gpipe_receives_before_every_pass(stages: int, microbatches: int, message: float) -> None:
    """A stage behind the first takes t + F per microbatch, and one before the last t + B: nothing is received ahead."""
    strategy = Strategy(pp=stages, num_microbatches=microbatches, schedule="gpipe")
    model = seconds(forward=1.0, backward=2.0, message=message)
    _, timeline = run(gloo(strategy, global_batch=microbatches), model=model)
    f, b = 1.0 * LAYERS / stages, 2.0 * LAYERS / stages
    ramp = (stages - 1) * (f + b) + 2 * (stages - 2) * message
    assert timeline.step_s == pytest.approx(ramp + microbatches * (f + b + 2 * message), rel=1e-12)


@pytest.mark.parametrize("microbatches", [2, 3, 8])
@pytest.mark.parametrize("message", [0.0, 0.25, 2.0])
def test_1f1b_pays_both_directions_of_every_exchange(microbatches: int, message: float) -> None:
    """Between two stages a microbatch costs F + B and both messages, one after the other: (m+1)(F+B) + 2mt."""
    strategy = Strategy(pp=2, num_microbatches=microbatches)
    model = seconds(forward=1.0, backward=2.0, message=message)
    _, timeline = run(gloo(strategy, global_batch=microbatches), model=model)
    both = 3.0 * LAYERS / 2
    assert timeline.step_s == pytest.approx((microbatches + 1) * both + 2 * microbatches * message, rel=1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "breadth-first"])
def test_without_time_messages_change_nothing(schedule: str) -> None:
    virtual = 2 if schedule in ("interleaved", "breadth-first") else 1
    strategy = Strategy(pp=4, num_microbatches=8, schedule=schedule, virtual_stages=virtual)
    request = gloo(strategy, global_batch=8)
    model = seconds(forward=1.0, backward=2.0)
    _, bound = run(request, model=model)
    _, free = run(
        replace(request, runtime=GLOO.patched(exchange={"rendezvous": False, "overlap_sends": True})), model=model
    )
    assert bound.step_s == pytest.approx(free.step_s, rel=1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-v", "dualpipe"])
@pytest.mark.parametrize("grain", ["segment", "operator"])
def test_a_message_starts_when_both_sides_are_there(schedule: str, grain: str) -> None:
    virtual = 2 if schedule == "interleaved" else 1
    strategy = Strategy(dp=2, pp=2, num_microbatches=8, schedule=schedule, virtual_stages=virtual)
    model = seconds(forward=1.0, backward=2.0, traffic=1e-7, message=0.5)
    lowered, timeline = run(gloo(strategy, global_batch=16), model=model, grain=grain)
    check_timeline(timeline)
    plan = lowered.plan
    for task in np.flatnonzero(np.char.startswith(np.array(plan.labels)[plan.label], "pp send")):
        before = plan.predecessors[plan.predecessor_start[task] : plan.predecessor_start[task + 1]]
        lanes = plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]]
        assert sorted(lanes % NUM_STREAMS) == [Stream.SEND_FORWARD, Stream.SEND_BACKWARD]
        assert timeline.start[task] >= timeline.end[before].max()
    _, expanded = run(gloo(strategy, global_batch=16), model=model, grain=grain, all_ranks=True)
    assert expanded.step_s == timeline.step_s


def test_a_stage_sends_its_last_gradient_after_its_replicas_have_exchanged_theirs() -> None:
    """The backward of a DistributedDataParallel stage returns when all buckets have arrived."""
    request = gloo(Strategy(dp=2, pp=2, num_microbatches=4), global_batch=8)
    _, free = run(request, model=seconds(forward=1.0, backward=2.0, message=0.5))
    _, timeline = run(request, model=seconds(forward=1.0, backward=2.0, traffic=1e-6, message=0.5))
    plan = timeline.plan
    gradients = plan.label == plan.labels.index("pp send gradients")
    buckets = plan.label == plan.labels.index("dp gradients")
    stage = plan.lanes[plan.lane_start[:-1]] // (plan.num_lanes // len(plan.ranks))
    last = np.flatnonzero(gradients & (plan.microbatch == 3))[0]
    assert timeline.start[last] == timeline.end[buckets & (stage == 1)].max()
    assert timeline.step_s > free.step_s


def test_a_tensor_group_sums_after_row_products_and_before_column_products() -> None:
    """DTensor: forward sums outputs of row-parallel products, backward inputs of column-parallel ones."""
    _, timeline = run(gloo("tp=2", model=GPT), grain="operator")
    plan = timeline.plan
    sums = [n for n, label in enumerate(plan.labels) if label.startswith("tp all_reduce layers")]
    tasks = np.flatnonzero(np.isin(plan.label, sums))
    layers, batch, seq, hidden = 4, 16, 128, 256
    assert len(tasks) == 4 * layers == int(np.char.startswith(np.array(plan.labels)[plan.label], "tp").sum())
    works = [plan.works[int(plan.cost[task])] for task in tasks]
    assert {w.nbytes for w in works if isinstance(w, Collective)} == {batch * seq * hidden * 4}
