"""Experts shared out over ranks: who holds which, what is routed between them, and that no work is added or lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.conftest import graph_of, request_of, rises, run, tasks_per_work
from tests.laws.test_exchange import moved
from traincast import Operator, StrategyError
from traincast.graph import OpKind, Phase
from traincast.strategy import Plan, lower
from traincast.work import Collective

LAYERS, HIDDEN, SEQ, EXPERTS, TOP_K, INNER = 4, 256, 128, 8, 2, 512
MOE = (
    f"moe:layers={LAYERS},hidden={HIDDEN},heads=8,kv_heads=4,experts={EXPERTS},top_k={TOP_K},expert_ffn={INNER},"
    f"vocab=1000,seq={SEQ}"
)
BATCH = 16
EXPERT_PARAMETERS = LAYERS * EXPERTS * 3 * HIDDEN * INNER
"""Gate, up and down projections of every expert."""
SPREADS = [
    "dp=8,ep=8",
    "dp=4,ep=2",
    "dp=4,ep=4",
    "tp=4,sp,ep=2",
    "tp=2,sp,ep=2,etp=1",
    "dp=2,tp=2,sp,ep=2,etp=2",
    "dp=2,tp=2,sp,ep=4",
    "dp=2,cp=2,ep=4",
    "dp=2,cp=2,tp=2,sp,ep=4,etp=2",
    "tp=4,sp,etp=1",
    "tp=4,sp,ep=1,etp=2",
]


def plan_of(strategy: str, *, runtime: str = "pytorch", precision: str = "bf16", batch: int = BATCH) -> Plan:
    request = request_of(strategy, model=MOE, runtime=runtime, precision=precision, global_batch=batch)
    return lower(request, grain="operator").plan


def products(plan: Plan, *, row: int = 0) -> float:
    """FLOPs of the experts' products on one rank."""
    found = [(w, n) for w, n in tasks_per_work(plan, row=row) if isinstance(w, Operator)]
    return sum(w.flops * n for w, n in found if w.kind is OpKind.GROUPED_GEMM)


def routed(plan: Plan, *, row: int = 0) -> list[float]:
    """Bytes of every all-to-all of one rank."""
    works = [(w, n) for w, n in tasks_per_work(plan, row=row) if isinstance(w, Collective)]
    return [w.nbytes for w, n in works for _ in range(n) if w.kind == "all_to_all"]


def ranks_of(strategy: str) -> int:
    return request_of(strategy, model=MOE).strategy.num_ranks


def tokens_of(strategy: str) -> float:
    """Tokens that enter a layer on one rank, in a step."""
    return BATCH * SEQ / ranks_of(strategy)


def test_the_model_is_what_these_laws_take_it_for() -> None:
    shapes = [op.parameters[0].shape for op, n in graph_of(MOE) if op.phase is Phase.OPTIMIZER for _ in range(n)]
    held = [shape for shape in shapes if len(shape) == 3]
    assert sum(a * b * c for a, b, c in held) == EXPERT_PARAMETERS
    assert products(plan_of("dp=1")) == 3 * 2 * BATCH * SEQ * TOP_K * 3 * HIDDEN * INNER * LAYERS


@pytest.mark.parametrize("strategy", SPREADS)
def test_all_ranks_together_compute_what_one_would(strategy: str) -> None:
    assert products(plan_of(strategy)) * ranks_of(strategy) == pytest.approx(products(plan_of("dp=1")), rel=1e-12)


@pytest.mark.parametrize("replicas", [2, 8])
def test_the_work_of_a_rank_does_not_depend_on_how_many_share_out_balanced_experts(replicas: int) -> None:
    counts = [n for n in (1, 2, 4, 8) if n <= replicas]
    found = {products(plan_of(f"dp={replicas},ep={ep}")) for ep in counts}
    assert len(found) == 1


