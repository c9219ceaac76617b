"""The vocabulary of operators: the kind of every operator that Traincast knows, whoever names it.

An operator has one name per source: PyTorch's dispatcher (names of ``torch.ops.aten`` without overload, and kernels of
Traincast's own), JAX's primitives, a profiler's trace, and tables of measured operators. :func:`kind_of` gives the kind
of a name. A kind says what an operator does to the hardware; kinds that share a cost formula have one
:attr:`OpKind.formula`. The FLOPs and bytes of each kind are in :mod:`traincast.graph.work_amount`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias

from traincast.graph.tensor import TensorSpec

Scalar: TypeAlias = int | float | str | bool


class Phase(enum.Enum):
    """When in a step an operator runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"

    __hash__ = object.__hash__  # members are unique: no need to hash their names


class OpKind(enum.Enum):
    """What an operator does to the hardware: operators of a kind share one cost formula."""

    GEMM = "gemm"  # out[m, n] = a[m, k] · b[k, n]
    BATCHED_GEMM = "batched_gemm"  # the same, `b` times
    GROUPED_GEMM = "grouped_gemm"  # one GEMM per expert, rows shared out among them
    ATTENTION = "attention"  # fused softmax(q·kᵀ)·v
    CONV = "conv"
    DEPTHWISE_CONV = "depthwise_conv"
    RNN = "rnn"  # a fused recurrent layer
    SCAN = "scan"  # a state-space or linear-attention layer, fused in chunks of the sequence
    BATCH_NORM = "batch_norm"
    LAYER_NORM = "layer_norm"  # also RMS, group and instance norm
    SOFTMAX = "softmax"
    LOSS = "loss"  # softmax cross-entropy and other criteria
    ACTIVATION = "activation"  # ReLU, GELU, SiLU …
    ELEMENTWISE = "elementwise"
    DROPOUT = "dropout"
    POOL = "pool"
    REDUCTION = "reduction"
    EMBEDDING = "embedding"
    GATHER = "gather"  # index, scatter, sort, top-k
    COPY = "copy"  # concat, transpose, cast, pad, fill
    RESIZE = "resize"  # up-sampling
    OPTIMIZER = "optimizer"

    __hash__ = object.__hash__  # members are unique: no need to hash their names

    @property
    def formula(self) -> OpKind:
        """The kind whose formula gives its time: a stack of products is a product, a depthwise convolution one."""
        return _SAME_FORMULA.get(self, self)


_SAME_FORMULA: Final = {OpKind.BATCHED_GEMM: OpKind.GEMM, OpKind.DEPTHWISE_CONV: OpKind.CONV}

LINEAR: Final = frozenset({OpKind.GEMM, OpKind.GROUPED_GEMM})
"""Kinds of linear layers: products with weights."""
CONVOLUTIONS: Final = frozenset({OpKind.CONV, OpKind.DEPTHWISE_CONV})
PRODUCTS: Final = LINEAR | CONVOLUTIONS | {OpKind.BATCHED_GEMM, OpKind.ATTENTION, OpKind.RNN}
"""Kinds that matrix units compute."""
MATRIX_KINDS: Final = PRODUCTS | {OpKind.SCAN}
"""Kinds whose FLOPs count towards model FLOPs (MFU): the products, not the point-wise rest."""
POINTWISE: Final = frozenset({OpKind.ACTIVATION, OpKind.ELEMENTWISE, OpKind.DROPOUT})
"""Kinds that compute every element of their result by itself."""

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

WRITES_ONLY: Final = frozenset(
    "zero_ fill_ fill zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full "
    "uniform_ normal_ exponential_ random_ bernoulli_".split()
)
"""Operators that fill a tensor: of their inputs they need the shape."""

JAX_VIEWS: Final = frozenset(
    """
    broadcast_in_dim reshape transpose squeeze expand_dims copy copy_p stop_gradient sharding_constraint name slice
    split optimization_barrier rev real imag device_put pvary reduce_precision
    """.split()
)
"""Primitives of JAX that run no kernel."""

