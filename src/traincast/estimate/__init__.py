"""How long one work takes: cost models of operators, collectives and transfers."""

from traincast.estimate.analytical import AnalyticalCostModel
from traincast.estimate.events.model import EventsCostModel, read_events
from traincast.estimate.learned import LearnedCostModel, learned_cost_model
from traincast.estimate.protocol import SOURCES, CostModel, Estimates

__all__ = [
    "SOURCES",
    "AnalyticalCostModel",
    "CostModel",
    "Estimates",
    "EventsCostModel",
    "LearnedCostModel",
    "learned_cost_model",
    "read_events",
]
