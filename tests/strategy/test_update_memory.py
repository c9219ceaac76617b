from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import GPT, graph_of, request_of
from traincast import load_runtime
from traincast.strategy import Memory, lower

BUCKET = 1e3


def memory(strategy: str, *, precision: str = "fp16", flat: bool = True) -> Memory:
    request = request_of(strategy, model=GPT, precision=precision, runtime="megatron-deepspeed")
    runtime = request.runtime.patched(memory={"flat_gradients": flat}, exchange={"bucket_bytes": BUCKET})
    (found,) = lower(replace(request, runtime=runtime)).memory
    return found


def copied(strategy: str, *, precision: str = "fp16", flat: bool = True) -> float:
    """Bytes beyond the states in the update, and in blocks that were left by it, less those without copies."""
    with_copies = memory(strategy, precision=precision, flat=flat)
    without = memory(strategy, precision=precision, flat=False)
    assert with_copies.states == without.states
    return with_copies.activations + with_copies.cached - without.activations


def largest() -> int:
    graph = graph_of(GPT)
    return max(op.parameters[0].numel for op in graph.operators if op.parameters)


def test_gradients_are_joined_in_their_dtype_and_in_that_of_master_weights() -> None:
    psi = graph_of(GPT).num_parameters
    # A second gradient of the largest parameter, its fp64 copy for the norm, and 2 + 4 bytes of each weight.
    assert copied("dp=1,zero=1") == pytest.approx((2 + 8) * largest() + 6 * psi)
    # Without ZeRO, gradients are converted before they are joined: 4 + 4 bytes.
    assert copied("dp=1") == pytest.approx((2 + 8) * largest() + 8 * psi)
    assert copied("dp=1", flat=False) == 0


def test_with_zero_a_rank_copies_what_it_updates_and_reuses_earlier_blocks() -> None:
    part = graph_of(GPT).num_parameters / 8
    norm = 8 * min(part, largest())
    # The small bucket lies in the block of the second gradient, the joined gradients in that of the norm, whose rest is
    # too small for the converted ones.
    assert norm - 2 * part < 4 * part
    expected = 2 * largest() + norm + 4 * part
    assert copied("dp=8,zero=1") == pytest.approx(expected)


def test_gradients_as_wide_as_master_weights_are_only_copied_for_exchange_and_norm() -> None:
    exchanged = (BUCKET / 2 + largest()) * 4
    assert copied("dp=2,zero=1", precision="bf16") == pytest.approx(2 * largest() + exchanged + 8 * largest())


def test_updates_elsewhere_leave_no_copies_and_other_runtimes_make_none() -> None:
    assert copied("dp=2,zero=1,offload=optimizer") == 0
    assert not load_runtime("megatron").memory.flat_gradients
    assert lower(request_of("dp=2,zero=1", model=GPT, runtime="megatron")).memory[0].cached == 0


def test_copies_need_memory_only_where_activations_need_less() -> None:
    found, without = memory("dp=8,zero=1"), memory("dp=8,zero=1", flat=False)
    assert found.activations == max(without.activations, copied("dp=8,zero=1"))
    assert found.cached == min(without.activations, copied("dp=8,zero=1"))
