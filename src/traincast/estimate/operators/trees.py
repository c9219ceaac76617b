"""Sums of regression trees, evaluated without the library that grew them.

A feature is cut into at most 256 bins, so that a node is four bytes: which feature, which bin, and two children.
Leaves point at themselves, every row walks the same number of steps, and the processor overlaps the walks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled

_BLOCK: Final = 128
"""Rows that walk a tree before the next tree begins: what fits the first-level cache."""

COMPILE_FROM: Final = 1_000_000
"""Rows times trees from which it pays to load the compiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """A forest whose leaves are added up, beginning with ``base``.

    ``nodes`` [tree, node] are (feature, bin, left, right): a row goes left where its bin is at most the node's.
    Children count inner nodes first, then leaves; ``leaves`` [tree, leaf] are what is added. ``cuts`` holds the
    upper edges of the bins of every feature, those of feature ``i`` from ``starts[i]`` to ``starts[i + 1]``.
    """

    base: npt.NDArray[np.float64]
    nodes: npt.NDArray[np.uint8]
    leaves: npt.NDArray[np.float16]
    depth: npt.NDArray[np.uint8]
    cuts: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int32]

    def __call__(self, table: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """The sum for each row of ``table`` [row, feature]."""
        inner = self.nodes.shape[1]
        count = inner + self.leaves.shape[1]
        nodes = np.zeros((len(self.nodes), count, 4), dtype=np.uint8)
        nodes[:, :inner] = self.nodes
        nodes[:, inner:, 1] = 255
        nodes[:, inner:, 2:] = np.arange(inner, count, dtype=np.uint8)[None, :, None]
        if not _walk_compiled.pays(len(table) * len(nodes)):
            return self._few(table, nodes)
        total = np.full(len(table), self.base[0])
        packed, leaves = nodes.view("<u4")[..., 0], self.leaves.astype(np.float32)
        _walk_compiled(np.ascontiguousarray(table), self.cuts, self.starts, packed, leaves, self.depth, total)
        return total

    def _few(self, table: npt.NDArray[np.float32], nodes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """The same for few rows, with all trees at once: this takes less time than loading a compiler."""
        edges = [self.cuts[a:b] for a, b in pairwise(self.starts.tolist())]
        bins = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, table.T, strict=True)], axis=1)
        tree = np.arange(len(nodes))[None, :]
        row = np.arange(len(table))[:, None]
        at = np.zeros((len(table), len(nodes)), dtype=np.intp)
        for _ in range(int(self.depth.max(initial=0))):
            node = nodes[tree, at]
            at = np.where(bins[row, node[..., 0]] > node[..., 1], node[..., 3], node[..., 2]).astype(np.intp)
        leaf = self.leaves.astype(np.float32)[tree, at - self.nodes.shape[1]]
        return np.asarray(self.base[0] + leaf.sum(axis=1, dtype=np.float64))

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The forest as named arrays, for a file."""
        return {name: getattr(self, name) for name in Trees.__slots__}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Trees:
        """The forest of :meth:`arrays`."""
        return Trees(**{name: arrays[name] for name in Trees.__slots__})  # type: ignore[arg-type]


def _walk(  # noqa: PLR0917
    table: npt.NDArray[np.float32],
    cuts: npt.NDArray[np.float32],
    starts: npt.NDArray[np.int32],
    nodes: npt.NDArray[np.uint32],
    leaves: npt.NDArray[np.float32],
    depth: npt.NDArray[np.uint8],
    total: npt.NDArray[np.float64],
) -> None:  # pragma: no cover
    """Add the leaves that each row of ``table`` reaches to ``total``; a node is four bytes, the feature lowest."""
    rows, features = table.shape
    inner = nodes.shape[1] - leaves.shape[1]
    bins = np.zeros((_BLOCK, features), dtype=np.uint8)
    at = np.zeros(_BLOCK, dtype=np.uint8)
    for start in range(0, rows, _BLOCK):
        size = min(_BLOCK, rows - start)
        for feature in range(features):
            first, count = starts[feature], starts[feature + 1] - starts[feature]
            if count == 0:
                continue
            for i in range(size):
                value, low, left = table[start + i, feature], first, count
                while left > 1:  # halving without branches
                    half = left >> 1
                    low += half if cuts[low + half - 1] < value else 0
                    left -= half
                bins[i, feature] = low - first + (cuts[low] < value)
        for tree in range(nodes.shape[0]):
            at[:] = 0
            for _ in range(depth[tree]):
                for i in range(size):
                    node = nodes[tree, at[i]]
                    right = bins[i, node & 255] > ((node >> 8) & 255)
                    at[i] = (node >> 24) if right else ((node >> 16) & 255)
            for i in range(size):
                total[start + i] += leaves[tree, at[i] - inner]


_walk_compiled = Compiled(_walk, pays_from=COMPILE_FROM)