@pytest.mark.parametrize("etp", [1, 2, 4])
def test_the_ranks_of_an_expert_share_each_of_its_products(etp: int) -> None:
    plan = plan_of(f"dp=2,tp=4,sp,ep=2,etp={etp}")
    shapes = {
        (w.inputs[0].shape, w.inputs[1].shape)
        for w, _ in tasks_per_work(plan)
        if isinstance(w, Operator) and w.kind is OpKind.GROUPED_GEMM and w.phase is Phase.FORWARD
    }
    rows = BATCH * SEQ // 2 * TOP_K * etp // 4
    held = EXPERTS // 2
    assert shapes == {
        ((rows, HIDDEN), (held, HIDDEN, 2 * INNER // etp)),
        ((rows, INNER // etp), (held, INNER // etp, HIDDEN)),
    }


@pytest.mark.parametrize("imbalance", [1.0, 1.25, 2.0])
@pytest.mark.parametrize("strategy", ["dp=4,ep=4", "dp=2,tp=2,sp,ep=2,etp=2"])
def test_the_busiest_rank_computes_and_receives_so_many_times_its_share(strategy: str, imbalance: float) -> None:
    even, uneven = plan_of(strategy), plan_of(f"{strategy},imbalance={imbalance}")
    assert products(uneven) == pytest.approx(imbalance * products(even), rel=1e-12)
    assert routed(uneven) == pytest.approx([imbalance * nbytes for nbytes in routed(even)], rel=1e-12)


@pytest.mark.parametrize(
    ("imbalance", "capacity", "load"), [(2.0, 1.25, 1.25), (1.125, 1.25, 1.125), (2.0, 0.0, 2.0), (1.0, 0.5, 0.5)]
)
def test_beyond_their_capacity_experts_drop_tokens(imbalance: float, capacity: float, load: float) -> None:
    """Fedus et al. 2021 (Switch Transformer), section 2.2."""
    plan = plan_of(f"dp=4,ep=4,imbalance={imbalance},capacity={capacity}")
    assert products(plan) == pytest.approx(load * products(plan_of("dp=4,ep=4")), rel=1e-12)


def test_the_busiest_rank_gets_no_more_than_all_tokens() -> None:
    all_there_is = 2 * products(plan_of("dp=2,ep=2"))
    assert products(plan_of("dp=2,ep=2,imbalance=2")) == pytest.approx(all_there_is, rel=1e-12)
    assert products(plan_of("dp=2,ep=2,imbalance=8")) == pytest.approx(all_there_is, rel=1e-12)


@pytest.mark.parametrize("strategy", ["tp=2,sp,etp=1", "dp=2,tp=2,sp,etp=1", "tp=4,sp,etp=2"])
def test_a_rank_that_holds_every_expert_cannot_be_busier_than_another(strategy: str) -> None:
    assert products(plan_of(f"{strategy},imbalance=2")) == products(plan_of(strategy))


@pytest.mark.parametrize("strategy", [s for s in SPREADS if "ep=1," not in s and "ep=" in s.replace("etp=", "")])
@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("selective", 2), ("full", 3)])
def test_each_layer_routes_tokens_out_and_back_in_every_pass(strategy: str, recompute: str, passes: int) -> None:
    """Lepikhin et al. 2020 (GShard), section 3.3: tokens · k · hidden elements, twice forward and twice backward."""
    sent = routed(plan_of(f"{strategy},recompute={recompute}"))
    assert len(sent) == 2 * passes * LAYERS
    assert sent == pytest.approx([tokens_of(strategy) * TOP_K * HIDDEN * 2] * len(sent), rel=1e-12)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_microbatches_route_the_same_bytes_in_more_messages(microbatches: int) -> None:
    sent = routed(plan_of(f"dp=4,ep=4,num_microbatches={microbatches}"))
    assert len(sent) == 4 * LAYERS * microbatches
    assert sum(sent) == pytest.approx(4 * LAYERS * tokens_of("dp=4,ep=4") * TOP_K * HIDDEN * 2, rel=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe"])
def test_stages_route_for_their_own_layers(schedule: str) -> None:
    virtual = ",vp=2" if schedule == "interleaved" else ""
    plan = plan_of(f"dp=2,pp=2,ep=2,num_microbatches=4,schedule={schedule}{virtual}")
    for row in range(2):
        sent = routed(plan, row=row)
        assert len(sent) == 4 * LAYERS // 2 * 4
        assert sent == pytest.approx([BATCH * SEQ / 2 / 4 * TOP_K * HIDDEN * 2] * len(sent), rel=1e-12)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_tokens_travel_in_the_dtype_of_the_activations(precision: str) -> None:
    (nbytes,) = set(routed(plan_of("dp=4,ep=4", precision=precision)))
    assert nbytes == tokens_of("dp=4") * TOP_K * HIDDEN * {"fp32": 4}.get(precision, 2)


@pytest.mark.parametrize("etp", [2, 4])
def test_the_ranks_of_an_expert_gather_its_tokens_and_scatter_its_sums(etp: int) -> None:
    found = moved(plan_of(f"dp=2,tp=4,sp,ep=2,etp={etp}"))
    each = BATCH * SEQ / 8 * TOP_K * HIDDEN * 2 * etp
    assert found["expert_tensor", "all_gather"] == pytest.approx(2 * LAYERS * each, rel=1e-12)
    assert found["expert_tensor", "reduce_scatter"] == pytest.approx(2 * LAYERS * each, rel=1e-12)
    assert ("expert_tensor", "all_gather") not in moved(plan_of("dp=2,tp=4,sp,ep=2,etp=1"))


@pytest.mark.parametrize("strategy", [*SPREADS, "dp=8,ep=4,zero=1", "dp=8,ep=2,zero=2", "dp=8,ep=2,zero=3"])
def test_gradients_of_experts_are_exchanged_among_their_replicas_alone(strategy: str) -> None:
    request = request_of(strategy, model=MOE)
    spread, zero = request.strategy, request.strategy.zero
    found = moved(plan_of(strategy, precision="fp32"))
    held = EXPERT_PARAMETERS / (spread.ep * spread.expert_tp) * 4
    sharded = {"reduce_scatter": held, "all_gather": held * (2 if zero == 3 else 1)}
    expected = (sharded if zero else {"all_reduce": held}) if spread.expert_replicas > 1 else {}
    of_experts = {kind: n for (group, kind), n in found.items() if group == "expert_data"}
    assert of_experts == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_dense_gradients_do_not_depend_on_how_experts_are_shared_out(zero: int) -> None:
    whole = graph_of(MOE).num_parameters - EXPERT_PARAMETERS
    for ep in (2, 4, 8):
        found = moved(plan_of(f"dp=8,ep={ep},zero={zero}", precision="fp32"))
        reduced = found["data", "reduce_scatter" if zero else "all_reduce"]
        assert reduced == pytest.approx(whole * 4, rel=1e-12)


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("runtime", ["pytorch", "nanotron"])
def test_experts_with_replicas_are_sharded_even_where_nothing_else_has_any(zero: int, runtime: str) -> None:
    """tp=4 and ep=2 make two replicas of every expert and one of all the rest."""
    found = moved(plan_of(f"tp=4,sp,ep=2,zero={zero}", precision="fp32", runtime=runtime))
    held = EXPERT_PARAMETERS / 2 * 4
    of_experts = {kind: n for (group, kind), n in found.items() if group == "expert_data"}
    assert of_experts == {"reduce_scatter": held, "all_gather": (2 if zero == 3 else 1) * held}


def parameters_of(strategy: str) -> float:
    """Parameters on the first rank: its weights, in bf16."""
    return lower(request_of(strategy, model=MOE)).memory[0].parts["weights"] / 2


@pytest.mark.parametrize("strategy", SPREADS)
def test_a_rank_holds_its_share_of_the_experts(strategy: str) -> None:
    request = request_of(strategy, model=MOE)
    spread = request.strategy
    # Beside the experts: attention and the vocabulary are cut by tp; norms and the router are not.
    attention = LAYERS * (HIDDEN * (HIDDEN + 2 * HIDDEN // 2) + HIDDEN**2) + 2 * 1000 * HIDDEN
    rest = graph_of(MOE).num_parameters - EXPERT_PARAMETERS - attention
    share = EXPERT_PARAMETERS / (spread.ep * spread.expert_tp)
    assert parameters_of(strategy) == pytest.approx(share + attention / spread.tp + rest, rel=1e-12)


def peak(strategy: str, *, batch: int = BATCH, runtime: str = "pytorch") -> float:
    """Bytes of tensors on the fullest rank."""
    request = request_of(strategy, model=MOE, global_batch=batch, runtime=runtime)
    return max(m.tensors for m in lower(request).memory)


@pytest.mark.parametrize(
    "rest", ["", ",zero=1", ",zero=2", ",zero=3,prefetch=0", ",recompute=full", ",pp=2,micro_batch=1"]
)
@pytest.mark.parametrize("runtime", ["pytorch", "megatron"])
def test_sharing_out_experts_never_needs_more_memory(rest: str, runtime: str) -> None:
    needs = [peak(f"dp=8,ep={ep}{rest}", runtime=runtime) for ep in (8, 4, 2, 1)]
    assert rises(needs)
    if "zero" not in rest:
        assert all(a < b for a, b in pairwise(needs))


@pytest.mark.parametrize("strategy", ["dp=8,ep=2", "dp=8,ep=4", "tp=4,dp=2,sp,ep=2"])
def test_no_stage_of_zero_needs_more_than_the_one_before(strategy: str) -> None:
    assert rises([peak(f"{strategy},zero={zero},prefetch=0") for zero in (3, 2, 1, 0)])


@pytest.mark.parametrize("strategy", ["dp=4,ep=4", "dp=2,tp=2,sp,ep=2,etp=2", "dp=2,pp=2,ep=2,micro_batch=1"])
@pytest.mark.parametrize("runtime", ["pytorch", "megatron-bridge"])
def test_uneven_experts_lengthen_a_step(strategy: str, runtime: str) -> None:
    steps = []
    for load in (1, 1.5, 2):
        request = request_of(f"{strategy},imbalance={load}", model=MOE, runtime=runtime)
        ready = replace(request, cluster=replace(request.cluster, launch_s=1e-12))  # nothing waits for the host
        steps.append(run(ready)[1].step_s)
    assert steps[0] < steps[1] < steps[2]


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("dp=3,ep=3", "ep=3 does not divide the 8 experts"),
        ("dp=2,ep=4", "ep·etp = 4·1 = 4 does not divide the dp·cp·tp = 2 ranks of a stage"),
        ("dp=2,tp=2,ep=2", "ep=2 with tp=2"),
        ("tp=3,sp,etp=3", "sequence of 128 tokens"),
    ],
)
def test_degrees_that_experts_cannot_carry_are_refused_with_the_numbers(strategy: str, said: str) -> None:
    with pytest.raises(StrategyError) as caught:
        lower(request_of(strategy, model=MOE, global_batch=48))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
