"""Kinds of models that clusters are calibrated for: what decides their step differs, so one fit cannot serve all.

Convolutions and batch norms decide the step of a network that reads images, matrix products that of one that reads
sequences. Steps of recommenders, which read rows of tables, are so short that their loaders and hosts decide them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, TypeAlias

from traincast.graph import OperatorGraph
from traincast.graph.vocabulary import CONVOLUTIONS

ModelKind: TypeAlias = Literal["images", "sequences", "tables"]

_MOSTLY: Final = 0.75
"""Share of the forward FLOPs in convolutions of planes or volumes from which a model reads images."""
_LIGHT_FLOP: Final = 1e8
"""Forward FLOPs of one sample below which a model reads rows of tables."""
_PLANE: Final = 4
"""Dims of the weight of a convolution whose window is a plane: outputs, inputs, height, width."""


@lru_cache(maxsize=256)
def model_kind(graph: OperatorGraph) -> ModelKind:
    """Returns the kind of the model that ``graph`` trains."""
    total = images = 0.0
    for block in graph.blocks:
        for op in (graph.operators[i] for i in block.forward):
            flops = op.flops * block.count
            total += flops
            if op.kind in CONVOLUTIONS and len(op.inputs[1].shape) >= _PLANE:
                images += flops
    if images > _MOSTLY * total:
        return "images"
    return "tables" if total < _LIGHT_FLOP else "sequences"
