"""Habits of compilers: they leave out what nobody reads, and sum gradients of slices after backward."""

from __future__ import annotations

import pytest

from tests.conftest import GPT, LLAMA, request_of
from traincast import Operator, Runtime, load_runtime
from traincast.graph import OpKind
from traincast.strategy import lower
from traincast.strategy.program.block import repeated_works
from traincast.strategy.program.recompute import load_recomputation
from traincast.work import Collective


def again(runtime: Runtime) -> list[str]:
    """Names of the works that a layer of GPT runs again before its backward."""
    prepared = lower(request_of("dp=1,recompute=full", model=GPT, runtime=runtime)).prepared
    layer = next(p for p in prepared.programs if any("(again)" in item.label for item in p.backward))
    items = [item for item in layer.backward if "(again)" in item.label]
    return [item.work.name for item in items if isinstance(item.work, Operator) and item.work.kind is OpKind.GEMM]


def test_a_compiler_does_not_repeat_the_last_product_of_a_layer() -> None:
    plain = load_runtime("megatron")
    lean = again(plain.patched(kernels={"lean_recompute": True}))
    assert len(again(plain)) == len(lean) + 1 == 4  # qkv, output projection, up, down


def test_only_whole_blocks_are_cut_short() -> None:
    prepared = lower(request_of("dp=1", model=GPT)).prepared
    forward = list(prepared.programs[1].forward)
    selective = load_recomputation("selective")
    assert repeated_works(selective, forward, lean=True) == repeated_works(selective, forward, lean=False)
    assert repeated_works(load_recomputation("full"), [], lean=True) == []


def between_slices(runtime: Runtime) -> list[float]:
    """Bytes of each collective that two slices exchange in one step."""
    plan = lower(request_of("dp=8,zero=3,shard=4", model=GPT, runtime=runtime), grain="operator").plan
    works = [plan.work_of(cost) for cost in plan.cost.tolist() if cost < len(plan.works)]  # without slowed kernels
    found = [work for work in works if isinstance(work, Collective) and work.kind == "all_reduce"]
    assert {work.num_ranks for work in found} == {2}
    return [work.nbytes for work in found]


def test_slices_sum_their_gradients_once_after_backward() -> None:
    jax = load_runtime("maxtext")
    late, early = between_slices(jax), between_slices(jax.patched(exchange={"overlap_gradients": True}))
    assert sum(late) == pytest.approx(sum(early))
    assert len(late) == 1 < len(early)


@pytest.mark.parametrize("name", ["maxtext", "tensorflow-xla", "paddle"])
def test_runtimes_that_fuse_batch_norms_split_a_gated_mlp_among_tensor_ranks(name: str) -> None:
    def weights(runtime: str) -> float:
        memory = lower(request_of("dp=2,tp=4", model=LLAMA, runtime=load_runtime(runtime))).memory
        return memory[0].parts["weights"]

    assert weights(name) == weights("pytorch")
