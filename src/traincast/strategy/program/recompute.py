"""Recomputation: activations that a block drops after its forward, and the works that its backward runs again.

A strategy names one of :data:`RECOMPUTATIONS`: ``recompute=full``. Only the repeated blocks of a model are recomputed,
or all blocks of a model that has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traincast.errors import UnknownNameError
from traincast.graph import OpKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """One technique: which activations a block drops after forward, and therefore computes again.

    ``whole_block``: the block keeps only its input and runs all of its forward again. This technique can be limited
    to every n-th layer (``recompute_every``).
    ``attention``: attention drops the tensors that an unfused kernel writes between its two products, and runs again.
    A search tries it only for models with attention.
    ``kinds``: operators of these kinds drop the tensors that they save for backward, and run again.

    The dropped tensors are in memory again while the block's own backward runs.
    """

    whole_block: bool = False
    attention: bool = False
    kinds: frozenset[OpKind] = frozenset()


RECOMPUTATIONS: Final[dict[str, Recomputation]] = {
    "none": Recomputation(),
    "selective": Recomputation(attention=True),  # Korthikanti et al. 2022, arXiv:2205.05198
    "full": Recomputation(whole_block=True),  # Chen et al. 2016, arXiv:1604.06174
}
"""Techniques by name, from the one that needs most memory to the one that needs least."""


def load_recomputation(name: str) -> Recomputation:
    """The technique called ``name``; raises :class:`UnknownNameError` if there is none."""
    if name not in RECOMPUTATIONS:
        raise UnknownNameError("recompute", name, RECOMPUTATIONS)
    return RECOMPUTATIONS[name]


def leaner(name: str) -> list[str]:
    """The techniques that need less memory than ``name``; the one that needs least is last."""
    names = list(RECOMPUTATIONS)
    return names[names.index(name) + 1 :]


def leanest() -> str:
    """The technique that needs least memory."""
    return next(reversed(RECOMPUTATIONS))
