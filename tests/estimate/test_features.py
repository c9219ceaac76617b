"""Features: known operators by hand, the roofline's closed form, the same operator from a model and from a table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import CNN, GPT, LLAMA, graph_of
from traincast import Operator, TensorSpec
from traincast.cluster import find_device
from traincast.estimate.operators.families import FAMILIES, Floats, Rates
from traincast.estimate.operators.features import (
    ATTENTION_BACKWARD,
    FLOOR_S,
    TILE_CHANNELS,
    TILES,
    Shapes,
    family_of,
    features,
    roofline,
    shapes_of,
)
from traincast.fitting.rows.operator import RowConfig, operator_of
from traincast.graph import DType, OpKind, Phase


def number(value: float) -> Floats:
    return np.asarray(float(value))


RATES = Rates(peak=number(1e14), bandwidth=number(1e12), num_sms=number(100), l2_bytes=number(4e7))


def table_row(op: str, phase: str = "fwd", dtype: str = "bf16", *sizes: int, **params: Any) -> Operator:
    b, m, n, k = sizes or (None,) * 4
    return operator_of(RowConfig(op, phase, dtype, b, m, n, k, json.dumps(params) if params else None))


def gemm(m: int, n: int, k: int, *, b: int = 1) -> Operator:
    return table_row("gemm" if b == 1 else "bmm", "fwd", "bf16", b, m, n, k)


def shape(family: str, sizes: list[float], *, name: str = "gemm.fwd", passes: float = 1.0) -> Shapes:
    details = ((name, "none", "none", "none"),)
    return Shapes(
        family=family, sizes=np.array([sizes]), passes=np.array([passes]), details=details, which=np.zeros(1, int)
    )


def tile_channels(op: Operator, tile: tuple[int, int]) -> dict[str, float]:
    found = features(shapes_of("product", [op]), RATES).tiles[0, TILES.index(tile)]
    return dict(zip(TILE_CHANNELS, found.tolist(), strict=True))


ROWS = {
    "product": gemm(512, 768, 1024),
    "grouped": table_row(
        "moe_mlp", num_tokens=64, topk=2, num_experts=8, hidden_size=512, inter_size=256, moe_tp_size=1, moe_ep_size=2
    ),
    "attention": table_row("flash_attn_causal", batch=2, heads=16, kv_heads=4, seq=1024, head_dim=64),
    "conv": table_row(
        "conv2d", "fwd", "fp32", batch=8, c_in=64, c_out=128, hw=56, kernel=3, stride=2, padding=1, use_bias=True
    ),
    "recurrent": table_row("rnn:LSTM", "fwd", "fp32", Timesteps=10, N=4, Hidden_units=64),
    "traffic": table_row("layernorm", "fwd", "bf16", b=2, l=128, dim=512),
}


# Values


def test_a_known_product_fills_its_waves_as_computed_by_hand() -> None:
    channels = tile_channels(gemm(4096, 4096, 1000), (128, 128))
    assert channels["waves"] == pytest.approx(np.log2(10.24))  # 32 × 32 tiles on 100 processors
    assert channels["wave_fill"] == pytest.approx(10.24 / 11)
    assert channels["tile_fill"] == 1.0
    assert channels["depth"] == pytest.approx(np.log2(1000))
    seconds = 11 * (2 * 128 * 128) * 1000 / 1e12 + FLOOR_S
    baseline = roofline(shapes_of("product", [gemm(4096, 4096, 1000)]), RATES)[0]
    assert channels["time"] == pytest.approx(np.log2(seconds / baseline), rel=1e-5)


def test_a_ragged_product_leaves_tiles_partly_empty() -> None:
    channels = tile_channels(gemm(100, 70, 256), (64, 64))
    assert channels["tile_fill"] == pytest.approx(100 * 70 / (4 * 64 * 64))
    assert channels["waves"] == pytest.approx(np.log2(0.04))
    assert channels["wave_fill"] == pytest.approx(0.04)
    assert channels["depth"] == pytest.approx(np.log2(256 * 0.04))


def test_products_of_a_batch_share_waves() -> None:
    one, eight = (tile_channels(gemm(256, 256, 64, b=b), (256, 256))["waves"] for b in (1, 8))
    assert eight - one == pytest.approx(3.0)


def test_tiles_are_ordered_by_area() -> None:
    areas = [rows * columns for rows, columns in TILES]
    assert areas == sorted(areas)
    assert len(set(TILES)) == 20


def test_padding_counts_the_share_that_is_used() -> None:
    flat = [features(shapes_of("product", [gemm(m, 512, 512)]), RATES).flat[0] for m in (96, 128)]
    changed = flat[0] != flat[1]
    assert any(flat[0][changed] == np.float32(0.75))  # 96 of 128 and 96 of 2 × 64 rows
    assert any(flat[0][changed] == np.float32(0.375))  # 96 of 256 rows


def test_the_roofline_has_its_closed_form() -> None:
    m, n, k = 300, 700, 900
    compute, memory = 2 * m * n * k / 1e14, 2 * (m * k + k * n + m * n) / 1e12
    expected = (compute**4 + memory**4) ** 0.25 + FLOOR_S
    assert roofline(shapes_of("product", [gemm(m, n, k)]), RATES)[0] == pytest.approx(expected, rel=1e-12)


def test_the_roofline_is_the_longer_bound_where_one_rules() -> None:
    large, thin = gemm(8192, 8192, 8192), gemm(1, 8192, 8192)
    seconds = roofline(shapes_of("product", [large, thin]), RATES)
    assert seconds[0] == pytest.approx(large.flops / 1e14, rel=0.01)
    assert seconds[1] == pytest.approx(thin.nbytes / 1e12 + FLOOR_S, rel=0.01)


def test_rates_may_be_columns() -> None:
    shapes = shapes_of("product", [gemm(512, 512, 512), gemm(512, 512, 512)])
    fast = Rates(**{name: np.array([1.0, 2.0]) * getattr(RATES, name) for name in Rates.__slots__})
    both, slow = features(shapes, fast), features(shapes, RATES)
    np.testing.assert_array_equal(both.flat[0], slow.flat[0])
    assert both.baseline_s[1] < both.baseline_s[0] == slow.baseline_s[0]


def test_a_device_is_seen_only_through_what_it_makes_of_an_operator() -> None:
    shapes = shapes_of("product", [gemm(64, 512, 512), gemm(2048, 96, 40)])
    flat = features(shapes, RATES).flat
    assert not (flat[0] == flat[1]).all()
    constant = np.flatnonzero(
        features(shapes_of("product", [gemm(3 * i, 7 * i, 11 * i) for i in range(1, 40)]), RATES).flat.std(axis=0) == 0
    )
    sizes_alone = {0, 4, 5, 6}  # b, bytes, out_bytes, passes: the same for all of these
    assert set(constant.tolist()) == sizes_alone


# The same from a model and from a table


def test_a_captured_product_has_the_features_of_the_same_product_in_a_table() -> None:
    rates = Rates.of(find_device("A100-SXM4-80GB"), "fp32")
    captured = [op.with_batch(4) for op, _ in graph_of(GPT) if op.kind is OpKind.GEMM]
    assert {op.phase for op in captured} == {Phase.FORWARD, Phase.BACKWARD}
    for op in captured:
        (m, k), n = op.inputs[0].shape, op.outputs[0].shape[-1]
        row = table_row("gemm", "fwd", op.dtype.value, 1, m, n, k)
        a, b = (shapes_of("product", [each]) for each in (op, row))
        assert a.details == b.details
        x, y = features(a, rates), features(b, rates)
        np.testing.assert_array_equal(x.table(), y.table())
        np.testing.assert_array_equal(x.baseline_s, y.baseline_s)


@pytest.mark.parametrize("model", [GPT, LLAMA, CNN])
def test_every_operator_of_a_captured_model_has_finite_features(model: str) -> None:
    operators = [op.with_batch(4) for op, _ in graph_of(model)]
    found = {family: [op for op in operators if family_of(op) == family] for family in FAMILIES}
    assert found["product"]
    assert found["traffic"]
    assert bool(found["conv"]) == (model == CNN)
    for family, chosen in found.items():
        if chosen:
            seen = features(shapes_of(family, chosen), RATES)
            assert np.isfinite(seen.table()).all()
            assert (seen.baseline_s >= FLOOR_S).all()


# Families


def test_every_family_has_an_example_here() -> None:
    assert ROWS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_have_the_sizes_of_their_family(family: str) -> None:
    op = ROWS[family]
    assert family_of(op) == family
    shapes = shapes_of(family, [op, op])
    assert shapes.sizes.shape == (2, len(FAMILIES[family].sizes))
    assert set(shapes.names) == {op.name}
    flops, nbytes = FAMILIES[family].amounts(shapes.sizes)
    if family != "traffic":  # what it computes does not matter
        back = 1.5 if family == "grouped" else 1.0
        assert flops[0] == pytest.approx(op.flops * back)
    if family != "grouped":
        assert nbytes[0] == pytest.approx(op.nbytes)
    found = features(shapes, RATES)
    assert found.tiles.shape == (2, len(TILES), len(TILE_CHANNELS))
    assert np.isfinite(found.table()).all()
    assert found.table().shape[1] < 255 - 6  # trees count features, and six texts beside them, in a byte


@pytest.mark.parametrize("family", FAMILIES)
def test_no_operators_have_no_features(family: str) -> None:
    none = Shapes(
        family=family,
        sizes=np.zeros((0, len(FAMILIES[family].sizes))),
        passes=np.zeros(0),
        details=(),
        which=np.zeros(0, int),
    )
    assert len(features(none, RATES).flat) == 0


def test_sizes_are_those_of_the_operator() -> None:
    sizes = {
        name: dict(zip(FAMILIES[name].sizes, shapes_of(name, [op]).sizes[0], strict=True)) for name, op in ROWS.items()
    }
    assert sizes["product"] == {"b": 1, "m": 512, "n": 768, "k": 1024, "bytes": 2, "out_bytes": 2}
    assert sizes["attention"]["kv_heads"] == 4
    assert sizes["attention"]["dims"] == 128
    assert sizes["attention"]["share"] == pytest.approx(0.5, abs=1e-3)
    assert sizes["grouped"]["experts"] == 4
    assert sizes["grouped"]["rows"] == 64
    assert sizes["grouped"]["of_experts"] == 8
    assert sizes["conv"]["stride"] == 2
    assert sizes["conv"]["ho"] == 28
    assert sizes["conv"]["bias"] == 2
    assert sizes["traffic"]["elements"] == 2 * 128 * 512
    assert sizes["traffic"]["last"] == 512


def test_passes_follow_the_name() -> None:
    def passes(op: Operator) -> float:
        family = family_of(op)
        assert family is not None
        return float(shapes_of(family, [op]).passes[0])

    assert passes(gemm(8, 8, 8)) == 1
    assert passes(table_row("gemm", "bwd", "bf16", 1, 8, 8, 8)) == 2
    assert passes(table_row("gemm_bias_act", "fwd+bwd+update", "fp32", 1, 8, 8, 8)) == 3
    backward = table_row("flash_attn_causal", "bwd", batch=2, heads=16, seq=128, head_dim=64)
    assert passes(backward) == ATTENTION_BACKWARD


def conv(name: str, phase: Phase, **attributes: bool) -> Operator:
    x, w = TensorSpec((1, 8, 16, 16)), TensorSpec((8, 8, 3, 3))
    return Operator(name=name, kind=OpKind.CONV, phase=phase, inputs=(x, w), outputs=(x,), attributes=attributes)


def test_what_no_family_describes_has_none() -> None:
    assert family_of(conv("convolution_backward", Phase.BACKWARD)) is None  # without the gradient of its output
    assert family_of(conv("convolution", Phase.FORWARD, transposed=True)) is None
    assert family_of(conv("convolution", Phase.FORWARD)) == "conv"
    assert family_of(conv("conv2d.bwd_data", Phase.BACKWARD)) == "conv"


def gradient(products: int) -> Operator:
    """The captured gradient of a convolution from 4 to 8 channels of 16 × 16 images, of stride 2."""
    x, w, y = TensorSpec((2, 4, 16, 16)), TensorSpec((8, 4, 3, 3)), TensorSpec((2, 8, 8, 8))
    attributes = {"stride": 2, "products": products}
    return Operator(
        name="convolution_backward", kind=OpKind.CONV, phase=Phase.BACKWARD, inputs=(y, x, w), outputs=(x, w),
        attributes=attributes,
    )  # fmt: skip


def test_a_captured_gradient_has_the_sizes_of_its_forward_and_the_name_of_tables() -> None:
    both, first = shapes_of("conv", [gradient(2)]), shapes_of("conv", [gradient(1)])
    assert both.names == ["conv2d.bwd"] and both.passes.tolist() == [2.0]
    assert first.names == ["conv2d.bwd_weight"] and first.passes.tolist() == [1.0]
    assert both.sizes[0].tolist() == [2, 4, 4, 8, 16, 16, 3, 3, 2, 8, 8, 1, 4]


def test_a_captured_recurrent_layer_has_the_sizes_of_a_measured_one() -> None:
    measured = table_row("rnn:LSTM", "bwd", "fp32", Timesteps=10, N=4, Hidden_units=64)
    data = TensorSpec((10, 4, 64), DType.FP32, batch_dim=1)
    weight = TensorSpec((256, 64), DType.FP32)
    captured = Operator(
        name="mkldnn_rnn_layer_backward", kind=OpKind.RNN, phase=Phase.BACKWARD, inputs=(data, weight, weight),
        outputs=(data,),
    )  # fmt: skip
    assert family_of(captured) == family_of(measured) == "recurrent"
    one, other = shapes_of("recurrent", [captured]), shapes_of("recurrent", [measured])
    assert one.names == other.names == ["rnn.bwd"]
    assert one.sizes.tolist() == other.sizes.tolist() == [[10, 4, 64, 64, 4, 4]]


@pytest.mark.parametrize(("dims_qk", "dims_v", "family"), [(128, 128, "attention"), (192, 128, None), (64, 128, None)])
def test_attention_whose_queries_are_not_as_wide_as_its_values_is_left_to_physics(
    dims_qk: int, dims_v: int, family: str | None
) -> None:
    q, v = (TensorSpec((2, 16, 128, dims), DType.BF16) for dims in (dims_qk, dims_v))
    forward = Operator(name="attention", kind=OpKind.ATTENTION, phase=Phase.FORWARD, inputs=(q, q, v), outputs=(v,))
    assert family_of(forward) == family
    backward = replace(forward, name="attention_backward", phase=Phase.BACKWARD, inputs=(v, q, q, v), outputs=(q, q, v))
    assert family_of(backward) == family


def test_moving_sizes_into_a_range_leaves_the_rest() -> None:
    shapes = shapes_of("product", [gemm(512, 768, 1024)])
    low, high = np.array([1.0, 600, 1, 1, 1, 1]), np.array([1.0, 1e4, 700, 1e4, 4, 4])
    moved = shapes.within(low, high)
    assert moved.sizes[0].tolist() == [1, 600, 700, 1024, 2, 2]
    assert moved.details == shapes.details


# Laws


@st.composite
def growing(draw: st.DrawFn) -> tuple[str, list[float], int, float]:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    names = FAMILIES[family].sizes
    sizes = [draw(st.floats(0.01, 1.0) if name in ("share", "back") else st.floats(1.0, 1e5)) for name in names]
    return family, sizes, draw(st.integers(0, len(names) - 1)), draw(st.floats(1.0, 100.0))


@given(growing())
def test_the_roofline_never_falls_when_a_size_grows(case: tuple[str, list[float], int, float]) -> None:
    family, sizes, place, factor = case
    larger = [s * factor if i == place else s for i, s in enumerate(sizes)]
    before, after = (roofline(shape(family, each), RATES)[0] for each in (sizes, larger))
    assert after >= before * (1 - 1e-12)


@given(st.integers(1, 1 << 16), st.integers(1, 1 << 16), st.integers(1, 1 << 16))
def test_fills_are_shares(m: int, n: int, k: int) -> None:
    tiles = features(shape("product", [1, m, n, k, 2, 2]), RATES).tiles[0]
    fills = tiles[:, [TILE_CHANNELS.index("wave_fill"), TILE_CHANNELS.index("tile_fill")]]
    assert (fills > 0).all()
    assert (fills <= 1).all()


def test_dtypes_decide_bytes() -> None:
    whole = shapes_of("product", [table_row("gemm", "fwd", "fp8", 1, 64, 64, 64)])
    assert whole.sizes[0, -2:].tolist() == [DType.FP8.nbytes, DType.BF16.nbytes]
