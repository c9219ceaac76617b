"""What crosses the network: who belongs together, bytes of gradients, and collectives per transformer layer."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.conftest import GPT, LLAMA, collective_bytes, devices, graph_of, request_of, tasks_per_work
from traincast import OperatorGraph, Strategy
from traincast.strategy import SCHEDULES, Category, Group, Mesh, Plan, lower
from traincast.strategy.mesh import Axis
from traincast.work import Collective, Transfer

HALF, FULL = 2, 4
LAYERS, HIDDEN, SEQ = 4, 256, 128


def plan_of(strategy: str, *, model: str = GPT, runtime: str = "pytorch", precision: str = "bf16") -> Plan:
    return lower(request_of(strategy, model=model, runtime=runtime, precision=precision), grain="operator").plan


degrees = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Strategy, Mesh]:
    """A strategy that shares out experts and shards states in some way it allows, and its mesh."""
    dp, cp, tp, pp = (draw(degrees) for _ in range(4))
    assume(dp * cp * tp * pp <= 512)
    stage, replicas = dp * cp * tp, dp * cp
    ep = draw(st.sampled_from([n for n in range(1, stage + 1) if stage % n == 0]))
    etp = draw(st.sampled_from([n for n in range(1, stage // ep + 1) if stage // ep % n == 0]))
    shard = draw(st.sampled_from([n for n in range(1, replicas + 1) if replicas % n == 0]))
    strategy = Strategy(dp=dp, cp=cp, tp=tp, pp=pp, ep=ep, etp=etp, shard=shard, zero=1, sequence_parallel=tp > 1)
    per_node = draw(st.sampled_from([1, 2, 4, 8]))
    mesh = Mesh(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, shard=shard, devices_per_node=per_node)
    return strategy, mesh


@settings(deadline=None, derandomize=True, max_examples=60)
@given(both=meshes())
def test_groups_along_every_axis_partition_the_ranks_and_their_sizes_multiply(both: tuple[Strategy, Mesh]) -> None:
    strategy, mesh = both
    everyone = list(range(mesh.num_ranks))
    assert mesh.num_ranks == strategy.num_ranks == strategy.dp * strategy.cp * strategy.tp * strategy.pp
    stage = mesh.num_ranks // mesh.pp
    for axis in get_args(Axis):
        groups = {tuple(mesh.group(rank, axis).tolist()) for rank in everyone}
        assert sorted(rank for group in groups for rank in group) == everyone
        assert {len(group) for group in groups} == {mesh.degree(axis)}
        if axis != "pp":  # no group but a pipeline leaves its stage
            assert all(len({rank // stage for rank in group}) == 1 for group in groups)
    assert mesh.degree("ep") * mesh.degree("etp") * mesh.degree("edp") == stage
    assert mesh.degree("shard") * mesh.degree("copies") == strategy.dp * strategy.cp
    assert mesh.degree("edp") == strategy.expert_replicas


@settings(deadline=None, derandomize=True, max_examples=60)
@given(both=meshes())
def test_axes_that_cut_the_same_ranks_together_reach_all_of_them_once(both: tuple[Strategy, Mesh]) -> None:
    _, mesh = both
    stage = mesh.num_ranks // mesh.pp
    for rank in range(0, mesh.num_ranks, max(1, mesh.num_ranks // 7)):
        first = rank // stage * stage
        assert mesh.group(rank, "etp", "ep", "edp").tolist() == list(range(first, first + stage))
        assert mesh.group(rank, "tp", "cp", "dp").tolist() == list(range(first, first + stage))
        assert mesh.group(rank, "shard", "copies").tolist() == mesh.group(rank, "cp", "dp").tolist()
        assert mesh.group(rank, "tp", "cp", "dp", "pp").tolist() == list(range(mesh.num_ranks))
        # Two ranks that hold the same part of the same experts differ in nothing but their replica.
        for axes in (("etp", "ep", "edp", "pp"), ("tp", "cp", "dp", "pp"), ("tp", "shard", "copies", "pp")):
            place = [tuple(mesh.coordinate(r, axis) for axis in axes) for r in range(mesh.num_ranks)]
            assert len(set(place)) == mesh.num_ranks


def test_a_mesh_has_the_degrees_of_its_strategy() -> None:
    strategy = Strategy(dp=4, cp=2, tp=2, pp=2, ep=4, etp=2, zero=1, shard=4, sequence_parallel=True)
    mesh = Mesh.of(strategy, devices(32))
    assert {axis: mesh.degree(axis) for axis in get_args(Axis)} == {
        **{"tp": 2, "cp": 2, "dp": 4, "pp": 2},
        **{"etp": 2, "ep": 4, "edp": 2, "shard": 4, "copies": 2},
    }


@pytest.mark.parametrize("runtime", ["pytorch", "megatron", "nanotron", "tensorflow", "megatron-deepspeed"])
@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_plain_data_parallelism_reduces_every_gradient_once(model: str, runtime: str) -> None:
    plan = plan_of("dp=4,num_microbatches=2", model=model, runtime=runtime)
    parameters = graph_of(model).num_parameters
    assert collective_bytes(plan, "all_reduce") == pytest.approx(parameters * FULL, rel=1e-12)
    assert collective_bytes(plan, "reduce_scatter") == collective_bytes(plan, "all_gather") == 0


@pytest.mark.parametrize("zero", [1, 2])
@pytest.mark.parametrize("runtime", ["pytorch", "megatron", "nanotron"])
def test_a_sharded_optimizer_scatters_gradients_and_gathers_weights(zero: int, runtime: str) -> None:
    """Rajbhandari et al. 2020, section 7.2: the volume of an all-reduce, in two halves."""
    plan = plan_of(f"dp=4,zero={zero}", runtime=runtime)
    parameters = graph_of(GPT).num_parameters
    assert collective_bytes(plan, "reduce_scatter") == pytest.approx(parameters * FULL, rel=1e-12)
    assert collective_bytes(plan, "all_gather") == pytest.approx(parameters * HALF, rel=1e-12)
    assert collective_bytes(plan, "all_reduce") == 0


def test_sharded_parameters_are_gathered_for_each_pass_and_reduced_after_the_last() -> None:
    """Rajbhandari et al. 2020, section 7.2.2: 1.5 times the volume of plain data parallelism."""
    plan = plan_of("dp=4,zero=3")
    parameters = graph_of(GPT).num_parameters
    assert collective_bytes(plan, "all_gather") == pytest.approx(2 * parameters * HALF, rel=1e-12)
    assert collective_bytes(plan, "reduce_scatter") == pytest.approx(parameters * HALF, rel=1e-12)


def test_gradients_travel_in_the_dtype_of_the_precision() -> None:
    parameters = graph_of(GPT).num_parameters
    for precision, width in (("fp16", 2), ("bf16", 4), ("fp32", 4), ("amp", 4)):
        assert collective_bytes(plan_of("dp=4", precision=precision), "all_reduce") == parameters * width


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_gradients_are_exchanged_once_however_many_microbatches(microbatches: int) -> None:
    plan = plan_of(f"dp=2,num_microbatches={microbatches}")
    assert collective_bytes(plan, "all_reduce") == graph_of(GPT).num_parameters * FULL


def test_tensor_ranks_exchange_only_their_share_of_the_gradients() -> None:
    def dp_bytes(plan: Plan) -> float:
        data = set(plan.cost[plan.group == Group.DATA].tolist())
        chosen = [(w, n) for w, n in tasks_per_work(plan) if plan.works.index(w) in data]
        return sum(w.nbytes * n for w, n in chosen if isinstance(w, Collective))

    whole, quarter = dp_bytes(plan_of("dp=2")), dp_bytes(plan_of("dp=2,tp=4"))
    shared = whole / FULL - _matrix_parameters(graph_of(GPT))
    assert whole == graph_of(GPT).num_parameters * FULL
    # Matrices of layers and the vocabulary are cut; norms, biases and learned positions are not.
    assert quarter == pytest.approx((_matrix_parameters(graph_of(GPT)) / 4 + shared) * FULL, rel=1e-12)


def _matrix_parameters(graph: OperatorGraph) -> int:
    """Weights of linear layers and of the token table."""
    sizes = [(op, n) for op, n in graph if op.phase.value == "optimizer" and len(op.parameters[0].shape) == 2]
    return sum(op.parameters[0].numel * n for op, n in sizes if op.scope != "embedding.positions")


def _tensor_collectives(plan: Plan) -> tuple[Counter[str], Counter[str]]:
    """Kinds of the tensor group's collectives in forward and in backward, one microbatch and one stage."""
    first_backward = int(np.flatnonzero(plan.category == Category.BACKWARD)[0])
    seen: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for task in np.flatnonzero(plan.group == Group.TENSOR):
        work = plan.works[plan.cost[task]]
        assert isinstance(work, Collective)
        seen[int(task > first_backward)][work.kind] += 1
    return seen


