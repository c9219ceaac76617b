"""What capture needs from a model: a module, example inputs for any batch, and a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceable:
    """A module that can be traced without weights and without a GPU.

    ``inputs(batch)`` makes example inputs for ``batch`` samples on the module's device; ``loss``
    turns the module's output into a scalar (``None``: the sum of its floating-point outputs). ``call`` is a function of
    the module and its inputs, for a module that does not take its inputs one after the other.

    A step with several losses, such as that of a GAN, has ``losses`` instead of ``loss``: a function of the module and
    its inputs that yields one loss after the other, each of which is differentiated before the function goes on.
    ``optimizers`` maps patterns of parameter names to optimizers (``{"generator.*": "adam", "critic.*": "sgd"}``); the
    first pattern that matches counts, and ``optimizer`` updates all other parameters.
    """

    module: torch.nn.Module
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    loss: Callable[[Any], torch.Tensor] | None = None
    losses: Callable[..., Iterable[torch.Tensor]] | None = None
    tokens_per_sample: int = 0
    optimizer: str = "adamw"
    optimizers: Mapping[str, str] | None = None
    call: Callable[..., Any] | None = None
