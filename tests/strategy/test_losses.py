"""Ways to compute the loss: what each keeps of the logits, and what it holds while it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import GPT, graph_of, request_of
from traincast import predict
from traincast.errors import RequestError, UnknownNameError
from traincast.strategy import Memory, lower
from traincast.strategy.program.losses import with_loss


def logits() -> int:
    """Elements of the logits of a batch of 16."""
    graph = graph_of(GPT)
    head = next(op for op, _ in graph if "log_softmax" in op.name)
    return head.inputs[0].with_batch(16).numel


def kept(name: str) -> float:
    request = request_of("dp=1", model=GPT, runtime="hf-trainer", precision="bf16", global_batch=16)
    (found,) = lower(replace(request, runtime=with_loss(request.runtime, name))).memory
    return found.parts["kept for backward"]


def test_a_plain_loss_keeps_fp32_and_fused_and_chunked_losses_half_of_it() -> None:
    assert kept("plain") - kept("fused") == 2 * logits()
    assert kept("chunked") == kept("fused")


def test_a_linear_loss_keeps_no_logits() -> None:
    assert kept("fused") - kept("linear") >= 2 * logits()


def test_leaner_losses_need_less_memory() -> None:
    def total(name: str) -> float:
        return predict(GPT, cluster="dgx-h100:1x1", strategy="dp=1", global_batch=64, loss=name).report.memory.total

    plain, chunked, linear = (total(name) for name in ("plain", "chunked", "linear"))
    assert plain > chunked > linear
    assert total("fused") < plain


def test_an_unknown_loss_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="unknown loss 'liger': did you mean linear"):
        predict(GPT, cluster="dgx-h100:1x1", global_batch=8, loss="liger")


def updated(micro_batch: int, *, in_backward: bool) -> Memory:
    request = request_of(f"dp=1,micro_batch={micro_batch}", model=GPT, precision="pure-bf16", global_batch=16)
    runtime = request.runtime.patched(memory={"updates_in_backward": in_backward})
    (found,) = lower(replace(request, runtime=runtime)).memory
    return found


def test_updates_in_backward_hold_one_gradient_at_a_time() -> None:
    largest = max(op.parameters[0].numel for op, _ in graph_of(GPT) if op.phase.value == "optimizer")
    assert updated(16, in_backward=False).gradients == 2 * graph_of(GPT).num_parameters
    assert updated(16, in_backward=True).gradients == 2 * largest


def test_updates_in_backward_cannot_accumulate_microbatches() -> None:
    with pytest.raises(RequestError, match="4 microbatches with updates in backward"):
        updated(4, in_backward=True)
