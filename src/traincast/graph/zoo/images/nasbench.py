"""Networks of the NAS-Bench-101 search space (Ying et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.zoo.parts.convolution import conv_norm, image_model
from traincast.graph.zoo.traceable import Traceable

OPERATIONS: Final[dict[str, Callable[[int], nn.Module]]] = {
    "conv1x1": lambda channels: conv_norm(channels, channels, 1),
    "conv3x3": lambda channels: conv_norm(channels, channels, 3),
    "maxpool3x3": lambda channels: nn.MaxPool2d(3, stride=1, padding=1),
}

Matrix = Sequence[Sequence[int]]


def vertex_channels(inputs: int, outputs: int, matrix: Matrix) -> list[int]:
    """Channels of every vertex: those that feed the output share its channels, others have as many as their readers."""
    last = len(matrix) - 1
    channels = [inputs] + [0] * (last - 1) + [outputs]
    feeding = [vertex for vertex in range(1, last) if matrix[vertex][last]]
    for position, vertex in enumerate(feeding):
        channels[vertex] = outputs // len(feeding) + (position < outputs % len(feeding))
    for vertex in range(last - 1, 0, -1):
        if not matrix[vertex][last]:
            channels[vertex] = max(
                (channels[reader] for reader in range(vertex + 1, last) if matrix[vertex][reader]), default=0
            )
    return channels


class NasCell(nn.Module):  # type: ignore[misc]
    """A small graph of operations; edges add, the output concatenates (Ying et al. 2019, section 2.2)."""

    def __init__(self, inputs: int, outputs: int, matrix: Matrix, operations: Sequence[str]) -> None:
        super().__init__()
        self.matrix = matrix
        self.last = len(matrix) - 1
        self.channels = vertex_channels(inputs, outputs, matrix)
        self.operations = nn.ModuleDict(
            {str(vertex): OPERATIONS[name](self.channels[vertex]) for vertex, name in enumerate(operations, 1)}
        )
        self.projections = nn.ModuleDict(
            {
                str(reader): conv_norm(inputs, self.channels[reader], 1)
                for reader in range(1, self.last + 1)
                if matrix[0][reader]
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h, w]``."""
        vertices: dict[int, Tensor] = {}
        for vertex in range(1, self.last):
            terms = [
                vertices[source][:, : self.channels[vertex]]
                for source in range(1, vertex)
                if self.matrix[source][vertex]
            ]
            if self.matrix[0][vertex]:
                terms.append(self.projections[str(vertex)](x))
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            vertices[vertex] = self.operations[str(vertex)](total)
        parts = [vertices[vertex] for vertex in range(1, self.last) if self.matrix[vertex][self.last]]
        if not parts:
            return self.projections[str(self.last)](x)
        joined = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        if self.matrix[0][self.last]:
            joined = joined + self.projections[str(self.last)](x)
        return joined


def _parsed(matrix: Sequence[Sequence[int] | str] | str, operations: Sequence[str] | str) -> tuple[Matrix, list[str]]:
    """Matrix and operations from lists, or from text such as ``010/001/000`` and ``conv3x3``."""
    rows = matrix.split("/") if isinstance(matrix, str) else matrix
    names = operations.split("/") if isinstance(operations, str) else list(operations)
    parsed = [[int(entry) for entry in row] for row in rows]
    size = len(parsed)
    if size < 2 or any(len(row) != size for row in parsed) or len(names) != size - 2:
        raise RequestError(
            f"nasbench: a matrix of {size} rows and {len(names)} operations do not fit: "
            f"{size} vertices need {size} columns and {size - 2} operations, besides input and output"
        )
    for name in names:
        if name not in OPERATIONS:
            raise UnknownNameError("operation of nasbench", name, OPERATIONS)
    for vertex in range(size):
        if any(parsed[vertex][: vertex + 1]):
            raise RequestError(f"nasbench: row {vertex} of the matrix has an edge that does not lead forward")
        reached = vertex == 0 or any(row[vertex] for row in parsed)
        if not reached or (vertex < size - 1 and not any(parsed[vertex])):
            raise RequestError(f"nasbench: vertex {vertex} is not on a path from input to output: remove it")
    return parsed, names


BEST_MATRIX: Final = ("0100111", "0010000", "0001000", "0000010", "0000010", "0000001", "0000000")
BEST_OPERATIONS: Final = ("conv1x1", "conv3x3", "conv3x3", "maxpool3x3", "conv3x3")
"""The graph of the most accurate cell; the order of its operations is ours, and changes no cost."""


def nasbench(
    *,
    matrix: Sequence[Sequence[int] | str] | str = BEST_MATRIX,
    operations: Sequence[str] | str = BEST_OPERATIONS,
    width: int = 128,
    stacks: int = 3,
    cells: int = 3,
    classes: int = 10,
    resolution: int = 32,
) -> Traceable:
    """A stem of ``width`` channels and ``stacks`` of equal ``cells`` (Ying et al. 2019).

    Between stacks the resolution halves and the channels double. ``matrix[i][j]`` is 1 when vertex j
    reads vertex i; the first vertex is the cell's input, the last its output.
    """
    edges, names = _parsed(matrix, operations)
    with torch.device("meta"):
        parts: list[nn.Module] = [conv_norm(3, width)]
        channels = width
        for stack in range(stacks):
            inputs, channels = channels, width * 2**stack
            if stack:
                parts.append(nn.MaxPool2d(2))
            rest = (NasCell(channels, channels, edges, names) for _ in range(cells - 1))
            parts.append(nn.Sequential(NasCell(inputs, channels, edges, names), *rest))
        module = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    return image_model(module, resolution=resolution)
