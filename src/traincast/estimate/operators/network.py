"""FI-Net in NumPy: evaluates a fitted network without the framework that trained it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats32 = npt.NDArray[np.float32]

_BLOCK: Final = 2048
"""Rows that are evaluated at a time; they fit the second-level cache."""

FARTHEST: Final = 1.5
"""The most that a few measurements may change a network's output, in logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A trained network: its configuration, its weights by their names in training, and how features are scaled.

    ``scale`` has ``kept`` (which flat features vary at all), ``flat_mean``, ``flat_std``, ``tile_mean`` and
    ``tile_std``. ``adapted`` is what measurements of a further device add to the weights of the last layer.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Floats32]
    scale: Mapping[str, npt.NDArray[Any]]
    adapted: Floats32 | None = None

    def __call__(
        self, flat: Floats32, tiles: Floats32, categories: Floats32, *, share: float | npt.NDArray[np.float64] = 1.0
    ) -> npt.NDArray[np.float64]:
        """Return ``share`` times the predicted log(time / baseline) of each row, plus the correction ``adapted``."""
        hidden = self.hidden(flat, tiles, categories)
        said = share * (hidden @ self.weights["out.weight"][0] + self.weights["out.bias"])
        if self.adapted is not None:
            said = said + np.clip(hidden @ self.adapted[:-1] + self.adapted[-1], -FARTHEST, FARTHEST)
        return np.asarray(said, dtype=np.float64)

    def hidden(self, flat: Floats32, tiles: Floats32, categories: Floats32) -> Floats32:
        """Return the input of the last layer for each row."""
        parts = [
            self._hidden(*(x[i : i + _BLOCK] for x in (flat, tiles, categories))) for i in range(0, len(flat), _BLOCK)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self.weights["deep.bias"].size), dtype=np.float32)

    def _hidden(self, flat: Floats32, tiles: Floats32, categories: Floats32) -> Floats32:
        c, scale = self.config, self.scale
        x = (flat[:, scale["kept"]] - scale["flat_mean"]) / scale["flat_std"]
        angle = x[:, : c["flat"] - c["smooth"], None] * (np.float32(2.0 * math.pi) * self.weights["frequency"])
        angle = angle.reshape(len(x), -1)
        seen = self._linear("summary", np.concatenate([x, np.sin(angle), np.cos(angle), categories], axis=1))
        summary = np.maximum(seen, 0)
        hidden = self._linear("head", summary)
        if c["body"] != "none":
            positions = np.clip((tiles - scale["tile_mean"]) / scale["tile_std"], -5, 5).astype(np.float32)
            hidden = hidden + self._body(positions, summary)
        hidden = np.maximum(hidden, 0)
        return hidden + np.maximum(self._linear("deep", hidden), 0)

    def _linear(self, name: str, x: Floats32) -> Floats32:
        return np.asarray(x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"], np.float32)

    def _body(self, tiles: Floats32, summary: Floats32) -> Floats32:
        rows = len(tiles)
        lifted = self._linear("lift", tiles.transpose(1, 0, 2).reshape(-1, tiles.shape[2]))
        x = lifted.reshape(tiles.shape[1], rows, -1) + self._linear("context", summary)
        for i in range(self.config["blocks"]):
            x = self._block(f"blocks.{i}", x)
        return np.asarray(x.transpose(1, 0, 2).reshape(rows, -1) @ self.weights["read.weight"].T, np.float32)

    def _block(self, name: str, x: Floats32) -> Floats32:
        """One FNO-Inception module on ``x`` [position, row, channel]."""
        length, rows, width = x.shape
        modes = self.config["modes"]
        most, part = max(modes), width // len(modes)
        flat = x.reshape(-1, width)
        analysis, synthesis = fourier_matrices(length, most)
        entered = self._linear(f"{name}.enter", flat).reshape(length, -1)
        spectrum = (analysis @ entered).reshape(2, most, rows, width)
        mixed = np.zeros_like(spectrum)
        for i, count in enumerate(modes):
            channels = slice(i * part, (i + 1) * part)
            real, imaginary = spectrum[:, :count, :, channels]
            weight = self.weights[f"{name}.spectral.weights.{i}"]
            a, b = weight[:, 0], weight[:, 1]
            mixed[0, :count, :, channels] = real @ a - imaginary @ b
            mixed[1, :count, :, channels] = real @ b + imaginary @ a
        seen = (synthesis @ mixed.reshape(2 * most, -1)).reshape(-1, width) + self._linear(f"{name}.pointwise", flat)
        return x + self._linear(f"{name}.mix", np.maximum(seen, 0)).reshape(x.shape)


def fourier_matrices(length: int, modes: int) -> tuple[Floats32, Floats32]:
    """The real discrete Fourier transform to ``modes`` modes and back, as matrices: real parts, then imaginary ones."""
    angle = np.outer(np.arange(modes), np.arange(length)) * (2.0 * math.pi / length)
    analysis = np.concatenate([np.cos(angle), -np.sin(angle)]) / math.sqrt(length)
    counted = np.full((modes, 1), 2.0)
    counted[0] = 1.0
    if 2 * (modes - 1) == length:
        counted[-1] = 1.0
    synthesis = (np.concatenate([np.cos(angle) * counted, -np.sin(angle) * counted]) / math.sqrt(length)).T
    return analysis.astype(np.float32), synthesis.astype(np.float32)
