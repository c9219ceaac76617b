"""The graph inspector as a module of PyTorch, for training; see :mod:`traincast.estimate.inspector.evaluate`.

With H the features of the groups, Â the normalised adjacency and σ the ReLU::

    H₀ = GRU(σ(Â X W_f + b_f), 0)                  φ_f
    H_k+1 = GRU(σ(Â H_k W_r + b_r), H_k)           φ_r, K times with the same weights
    y = head(Set2Set(H_K), setting)

A graph convolution with a normalised mean makes all nodes alike after a few layers. The GRU (Li et al., "Gated Graph
Sequence Neural Networks", 2016) lets a node keep what it knows. Set2Set: Vinyals et al., "Order Matters", 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from traincast.estimate.inspector.evaluate import OUTPUTS, InspectorShape


class Convolution(nn.Module):
    """One graph convolution, and the GRU after it."""

    def __init__(self, inputs: int, hidden: int, layer: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, hidden)
        self.gate = nn.GRUCell(hidden, hidden) if layer == "gru" else None

    def forward(self, x: Tensor, adjacency: Tensor, before: Tensor | None) -> Tensor:
        """New states [graphs, groups, hidden] from features or states ``x``."""
        message = torch.relu(torch.bmm(adjacency, self.linear(x)))
        if self.gate is None:
            return message
        flat = message.flatten(0, 1)
        state = torch.zeros_like(flat) if before is None else before.flatten(0, 1)
        new: Tensor = self.gate(flat, state)
        return new.view_as(message)


class Inspector(nn.Module):
    """The network. Graphs of a batch are padded with groups that the mask leaves out."""

    def __init__(self, shape: InspectorShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden
        self.first = Convolution(shape.features + shape.setting, hidden, shape.layer)
        self.repeated = Convolution(hidden, hidden, shape.layer)
        self.late = Convolution(hidden, hidden, shape.layer) if shape.late else None
        self.look = nn.LSTMCell(2 * hidden, hidden) if shape.read_out == "set2set" else None
        read = 2 * hidden if shape.read_out == "set2set" else hidden
        self.head = nn.Sequential(
            nn.Linear(read + shape.setting, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, OUTPUTS),
        )

    def forward(self, x: Tensor, adjacency: Tensor, mask: Tensor, setting: Tensor) -> Tensor:
        """Outputs [graphs, 24] of groups [graphs, groups, features], adjacency, mask [graphs, groups] and setting."""
        state = self.early(x, adjacency, setting)
        return self.finish(state, adjacency, mask, setting)

    def early(self, x: Tensor, adjacency: Tensor, setting: Tensor) -> Tensor:
        """The states after φ_f and the steps with shared weights."""
        wide = setting[:, None, :].expand(-1, x.shape[1], -1)
        state: Tensor = self.first(torch.cat([x, wide], dim=2), adjacency, None)
        for _ in range(self.shape.early(x.shape[1])):
            state = self.repeated(state, adjacency, state)
        return state

    def finish(self, state: Tensor, adjacency: Tensor, mask: Tensor, setting: Tensor) -> Tensor:
        """The outputs, from the states after the steps with shared weights."""
        groups = state.shape[1]
        if self.late is not None:
            for _ in range(self.shape.steps(groups) - self.shape.early(groups)):
                state = self.late(state, adjacency, state)
        out: Tensor = self.head(torch.cat([self._read(state, mask), setting], dim=1))
        return out

    def _read(self, state: Tensor, mask: Tensor) -> Tensor:
        if self.look is None:
            return (state * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        hidden = state.shape[2]
        query = state.new_zeros(len(state), 2 * hidden)
        h, c = state.new_zeros(len(state), hidden), state.new_zeros(len(state), hidden)
        left_out = torch.where(mask > 0, 0.0, -1e9)
        for _ in range(self.shape.looks):
            h, c = self.look(query, (h, c))
            attention = torch.softmax(torch.bmm(state, h[:, :, None])[:, :, 0] + left_out, dim=1)
            query = torch.cat([h, torch.bmm(attention[:, None, :], state)[:, 0]], dim=1)
        return query
