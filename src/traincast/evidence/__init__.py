"""Evidence: the measured runs that stand behind a forecast, and how far away they are."""

from traincast.evidence.distance import distance, distances
from traincast.evidence.neighbours import Evidence, Neighbour, evidence_of
from traincast.evidence.runs import PublishedRun, Runs, measured_runs
from traincast.evidence.support import Support, near_runs, support
from traincast.evidence.traits import RunKind, Traits, traits_of

__all__ = [
    "Evidence",
    "Neighbour",
    "PublishedRun",
    "RunKind",
    "Runs",
    "Support",
    "Traits",
    "distance",
    "distances",
    "evidence_of",
    "measured_runs",
    "near_runs",
    "support",
    "traits_of",
]
