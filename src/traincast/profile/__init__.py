"""What is measured: operators alone and in their models, collectives between processes, and the set to measure."""

from traincast.profile.collective_cases import CollectiveRequest
from traincast.profile.collectives import profile_collectives
from traincast.profile.operators import Failure, OperatorRequest, Profile, profile_operators
from traincast.profile.opset import operator_set, operator_set_by_type
from traincast.profile.opset_files import load_operator_set, save_operator_set
from traincast.profile.rows import key_of, operator_from_row, operator_of, params_of, row_of
from traincast.profile.timing import SUSPECT_DISPERSION, Timing, measure

__all__ = [
    "SUSPECT_DISPERSION",
    "CollectiveRequest",
    "Failure",
    "OperatorRequest",
    "Profile",
    "Timing",
    "key_of",
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
