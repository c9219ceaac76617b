"""Work that models leave to the host, sample by sample: it is not in the operators that a capture records.

Detectors match boxes with their targets, choose proposals and drop overlapping ones image by image, in many tiny
operators whose shapes depend on the image. A capture sees the network and its losses, with fixed shapes.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from traincast.graph import OperatorGraph, zoo

PER_SAMPLE: Final = {"rcnn": 8000.0, "retinanet": 1500.0}
"""Kernel launches of the host per image, by family of the model: detectors of two stages, and of one stage with a
pyramid of anchors. Fitted to published steps of Mask R-CNN and SSD-FPN; steps of 2 to 12 images per GPU take the same
time in half and in full precision, so the host decides them."""


@cache
def sample_launches(name: str) -> float:
    """Returns the host's kernel launches per sample of the model ``name``, a name or a spec of the zoo; usually 0."""
    family = name.partition(":")[0]
    if family not in PER_SAMPLE and family in zoo.names():
        family = zoo.card(family).family
    return PER_SAMPLE.get(family, 0.0)


def beside_operators(graph: OperatorGraph, samples: int) -> float:
    """Returns the launches for ``samples`` samples, spread over all operators, between which they happen."""
    launches = sample_launches(graph.name) * samples
    if not launches:
        return 0.0
    return launches / sum(b.count * (len(b.forward) + len(b.backward)) for b in graph.blocks)
