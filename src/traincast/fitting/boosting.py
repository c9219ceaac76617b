"""Gradient-boosted trees, grown by LightGBM and kept in Traincast's own compact form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.estimate.operators.trees import Trees

MOST_FEATURES: Final = 256
MOST_LEAVES: Final = 128
"""The most features and leaves that the bytes of a node can number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostingConfig:
    """How a forest is grown; at most 127 leaves fit the compact form."""

    rounds: int = 400
    leaves: int = 127
    depth: int = 10
    rate: float = 0.1
    smallest_leaf: int = 8
    features: float = 0.5
    rows: float = 0.8


def grow(
    table: npt.NDArray[np.float32],
    target: npt.NDArray[np.float64],
    config: BoostingConfig,
    *,
    held: tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]] | None = None,
    seed: int = 0,
    threads: int = 1,
) -> Trees:
    """Grow a forest that predicts ``target``; with ``held`` rows, stop when their error no longer falls."""
    lightgbm = _lightgbm()
    settings = {
        "objective": "regression", "learning_rate": config.rate, "num_leaves": config.leaves,
        "max_depth": config.depth, "min_data_in_leaf": min(config.smallest_leaf, max(1, len(target) // 20)),
        "feature_fraction": config.features, "bagging_fraction": config.rows, "bagging_freq": 1, "max_bin": 127,
        "num_threads": threads, "seed": seed, "deterministic": True, "force_row_wise": True, "verbose": -1,
    }  # fmt: skip
    base = float(target.mean()) if len(target) else 0.0
    data = lightgbm.Dataset(table, target - base, free_raw_data=True)
    valid, callbacks = [], []
    if held is not None:
        valid = [lightgbm.Dataset(held[0], held[1] - base, reference=data)]
        callbacks = [lightgbm.early_stopping(60, verbose=False)]
    booster = lightgbm.train(settings, data, config.rounds, valid_sets=valid, callbacks=callbacks)
    best = booster.best_iteration if held is not None and booster.best_iteration > 0 else booster.current_iteration()
    return compact(booster.model_to_string(num_iteration=best), table.shape[1], base=base)


def compact(text: str, features: int, *, base: float = 0.0) -> Trees:
    """Convert the text of a LightGBM model file; sums of leaves start from ``base``."""
    trees = [_fields(block) for block in text.split("\nTree=")[1:]]
    most = max((len(tree["leaf_value"]) for tree in trees), default=1)
    if features > MOST_FEATURES or most > MOST_LEAVES:
        raise ValueError(f"{features} features and {most} leaves: at most {MOST_FEATURES} and {MOST_LEAVES} fit a node")
    cuts: list[set[float]] = [set() for _ in range(features)]
    for tree in trees:
        for feature, threshold in zip(tree["split_feature"], tree["threshold"], strict=True):
            cuts[int(feature)].add(_below(threshold))
    edges = [np.array(sorted(values), dtype=np.float32) for values in cuts]
    inner = max(1, *(len(tree["split_feature"]) for tree in trees))
    nodes = np.zeros((len(trees), inner, 4), dtype=np.uint8)
    leaves = np.zeros((len(trees), inner + 1), dtype=np.float16)
    depth = np.ones(len(trees), dtype=np.uint8)
    for i, tree in enumerate(trees):
        leaves[i, : len(tree["leaf_value"])] = tree["leaf_value"]
        nodes[i, :, 1:] = (255, inner, inner)  # a tree without a split: its only leaf
        count = len(tree["split_feature"])
        if not count:
            continue
        feature = tree["split_feature"].astype(np.int64)
        splits = [np.searchsorted(edges[f], _below(t)) for f, t in zip(feature, tree["threshold"], strict=True)]
        left, right = (
            np.where(child >= 0, child, inner - 1 - child)
            for child in (tree["left_child"].astype(np.int64), tree["right_child"].astype(np.int64))
        )
        nodes[i, :count] = np.stack([feature, splits, left, right], axis=1)
        depth[i] = _depth(left, right, inner)
    starts = np.concatenate([[0], np.cumsum([len(e) for e in edges])]).astype(np.int32)
    return Trees(
        base=np.array([base]), nodes=nodes, leaves=leaves, depth=depth, cuts=np.concatenate(edges), starts=starts
    )


def _below(threshold: float) -> float:
    """The largest float32 not above ``threshold``: comparing a float32 with either gives the same result."""
    near = np.float32(threshold)
    return float(near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf)))


def _fields(block: str) -> dict[str, npt.NDArray[np.float64]]:
    found = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    names = ("split_feature", "threshold", "left_child", "right_child", "leaf_value")
    return {name: np.array(found.get(name, "").split(), dtype=np.float64) for name in names}


def _depth(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], inner: int) -> int:
    """Number of steps from the root to the farthest leaf; children come after their parent."""
    level = np.zeros(len(left), dtype=np.int64)
    for node in range(len(left)):
        for child in (left[node], right[node]):
            if child < inner:
                level[child] = level[node] + 1
    return int(level.max()) + 1


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise RequestError("fitting needs LightGBM: pip install 'traincast[fit]'") from error
    return lightgbm
