"""What replicas send one another, against the closed forms of ZeRO, hybrid sharding, accumulation and compression."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import (
    GPT,
    LLAMA,
    AnalyticalCostModel,
    check_timeline,
    collective_bytes,
    graph_of,
    request_of,
    rises,
    run,
    tasks_per_work,
)
from traincast import Cluster, Operator, Runtime, load_runtime
from traincast.graph import Phase
from traincast.strategy import NUM_STREAMS, SCHEDULES, Group, Plan, lower
from traincast.strategy.runtime import GradientDType
from traincast.work import Collective, HostCopy, HostUpdate, Launch

OVERLAPPING, AT_THE_END = "pytorch", "nanotron"
Moved = dict[tuple[str, str], float]


def plan_of(strategy: str, *, model: str = GPT, runtime: str = "pytorch", precision: str = "bf16") -> Plan:
    return lower(request_of(strategy, model=model, runtime=runtime, precision=precision), grain="operator").plan


def moved(plan: Plan, *, row: int = 0) -> Moved:
    """Bytes of one row's collectives, by (group, kind)."""
    total: Counter[tuple[str, str]] = Counter()
    for task in np.flatnonzero(plan.lanes[plan.lane_start[:-1]] // NUM_STREAMS == row):
        cost = int(plan.cost[task])
        work = plan.work_of(cost)
        behind = plan.overlaps[cost - len(plan.works)] if cost >= len(plan.works) else None
        if isinstance(work, Collective) and (behind is None or behind.waited):
            total[Group(int(plan.group[task])).name.lower(), work.kind] += work.nbytes  # type: ignore[assignment]
    return dict(total)


def traffic(moves: Moved) -> float:
    """Bytes that a rank sends when groups are large: an all-reduce counts twice, as a scatter and a gather."""
    return sum(nbytes * (2 if kind == "all_reduce" else 1) for (_, kind), nbytes in moves.items())


def bytes_of(precision: str) -> float:
    """Bytes of all parameters in the dtype that ``precision`` has for weights and gradients alike."""
    return graph_of(GPT).num_parameters * {"fp16": 2.0, "fp32": 4.0}[precision]


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("replicas", ["dp=4", "dp=2,cp=2", "dp=16"])
def test_zero_moves_as_much_as_an_all_reduce_and_its_third_stage_half_as_much_again(
    precision: str, replicas: str
) -> None:
    """Rajbhandari et al. 2020, section 7: 2Ψ, 2Ψ, 2Ψ and 3Ψ."""
    psi = bytes_of(precision)

    def of(zero: int) -> Moved:
        found = moved(plan_of(f"{replicas},zero={zero}", precision=precision))
        return {k: v for k, v in found.items() if k[0] == "data"}

    assert of(0) == {("data", "all_reduce"): psi}
    assert of(1) == of(2) == {("data", "reduce_scatter"): psi, ("data", "all_gather"): psi}
    assert of(3) == {("data", "reduce_scatter"): psi, ("data", "all_gather"): 2 * psi}
    assert traffic(of(0)) == traffic(of(1)) == traffic(of(2)) == traffic(of(3)) / 1.5 == 2 * psi


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_parameters_that_stay_are_gathered_once_a_step_and_those_that_do_not_twice_a_microbatch(
    microbatches: int,
) -> None:
    psi, rest = bytes_of("fp16"), f"zero=3,num_microbatches={microbatches}"
    drops, stays = (
        moved(plan_of(f"dp=4,{rest}{more}", runtime="fsdp", precision="fp16")) for more in ("", ",reshard=false")
    )
    assert drops == {("data", "all_gather"): 2 * microbatches * psi, ("data", "reduce_scatter"): microbatches * psi}
    # Gradients of weights that are whole add up, so they are scattered once.
    assert stays == {("data", "all_gather"): psi, ("data", "reduce_scatter"): psi}


@pytest.mark.parametrize("prefetch", [0, 1, 3, 1000])
@pytest.mark.parametrize("reshard", ["true", "false"])
def test_gathering_ahead_moves_nothing_more(prefetch: int, reshard: str) -> None:
    plan = plan_of(f"dp=4,zero=3,reshard={reshard},prefetch={prefetch}", precision="fp16")
    assert collective_bytes(plan, "all_gather") == (2 if reshard == "true" else 1) * bytes_of("fp16")


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("shard", [2, 4, 8])
@pytest.mark.parametrize("runtime", [OVERLAPPING, AT_THE_END])
def test_hybrid_sharding_adds_an_all_reduce_of_a_share_between_shards(zero: int, shard: int, runtime: str) -> None:
    """Zhao et al. 2023 (FSDP), section 3.2.2: scatter within a shard, all-reduce 1/F of the gradients across."""
    plan = plan_of(f"dp=16,zero={zero},shard={shard}", runtime=runtime, precision="fp32")
    psi = bytes_of("fp32")
    assert moved(plan) == {
        ("shard", "reduce_scatter"): psi,
        ("shard", "all_gather"): (2 if zero == 3 else 1) * psi,
        ("copies", "all_reduce"): pytest.approx(psi / shard, rel=1e-12),
    }
    ranks = {w.kind: w.num_ranks for w in plan.works if isinstance(w, Collective)}
    assert ranks == {"reduce_scatter": shard, "all_gather": shard, "all_reduce": 16 // shard}
    nodes = {w.kind: w.num_nodes for w in plan.works if isinstance(w, Collective)}
    assert nodes == {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_one_shard_over_all_replicas_is_no_hybrid(zero: int) -> None:
    hybrid, plain = (plan_of(f"dp=8,zero={zero}{rest}") for rest in (",shard=8", ""))
    assert moved(hybrid) == moved(plain)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_schedule_exchanges_the_same(schedule: str, zero: int) -> None:
    """ZeRO-2 and 3 scatter after every microbatch; a split backward gathers and scatters no more than a whole one."""
    microbatches = 4
    plan = plan_of(f"dp=2,pp=2,num_microbatches={microbatches},zero={zero},schedule={schedule}", precision="fp16")
    lowered = lower(request_of(f"dp=1,pp=2,num_microbatches=4,schedule={schedule}", precision="fp16"))
    for row in range(2):
        # Every stage of DualPipe holds two chunks, and each microbatch passes through one of them.
        psi, passes = lowered.memory[row].weights, microbatches / (2 if schedule == "dualpipe" else 1)
        # Both ends of a pipeline hold a copy of the tied table and add up its gradients; in a V, one rank has both.
        table = 1000 * 256 * 2 / (2 if zero == 3 else 1)
        tied = {} if schedule in ("dualpipe", "zb-v") else {("rank", "all_reduce"): table}
        assert (
            moved(plan, row=row)
            == tied
            | {
                0: {("data", "all_reduce"): psi},
                1: {("data", "reduce_scatter"): psi, ("data", "all_gather"): psi},
                2: {("data", "reduce_scatter"): passes * psi, ("data", "all_gather"): psi},
                3: {("data", "reduce_scatter"): passes * psi, ("data", "all_gather"): 2 * passes * psi},
            }[zero]
        )


@pytest.mark.parametrize("runtime", [OVERLAPPING, "megatron", AT_THE_END, "megatron-deepspeed"])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("zero", [0, 1])
def test_exchanging_each_microbatch_multiplies_the_gradients_and_nothing_else(
    runtime: str, microbatches: int, zero: int
) -> None:
    rest = f"dp=4,zero={zero},num_microbatches={microbatches}"
    once, each = (moved(plan_of(f"{rest}{more}", runtime=runtime)) for more in ("", ",sync_each"))
    reduces = ("data", "reduce_scatter" if zero else "all_reduce")
    assert each == {k: v * (microbatches if k == reduces else 1) for k, v in once.items()}


@pytest.mark.parametrize("runtime", [OVERLAPPING, AT_THE_END])
def test_sharded_gradients_are_scattered_after_every_microbatch(runtime: str) -> None:
    """Nobody has room to add them up whole (Rajbhandari et al. 2020, section 5.2)."""
    one, four = (
        moved(plan_of(f"dp=4,zero=2,num_microbatches={m}", runtime=runtime))["data", "reduce_scatter"] for m in (1, 4)
    )
    assert four == 4 * one


@pytest.mark.parametrize("compression", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("strategy", ["dp=4", "dp=4,zero=1", "dp=4,zero=3", "dp=4,zero=1,shard=2", "dp=4,sync_each"])
@pytest.mark.parametrize("runtime", [OVERLAPPING, AT_THE_END])
def test_compression_scales_gradients_and_leaves_parameters_whole(
    compression: float, strategy: str, runtime: str
) -> None:
    whole, part = (moved(plan_of(f"{strategy},compression={c}", runtime=runtime)) for c in (1.0, compression))
    expected = {k: v * (1.0 if k[1] == "all_gather" else compression) for k, v in whole.items()}
    assert part == pytest.approx(expected, rel=1e-12)


def passes_over_gradients(plan: Plan) -> dict[str, float]:
    """Elements that compressing and decompressing go over."""
    names = ("compress_gradients", "decompress_gradients")
    found = [(w, n) for w, n in tasks_per_work(plan) if isinstance(w, Operator) and w.name in names]
    total: Counter[str] = Counter()
    for work, count in found:
        total[work.name] += max(t.numel for t in (*work.inputs, *work.outputs)) * count
    return dict(total)


@pytest.mark.parametrize("runtime", [OVERLAPPING, AT_THE_END])
@pytest.mark.parametrize("rest", ["", ",zero=1", ",zero=3", ",sync_each,num_microbatches=4"])
def test_every_gradient_is_compressed_once_for_each_exchange_and_written_out_once(runtime: str, rest: str) -> None:
    parameters = graph_of(GPT).num_parameters
    exchanges = 4 if "sync_each" in rest else 1
    assert passes_over_gradients(plan_of(f"dp=4{rest}", runtime=runtime)) == {}
    found = passes_over_gradients(plan_of(f"dp=4{rest},compression=0.1", runtime=runtime))
    assert found == dict.fromkeys(("compress_gradients", "decompress_gradients"), exchanges * parameters)


def test_a_runtime_says_in_which_dtype_gradients_travel() -> None:
    parameters = graph_of(GPT).num_parameters
    widths: dict[GradientDType, int] = {"": 4, "fp32": 4, "bf16": 2}
    for dtype, width in widths.items():
        runtime = load_runtime("pytorch").patched(exchange={"reduce_dtype": dtype})
        plan = lower(request_of("dp=4", runtime=runtime), grain="operator").plan
        assert moved(plan) == {("data", "all_reduce"): parameters * width}
    # FSDP2 gathers in bf16 and reduces in fp32.
    assert moved(plan_of("dp=4,zero=3", runtime="torchtitan")) == {
        ("data", "all_gather"): 2 * parameters * 2,
        ("data", "reduce_scatter"): parameters * 4,
    }


@pytest.mark.parametrize(("strategy", "share"), [("zero=0", 1), ("zero=1", 8), ("zero=3", 8), ("zero=2,shard=2", 2)])
@pytest.mark.parametrize("offload", ["", ",offload=optimizer"])
def test_a_replica_updates_its_share_wherever_it_does(strategy: str, share: int, offload: str) -> None:
    plan = plan_of(f"dp=8,{strategy}{offload}", precision="fp16")
    owned = graph_of(GPT).num_parameters // share
    updates = [w for w, _ in tasks_per_work(plan) if isinstance(w, Operator) and w.phase is Phase.OPTIMIZER]
    copies = [w.nbytes for w, n in tasks_per_work(plan) for _ in range(n) if isinstance(w, HostCopy)]
    on_host = [w.nbytes for w, _ in tasks_per_work(plan) if isinstance(w, HostUpdate)]
    if not offload:
        assert [u.inputs[0].numel for u in updates] == [owned]
        assert copies == on_host == []
        return
    assert updates == []
    assert copies == pytest.approx([2 * owned, 2 * owned], abs=2)  # gradients there, weights back
    # Adam reads gradient, master weight and two moments, and writes those three and the weight.
    assert on_host == pytest.approx([owned * (2 + 3 * 4 + 3 * 4 + 2)], abs=64)


def launches(strategy: str, runtime: Runtime) -> tuple[float, int]:
    """Launches' worth of time that the host spends in a step, and the collectives that it is spent on."""
    found = tasks_per_work(lower(request_of(strategy, runtime=runtime, optimizer=False), grain="operator").plan)
    spent = sum(w.launches * n for w, n in found if isinstance(w, Launch))
    return spent, sum(n for w, n in found if isinstance(w, Collective))


@pytest.mark.parametrize("strategy", ["", ",zero=1", ",zero=3", ",sync_each"])
@pytest.mark.parametrize("habits", [(10.0, 0.0), (0.0, 10.0)])
def test_replicas_launch_what_one_device_does_and_their_collectives(strategy: str, habits: tuple[float, float]) -> None:
    per_block, per_microbatch = habits
    runtime = load_runtime("pytorch").patched(launches={"block": per_block, "microbatch": per_microbatch})
    alone, none = launches("dp=1,num_microbatches=2", runtime)
    many, collectives = launches(f"dp=4,num_microbatches=2{strategy}", runtime)
    assert none == 0
    assert many == pytest.approx(alone + collectives * runtime.launches.collective, rel=1e-12)


def fast(cluster: Cluster, *, interference: float = 0.0) -> Cluster:
    """The cluster with links of no length, and a host that launches at once."""
    return replace(
        cluster,
        intra_node=replace(cluster.intra_node, bandwidth=1e30, latency_s=1e-30),
        inter_node=replace(cluster.inter_node, bandwidth=1e30, latency_s=1e-30),
        subset_bandwidth=(),
        launch_s=1e-30,
        device=replace(cluster.device, interference=interference),
    )


@pytest.mark.parametrize(
    "strategy", ["", "zero=1", "zero=2", "zero=3", "zero=3,shard=2", "zero=1,shard=2", "sync_each"]
)
@pytest.mark.parametrize("runtime", [OVERLAPPING, AT_THE_END, "torchtitan"])
def test_over_links_of_no_length_replicas_take_as_long_as_one_device(strategy: str, runtime: str) -> None:
    """Within what the kernels of the collectives take by themselves; every one computes the same."""
    rest = ",num_microbatches=2,recompute=full"
    many = request_of(f"dp=4,{strategy}{rest}", global_batch=64, runtime=runtime, optimizer=False)
    one = request_of(f"dp=1{rest}", global_batch=16, runtime=runtime, optimizer=False)
    spread, alone = (run(replace(r, cluster=fast(r.cluster)), grain="operator")[1] for r in (many, one))
    kernel = Collective(kind="all_reduce", nbytes=1.0, num_ranks=4, num_nodes=1)
    least = float(AnalyticalCostModel().estimate([kernel], fast(many.cluster)).seconds[0])
    count = sum(n for w, n in tasks_per_work(spread.plan) if isinstance(w, Collective))
    assert 0.0 < least < 1e-5
    assert alone.step_s <= spread.step_s <= alone.step_s + count * least * (1 + 1e-3)


def test_slower_links_and_more_replicas_never_shorten_the_exchange() -> None:
    for zero in range(4):
        steps = []
        for slower in (1.0, 2.0, 8.0):
            request = request_of(f"dp=16,zero={zero}", global_batch=16)
            wire = request.cluster.inter_node
            cluster = replace(request.cluster, inter_node=replace(wire, bandwidth=wire.bandwidth / slower))
            _, timeline = run(replace(request, cluster=cluster))
            check_timeline(timeline)
            steps.append(timeline.step_s)
        assert rises(steps)


def peak(strategy: str, *, model: str = GPT, runtime: str = "pytorch", batch: int = 64) -> float:
    """Bytes of tensors on the fullest rank."""
    return max(m.tensors for m in lower(request_of(strategy, model=model, runtime=runtime, global_batch=batch)).memory)


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("runtime", ["pytorch", "megatron", "nanotron", "fsdp"])
@pytest.mark.parametrize(
    "rest", ["", ",num_microbatches=4", ",num_microbatches=4,recompute=full", ",pp=2,micro_batch=1,prefetch=0"]
)
def test_no_stage_of_zero_needs_more_than_the_one_before(model: str, runtime: str, rest: str) -> None:
    needs = [peak(f"dp=8,zero={zero}{rest}", model=model, runtime=runtime) for zero in (3, 2, 1, 0)]
    assert rises(needs)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("rest", ["", ",reshard=false"])
def test_larger_shards_never_need_more(zero: int, rest: str) -> None:
    if rest and zero < 3:
        return
    needs = [peak(f"dp=16,zero={zero},shard={shard}{rest}") for shard in (16, 8, 4, 2)]
    assert rises(needs)
    assert needs[0] < needs[-1]


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("runtime", ["pytorch", "megatron"])
def test_more_ranks_to_a_replica_never_need_more(model: str, runtime: str) -> None:
    for degrees in (
        ["tp=4,sp", "tp=2,sp", "tp=1"],
        ["tp=4", "tp=2", "tp=1"],
        ["pp=4,micro_batch=1", "pp=2,micro_batch=1", "pp=1,micro_batch=1"],
        ["pp=4,tp=2,sp,micro_batch=1", "pp=2,tp=2,sp,micro_batch=1", "tp=2,sp,micro_batch=1"],
        ["cp=4", "cp=2", "cp=1"],
    ):
        assert rises([peak(d, model=model, runtime=runtime, batch=16) for d in degrees])


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_what_goes_to_the_host_is_not_on_the_device(zero: int) -> None:
    kept, updates, both = (
        peak(f"dp=4,zero={zero}{rest}", batch=256)
        for rest in ("", ",offload=optimizer", ",offload=optimizer+activations")
    )
    assert kept > updates > both
