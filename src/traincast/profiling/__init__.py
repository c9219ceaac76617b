"""Measure operators, alone and inside their models, and collectives between processes, on this machine.

Nothing is imported before it is used: what a verb asks stands in modules that are read to show its help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincast.profiling.collectives.cases import CollectiveRequest
    from traincast.profiling.collectives.measure import profile_collectives
    from traincast.profiling.operators.measure import OperatorRequest, profile_operators
    from traincast.profiling.operators.opset import (
        load_operator_set,
        operator_set,
        operator_set_by_type,
        save_operator_set,
    )
    from traincast.profiling.output import Profile, Unmeasured
    from traincast.profiling.rows import operator_from_row, operator_of, params_of, row_of
    from traincast.profiling.timing import SUSPECT_DISPERSION, Timing, measure

_HOMES = {
    "collectives.cases": "CollectiveRequest",
    "collectives.measure": "profile_collectives",
    "operators.measure": "OperatorRequest profile_operators",
    "operators.opset": "load_operator_set operator_set operator_set_by_type save_operator_set",
    "output": "Profile Unmeasured",
    "rows": "operator_from_row operator_of params_of row_of",
    "timing": "SUSPECT_DISPERSION Timing measure",
}
"""The public names of each module."""

__all__ = [
    "SUSPECT_DISPERSION",
    "CollectiveRequest",
    "OperatorRequest",
    "Profile",
    "Timing",
    "Unmeasured",
    "load_operator_set",
    "measure",
    "operator_from_row",
    "operator_of",
    "operator_set",
    "operator_set_by_type",
    "params_of",
    "profile_collectives",
    "profile_operators",
    "row_of",
    "save_operator_set",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    import importlib

    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"traincast.profiling.{module}"), name)
    raise AttributeError(f"module 'traincast.profiling' has no attribute {name!r}")
