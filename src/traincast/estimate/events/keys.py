"""Keys of measured works: texts that are equal for works that take the same time on the same machine."""

from __future__ import annotations

import json
from typing import Any, Final

from traincast.graph import Operator, Phase, TensorSpec
from traincast.work import Collective, Transfer

PHASES: Final = {Phase.FORWARD: "fwd", Phase.BACKWARD: "bwd", Phase.OPTIMIZER: "update"}
"""The name of each phase in a table."""
NOT_COST: Final = frozenset({"module", "unknown", "fused", "distinct"})
"""Attributes of an operator that a run of it cannot tell apart."""
P2P: Final = "p2p"
"""The name of a message from one rank to another in the column ``collective``."""


def operator_key(operator: Operator) -> str:
    """Return the key of an operator: its kind, name, phase, tensors and attributes, without its place in a model."""
    attributes = {name: value for name, value in operator.attributes.items() if name not in NOT_COST}
    return text_of(
        [
            operator.kind.value,
            operator.name,
            PHASES[operator.phase],
            tensors_of(operator.inputs),
            tensors_of(operator.outputs),
            attributes,
        ]
    )


def update_key(name: str) -> str:
    """Return the key of the update of parameters by the optimizer ``name``; its row has the bytes of the parameters."""
    return text_of(["update", name])


def collective_key(kind: str, nbytes: float, num_ranks: int, num_nodes: int) -> str:
    """Return the key of a measured collective, or of a measured message if ``kind`` is :data:`P2P`."""
    return text_of([kind, nbytes, num_ranks, num_nodes])


def name_of(work: Collective | Transfer) -> str:
    """Return the name of a collective or message in the column ``collective``."""
    return work.kind if isinstance(work, Collective) else P2P


def text_of(value: Any) -> str:
    """Return canonical JSON: sorted keys, no spaces, finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def tensors_of(specs: tuple[TensorSpec, ...]) -> list[list[Any]]:
    """Return tensors as a row states them: a shape and a dtype each."""
    return [[list(spec.shape), spec.dtype.value] for spec in specs]
