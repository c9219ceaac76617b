"""The graph inspector in NumPy: evaluates a trained network without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.resources.inspector.features import Inputs
from traincast.resources.inspector.shape import InspectorShape
from traincast.resources.inspector.targets import TargetScale

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
    """A trained inspector: its shape, its weights by their names in training, and the scales of inputs and targets."""

    shape: InspectorShape
    weights: Mapping[str, Floats32]
    standard: Standard
    scale: TargetScale

    def outputs(self, inputs: Inputs) -> Floats32:
        """The 24 outputs for one graph: twelve scaled targets, then the scores of the patterns."""
        setting = self.standard.setting(inputs.setting)
        features = self.standard.groups(inputs.groups)
        adjacency, groups = inputs.adjacency, len(inputs.groups)
        wide = np.concatenate([features, np.broadcast_to(setting, (groups, len(setting)))], axis=1)
        state = self._convolved("first", wide, adjacency, None)
        steps, early = self.shape.steps(groups), self.shape.early(groups)
        for step in range(steps):
            state = self._convolved("repeated" if step < early else "late", state, adjacency, state)
        x = np.concatenate([self._read(state), setting])
        for layer in (0, 2, 4):
            x = self.weights[f"head.{layer}.weight"] @ x + self.weights[f"head.{layer}.bias"]
            x = np.maximum(x, 0.0) if layer < 4 else x
        return x

    def __call__(self, inputs: Inputs) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The twelve values, and the number of the pattern of each resource."""
        out = self.outputs(inputs)
        values = self.scale.values(out[None, :12], np.array([inputs.busy_s]))[0]
        return values, out[12:].reshape(4, 3).argmax(axis=1)

    def _convolved(self, name: str, x: Floats32, adjacency: Floats32, before: Floats32 | None) -> Floats32:
        weights = self.weights
        message = np.maximum(adjacency @ (x @ weights[f"{name}.linear.weight"].T + weights[f"{name}.linear.bias"]), 0.0)
        if self.shape.layer != "gru":
            return message
        state = np.zeros_like(message) if before is None else before
        into = message @ weights[f"{name}.gate.weight_ih"].T + weights[f"{name}.gate.bias_ih"]
        kept = state @ weights[f"{name}.gate.weight_hh"].T + weights[f"{name}.gate.bias_hh"]
        hidden = state.shape[1]
        reset = _sigmoid(into[:, :hidden] + kept[:, :hidden])
        update = _sigmoid(into[:, hidden : 2 * hidden] + kept[:, hidden : 2 * hidden])
        new = np.tanh(into[:, 2 * hidden :] + reset * kept[:, 2 * hidden :])
        return np.asarray((1.0 - update) * new + update * state, np.float32)

    def _read(self, state: Floats32) -> Floats32:
        if self.shape.read_out == "mean":
            return np.asarray(state.mean(axis=0), np.float32)
        hidden = state.shape[1]
        query: npt.NDArray[Any] = np.zeros(2 * hidden)
        h: npt.NDArray[Any] = np.zeros(hidden)
        c: npt.NDArray[Any] = np.zeros(hidden)
        for _ in range(self.shape.looks):
            gates = self.weights["look.weight_ih"] @ query + self.weights["look.bias_ih"]
            gates = gates + self.weights["look.weight_hh"] @ h + self.weights["look.bias_hh"]
            enter, forget, cell, leave = gates.reshape(4, hidden)
            c = _sigmoid(forget) * c + _sigmoid(enter) * np.tanh(cell)
            h = _sigmoid(leave) * np.tanh(c)
            scores = state @ h
            attention = np.exp(scores - scores.max())
            query = np.concatenate([h, (attention / attention.sum()) @ state])
        return query.astype(np.float32)


def _sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))