_TORCH: Final[dict[OpKind, str]] = {
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

_JAX: Final[dict[OpKind, str]] = {
    OpKind.GEMM: "dot_general",
    OpKind.CONV: "conv_general_dilated",
    OpKind.GATHER: "gather scatter scatter-add scatter_add sort top_k dynamic_slice dynamic_update_slice",
    OpKind.COPY: "concatenate pad clone",
    OpKind.POOL: (
        "reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_scatter_add "
        "select_and_gather_add"
    ),
    OpKind.REDUCTION: "cumsum cumlogsumexp cumprod argmax argmin",
}
_RECORDED: Final[dict[OpKind, str]] = {
    OpKind.BATCH_NORM: "miopen_batch_norm",
    OpKind.ACTIVATION: "clamp_min clamp_min_",
}
_MEASURED: Final[dict[OpKind, str]] = {
    OpKind.GEMM: "gemm gemm_bias gemm_bias_act",
    OpKind.BATCHED_GEMM: "bmm baddbmm",
    OpKind.GROUPED_GEMM: "grouped_gemm moe_mlp",
    OpKind.ATTENTION: "attention",
    OpKind.CONV: "conv2d",
    OpKind.RNN: "rnn",
    OpKind.LAYER_NORM: "layernorm rmsnorm",
    OpKind.SOFTMAX: "softmax masked_softmax",
    OpKind.LOSS: "cross_entropy",
    OpKind.ACTIVATION: "relu gelu tanh",
    OpKind.ELEMENTWISE: "add sub mul div pow where masked_fill rope",
    OpKind.DROPOUT: "dropout",
    OpKind.EMBEDDING: "embedding",
    OpKind.OPTIMIZER: "optimizer",
}


def _by_name(names: dict[OpKind, str]) -> dict[str, OpKind]:
    return {name: kind for kind, text in names.items() for name in text.split()}


Source: TypeAlias = Literal["torch", "jax", "trace", "table"]
_KINDS: Final[dict[Source, dict[str, OpKind]]] = {
    "torch": _by_name(_TORCH),
    "jax": _by_name(_JAX),
    "trace": {**_by_name(_TORCH), **_by_name(_RECORDED)},  # a trace of a ReLU has the clamp that runs it
    "table": _by_name(_MEASURED),
}


def kind_of(name: str, *, source: Source = "torch") -> OpKind | None:
    """Returns the kind of the operator that ``source`` calls ``name``; ``None`` if it is not known or runs no kernel.

    ``jax`` names only the primitives that run as a kernel of their own.
    """
    return _KINDS[source].get(name)


def names_of(kind: OpKind) -> list[str]:
    """Returns the names that PyTorch has for operators of ``kind``."""
    return _TORCH[kind].split()


def is_backward(name: str) -> bool:
    """Whether ``name`` is that of a gradient: the name of the forward operator it differentiates, and ``backward``."""
    return name.endswith("backward")


_ALIASES: Final = {
    "_convolution": "convolution",
    "mkldnn_convolution": "convolution",
    "cudnn_convolution": "convolution",
    "miopen_convolution": "convolution",
    "cudnn_batch_norm": "native_batch_norm",
    "miopen_batch_norm": "native_batch_norm",
    "_native_batch_norm_legit": "native_batch_norm",
    "_batch_norm_with_update": "native_batch_norm",
    "cudnn_batch_norm_backward": "native_batch_norm_backward",
    "miopen_batch_norm_backward": "native_batch_norm_backward",
    "batch_norm_backward": "native_batch_norm_backward",
    "dropout": "native_dropout",
    "clamp_min": "relu",
    "max_pool2d": "max_pool2d_with_indices",
    "adaptive_avg_pool2d": "mean",
    "_unsafe_index": "index",
}
"""Operators that libraries and releases of PyTorch name otherwise, and that read and write the same tensors."""


def spelled(name: str) -> str:
    """Returns the one name of an operator that several libraries have, in place or not."""
    bare = name.removesuffix("_")
    return _ALIASES.get(bare, bare)


class Sized(Protocol):
    """What the FLOPs and bytes of an operator follow from: its kind, its tensors and its attributes."""

    @property
    def name(self) -> str:
        """Its name in the vocabulary."""

    @property
    def kind(self) -> OpKind:
        """Its kind."""

    @property
    def phase(self) -> Phase:
        """When in a step it runs."""

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient of another operator."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What it reads."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it writes."""

    @property
    def attributes(self) -> Mapping[str, Scalar]:
        """What else its cost depends on."""