def _per_layer(strategy: str, family: str) -> tuple[dict[str, int], dict[str, int]]:
    """Collectives that one more layer adds."""
    few, many = (
        _tensor_collectives(plan_of(strategy, model=f"{family}:layers={n},hidden=256,heads=8,vocab=1000,seq=128"))
        for n in (4, 5)
    )
    return dict(many[0] - few[0]), dict(many[1] - few[1])


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_a_tensor_parallel_layer_reduces_twice_forward_and_twice_backward(family: str) -> None:
    """Shoeybi et al. 2019 (Megatron-LM), section 3."""
    assert _per_layer("tp=4", family) == ({"all_reduce": 2}, {"all_reduce": 2})


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_sequence_parallelism_turns_each_all_reduce_into_a_scatter_and_a_gather(family: str) -> None:
    """Korthikanti et al. 2022, section 4.2.2; their backward gathers the inputs once more for the weights."""
    forward, backward = _per_layer("tp=4,sp", family)
    assert forward == {"all_gather": 2, "reduce_scatter": 2}
    assert backward["all_gather"] >= 2
    assert backward["reduce_scatter"] == 2
    assert "all_reduce" not in backward


def test_the_vocabulary_adds_one_reduction_forward_and_one_backward() -> None:
    forward, backward = _tensor_collectives(plan_of("tp=4"))
    assert forward["all_reduce"] == 2 * LAYERS + 1
    assert backward["all_reduce"] == 2 * LAYERS + 1


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_a_layer_reduces_activations_of_batch_times_tokens_times_hidden(micro_batch: int) -> None:
    request = request_of("tp=4", global_batch=micro_batch)
    plan = lower(request, grain="operator").plan
    sizes = {w.nbytes for w, _ in tasks_per_work(plan) if isinstance(w, Collective)}
    assert sizes == {micro_batch * SEQ * HIDDEN * HALF}


