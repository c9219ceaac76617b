"""The graph inspector in NumPy: its shape, and a trained network evaluated without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.estimate.inspector.features import Inputs
from traincast.estimate.inspector.targets import TargetScale

Layer = Literal["gru", "gcn"]
ReadOut = Literal["set2set", "mean"]
OUTPUTS: Final = 24
"""Twelve targets, and for each of four resources the scores of three patterns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorShape:
    """Sizes of an inspector.

    ``hidden`` channels per group. φ_r is applied ``depth`` · m times to a graph of m groups, but at most ``most_steps``
    times. ``layer`` ``gru`` has a GRU after each convolution, ``gcn`` only an activation. ``read_out`` ``set2set``
    looks at the groups ``looks`` times, ``mean`` takes their mean. The last ``late`` (a share) of the steps have
    weights of their own, which transfer trains.
    """

    features: int
    setting: int
    hidden: int = 32
    depth: float = 0.5
    most_steps: int = 32
    layer: Layer = "gru"
    read_out: ReadOut = "set2set"
    looks: int = 3
    late: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (("hidden", 1, 1024), ("most_steps", 0, 1000), ("looks", 1, 100)):
            if not low <= getattr(self, name) <= high:
                raise RequestError(f"{name} of an inspector is {getattr(self, name)}: expected from {low} to {high}")
        for name, low_share, high_share in (("depth", 0.0, 10.0), ("late", 0.0, 1.0)):
            if not low_share <= getattr(self, name) <= high_share:
                raise RequestError(
                    f"{name} of an inspector is {getattr(self, name):g}: expected from {low_share:g} to {high_share:g}"
                )

    def steps(self, groups: int) -> int:
        """How often φ_r is applied to a graph of ``groups`` groups: Driple's K."""
        return min(self.most_steps, round(self.depth * groups))

    def early(self, groups: int) -> int:
        """How many of these steps keep the shared weights; the others have the late ones."""
        steps = self.steps(groups)
        return steps - round(self.late * steps)


Floats32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standard:
    """Mean and spread of the features of groups and settings in training, by which inputs are made of unit size."""

    group_mean: Floats32
    group_size: Floats32
    setting_mean: Floats32
    setting_size: Floats32

    def groups(self, features: Floats32) -> Floats32:
        """Features of groups, made of unit size; features far outside training are cut."""
        return np.asarray(np.clip((features - self.group_mean) / self.group_size, -6.0, 6.0), np.float32)

    def setting(self, features: Floats32) -> Floats32:
        """Features of a setting, likewise."""
        return np.asarray(np.clip((features - self.setting_mean) / self.setting_size, -6.0, 6.0), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedInspector:
    """A trained inspector: its shape, its weights by their names in training, and the scales of inputs and targets.

    ``more`` are the weights of further members, which were trained from other first weights: the outputs are the means
    over all members.
    """

    shape: InspectorShape
    weights: Mapping[str, Floats32]
    standard: Standard
    scale: TargetScale
    more: tuple[Mapping[str, Floats32], ...] = ()

    @property
    def members(self) -> tuple[Mapping[str, Floats32], ...]:
        """The weights of all members."""
        return self.weights, *self.more

    def outputs(self, inputs: Inputs) -> Floats32:
        """The 24 outputs for one graph: twelve scaled targets, then the scores of the patterns."""
        return np.asarray(np.mean([self._outputs(weights, inputs) for weights in self.members], axis=0), np.float32)

    def _outputs(self, weights: Mapping[str, Floats32], inputs: Inputs) -> Floats32:
        setting = self.standard.setting(inputs.setting)
        features = self.standard.groups(inputs.groups)
        adjacency, groups = inputs.adjacency, len(inputs.groups)
        wide = np.concatenate([features, np.broadcast_to(setting, (groups, len(setting)))], axis=1)
        state = self._convolved(_part(weights, "first"), wide, adjacency, None)
        steps, early = self.shape.steps(groups), self.shape.early(groups)
        for step in range(steps):
            part = _part(weights, "repeated" if step < early else "late")
            state = self._convolved(part, state, adjacency, state)
        x = np.concatenate([self._read(_part(weights, "look"), state), setting])
        for layer in (0, 2, 4):
            x = weights[f"head.{layer}.weight"] @ x + weights[f"head.{layer}.bias"]
            x = np.maximum(x, 0.0) if layer < 4 else x
        return x

    def __call__(self, inputs: Inputs) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The twelve values, and the number of the pattern of each resource."""
        out = self.outputs(inputs)
        values = self.scale.values(out[None, :12], inputs.reference[None, :])[0]
        return values, out[12:].reshape(4, 3).argmax(axis=1)

    def _convolved(
        self, part: Mapping[str, Floats32], x: Floats32, adjacency: Floats32, before: Floats32 | None
    ) -> Floats32:
        message = np.maximum(adjacency @ (x @ part["linear.weight"].T + part["linear.bias"]), 0.0)
        if self.shape.layer != "gru":
            return message
        state = np.zeros_like(message) if before is None else before
        into = message @ part["gate.weight_ih"].T + part["gate.bias_ih"]
        kept = state @ part["gate.weight_hh"].T + part["gate.bias_hh"]
        hidden = state.shape[1]
        reset = _sigmoid(into[:, :hidden] + kept[:, :hidden])
        update = _sigmoid(into[:, hidden : 2 * hidden] + kept[:, hidden : 2 * hidden])
        new = np.tanh(into[:, 2 * hidden :] + reset * kept[:, 2 * hidden :])
        return np.asarray((1.0 - update) * new + update * state, np.float32)

    def _read(self, part: Mapping[str, Floats32], state: Floats32) -> Floats32:
        if self.shape.read_out == "mean":
            return np.asarray(state.mean(axis=0), np.float32)
        hidden = state.shape[1]
        query: npt.NDArray[Any] = np.zeros(2 * hidden)
        h: npt.NDArray[Any] = np.zeros(hidden)
        c: npt.NDArray[Any] = np.zeros(hidden)
        for _ in range(self.shape.looks):
            gates = part["weight_ih"] @ query + part["bias_ih"] + part["weight_hh"] @ h + part["bias_hh"]
            enter, forget, cell, leave = gates.reshape(4, hidden)
            c = _sigmoid(forget) * c + _sigmoid(enter) * np.tanh(cell)
            h = _sigmoid(leave) * np.tanh(c)
            scores = state @ h
            attention = np.exp(scores - scores.max())
            query = np.concatenate([h, (attention / attention.sum()) @ state])
        return query.astype(np.float32)


def _part(weights: Mapping[str, Floats32], name: str) -> dict[str, Floats32]:
    """The weights of one part of the network, by their names within it."""
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in weights.items() if key.startswith(start)}


def _sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))
