"""The model zoo: well-known networks in plain PyTorch, named by files."""

from traincast.graph.zoo.known_models import known_names
from traincast.graph.zoo.registry import (
    FAMILIES,
    ModelCard,
    build,
    card,
    defaults_of,
    names,
    no_sequence,
    split_further,
    with_further,
)
from traincast.graph.zoo.traceable import Traceable

__all__ = [
    "FAMILIES",
    "ModelCard",
    "Traceable",
    "build",
    "card",
    "defaults_of",
    "known_names",
    "names",
    "no_sequence",
    "split_further",
    "with_further",
]