def test_sequence_parallel_traffic_equals_that_of_all_reduces() -> None:
    """An all-reduce is a reduce-scatter and an all-gather: 2 (n−1)/n bytes against twice (n−1)/n."""
    plain, split = plan_of("tp=4"), plan_of("tp=4,sp")
    moved = 2 * collective_bytes(plain, "all_reduce")
    both = collective_bytes(split, "all_gather") + collective_bytes(split, "reduce_scatter")
    # The output projection's input is gathered forward and its gradient scattered backward: an exact swap.
    assert both == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_sends_each_boundary_activation_once_each_way(stages: int) -> None:
    microbatches = 8
    plan = plan_of(f"pp={stages},num_microbatches={microbatches}")
    sends = 0
    for row in range(stages):
        for work, count in tasks_per_work(plan, row=row):
            if isinstance(work, Transfer):
                assert work.nbytes == 16 // microbatches * SEQ * HIDDEN * HALF
                sends += count
    assert sends == 2 * (stages - 1) * microbatches


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("stages", [2, 4])
def test_every_schedule_sends_what_crosses_between_stages_and_nothing_else(schedule: str, stages: int) -> None:
    model = "gpt:layers=8,hidden=256,heads=8,vocab=1000,seq=128"
    virtual = 2 if schedule in ("interleaved", "breadth-first") else 1
    microbatches = 2 * stages
    request = request_of(
        Strategy(pp=stages, num_microbatches=microbatches, schedule=schedule, virtual_stages=virtual), model=model
    )
    plan = lower(request, grain="operator").plan
    found = [(w, n) for row in range(stages) for w, n in tasks_per_work(plan, row=row) if isinstance(w, Transfer)]
    boundary = 16 // microbatches * SEQ * HIDDEN * HALF
    # Down the stages and up again, the turn at the last stage crosses nothing.
    crossings = 2 * stages - 2 if schedule == "zb-v" else stages * virtual - 1
    assert sum(n for w, n in found if w.nbytes == boundary) == 2 * crossings * microbatches
    # The two copies of DualPipe's stages also join their gradients, once on every rank.
    others = sum(n for w, n in found if w.nbytes != boundary)
    assert others == (stages if schedule == "dualpipe" else 0)


@pytest.mark.parametrize("layers", ["1/3", "3/1", "2/2"])
def test_uneven_stages_send_as_much_as_even_ones(layers: str) -> None:
    even, uneven = (plan_of(f"pp=2,num_microbatches=4{rest}") for rest in ("", f",layers={layers}"))
    for row in range(2):
        sent = [
            Counter({w: n for w, n in tasks_per_work(plan, row=row) if isinstance(w, Transfer)})
            for plan in (even, uneven)
        ]
        assert sent[0] == sent[1]


def test_context_ranks_gather_keys_and_values_for_each_attention() -> None:
    plan = plan_of("cp=2")
    keys_and_values = 2 * 16 * SEQ * HIDDEN * HALF
    chosen = {
        (w.kind, w.nbytes): n for w, n in tasks_per_work(plan) if isinstance(w, Collective) and w.kind != "all_reduce"
    }
    assert chosen == {("all_gather", keys_and_values): 2 * LAYERS, ("reduce_scatter", keys_and_values): LAYERS}


def test_one_rank_alone_communicates_nothing() -> None:
    works = plan_of("dp=1,num_microbatches=2").works
    assert [w for w in works if isinstance(w, Collective)] == []
