"""A training step of a zoo model on meta and on fake tensors: what every family must be able to do."""

from __future__ import annotations

from collections.abc import Callable
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


def step_on_meta(model: Traceable, shapes: Callable[[Any], Shapes], expected: Shapes) -> None:
    """Two samples forward and backward on meta tensors: the output's shapes, and a gradient for every parameter."""
    inputs = model.inputs(2)
    assert all(parameter.is_meta for parameter in model.module.parameters())
    assert all(each.is_meta and each.shape[0] == 2 for each in inputs)
    output = model.module(*inputs)
    assert shapes(output) == expected
    assert model.loss is not None
    loss = model.loss(output)
    assert loss.shape == ()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.module.parameters())


def step_on_fake(model: Traceable, shapes: Callable[[Any], Shapes], expected: Shapes) -> None:
    """The same on fake tensors, for a batch that is a large prime: what capture does."""
    assert model.loss is not None
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.module.to_empty(device="cpu")
        inputs = model.inputs(LARGE_PRIME)
        assert inputs[0].device.type == "cpu"
        output = model.module(*inputs)
        assert shapes(output) == expected
        model.loss(output).backward()
