"""The table of optimizers: what each keeps per weight, what an update computes, and who runs it.

A line of :data:`OPTIMIZERS` is all that a new optimizer needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

STATE_BLOCK: Final = 256
"""States that share one constant in 8-bit optimizers (Dettmers et al. 2021, arXiv:2110.02861)."""
_BYTE: Final = 1.0 + 4.0 / STATE_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer.

    ``states`` are the tensors that it keeps per weight tensor, of the same shape. An update reads gradient, weight and
    states, writes weight and states, and computes ``flops`` per weight. One state of one weight takes ``state_bytes``
    (0: as many as the states' dtype in the precision of the step). ``paged`` states lie in managed memory, outside of
    the framework's allocator.

    ``kernel`` is the function of PyTorch that updates one tensor (``lamb``: composed of several; empty: an update
    cannot be run alone). ``torch`` is the class of ``torch.optim`` and ``arguments`` what it needs beyond the learning
    rate; if it is empty, AdamW stands in for it in steps that are really run.
    """

    states: int
    flops: float = 12.0
    state_bytes: float = 0.0
    paged: bool = False
    kernel: str = ""
    torch: str = ""
    arguments: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def ordinary(self) -> bool:
        """Whether PyTorch's own tensors hold the states, so that a module can be captured with it."""
        return not self.state_bytes and not self.paged


OPTIMIZERS: Final[dict[str, Optimizer]] = {
    "adamw": Optimizer(states=2, kernel="_fused_adamw_", torch="AdamW"),
    "adam": Optimizer(states=2, kernel="_fused_adam_", torch="Adam"),
    "lamb": Optimizer(states=2, kernel="lamb"),
    "sgd": Optimizer(states=1, kernel="_fused_sgd_", torch="SGD", arguments={"momentum": 0.9}),
    "sgd-plain": Optimizer(states=0, kernel="_fused_sgd_", torch="SGD"),
    "adamw8bit": Optimizer(states=2, state_bytes=_BYTE),
    "paged-adamw": Optimizer(states=2, paged=True),
    "paged-adamw8bit": Optimizer(states=2, state_bytes=_BYTE, paged=True),
}
_OTHER: Final = Optimizer(states=2)


def optimizer_called(name: str) -> Optimizer:
    """Returns the optimizer called ``name``; one like AdamW if the table has none of that name."""
    return OPTIMIZERS.get(name, _OTHER)


def optimizer_with(states: int) -> str:
    """Returns the name of the first optimizer of the table that keeps ``states`` per weight."""
    return next(name for name, optimizer in OPTIMIZERS.items() if optimizer.states == states)


def optimizer_of_class(torch: str) -> str:
    """Returns the optimizer that is this class of ``torch.optim``; the class in small letters if unknown."""
    return next((name for name, optimizer in OPTIMIZERS.items() if optimizer.torch == torch), torch.lower())
