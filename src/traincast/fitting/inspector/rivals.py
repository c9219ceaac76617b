"""Rivals of the inspector on the same runs: the mean, and boosted trees on aggregates of the same features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.estimate.inspector.amounts import Floats
from traincast.estimate.inspector.features import Inputs
from traincast.estimate.inspector.targets import TARGETS, TargetScale
from traincast.fitting.boosting import BoostingConfig, grow
from traincast.fitting.inspector.train import RunExamples

_TUNED: Final = tuple(
    BoostingConfig(rounds=300, leaves=leaves, depth=6, rate=0.1, smallest_leaf=smallest, features=0.7)
    for leaves, smallest in product((8, 24), (5, 20))
)
"""The settings of boosted trees that are tried; the number of rounds is chosen as well."""

Rival = Callable[[RunExamples, RunExamples], Floats]
"""Returns the twelve values of the second examples, learned from the first."""


def aggregates(inputs: Inputs) -> npt.NDArray[np.float32]:
    """Return what trees see of a graph: its setting, and the mean, spread and largest of each feature of its groups."""
    groups = inputs.groups
    return np.concatenate([inputs.setting, groups.mean(axis=0), groups.std(axis=0), groups.max(axis=0)])


def mean_rival(learned: RunExamples, asked: RunExamples) -> Floats:
    """The mean of every target: the mean logarithm of amounts, and of durations over their references."""
    scale = TargetScale.of(learned.uses.values, learned.references)
    return scale.values(np.zeros((len(asked), len(TARGETS))), asked.references)


def trees_rival(learned: RunExamples, asked: RunExamples) -> Floats:
    """Boosted trees, one forest per target; settings are tuned on every fifth run of those learned from."""
    scale = TargetScale.of(learned.uses.values, learned.references)
    targets = scale.targets(learned.uses.values, learned.references)
    table = np.stack([aggregates(one) for one in learned.inputs]).astype(np.float32)
    question = np.stack([aggregates(one) for one in asked.inputs]).astype(np.float32)
    found = np.zeros((len(asked), len(TARGETS)))
    for at in range(len(TARGETS)):
        known = np.flatnonzero(np.isfinite(targets[:, at]))
        if len(known) < 10:
            continue
        held, rest = known[::5], np.setdiff1d(known, known[::5])
        tried = [
            grow(table[rest], targets[rest, at], config, held=(table[held], targets[held, at])) for config in _TUNED
        ]
        errors = [float(np.abs(trees(table[held]) - targets[held, at]).mean()) for trees in tried]
        best = int(np.argmin(errors))
        rounds = max(1, len(tried[best].nodes))
        found[:, at] = grow(table[known], targets[known, at], replace(_TUNED[best], rounds=rounds))(question)
    return scale.values(found, asked.references)
