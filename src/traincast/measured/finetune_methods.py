"""Adapter methods as data: what each runs beside every adapted layer, compared with LoRA.

All methods are forecast by one mechanism: the low-rank adapter of as many trained parameters as the row states, and
the extra kernels listed here. A kernel's size is that of the layer's weight [inputs × outputs] or of its result [tokens
× outputs]. Kernels are those of the PEFT library, in fp32 unless said otherwise; backward runs about as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a method runs for each adapted layer, and what it keeps for backward.

    ``base`` is ``lora`` (an adapter at each target), ``scale`` (a lighter one: results are scaled, nothing is cast to
    fp32), ``norms`` (norm weights are trained), ``layers`` (the last layers are trained) or ``prompt`` (the input is
    lengthened, nothing beside the layers).
    ``products``: products of the input with a weight made on the fly. ``weight``, ``tokens``: passes over tensors of
    the size of the weight and of the result. ``small``: kernels on tensors too small to count. ``kept_weights``,
    ``kept_tokens``: tensors of these sizes that wait for backward. ``says`` explains the figures.
    """

    says: str
    base: Literal["lora", "scale", "norms", "layers", "prompt"] = "lora"
    products: int = 0
    weight: int = 0
    tokens: int = 0
    small: int = 0
    kept_weights: int = 0
    kept_tokens: int = 0


LORA: Final = Method(says="two products of low rank")
METHODS: Final[dict[str, Method]] = {
    "lora": LORA,
    "rslora": LORA,
    "pissa": LORA,
    "olora": LORA,
    "eva": LORA,
    "corda": LORA,
    "loftq": LORA,
    "dora": Method(says="norms of W + B·A scale the result", weight=1, tokens=3, kept_tokens=2, small=4),
    "adalora": Method(says="a diagonal between A and B, and an orthogonality loss on both", tokens=1, small=14),
    "delora": Method(says="norms of A, B and W", tokens=1, small=12),
    "bdlora": Method(says="block-diagonal products", small=8),
    "gralora": Method(says="blocks of A and B, their results exchanged", tokens=2, small=6),
    "glora": Method(says="scales and shifts of weight and input", tokens=1, small=10),
    "vera": Method(says="two frozen random products with trained scales", tokens=1, small=4),
    "pvera": Method(says="as VeRA, with sampled scales", tokens=1, small=8),
    "vblora": Method(says="A and B put together from a bank of vectors by top-k", small=24),
    "randlora": Method(says="many random bases, joined to one weight each", weight=6, small=16, kept_weights=1),
    "unilora": Method(says="A and B projected from one vector", small=8),
    "tinylora": Method(says="a frozen decomposition with a few trained numbers", small=4),
    "lily": Method(says="shared B's, mixed by a router", tokens=2, small=8),
    "c3a": Method(says="block-circular convolution by Fourier transforms", tokens=6, small=8),
    "road": Method(says="pairs of results rotated", base="scale", tokens=5, kept_tokens=2),
    "ia3": Method(says="results or inputs scaled by a vector", base="scale", tokens=1, kept_tokens=1),
    "beft": Method(says="a trained bias", base="scale"),
    "bone": Method(says="the input summed over blocks, times a small matrix", base="scale", tokens=1, small=3),
    "miss": Method(says="the input summed over blocks, times a small matrix", base="scale", tokens=1, small=3),
    "bat": Method(says="blocks of the weight times small matrices", products=1, weight=2, kept_weights=2),
    "loha": Method(says="the Hadamard product of two low-rank weights", products=1, weight=3, kept_weights=1),
    "lokr": Method(says="a Kronecker product as weight", products=1, weight=1, kept_weights=1, small=2),
    "hira": Method(says="W times a low-rank weight, element by element", products=1, weight=2, kept_weights=1),
    "peanut": Method(says="a small network on the weight", products=1, weight=2, kept_weights=2),
    "fourierft": Method(says="a weight by an inverse Fourier transform", products=1, weight=6, kept_weights=1),
    "waveft": Method(says="a weight by an inverse wavelet transform", products=1, weight=10, kept_weights=2, small=10),
    "frod": Method(says="sparse rotations of a shared decomposition", products=1, weight=8, kept_weights=1, small=12),
    "shira": Method(says="trained elements scattered into the weight", base="scale", weight=1, small=2),
    "oft": Method(says="the input rotated by orthogonal blocks (Neumann series)", tokens=1, small=20),
    "boft": Method(says="butterfly rotations of W by linear solvers", products=1, weight=6, small=400, kept_weights=1),
    "psoft": Method(says="a rotation in a subspace of the weight", tokens=2, small=24),
    "deft": Method(says="the weight's subspace replaced", tokens=2, small=6),
    "osf": Method(says="the weight split into two decompositions, gradients projected", weight=4, kept_weights=1),
    "adamss": Method(says="dozens of small clustered adapters in turn", small=450),
    "ln_tuning": Method(says="weights of norms", base="norms"),
    "freeze": Method(says="the last two layers", base="layers"),
    "bitfit": Method(says="biases", base="norms"),
    "trainable_tokens": Method(says="a few rows of the embedding", base="prompt"),
    "prompt_tuning": Method(says="trained tokens in front of the input", base="prompt"),
    "p_tuning": Method(says="tokens in front of the input, made by a small network", base="prompt"),
    "prefix_tuning": Method(says="trained keys and values in front of those of the input", base="prompt"),
    "adaption_prompt": Method(says="a second attention to a few trained tokens", base="scale", tokens=2, small=10),
}
"""Methods by the name that PEFT gives them."""
