"""Builders of optimizer updates: Adam, AdamW, LAMB and SGD, one fused update of one parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from traincast.graph import Operator
from traincast.graph.optimizers import OPTIMIZERS
from traincast.profiling.operators.tensors import Builder, Call, Make


def _update(operator: Operator, make: Make) -> Call:
    """One fused update of one parameter; also writes the half-precision copy of weights that have one."""
    gradient, weight, *states = (make(t) for t in operator.inputs)
    gradient = gradient.to(weight.dtype)
    states = [state.abs() for state in states]
    step = torch.ones((), device=make.device)
    extra = [make(t) for t in operator.outputs[1 + len(states) :]]
    update = _KERNELS[OPTIMIZERS[operator.name].kernel](weight, gradient, states, step)

    def run() -> Any:
        update()
        for copy in extra:
            copy.copy_(weight)
        return (weight, *states, *extra)

    return run


def _adam(name: str) -> Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor], Call]:
    def build(weight: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], step: torch.Tensor) -> Call:
        function = getattr(torch, name)
        first, second = states
        return lambda: function(
            [weight],
            [gradient],
            [first],
            [second],
            [],
            [step],
            lr=1e-4,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.01,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return build


def _sgd(weight: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], step: torch.Tensor) -> Call:
    momentum = 0.9 if states else 0.0
    return lambda: torch._fused_sgd_(
        [weight],
        [gradient],
        list(states),
        weight_decay=1e-4,
        momentum=momentum,
        lr=1e-3,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _lamb(weight: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], step: torch.Tensor) -> Call:
    """LAMB (You et al. 2019, arXiv:1904.00962), which PyTorch has no kernel for: Adam's step, scaled per tensor."""
    first, second = states

    def update() -> None:
        first.mul_(0.9).add_(gradient, alpha=0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        direction = first / (second.sqrt() + 1e-6)
        direction.add_(weight, alpha=0.01)
        ratio = weight.norm() / (direction.norm() + 1e-6)
        weight.sub_(direction * (1e-4 * ratio))

    return update


_KERNELS: Final[dict[str, Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor], Call]]] = {
    "_fused_adamw_": _adam("_fused_adamw_"),
    "_fused_adam_": _adam("_fused_adam_"),
    "_fused_sgd_": _sgd,
    "lamb": _lamb,
}
"""Updates of one tensor, by the kernel that the table of optimizers names."""

UPDATES: Final[dict[str, Builder]] = {name: _update for name, optimizer in OPTIMIZERS.items() if optimizer.kernel}
"""Builders by the name of the optimizer."""
