"""The kind of each PyTorch operator, and the operators that cost nothing.

Names are those of ``torch.ops.aten`` without overload. Views and metadata cost nothing and are left
out of the graph; an operator that is in neither table counts as element-wise, with a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from traincast.graph.operator import OpKind, Scalar

if TYPE_CHECKING:
    import torch

FREE: Final = frozenset(
    """
    view _unsafe_view reshape t transpose permute expand expand_as unsqueeze squeeze slice select split
    split_with_sizes chunk unbind narrow alias detach detach_ as_strided diagonal movedim swapaxes unflatten
    flatten view_as _reshape_alias lift_fresh lift_fresh_copy unfold real imag empty empty_like new_empty
    empty_strided new_empty_strided is_same_size size stride numel dim sym_size sym_stride sym_numel
    sym_storage_offset _local_scalar_dense _fused_sdp_choice record_stream set_ resize_ _assert_async
    _assert_scalar is_pinned squeeze_ unsqueeze_ t_ transpose_ prelu_kernel_view arange scalar_tensor
    _version split_copy
    """.split()
)
"""Views, shapes and allocations: no kernel runs."""

_NAMES: Final[dict[OpKind, str]] = {
    OpKind.GEMM: "mm addmm linear addmv mv _scaled_mm",
    OpKind.BATCHED_GEMM: "bmm baddbmm index_scores",
    OpKind.GROUPED_GEMM: "_grouped_mm grouped_mm grouped_mm_backward _scaled_grouped_mm",
    OpKind.ATTENTION: (
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_fused_attention_overrideable_backward attention attention_backward"
    ),
    OpKind.CONV: "convolution convolution_backward _convolution mkldnn_convolution cudnn_convolution",
    OpKind.RNN: (
        "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward "
        "gru_layer gru_layer_backward rnn_layer rnn_layer_backward"
    ),
    OpKind.SCAN: (
        "ssd_scan ssd_scan_backward selective_scan selective_scan_backward gated_delta_rule gated_delta_rule_backward"
    ),
    OpKind.BATCH_NORM: (
        "native_batch_norm native_batch_norm_backward _native_batch_norm_legit cudnn_batch_norm "
        "_native_batch_norm_legit_no_training _batch_norm_with_update batch_norm_backward "
        "cudnn_batch_norm_backward _native_batch_norm_legit_functional"
    ),
    OpKind.LAYER_NORM: (
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "_fused_rms_norm _fused_rms_norm_backward rms_norm rms_norm_backward gated_rms_norm gated_rms_norm_backward"
    ),
    OpKind.SOFTMAX: ("_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax logsumexp"),
    OpKind.LOSS: (
        "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward "
        "smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy "
        "binary_cross_entropy_backward binary_cross_entropy_with_logits cross_entropy_loss"
    ),
    OpKind.ACTIVATION: (
        "relu relu_ threshold_backward gelu gelu_backward silu silu_ silu_backward sigmoid sigmoid_ "
        "sigmoid_backward tanh tanh_ tanh_backward hardtanh hardtanh_ hardtanh_backward hardswish hardswish_ "
        "hardswish_backward hardsigmoid hardsigmoid_ hardsigmoid_backward leaky_relu leaky_relu_ "
        "leaky_relu_backward elu elu_backward softplus softplus_backward mish mish_backward glu glu_backward "
        "relu6 _prelu_kernel _prelu_kernel_backward log_sigmoid_forward log_sigmoid_backward elu_ mish_ "
        "celu celu_ selu selu_ rrelu_with_noise rrelu_with_noise_backward"
    ),
    OpKind.DROPOUT: (
        "native_dropout native_dropout_backward bernoulli bernoulli_ rand rand_like randn dropout randn_like randint "
        "randint_like uniform_ normal_ exponential_ random_ multinomial randperm"
    ),
    OpKind.POOL: (
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward "
        "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward "
        "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward max_pool2d"
    ),
    OpKind.REDUCTION: (
        "sum mean amax amin max min std var var_mean norm linalg_vector_norm prod any all argmax argmin cumsum "
        "cumprod count_nonzero histc bincount logcumsumexp _is_all_true _is_any_true median cummax cummin aminmax"
    ),
    OpKind.EMBEDDING: (
        "embedding embedding_dense_backward _embedding_bag _embedding_bag_dense_backward _embedding_bag_backward "
        "table_lookup table_lookup_backward"
    ),
    OpKind.GATHER: (
        "index index_put index_put_ _unsafe_index _unsafe_index_put index_select index_select_backward gather "
        "gather_backward scatter scatter_ scatter_add scatter_add_ index_add index_add_ sort argsort topk "
        "masked_select nonzero take put_ searchsorted roll flip tril triu tril_ triu_ one_hot scatter_reduce "
        "slice_scatter select_scatter index_copy index_copy_ value_selecting_reduction_backward repeat_interleave"
    ),
    OpKind.COPY: (
        "cat stack clone copy_ copy _to_copy contiguous constant_pad_nd reflection_pad2d reflection_pad1d zeros "
        "zeros_like ones ones_like full full_like new_zeros new_ones new_full fill_ zero_ slice_backward "
        "select_backward repeat pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im as_strided_scatter "
        "unfold_backward reflection_pad2d_backward fill split_with_sizes_copy diagonal_backward eye diag_embed "
        "reflection_pad1d_backward replication_pad1d replication_pad1d_backward replication_pad2d "
        "replication_pad2d_backward linspace"
    ),
    OpKind.RESIZE: (
        "upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward "
        "upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward "
        "upsample_bicubic2d upsample_bicubic2d_backward _upsample_bilinear2d_aa grid_sampler_2d "
        "grid_sampler_2d_backward"
    ),
    OpKind.ELEMENTWISE: (
        "add add_ sub sub_ rsub mul mul_ div div_ neg neg_ pow pow_ sqrt sqrt_ rsqrt rsqrt_ exp exp_ log log_ "
        "log1p sin cos tan abs sgn sign square square_ reciprocal maximum minimum clamp clamp_ clamp_min "
        "clamp_max where masked_fill masked_fill_ addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ eq ne lt le gt "
        "ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not logical_xor floor ceil round "
        "trunc remainder fmod floor_divide erf isnan isinf isfinite nan_to_num complex view_as_complex "
        "view_as_real polar conj_physical _conj bitwise_xor __and__ __or__ fmax fmin sigmoid_grad expm1 "
        "rotary rotary_backward causal_conv1d causal_conv1d_backward atan2 copysign hypot logit erfinv "
        "special_erfcx prelu digamma lgamma stream_weights stream_weights_backward stream_collapse "
        "stream_collapse_backward stream_expand stream_expand_backward logical_and_ logical_or_ logical_not_ "
        "logical_xor_ bitwise_and_ bitwise_or_ bitwise_not_ maximum_ minimum_ abs_ sign_ floor_ ceil_ round_ "
        "clamp_min_ clamp_max_ reciprocal_ remainder_ log2 log10 exp2 asin acos atan sinh cosh xlogy eq_ ne_ lt_ le_ "
        "gt_ ge_ nan_to_num_ erf_ erfc log1p_ expm1_ heaviside asinh _weight_norm_interface "
        "_weight_norm_interface_backward"
    ),
}

KIND_OF: Final[dict[str, OpKind]] = {name: kind for kind, text in _NAMES.items() for name in text.split()}
"""Kind of every known operator that runs a kernel."""


def describe(
    name: str, args: tuple[Any, ...], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> tuple[OpKind, list[torch.Tensor], dict[str, Scalar]]:
    """Returns the kind of an operator, its inputs in canonical order, and the attributes that its cost depends on."""
    attributes: dict[str, Scalar] = {}
    kind = KIND_OF.get(name)
    if kind is None:
        kind = OpKind.ELEMENTWISE
        attributes["unknown"] = True
    match kind:
        case OpKind.GEMM if name in ("addmm", "addmv"):
            inputs = [inputs[1], inputs[2], inputs[0]]
        case OpKind.BATCHED_GEMM if name == "baddbmm":
            inputs = [inputs[1], inputs[2], inputs[0]]
        case OpKind.ATTENTION:
            flags = [a for a in args if isinstance(a, bool)]
            attributes["causal"] = bool(flags[0]) if flags else False
            inputs = [inputs[0], inputs[4], *inputs[1:4]] if name.endswith("backward") else inputs[:3]
        case OpKind.CONV:
            backward = name.endswith("backward")
            offset = 1 if backward else 0
            weight = inputs[1 + offset]
            stride, transposed, groups = args[3 + offset], args[6 + offset], args[8 + offset]
            attributes |= {
                "stride": int(stride[0]),
                "kernel": int(weight.shape[-1]),
                "groups": int(groups),
                "transposed": bool(transposed),
            }
            if backward:
                attributes["products"] = int(args[10][0]) + int(args[10][1])
            if groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1:
                kind = OpKind.DEPTHWISE_CONV
        case OpKind.SCAN:
            attributes |= dict.fromkeys(("chunk",) if isinstance(args[-1], int) else (), args[-1])
        case OpKind.LAYER_NORM | OpKind.BATCH_NORM if name.endswith("backward"):
            inputs = inputs[:3]
        case OpKind.GATHER | OpKind.COPY if name in ("copy_", "index_put_", "scatter_add_", "index_add_"):
            inputs = inputs[1:] or inputs
        case _:
            pass
    return kind, inputs, attributes
