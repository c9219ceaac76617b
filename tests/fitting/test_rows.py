"""Rows of operator tables as operators: one name for each operation, every parameter kept, nonsense refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from traincast import AnalyticalCostModel, Operator, TensorSpec
from traincast.cluster import find_device
from traincast.estimate.operators.features import family_of, shapes_of
from traincast.fitting.rows.operator import RowConfig, canonical_name, key_of, operator_of
from traincast.fitting.rows.parts import parts_of
from traincast.graph import DType, OpKind, Phase
from traincast.tables import RowError
from traincast.validating.operators import one_device

CONV = {
    "batchsize": 6, "matsize": 11, "kernelsize": 3, "channels_in": 4, "channels_out": 8, "strides": 2, "padding": 1,
    "use_bias": 0, "optimizer": "RMSProp", "act": "relu",
}  # fmt: skip
MOE = {
    "num_tokens": 128, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": 2,
    "moe_ep_size": 4, "distribution": "power_law_1.2",
}  # fmt: skip
RNN = {"Hidden_Units": 8, "N": 2, "Timesteps": 3}
HEADS = {"mp": 2, "b": 4, "h": 16, "l": 1024, "dim": 2048}


def made(
    op: str, params: dict[str, Any] | None = None, *, phase: str = "fwd", dtype: str = "fp16", **dims: int
) -> Operator:
    return operator_of(RowConfig(op, phase, dtype, params=json.dumps(params) if params else None, **dims))


def shapes(op: Operator) -> list[tuple[int, ...]]:
    return [t.shape for t in (*op.inputs, *op.outputs)]


def test_a_gemm_has_the_shapes_of_its_product() -> None:
    op = made("gemm", m=2, n=3, k=4, b=1, dtype="bf16")
    assert (op.name, op.kind, op.phase) == ("gemm.fwd", OpKind.GEMM, Phase.FORWARD)
    assert shapes(op) == [(2, 4), (4, 3), (2, 3)]
    assert parts_of(op) == (op,)


def test_a_batch_of_gemms_has_a_leading_dim() -> None:
    assert shapes(made("bmm", b=7, m=2, n=3, k=4)) == [(7, 2, 4), (7, 4, 3), (7, 2, 3)]


def test_a_narrow_gemm_writes_bf16_and_a_stated_dtype_is_kept() -> None:
    assert made("gemm", m=2, n=3, k=4, dtype="nvfp4").outputs[0].dtype is DType.BF16
    assert (
        made("gemm", {"out_dtype": "fp32", "layout": "NT"}, m=2, n=3, k=4, dtype="bf16").outputs[0].dtype is DType.FP32
    )


def test_the_backward_of_a_gemm_is_both_gradients_of_the_forwards_shapes() -> None:
    op = made("gemm", m=2, n=3, k=4, phase="bwd")
    assert (op.name, op.phase, shapes(op)) == ("gemm.bwd", Phase.BACKWARD, [(2, 4), (4, 3), (2, 3)])
    assert [shapes(part)[-1] for part in parts_of(op)] == [(2, 4), (4, 3)]
    assert sum(part.flops for part in parts_of(op)) == 2 * op.flops


def test_a_training_step_of_a_layer_is_forward_gradients_and_update() -> None:
    op = made("gemm_bias_act", {"optimizer": "Adam", "act": "relu"}, m=2, n=3, k=4, b=1, phase="fwd+bwd+update")
    assert op.attributes == {"bias": True, "act": "relu", "optimizer": "adam"}
    assert [part.kind for part in parts_of(op)] == [OpKind.GEMM] * 3 + [OpKind.OPTIMIZER]


@pytest.mark.parametrize(("op", "params", "causal"), [
    ("flash_atten", HEADS, False),
    ("flash_attn_causal", {"batch": 4, "seq": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128}, True),
    ("flash_attn_full", {"batch": 4, "seq": 1024, "heads": 8, "head_dim": 128}, False),
])  # fmt: skip
def test_attention_has_one_name_in_all_tables(op: str, params: dict[str, Any], causal: bool) -> None:
    made_op = made(op, params)
    assert made_op.name == "attention.fwd"
    assert made_op.attributes == {"causal": causal}
    assert shapes(made_op) == [(4, 8, 1024, 128)] * 4


def test_the_same_attention_of_two_tables_is_one_configuration() -> None:
    other = {"batch": 4, "seq": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128}
    assert key_of(made("flash_atten", HEADS)) == key_of(made("flash_attn_full", other))


def test_grouped_queries_keep_their_own_number_of_heads() -> None:
    op = made("flash_attn_causal", {"batch": 1, "seq": 16, "heads": 8, "kv_heads": 2, "head_dim": 64})
    assert shapes(op)[:2] == [(1, 8, 16, 64), (1, 2, 16, 64)]


def test_the_backward_of_attention_costs_two_and_a_half_forwards() -> None:
    forward, backward = made("flash_atten", HEADS), made("flash_atten", HEADS, phase="bwd")
    assert parts_of(backward)[0].flops == 2.5 * forward.flops


def test_a_mixture_of_experts_keeps_all_its_parameters() -> None:
    op = made("moe_mlp", MOE, dtype="bf16")
    assert (op.name, op.kind) == ("moe_mlp.fwd", OpKind.GROUPED_GEMM)
    assert shapes(op) == [(256, 2048), (32, 2048, 768), (256, 2048)]
    assert op.attributes == {"num_tokens": 128, "topk": 8, "num_experts": 128, "ep": 4, "tp": 2, "skew": 1.2}
    assert [part.kind for part in parts_of(op)] == [OpKind.GROUPED_GEMM, OpKind.ACTIVATION, OpKind.GROUPED_GEMM]


def test_balanced_experts_have_no_skew() -> None:
    assert made("moe_mlp", {**MOE, "distribution": "balanced"}).attributes["skew"] == 0.0


def test_a_convolution_that_keeps_its_size_pads_as_much_as_it_must() -> None:
    op = made("conv2d", CONV, phase="fwd+bwd+update", dtype="fp32")
    assert shapes(op) == [(6, 4, 11, 11), (8, 4, 3, 3), (6, 8, 6, 6)]
    assert op.attributes == {
        "data_format": "nhwc", "stride": 2, "padding": 1, "bias": False, "act": "relu", "optimizer": "rmsprop",
    }  # fmt: skip
    assert [part.kind for part in parts_of(op)][:2] == [OpKind.CONV, OpKind.CONV]
    assert parts_of(op)[-1].kind is OpKind.OPTIMIZER


def test_a_convolution_with_explicit_padding_and_uneven_sides() -> None:
    params = {"w": 700, "h": 161, "c_in": 1, "batch": 4, "c_out": 32, "kw": 20, "kh": 5, "pad_w": 0, "pad_h": 1,
              "stride_w": 2, "stride_h": 1}  # fmt: skip
    op = made("conv2d", params, phase="bwd_data")
    assert op.outputs[0].shape == (4, 32, 159, 341)
    assert op.attributes["stride_w"] == 2
    assert op.attributes["padding_w"] == 0
    assert parts_of(op)[0].attributes["transposed"] is True


@pytest.mark.parametrize(("op", "params", "name", "shape"), [
    ("layernorm", {"b": 2, "l": 8, "dim": 16}, "layernorm", (2, 8, 16)),
    ("ln", {"rows": 16, "cols": 16}, "layernorm", (16, 16)),
    ("RMSlayernorm", {"b": 2, "l": 8, "dim": 16}, "rmsnorm", (2, 8, 16)),
    ("res_add", {"b": 2, "l": 8, "dim": 16}, "add", (2, 8, 16)),
    ("gelu", {"mp": 2, "b": 2, "l": 8, "dim": 16}, "gelu", (2, 8, 32)),
    ("softmax", {"mp": 2, "b": 2, "h": 4, "l": 8}, "softmax", (2, 2, 8, 8)),
    ("ScaledUpperTriangMaskedSoftmax", {"mp": 1, "b": 2, "h": 4, "l": 8}, "masked_softmax", (2, 4, 8, 8)),
    ("fillmask", {"mp": 2, "b": 2, "h": 4, "l": 8, "dim": 64}, "masked_fill", (2, 2, 8, 8)),
    ("RoPE", HEADS, "rope", (4, 8, 1024, 128)),
])  # fmt: skip
@pytest.mark.parametrize("phase", ["fwd", "bwd"])
def test_row_wise_operators(op: str, params: dict[str, Any], name: str, shape: tuple[int, ...], phase: str) -> None:
    found = made(op, params, phase=phase)
    assert found.name == f"{name}.{phase}"
    assert set(shapes(found)) == {shape}
    assert canonical_name(op) == name


def test_elementwise_operators_read_one_tensor_or_two() -> None:
    params = {"rows": 3, "cols": 5}
    assert len(made("add", params).inputs) == 2
    assert len(made("addu", params).inputs) == 1
    assert made("addu", params).name == made("add", params).name == "add.fwd"
    assert key_of(made("addu", params)) != key_of(made("add", params))


def test_the_vocabulary_is_padded_for_the_ranks_that_share_it() -> None:
    assert made("embedding", {"mp": 1, "b": 2, "l": 8, "dim": 16}).inputs[0].shape == (50304, 16)
    assert made("parallel_cross_entropy_128", {"mp": 8, "b": 2, "l": 8}).inputs[0].shape == (2, 8, 6400)


def test_optimizer_stages_count_their_weights() -> None:
    params = {"mp": 2, "dim": 64, "encoders": 3}
    middle = made("middleStage_optimizer", params, phase="update")
    first = made("firstStage_optimizer", params, phase="update")
    assert (middle.name, middle.phase) == ("optimizer.update", Phase.OPTIMIZER)
    assert middle.inputs[0].shape == (3 * 12 * 64 * 64 // 2,)
    assert first.inputs[0].numel > middle.inputs[0].numel
    assert key_of(first) != key_of(made("lastStage_optimizer", params, phase="update"))


def test_nodes_of_a_traced_graph_are_known_by_function_or_module() -> None:
    linear = {"model": "m-train-1", "in": "[[8, 512, 1024]]", "out": "(8, 512, 4096)"}
    op = made("graph:bert.encoder.layer.0.intermediate.dense", linear, phase="bwd", dtype="fp32")
    assert (op.name, shapes(op)) == ("gemm_bias.bwd", [(4096, 1024), (1024, 4096), (4096, 4096)])
    product = {"in": "[[8, 16, 512, 64], [8, 16, 64, 512]]", "out": "(8, 16, 512, 512)"}
    assert shapes(made("graph:matmul", product))[0] == (128, 512, 64)
    cut = made("graph:bert.encoder.layer.0.attention.output.La", {"in": "[[2, 4]]", "out": "(2, 4)"})
    assert cut.name == "layernorm.fwd"


def test_rows_of_the_profiler_keep_their_operator_and_its_name() -> None:
    params = {
        "name": "aten.native_layer_norm", "attributes": {"module": "LayerNorm", "eps": 1e-5},
        "inputs": [[[2, 8, 16], "bf16"], {"shape": [16], "dtype": "fp32"}], "outputs": [[[2, 8, 16], "bf16"]],
    }  # fmt: skip
    op = made("layer_norm", params, phase="bwd", dtype="bf16")
    assert (op.name, op.kind, op.phase) == ("aten.native_layer_norm", OpKind.LAYER_NORM, Phase.BACKWARD)
    assert op.inputs == (TensorSpec((2, 8, 16), DType.BF16), TensorSpec((16,), DType.FP32))
    assert parts_of(op) == (op,)
    params["attributes"] = {"module": "Other", "eps": 1e-5}
    assert key_of(made("layer_norm", params, phase="bwd", dtype="bf16")) == key_of(op)


def test_profiled_recurrent_layers_have_steps_first_and_samples_second() -> None:
    tensors = [[[50, 8, 256], "fp32"], [[2048, 256], "fp32"], [[2048, 512], "fp32"]]
    params = {"name": "mkldnn_rnn_layer", "attributes": {}, "inputs": tensors, "outputs": [[[50, 8, 512], "fp32"]]}
    op = made("rnn", params, phase="fwd", dtype="fp32")
    assert [tensor.batch_dim for tensor in op.inputs] == [1, None, None]
    steps, batch, inner, hidden, gates, _ = shapes_of("recurrent", [op]).sizes[0].tolist()
    assert (steps, batch, inner, hidden, gates) == (50, 8, 256, 512, 4)


def test_profiled_gradients_of_convolutions_are_told_apart() -> None:
    tensors = [[[2, 16, 8, 8], "fp32"], [[32, 16, 3, 3], "fp32"]]
    for name in ("conv2d.bwd_data", "conv2d.bwd_weight"):
        params = {"name": name, "attributes": {"stride": 1}, "inputs": tensors, "outputs": [[[2, 32, 8, 8], "fp32"]]}
        op = made("conv", params, phase="bwd", dtype="fp32")
        assert (family_of(op), shapes_of("conv", [op]).names) == ("conv", [name])
        assert op.flops == 2 * 2 * 32 * 8 * 8 * 16 * 9
        assert len(parts_of(op)) == 1


@pytest.mark.parametrize(("config", "reason"), [
    (RowConfig("warp_drive", "fwd", "fp16"), "unknown operator 'warp_drive'"),
    (RowConfig("gemm", "sideways", "fp16", 1, 2, 3, 4), "unknown phase 'sideways'"),
    (RowConfig("gemm", "update", "fp16", 1, 2, 3, 4), "phase 'update'"),
    (RowConfig("gemm", "fwd", "fp17", 1, 2, 3, 4), "unknown dtype 'fp17'"),
    (RowConfig("gemm", "fwd", "fp16", 1, 0, 3, 4), "m is not a positive whole number"),
    (RowConfig("gemm", "fwd", "fp16", 1, 2, None, 4), "n is not stated"),
    (RowConfig("gemm", "fwd", "fp16", -1, 2, 3, 4), "b is not a positive whole number"),
    (RowConfig("softmax", "fwd", "fp16", params="{"), "not valid JSON"),
    (RowConfig("softmax", "fwd", "fp16", params="[1]"), "not a JSON object"),
    (RowConfig("softmax", "fwd", "fp16", params='{"rows": NaN, "cols": 3}'), "rows is not a positive whole number"),
    (RowConfig("softmax", "fwd", "fp16", params='{"rows": "many", "cols": 3}'), "rows is not a number"),
    (RowConfig("RoPE", "fwd", "fp16", params='{"mp": 8, "b": 1, "h": 4, "l": 8, "dim": 64}'), "mp is larger than h"),
    (RowConfig("RoPE", "fwd", "fp16", params='{"mp": 3, "b": 1, "h": 4, "l": 8, "dim": 64}'), "h is not a multiple"),
    (RowConfig("moe_mlp", "fwd", "bf16", params=json.dumps({**MOE, "moe_ep_size": 256})), "larger than num_experts"),
    (RowConfig("moe_mlp", "fwd", "bf16", params=json.dumps({**MOE, "distribution": "odd"})), "unknown distribution"),
    (RowConfig("conv2d", "fwd", "fp32", params=json.dumps({**CONV, "kernelsize": 12, "padding": 0})), "larger than"),
    (RowConfig("graph:size", "fwd", "fp32", params='{"in": "[[2, 3]]", "out": "(1,)"}'), "not a known operator"),
    (RowConfig("graph:add", "fwd", "fp32", params='{"in": "[[1]]", "out": "(1,)"}'), "not a tensor"),
    (RowConfig("graph:dropout", "fwd", "fp32", params='{"model": "x-inf-1", "in": "[[2]]", "out": "(2,)"}'), "outside"),
    (RowConfig("gemm", "fwd", "fp16", params='{"inputs": [[[2, 3], "fp16"]]}'), "kind gemm cannot have these tensors"),
    (RowConfig("warp", "fwd", "fp16", params='{"inputs": []}'), "unknown operator kind 'warp'"),
    (RowConfig("gemm", "fwd", "fp16", params='{"inputs": 3}'), "inputs is not a list"),
])  # fmt: skip
def test_a_row_that_is_not_an_operator_is_refused_with_the_reason(config: RowConfig, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        operator_of(config)
    assert reason in str(caught.value)


def test_the_same_work_written_in_two_ways_is_one_configuration() -> None:
    a = made("layernorm", {"b": 2, "l": 8, "dim": 16})
    assert key_of(a) == key_of(made("ln", {"rows": 16, "cols": 16}))
    assert key_of(a) != key_of(made("ln", {"rows": 8, "cols": 32}))
    assert key_of(made("relu", {"rows": 8, "cols": 32})) == key_of(made("relu", {"rows": 32, "cols": 8}))
    assert key_of(a) != key_of(made("layernorm", {"b": 2, "l": 8, "dim": 16}, phase="bwd"))
    assert key_of(a) != key_of(made("layernorm", {"b": 2, "l": 8, "dim": 16}, dtype="fp32"))


ALL = [
    *(("gemm_bias_act", phase, None) for phase in ("fwd", "bwd", "bwd_data", "bwd_weight", "fwd+bwd+update")),
    *(("conv2d", phase, CONV) for phase in ("fwd", "bwd", "bwd_data", "bwd_weight", "fwd+bwd+update")),
    *(("grouped_gemm", phase, None) for phase in ("fwd", "bwd_grad_act", "bwd_grad_w")),
    *(("rnn:LSTM", phase, RNN) for phase in ("fwd", "bwd", "bwd_data", "bwd_weight")),
    *(
        (op, phase, HEADS)
        for op in "bmm baddbmm RoPE flash_atten fillmask softmax embedding parallel_cross_entropy gelu".split()
        for phase in ("fwd", "bwd")
    ),
    ("moe_mlp", "fwd", MOE),
    ("optimizer", "update", {"num_layers": 2, "hidden_size": 8, "param_tensors": 3, "params": 1000}),
]


@pytest.mark.parametrize(("op", "phase", "params"), ALL)
def test_all_parts_can_be_estimated(op: str, phase: str, params: dict[str, Any] | None) -> None:
    found = made(op, params, phase=phase, b=2, m=3, n=4, k=5)
    cluster = one_device(find_device("A100"))
    assert (AnalyticalCostModel().estimate(parts_of(found), cluster).seconds > 0).all()
