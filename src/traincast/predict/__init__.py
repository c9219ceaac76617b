"""How long one piece takes: cost models of operators, collectives and transfers."""

from traincast.predict.analytical import AnalyticalCostModel
from traincast.predict.estimate import SOURCES, CostModel, Estimates

__all__ = ["SOURCES", "AnalyticalCostModel", "CostModel", "Estimates"]
