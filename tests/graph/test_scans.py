"""State-space and linear-attention operators: values against closed forms, FLOPs and bytes, and shards of heads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import traincast
from traincast import Operator, capture
from traincast.graph import OpKind, Phase
from traincast.graph.work_amount import bytes_read, bytes_written, flops, model_flops
from traincast.graph.zoo.parts import scans
from traincast.strategy.program.cut import cut_operator
from traincast.strategy.program.sharding import Role, find_sharding

MAMBA2 = "decoder:layers=3,hidden=256,mixers=M,feeds=-,state=32,state_heads=8,state_groups=4,chunk=64,seq=512,vocab=512"
QWEN = (
    "decoder:layers=4,hidden=256,heads=4,ffn=512,mixers=LLL*,linear_heads=2,linear_value_heads=4,linear_dim=32,"
    "linear_value_dim=64,seq=512,vocab=512,qk=head,gated_attention=true"
)
MAMBA = "decoder:layers=3,hidden=256,mixers=M,feeds=-,state=16,seq=512,vocab=512"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_the_state_space_scan_is_a_masked_product_of_matrices() -> None:
    torch.manual_seed(0)
    x, step, b, c = normal(2, 4, 6, 3), normal(2, 4, 6), normal(2, 2, 6, 5), normal(2, 2, 6, 5)
    a_log, skip, bias = normal(4), normal(4), normal(4)
    y = scans.ssd_scan(x, step, b, c, a_log, skip, bias, 64)
    delta = functional.softplus(step + bias[:, None])
    total = torch.cumsum(-a_log.exp()[:, None] * delta, dim=-1)
    decay = torch.exp(total[..., :, None] - total[..., None, :]).tril()
    scores = (c @ b.mT).repeat_interleave(2, dim=1)
    expected = (scores * decay * delta[..., None, :]) @ x + x * skip[:, None, None]
    assert torch.allclose(y, expected)


def test_the_delta_rule_without_decay_stores_and_returns_orthogonal_values() -> None:
    key = torch.eye(4, dtype=torch.float64)[None, None]
    value = normal(1, 1, 4, 3)
    never, surely = torch.full((1, 1, 4), -60.0, dtype=torch.float64), torch.full((1, 1, 4), 60.0, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    y = scans.gated_delta_rule(key, key, value, never, surely, zero, zero, 64)
    assert torch.allclose(y, value * 4**-0.5)


def test_the_selective_scan_without_input_passes_the_skip() -> None:
    x, step, gate = normal(2, 5, 3), normal(2, 5, 3), normal(2, 5, 3)
    none = torch.zeros(2, 5, 4, dtype=torch.float64)
    y = scans.selective_scan(x, step, none, none, gate, normal(3, 4), torch.full((3,), 2.0).double(), normal(3))
    assert torch.allclose(y, 2 * x * functional.silu(gate))


@pytest.mark.parametrize("width", [1, 4])
def test_a_short_convolution_sees_the_past_only(width: int) -> None:
    x, weight, bias = normal(2, 7, 3), normal(3, width), normal(3)
    y = scans.causal_conv1d(x, weight, bias)
    changed = x.clone()
    changed[:, 4] += 1
    assert torch.equal(scans.causal_conv1d(changed, weight, bias)[:, :4], y[:, :4])
    assert torch.allclose(y[:, 0], functional.silu(x[:, 0] * weight[:, -1] + bias))


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(1)
    tensors = [
        t.requires_grad_() for t in (normal(1, 2, 3, 2), normal(1, 2, 3), normal(1, 1, 3, 2), normal(1, 1, 3, 2))
    ]
    rest = [normal(2).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *given: scans.ssd_scan(*given, 64), (*tensors, *rest))


def scan(spec: str, name: str) -> Operator:
    return next(op for op, _ in capture(spec) if op.name == name)


def test_a_chunked_state_space_costs_what_its_products_do() -> None:
    forward, backward = scan(MAMBA2, "ssd_scan"), scan(MAMBA2, "ssd_scan_backward")
    seq, heads, width, state, groups, chunk = 512, 8, 64, 32, 4, 64
    inside, states = seq * (chunk + 1) * (groups * state + heads * width), 4 * seq * heads * width * state
    assert forward.attributes["chunk"] == chunk
    assert flops(forward) == inside + states
    assert flops(backward) == 2 * flops(forward) + seq * (chunk + 1) * groups * state + states / 2
    assert model_flops(backward) == 2 * model_flops(forward) == 2 * flops(forward)
    inner = 2 * seq / chunk * heads * width * state * 4 + seq * chunk * groups * 4
    assert bytes_read(forward) == sum(t.nbytes for t in forward.inputs) + inner
    assert bytes_written(forward) == sum(t.nbytes for t in forward.outputs) + inner


def test_a_gated_delta_rule_costs_what_its_chunks_do() -> None:
    forward = scan(QWEN, "gated_delta_rule")
    seq, heads, key, value, chunk = 512, 4, 32, 64, 64
    inside = 2 * chunk * (3 * key + 2 * value) + 2 * chunk**2 / 3
    assert flops(forward) == pytest.approx(seq * heads * (inside + 6 * key * value))


def test_a_selective_scan_costs_nine_flops_per_state() -> None:
    assert flops(scan(MAMBA, "selective_scan")) == 9 * 512 * 512 * 16


@pytest.mark.parametrize("spec", [MAMBA2, QWEN])
def test_heads_of_scans_are_split_by_tensor_parallelism(spec: str) -> None:
    graph = capture(spec)
    roles = find_sharding(graph).roles
    scans_of = [i for i, op in enumerate(graph.operators) if op.kind is OpKind.SCAN]
    assert {roles[i] for i in scans_of} == {Role.INSIDE}
    whole = graph.operators[scans_of[0]]
    part = cut_operator(whole, Role.INSIDE, None, tp=2, cp=1, sequence_parallel=False)
    assert flops(part) == pytest.approx(flops(whole) / 2)
    norms = [i for i, op in enumerate(graph.operators) if op.name == "gated_rms_norm"]
    assert {roles[i] for i in norms} == {Role.INSIDE}


def test_a_norm_over_all_heads_keeps_a_state_space_whole() -> None:
    graph = capture(MAMBA2 + ",state_norm_groups=1")
    roles = find_sharding(graph).roles
    assert {roles[i] for i, op in enumerate(graph.operators) if op.scope.startswith("layers")} == {Role.WHOLE}


def test_a_longer_sequence_costs_a_scan_in_proportion() -> None:
    assert flops(scan(MAMBA2, "ssd_scan")) * 2 == flops(scan(MAMBA2.replace("seq=512", "seq=1024"), "ssd_scan"))
    report = traincast.predict(MAMBA2, cluster="dgx-h100:1", strategy="dp=8", global_batch=8).report
    assert 0 < report.step_s < 1


def test_layers_of_changing_kinds_each_count_as_a_layer() -> None:
    graph = capture(
        "decoder:layers=6,hidden=64,heads=4,mixers=M-*-M-,feeds=-d-d-d,state=16,state_heads=4,seq=64,vocab=128"
    )
    assert sum(block.count for block in graph.blocks if block.repeated) == 6
    assert all(op.phase is not Phase.FORWARD or "unknown" not in op.attributes for op, _ in graph)
