"""What an ONNX file says, in plain data: nodes, weights, constants, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxNode:
    """One node of the file.

    ``scope`` is the path of the module that it belongs to and ``owner`` the class of that module, as far as the file
    tells. ``origin`` is the PyTorch call that the exporter made it from, if the file says so.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""
    owner: str = ""
    origin: str = ""

    def __deepcopy__(self, memo: object) -> OnnxNode:
        return self

    @property
    def label(self) -> str:
        """How messages name the node."""
        return f"node {self.name!r} ({self.op})" if self.name else f"a node {self.op} without a name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A floating-point tensor of the file. One that is not ``trainable`` is a buffer: training does not change it."""

    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input of the network; a dim that the file leaves open has a name instead of a size."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxNetwork:
    """The contents of an ONNX file. It ``has_loss`` if an output is a scalar."""

    path: str
    nodes: tuple[OnnxNode, ...]
    weights: Mapping[str, Weight]
    constants: Mapping[str, np.ndarray]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    opset: int
    by_pytorch: bool
    has_loss: bool
