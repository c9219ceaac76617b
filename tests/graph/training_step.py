"""A training step of a zoo model on fake tensors: what every family must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from traincast.graph.zoo import Traceable, build

LARGE_PRIME = 10007

Shapes = list[tuple[int, ...]]


@cache
def built(spec: str) -> Traceable:
    """The model of ``spec`` without weights, built once for all tests; do not change it."""
    return build(spec)


def step_on_fake(
    model: Traceable, shapes: Callable[[Any], Shapes], expected: Shapes, *, without: Collection[str] = ()
) -> None:
    """A step on fake tensors, for a batch that is a large prime, as capture does it.

    Checks the shapes of the outputs, the loss, and that every parameter but ``without`` gets a gradient.
    """
    assert model.loss is not None
    assert all(parameter.is_meta for parameter in model.module.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.module.to_empty(device="cpu")
        inputs = model.inputs(LARGE_PRIME)
        assert inputs[0].device.type == "cpu"
        output = model.module(*inputs)
        assert shapes(output) == expected
        loss = model.loss(output)
        assert loss.shape == ()
        loss.backward()
        assert [path for path, each in model.module.named_parameters() if each.grad is None] == list(without)
