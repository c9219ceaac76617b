"""Works around experts: bytes of dispatchers, the wait for the host, what overlaps, and kernels of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import request_of
from traincast import Operator, Request, Runtime, capture, load_cluster, load_runtime
from traincast.graph import OpKind
from traincast.simulate import simulate
from traincast.strategy import load_precision, lower, parse_strategy, runtime_names
from traincast.strategy.program.attention import sink_scopes, without_window
from traincast.strategy.program.experts import BatchOverlap, distinct, find_regions, overlap_of_batches
from traincast.work import Collective, Launch, Transfer

MIXTURE = "qwen3-30b-a3b"
TOKENS, WIDTH, TOPK = 4096, 2048, 8


def _works(strategy: str = "dp=8,ep=8,micro_batch=1", *, cluster: str = "dgx-b200:1", **tables: Any) -> list[Any]:
    request = Request(
        graph=capture(MIXTURE, seq=TOKENS),
        cluster=load_cluster(cluster),
        strategy=parse_strategy(strategy, global_batch=16),
        runtime=load_runtime("megatron").patched(**tables),
        precision=load_precision("bf16"),
        global_batch=16,
    )
    return list(lower(request).plan.works)


def _sent(**said: Any) -> float:
    (work,) = (w for w in _works(**said) if isinstance(w, Collective) and w.kind == "all_to_all")
    return work.nbytes


def test_distinct_places() -> None:
    assert distinct(8, 1) == pytest.approx(1.0)
    assert distinct(2, 2) == pytest.approx(1.5)
    assert distinct(8, 8) == pytest.approx(8 * (1 - (7 / 8) ** 8))
    assert distinct(4, 1e6) == pytest.approx(4.0)


def test_an_all_to_all_sends_a_token_once_for_each_expert() -> None:
    assert _sent() == TOKENS * TOPK * WIDTH * 2


def test_a_fused_dispatcher_sends_a_token_once_to_each_rank_and_node() -> None:
    assert _sent(experts={"dispatcher": "fused"}) == pytest.approx(TOKENS * WIDTH * 2 * distinct(8, TOPK))
    nodes = _sent(strategy="dp=16,ep=16,micro_batch=1", cluster="dgx-b200:2", experts={"dispatcher": "fused"})
    assert nodes == pytest.approx(TOKENS * WIDTH * 2 * distinct(2, TOPK))
    rack = _sent(strategy="dp=16,ep=16,micro_batch=1", cluster="dgx-gb200:4", experts={"dispatcher": "fused"})
    assert rack == pytest.approx(TOKENS * WIDTH * 2 * distinct(16, TOPK))


def test_the_device_waits_for_the_host_unless_shapes_are_known() -> None:
    def waits(strategy: str = "dp=8,ep=8,micro_batch=1", **tables: Any) -> bool:
        return Launch(blocks=77.0) in _works(strategy, experts={"routing_launches": 77.0}, **tables)

    assert waits()
    assert not waits("dp=8,ep=8,micro_batch=1,capacity=1")
    assert not waits(launches={"cuda_graphs": True})
    assert Launch(blocks=77.0) not in _works()


def test_products_of_experts_say_which_kernels_run_them() -> None:
    def kernels(**tables: Any) -> set[object]:
        found = (w for w in _works(**tables) if isinstance(w, Operator) and w.kind is OpKind.GROUPED_GEMM)
        return {w.attributes.get("kernel") for w in found}

    assert kernels() == {None}
    assert kernels(experts={"grouped": "looped"}) == {"looped"}


def test_products_that_make_gradients_of_weights_say_what_they_add_to() -> None:
    works = [
        w for w in _works(experts={"grouped": "looped"}) if isinstance(w, Operator) and w.kind is OpKind.GROUPED_GEMM
    ]
    makes = {len(w.inputs[1].shape) == 2: w.attributes.get("adds_to") for w in works}
    assert makes == {True: "fp32", False: None}
    apart = _works(experts={"grouped": "looped"}, kernels={"fusions": ("norm", "elementwise", "loss")})
    assert not any(w.attributes.get("adds_to") for w in apart if isinstance(w, Operator))


def test_a_dispatch_in_fp8_halves_the_tokens_of_forward_alone() -> None:
    works = _works(experts={"dispatch_dtype": "fp8"})
    sent = sorted(w.nbytes for w in works if isinstance(w, Collective) and w.kind == "all_to_all")
    whole = TOKENS * TOPK * WIDTH * 2
    assert sent == pytest.approx([whole * (1 + 1 / 32) / 2, whole])


def test_traffic_of_one_microbatch_runs_beside_another_if_they_are_interleaved() -> None:
    runtime = load_runtime("megatron").patched(experts={"overlap_batches": 0.5})
    near = runtime.patched(experts={"overlap_batches_near": True})

    def overlaps(strategy: str, used: Any = runtime, *, together: bool = False) -> BatchOverlap | None:
        return overlap_of_batches(parse_strategy(strategy, global_batch=64), used, near=together)

    interleaved = "dp=8,ep=8,pp=2,vp=2,schedule=interleaved,micro_batch=1"
    assert overlaps(interleaved) == BatchOverlap(0.5)
    assert overlaps(interleaved, together=True) is None
    assert overlaps(interleaved, near, together=True) == BatchOverlap(0.5)
    assert not overlaps("dp=8,ep=8,pp=2,micro_batch=1")
    assert not overlaps("dp=8,ep=8,micro_batch=1")
    assert overlaps("dp=8,ep=8,micro_batch=1", near)
    assert not overlaps("dp=8,ep=8,num_microbatches=1", near)
    assert not overlaps("dp=8,micro_batch=1", near)


@pytest.mark.parametrize("runtime", runtime_names())
def test_dualpipe_hides_expert_traffic_whatever_the_runtime(runtime: str) -> None:
    strategy = parse_strategy("dp=8,ep=8,pp=4,schedule=dualpipe,micro_batch=1", global_batch=8 * 16)
    for near in (False, True):
        assert overlap_of_batches(strategy, load_runtime(runtime), near=near) == BatchOverlap(11 / 16, paired=True)


def test_messages_of_dualpipe_travel_beside_compute_whatever_the_runtime() -> None:
    """Runtimes that wait for their sends do so with other schedules only."""
    waits = load_runtime("pytorch")
    assert not waits.exchange.overlap_sends

    def seconds(schedule: str, runtime: Runtime) -> float:
        plan = lower(request_of(f"pp=4,schedule={schedule},num_microbatches=16", runtime=runtime)).plan
        return simulate(plan, np.array([1.0 if isinstance(w, Operator | Transfer) else 0.0 for w in plan.works])).step_s

    overlaps = waits.patched(exchange={"overlap_sends": True})
    assert seconds("dualpipe", waits) == seconds("dualpipe", overlaps)
    assert seconds("1f1b", waits) > seconds("1f1b", overlaps)


def test_operators_that_move_tokens_are_found_and_no_others() -> None:
    graph = capture(MIXTURE, seq=TOKENS)
    block = next(b for b in graph.blocks if find_regions(graph, b))
    (region,) = find_regions(graph, block)
    assert region.copies == TOPK
    moving = [graph.operators[i].name for i in block.forward if region.moves_tokens(graph.operators[i], i)]
    assert moving == ["index_select", "mul", "index_add"]


def test_attention_with_sinks_is_found_by_its_parameter_per_head() -> None:
    graph = capture("gpt-oss-120b", seq=256)
    assert sink_scopes(graph) == {"layers.0.attention", "layers.1.attention"}
    assert sink_scopes(capture(MIXTURE, seq=TOKENS)) == frozenset()
    windowed = next(op for op in graph.operators if "window" in op.attributes)
    assert without_window(windowed).flops > windowed.flops
