"""How long one work takes: cost models of operators, collectives and transfers."""

from traincast.estimate.analytical import AnalyticalCostModel
from traincast.estimate.learned import LearnedCostModel, learned_cost_model
from traincast.estimate.protocol import SOURCES, CostModel, Estimates, MeasuredCostModel

__all__ = [
    "SOURCES",
    "AnalyticalCostModel",
    "CostModel",
    "Estimates",
    "LearnedCostModel",
    "MeasuredCostModel",
    "learned_cost_model",
]
