"""How the loss of a language model is computed from its logits, by far the largest tensors of a small batch.

Frameworks name the same four ways differently:

- ``plain``: PyTorch's ``cross_entropy`` on logits in fp32. Log-softmax and its gradient are fp32 tensors of that size.
- ``fused``: one kernel reads the logits in 16 bits and overwrites them with their gradient (``cross_entropy`` of
  Liger, Unsloth, FlashAttention and Apex).
- ``chunked``: the logits stay in 16 bits and are converted to fp32 in eight pieces, one after the other (torchtune's
  ``CEWithChunkedOutputLoss``).
- ``linear``: the projection to the vocabulary, the loss and both gradients are computed piece by piece, so that the
  logits never exist as a whole (Liger's ``fused_linear_cross_entropy``, torchtune's ``LinearCrossEntropyLoss``, Cut
  Cross-Entropy, arXiv:2411.09009).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from traincast.errors import UnknownNameError
from traincast.strategy.runtime import Runtime

LossName: TypeAlias = Literal["plain", "fused", "chunked", "linear"]
_PIECES: Final = 8
"""Pieces of a loss in pieces: the default of torchtune. Liger has more, about vocabulary / hidden size."""
_IN_FP32: Final = 2.0
"""Copies in fp32 that a plain loss holds beside the one that it keeps: log-softmax and gradient."""

LOSSES: Final[dict[LossName, Mapping[str, Any]]] = {
    "plain": {"logits_copies": _IN_FP32, "loss_chunks": 0, "half_logits": False},
    "fused": {"logits_copies": 0.0, "loss_chunks": 0, "half_logits": True},
    "chunked": {"logits_copies": _IN_FP32, "loss_chunks": _PIECES, "half_logits": True},
    "linear": {"logits_copies": 0.0, "loss_chunks": _PIECES, "half_logits": False},
}
"""Fields of :class:`traincast.strategy.runtime.MemoryTable` that each loss sets."""


def with_loss(runtime: Runtime, name: str) -> Runtime:
    """Return ``runtime`` with the loss called ``name``; raises :class:`UnknownNameError` if there is none."""
    found = next((known for known in get_args(LossName) if known == name), None)
    if found is None:
        raise UnknownNameError("loss", name, LOSSES)
    others = tuple(fusion for fusion in runtime.kernels.fusions if fusion != "loss")
    fusions = others if found == "plain" else (*others, "loss")
    return runtime.patched(memory=LOSSES[found], kernels={"fusions": fusions})
