"""Sparse attention and residual streams: values against plain formulas, counts of scores, gradients, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from traincast import Operator, RequestError, TensorSpec, capture
from traincast.graph import DType, OpKind, Phase
from traincast.graph.huggingface.read import from_config
from traincast.graph.work_amount import attention_fraction
from traincast.graph.zoo import build
from traincast.graph.zoo.language.deepseek_v4 import (
    Compressor,
    keys_seen,
    stream_collapse,
    stream_expand,
    stream_weights,
)
from traincast.graph.zoo.parts.kernels import index_scores

V32 = (
    "deepseek:layers=4,hidden=48,heads=4,experts=8,top_k=2,expert_ffn=24,ffn=64,q_lora=20,kv_lora=12,rope_dim=4,"
    "nope_dim=8,v_dim=6,vocab=101,seq=64,index_heads=2,index_dim=8,index_top_k=16"
)
V4 = (
    "deepseek-v4:layers=7,hidden=32,heads=4,experts=4,top_k=2,expert_ffn=16,head_dim=16,mixers=wchchch,q_lora=8,"
    "rope_dim=4,out_groups=2,out_lora=8,window=4,every=4,heavily=16,index_heads=2,index_dim=8,index_top_k=3,vocab=50,"
    "seq=64"
)
V4_CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "q_lora_rank": 16, "vocab_size": 100,
    "head_dim": 64, "qk_rope_head_dim": 16, "index_head_dim": 32, "compress_ratios": [0, 4, 128, 4, 0],
}  # fmt: skip


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def attention(queries: int, keys: int, *, causal: bool, window: int) -> Operator:
    q, k = (TensorSpec((1, 2, size, 8), DType.FP32, 0) for size in (queries, keys))
    attributes = {"causal": causal, "window": window}
    kind, phase = OpKind.ATTENTION, Phase.FORWARD
    return Operator(name="attention", kind=kind, phase=phase, inputs=(q, k, k), outputs=(q,), attributes=attributes)


@pytest.mark.parametrize(("seq", "window"), [(32, 8), (32, 31), (9, 4), (1024, 512)])
def test_a_window_without_a_causal_mask_has_half_of_it_on_either_side(seq: int, window: int) -> None:
    side = window // 2
    pairs = sum(min(seq, i + side + 1) - max(0, i - side) for i in range(seq))
    assert attention_fraction(attention(seq, seq, causal=False, window=window)) == pytest.approx(pairs / seq**2)


@pytest.mark.parametrize(
    ("seq", "window", "every", "top_k"), [(4096, 128, 4, 512), (4096, 128, 128, 0), (512, 64, 0, 0)]
)
def test_sparse_attention_counts_the_scores_of_an_equal_window(seq: int, window: int, every: int, top_k: int) -> None:
    scores = 0
    for i in range(seq):
        compressed = (i + 1) // every if every else 0
        scores += min(i + 1, window) + (min(compressed, top_k) if top_k else compressed)
    same = keys_seen(seq, window=window, every=every, top_k=top_k)
    found = attention_fraction(attention(seq, seq, causal=True, window=same)) * seq**2
    assert found == pytest.approx(scores, rel=0.005)


def test_scores_of_an_indexer_are_weighted_sums_over_its_heads() -> None:
    q, k, weights = normal(2, 5, 3, 4), normal(2, 7, 4), normal(2, 5, 3)
    expected = torch.einsum("bshk,bsh->bsk", torch.einsum("bshd,bkd->bshk", q, k).relu(), weights)
    assert torch.allclose(index_scores(q.flatten(1, 2), k.mT, weights), expected)


def test_streams_are_read_mixed_and_written_by_the_weights_of_each_token() -> None:
    torch.manual_seed(0)
    streams, out, mixes = normal(2, 3, 4, 5), normal(2, 3, 5), normal(2, 3, 24)
    weights = stream_weights(mixes, normal(24), normal(3))
    read, write, mix = weights.split([4, 4, 16], dim=-1)
    square = mix.unflatten(-1, (4, 4))
    assert torch.allclose(square.sum(dim=-1), torch.ones(()).double(), atol=1e-4)
    assert torch.allclose(square.sum(dim=-2), torch.ones(()).double(), atol=1e-3)
    assert torch.allclose(stream_collapse(streams, read), torch.einsum("bsn,bsnd->bsd", read, streams))
    mixed = torch.einsum("bsjk,bsjd->bskd", square, streams) + torch.einsum("bsn,bsd->bsnd", write, out)
    assert torch.allclose(stream_expand(streams, out, write, mix), mixed)


def test_streams_have_the_gradients_of_autograd() -> None:
    inputs = tuple(t.requires_grad_() for t in (normal(1, 2, 3, 4), normal(1, 2, 4), normal(1, 2, 3), normal(1, 2, 9)))
    assert torch.autograd.gradcheck(stream_expand, inputs)
    assert torch.autograd.gradcheck(stream_collapse, (inputs[0], inputs[2]))


def test_a_compressed_token_is_the_mean_of_its_group_if_all_gates_are_equal() -> None:
    plain = Compressor(6, dim=4, every=3, overlapping=False).double()
    torch.nn.init.zeros_(plain.both.weight[4:])
    x = normal(2, 7, 6)
    values = (x[:, :6] @ plain.both.weight[:4].mT).unflatten(1, (2, 3)).mean(dim=2)
    assert torch.allclose(plain(x), values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + 1e-5))


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("spec", "top_k"), [(V32, 16), (V4, None)])
def test_an_indexer_runs_forward_only_and_its_parameters_are_held(spec: str, top_k: int | None) -> None:
    graph, module = capture(spec), build(spec).module
    inside = [op for op in graph.operators if ".indexer" in op.scope]
    assert {op.phase for op in inside} == {Phase.FORWARD}
    assert {op.name for op in inside} >= {"index_scores", "topk"}
    held = sum(p.numel() for name, p in module.named_parameters() if ".indexer." in name)
    assert graph.num_parameters == sum(p.numel() for p in module.parameters())
    assert graph.num_trainable_parameters == graph.num_parameters - held
    if top_k is not None:
        assert {op.attributes.get("window") for op in graph.operators if op.kind is OpKind.ATTENTION} == {top_k}


@pytest.mark.long(guard="test_sparse_attention_counts_the_scores_of_an_equal_window")
def test_short_sequences_are_attended_to_in_full() -> None:
    graph = capture(V32.replace("seq=64", "seq=16"))
    assert {op.attributes.get("window") for op in graph.operators if op.kind is OpKind.ATTENTION} == {None}


@pytest.mark.long(guard="test_sparse_attention_counts_the_scores_of_an_equal_window")
def test_attention_of_deepseek_v4_grows_less_than_with_the_square_of_the_sequence() -> None:
    def scores(seq: int) -> float:
        graph = capture(V4.replace("seq=64", f"seq={seq}"))
        kinds = (op.flops * count for op, count in graph if op.kind is OpKind.ATTENTION)
        return sum(kinds)

    assert scores(1024) < 5 * scores(512)


def test_a_configuration_names_the_layers_or_their_ratios() -> None:
    _, by_ratios = from_config(V4_CONFIG)
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    named = {k: v for k, v in V4_CONFIG.items() if k != "compress_ratios"} | {"layer_types": [*kinds, kinds[1]]}
    assert by_ratios["mixers"] == "wchc"
    assert from_config(named)[1] == by_ratios


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compress_ratios": [0, 4]}, "compress_ratios names 2 layers where num_hidden_layers=4"),
        ({"compress_ratios": [0, 4, 7, 4]}, "or compress_ratios of 0, 4 and 128"),
        ({"layer_types": ["full_attention"] * 4}, "must be made of sliding_attention"),
        ({"num_key_value_heads": 8}, "all query heads share one head of keys"),
    ],
)
def test_a_configuration_that_cannot_be_built_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        from_config(V4_CONFIG | change)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (V4.replace("mixers=wchchch", "mixers=wx"), "mixers='wx' must be made of w "),
        (V4.replace("rope_dim=4", "rope_dim=5"), "rope_dim=5 must be even and at most 8"),
        (V4.replace("out_groups=2", "out_groups=3"), "heads=4 is not divisible by out_groups=3"),
        (V32.replace("q_lora=20", "q_lora=0"), "index_heads=2 needs q_lora above 0"),
    ],
)
def test_dimensions_that_contradict_each_other_are_refused(spec: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        build(spec)


@pytest.mark.long(guard="test_an_indexer_runs_forward_only_and_its_parameters_are_held")
def test_a_file_of_deepseek_v4_is_captured(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(V4_CONFIG))
    graph = capture(str(path), seq=128)
    assert graph.tokens_per_sample == 128
    assert not [op.name for op in graph.operators if op.attributes.get("unknown")]
