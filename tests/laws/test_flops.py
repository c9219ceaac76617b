"""FLOPs and bytes: closed forms of single operators and of captured transformers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import graph_of
from traincast import Operator, OperatorGraph, TensorSpec
from traincast.graph import DType, OpKind, Phase
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.report.figures import model_flops

sizes = st.integers(1, 4096)
quick = settings(deadline=None, derandomize=True, max_examples=50)


def operator(
    kind: OpKind, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], **attributes: int | bool
) -> Operator:
    backward = bool(attributes.pop("backward", False))
    return Operator(
        name="op_backward" if backward else "op",
        kind=kind,
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
        inputs=tuple(TensorSpec(s, DType.BF16, 0) for s in inputs),
        outputs=tuple(TensorSpec(s, DType.BF16, 0) for s in outputs),
        attributes=attributes,
    )


def products(graph: OperatorGraph, phase: Phase) -> float:
    return sum(op.flops * n for op, n in graph if op.phase is phase and op.kind in MATRIX_KINDS)


@quick
@given(b=st.integers(1, 64), m=sizes, n=sizes, k=sizes)
def test_a_product_takes_two_flops_per_multiply_add(b: int, m: int, n: int, k: int) -> None:
    single = operator(OpKind.GEMM, [(m, k), (k, n)], [(m, n)])
    assert single.flops == 2 * m * n * k
    assert single.nbytes == 2 * (m * k + k * n + m * n)
    assert operator(OpKind.BATCHED_GEMM, [(b, m, k), (b, k, n)], [(b, m, n)]).flops == 2 * b * m * n * k
    assert operator(OpKind.GROUPED_GEMM, [(m, k), (b, k, n)], [(m, n)]).flops == 2 * m * n * k
    assert operator(OpKind.GROUPED_GEMM, [(k, m), (m, n)], [(b, k, n)]).flops == 2 * m * n * k


@quick
@given(b=st.integers(1, 8), h=st.integers(1, 32), s=sizes, d=st.integers(1, 128))
def test_a_causal_attention_computes_the_lower_triangle(b: int, h: int, s: int, d: int) -> None:
    q = (b, h, s, d)
    full = operator(OpKind.ATTENTION, [q, q, q], [q], causal=False)
    half = operator(OpKind.ATTENTION, [q, q, q], [q], causal=True)
    assert full.flops == 4 * b * h * s * s * d
    assert half.flops == pytest.approx(4 * b * h * d * s * (s + 1) / 2, rel=1e-12)
    backward = operator(OpKind.ATTENTION, [q, q, q, q, q], [q, q, q], causal=True, backward=True)
    assert backward.flops == pytest.approx(2.5 * half.flops, rel=1e-12)


@quick
@given(s=st.integers(2, 512), window=st.integers(1, 600))
def test_a_window_computes_the_pairs_it_lets_through(s: int, window: int) -> None:
    q = (1, 1, s, 1)
    op = operator(OpKind.ATTENTION, [q, q, q], [q], causal=True, window=window)
    pairs = sum(min(row + 1, window) for row in range(s))
    assert op.flops == pytest.approx(4 * pairs, rel=1e-9)


@quick
@given(
    groups=st.sampled_from([1, 2, 4]),
    i=st.integers(1, 16),
    o=st.integers(1, 16),
    k=st.sampled_from([1, 3, 7]),
    side=st.integers(1, 64),
)
def test_a_convolution_multiplies_each_output_by_its_window(groups: int, i: int, o: int, k: int, side: int) -> None:
    data, weight, out = (2, groups * i, 2 * side, 2 * side), (groups * o, i, k, k), (2, groups * o, side, side)
    forward = operator(OpKind.CONV, [data, weight], [out], groups=groups)
    assert forward.flops == 2 * 2 * side * side * groups * o * i * k * k
    both = operator(OpKind.CONV, [out, data, weight], [data, weight], groups=groups, products=2, backward=True)
    assert both.flops == 2 * forward.flops
    # Transposed: every input is spread over a window, and the weight is [in, out, k, k].
    up = operator(OpKind.CONV, [out, (groups * o, i, k, k)], [data], groups=groups, transposed=True)
    assert up.flops == forward.flops


@quick
@given(rows=st.integers(1, 128), width=sizes, table=st.integers(1, 10**6))
def test_a_look_up_reads_the_rows_it_returns_and_not_the_table(rows: int, width: int, table: int) -> None:
    ids = TensorSpec((rows,), DType.INT64, 0)
    op = Operator(
        name="embedding",
        kind=OpKind.EMBEDDING,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((table, width), DType.BF16), ids),
        outputs=(TensorSpec((rows, width), DType.BF16, 0),),
    )
    assert op.bytes_read == 8 * rows + 2 * rows * width
    assert (op.bytes_written, op.flops) == (2 * rows * width, 0.0)


@pytest.mark.parametrize("kind", [k for k in OpKind if k not in {OpKind.RNN, OpKind.SCAN}])
def test_flops_and_bytes_are_proportional_to_the_batch_where_nothing_is_shared(kind: OpKind) -> None:
    known: dict[OpKind, list[tuple[int, ...]]] = {
        OpKind.ATTENTION: [(1, 4, 16, 8)] * 3,
        OpKind.CONV: [(1, 4, 8, 8), (4, 4, 3, 3)],
        OpKind.DEPTHWISE_CONV: [(1, 4, 8, 8), (4, 1, 3, 3)],
        OpKind.GEMM: [(16, 8), (8, 4)],
        OpKind.BATCHED_GEMM: [(2, 16, 8), (2, 8, 4)],
        OpKind.GROUPED_GEMM: [(16, 8), (2, 8, 4)],
    }
    shapes = known.get(kind, [(1, 16, 8)])
    out = {OpKind.CONV: (1, 4, 8, 8), OpKind.DEPTHWISE_CONV: (1, 4, 8, 8)}.get(kind, (16, 4))
    parameter = 1 if len(shapes) == 2 and kind is not OpKind.BATCHED_GEMM else -1
    op = Operator(
        name="op",
        kind=kind,
        phase=Phase.FORWARD,
        inputs=tuple(TensorSpec(s, DType.FP32, None if n == parameter else 0) for n, s in enumerate(shapes)),
        outputs=(TensorSpec(out, DType.FP32, 0),),
    )
    assert op.with_batch(7).flops == pytest.approx(7 * op.flops, rel=1e-12)
    assert op.with_batch(7).bytes_written == 7 * op.bytes_written
    assert op.with_batch(1) is op


@pytest.mark.parametrize(("layers", "hidden", "seq"), [(3, 64, 32), (4, 256, 128), (5, 128, 256)])
def test_a_captured_gpt_has_the_flops_of_the_closed_form(layers: int, hidden: int, seq: int) -> None:
    """Narayanan et al. 2021, appendix: 24·B·l·s·h² (1 + s/6h) + 2·B·s·h·V forward, attention halved by its mask."""
    vocab = 500
    graph = graph_of(f"gpt:layers={layers},hidden={hidden},heads=8,vocab={vocab},seq={seq}")
    linear = layers * 24 * seq * hidden**2 + 2 * seq * hidden * vocab
    attention = layers * 4 * hidden * seq * (seq + 1) / 2
    assert products(graph, Phase.FORWARD) == pytest.approx(linear + attention, rel=1e-12)
    assert products(graph, Phase.BACKWARD) == pytest.approx(2 * linear + 2.5 * attention, rel=1e-12)


@pytest.mark.parametrize("seq", [128, 8192, 32768])
def test_model_flops_are_six_per_weight_and_token_and_twelve_per_score_halved_by_the_mask(seq: int) -> None:
    """What MFU counts (Chowdhery et al. 2022, appendix B): scores that FlashAttention computes again are not in it."""
    layers, hidden, vocab, ffn = 3, 128, 500, 352
    graph = graph_of(f"llama:layers={layers},hidden={hidden},heads=4,kv_heads=2,ffn={ffn},vocab={vocab},seq={seq}")
    weights = layers * (hidden * (hidden + 128) + hidden * hidden + 3 * hidden * ffn) + hidden * vocab
    per_token = 6 * weights + 12 * layers * hidden * (seq + 1) / 2
    assert model_flops(graph) == pytest.approx(per_token * seq, rel=1e-12)


def test_six_flops_per_weight_and_token() -> None:
    """Kaplan et al. 2020: 6 N per token, where attention is small and the vocabulary part of N."""
    graph = graph_of("gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128")
    step = products(graph, Phase.FORWARD) + products(graph, Phase.BACKWARD)
    assert step / (6 * graph.num_parameters * graph.tokens_per_sample) == pytest.approx(1.0, abs=0.05)
