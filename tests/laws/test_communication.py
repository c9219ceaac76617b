"""What crosses the network: bytes of gradients, and collectives per transformer layer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.conftest import GPT, LLAMA, collective_bytes, graph_of, request_of, tasks_per_work
from traincast.graph import OperatorGraph
from traincast.strategy import Category, Group, Plan, lower
from traincast.work import Collective, Transfer

HALF, FULL = 2, 4
LAYERS, HIDDEN, SEQ = 4, 256, 128


def plan_of(strategy: str, *, model: str = GPT, runtime: str = "pytorch", precision: str = "bf16") -> Plan:
    return lower(request_of(strategy, model=model, runtime=runtime, precision=precision), grain="operator").plan


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
