"""Measure operators, alone and inside their models, and collectives between processes, on this machine."""

from traincast.profiling.collectives.cases import CollectiveRequest
from traincast.profiling.collectives.measure import profile_collectives
from traincast.profiling.operators.measure import OperatorRequest, profile_operators
from traincast.profiling.operators.opset import load_operator_set, operator_set, operator_set_by_type, save_operator_set
from traincast.profiling.output import Profile, Unmeasured
from traincast.profiling.rows import operator_from_row, operator_of, params_of, row_of
from traincast.profiling.timing import SUSPECT_DISPERSION, Timing, measure

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
