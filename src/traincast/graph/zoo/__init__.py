"""The model zoo: well-known networks in plain PyTorch, named by files."""

from traincast.graph.zoo.registry import FAMILIES, ModelCard, build, card, names
from traincast.graph.zoo.traceable import Traceable

__all__ = ["FAMILIES", "ModelCard", "Traceable", "build", "card", "names"]
