"""The 90 % interval of a step on a cluster that nobody calibrated, from published errors of other sources.

The intervals of the works, propagated through the simulation, say how sure their times are: they are wider for devices
and links that nobody measured, and for sizes far from measured ones. What they cannot say is how well the simulation
describes a framework. So each end is that of the propagated interval, as a logarithm and never less than
:data:`LEAST`, times a factor. Factors differ by what a step is like (:func:`step_kind`): they are quantiles of the
errors of published runs, where every source has the same weight. ``python -m benchmarks.unseen`` fits them to
some sources, and shows how often the interval holds the runs of others.
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

from traincast.graph import OperatorGraph, OpKind
from traincast.strategy.model_kind import model_kind
from traincast.strategy.releases import has_experts

StepKind: TypeAlias = Literal["language", "strained", "experts", "tuned", "images", "other"]

LEAST: Final = 0.2
"""Added to each end of the propagated interval, as the root of the sum of squares: steps are less sure than works."""
FACTORS: Final[dict[StepKind, tuple[float, float]]] = {
    "language": (0.80, 1.00),
    "strained": (0.80, 4.22),
    "experts": (0.48, 1.05),
    "tuned": (0.90, 1.30),
    "images": (0.91, 0.91),
    "other": (1.13, 1.39),
}
"""Multiples of the lower and of the upper end of the propagated interval, as logarithms, for each kind of step.

They are quantiles of the guiding sources, wider by what sources differ when they are first seen: the medians of sources
that were tuned to spread by 0.08, those of new ones by 0.2.
"""
MEASURED_DEVICES: Final = 64
"""Most published runs have at most so many devices."""
DOUBLING: Final = 0.04
"""For each doubling of the devices beyond :data:`MEASURED_DEVICES`, so much is added to an end, as :data:`LEAST` is."""
STRAINED: Final = 0.35
"""Share of a step in exposed communication and in waiting for the host from which a language model is ``strained``.

Such steps are ruled by what differs most between machines: hosts, and tensor parallelism between nodes.
"""


def step_kind(graph: OperatorGraph, *, idle_share: float) -> StepKind:
    """Return the kind of a step: fine-tuning, a mixture of experts, a language model, a network for images, or another.

    Fine-tuning has weights that are not trained, a language model has causal attention. ``idle_share`` is the share of
    the step in which devices wait for communication or for the host.
    """
    if graph.num_trainable_parameters < graph.num_parameters:
        return "tuned"
    if has_experts(graph):
        return "experts"
    reads = model_kind(graph)
    if reads == "images":
        return "images"
    causal = any(op.kind is OpKind.ATTENTION and op.attributes.get("causal") for op in graph.operators)
    if reads != "sequences" or not causal:
        return "other"
    return "strained" if idle_share > STRAINED else "language"


def spread(propagated: float, *, devices: int) -> float:
    """Return what a factor of :data:`FACTORS` multiplies: a propagated end, wider on more than the usual devices."""
    doublings = max(0.0, math.log2(devices / MEASURED_DEVICES))
    return math.hypot(propagated, LEAST, DOUBLING * doublings)


def widened(kind: StepKind, *, below: float, above: float, devices: int) -> tuple[float, float]:
    """Return the 90 % interval of a step of this kind, as two multiples of its forecast.

    ``below`` and ``above`` are the ends of its propagated interval, as positive logarithms.
    """
    low, high = FACTORS[kind]
    return math.exp(-low * spread(below, devices=devices)), math.exp(high * spread(above, devices=devices))
