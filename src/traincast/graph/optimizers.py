"""The table of optimizers: what each keeps per weight, what an update computes, and who runs it.

A line of :data:`OPTIMIZERS` is all that a new optimizer needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from traincast.graph.tensor import DType

STATE_BLOCK: Final = 256
"""States that share one constant in 8-bit optimizers (Dettmers et al. 2021, arXiv:2110.02861)."""
_BYTE: Final = 1.0 + 4.0 / STATE_BLOCK


class Product(NamedTuple):
    """A matrix product that an update runs ``times``: [``rows`` × ``inner``] · [``inner`` × ``columns``]."""

    times: float
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> float:
        """FLOPs of all its runs."""
        return 2.0 * self.times * self.rows * self.inner * self.columns


class MatrixUpdate(NamedTuple):
    """What the update of one matrix needs beside passes over its elements: states, in elements, and products."""

    states: float = 0.0
    products: tuple[Product, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer.

    ``states`` are the tensors that it keeps per weight tensor, of the same shape. An update reads gradient, weight and
    states, writes weight and states, and computes ``flops`` per weight. One state of one weight takes ``state_bytes``
    (0: as many as the states' dtype in the precision of the step). ``paged`` states lie in managed memory, outside of
    the framework's allocator.

    ``matrix`` says what else a matrix of so many rows and columns needs. It applies to weights of layers with two
    dimensions or more; its products are computed in the dtype ``products``. The optimizer called ``beside`` updates all
    other weights: embeddings, the head, norms, biases. If there is none, ``matrix`` applies to all weights.

    ``kernel`` is the function of PyTorch that updates one tensor (``lamb``: composed of several; empty: an update
    cannot be run alone). ``torch`` is the class of ``torch.optim`` and ``arguments`` what it needs beyond the learning
    rate; if it is empty, AdamW stands in for it in steps that are really run.
    """

    states: int
    flops: float = 12.0
    state_bytes: float = 0.0
    paged: bool = False
    matrix: Callable[[int, int], MatrixUpdate] | None = None
    products: DType = DType.BF16
    beside: str = ""
    kernel: str = ""
    torch: str = ""
    arguments: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def ordinary(self) -> bool:
        """Whether PyTorch's own tensors hold the states, so that a module can be captured with it."""
        return not self.state_bytes and not self.paged and self.matrix is None


NEWTON_SCHULZ: Final = 5
"""Iterations with which Muon makes an update orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""
SOAP_EVERY: Final = 10
"""Steps after which SOAP renews its bases (Vyas et al. 2024, arXiv:2409.11321)."""
SOAP_LARGEST: Final = 10_000
"""Sides above this length get no basis in SOAP."""


def _muon(rows: int, columns: int) -> MatrixUpdate:
    """X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ; X has as many rows as the shorter side m: 4·m²·n + 2·m³ FLOPs."""
    m, n = sorted((rows, columns))
    return MatrixUpdate(
        products=(
            Product(NEWTON_SCHULZ, m, n, m),
            Product(NEWTON_SCHULZ, m, m, m),
            Product(NEWTON_SCHULZ, m, m, n),
        )
    )


def _soap(rows: int, columns: int) -> MatrixUpdate:
    """Adam in the eigenbases of G·Gᵀ and Gᵀ·G: gradient, momentum and update are turned, both averages are updated.

    A side keeps its average and its basis. A basis is renewed by a power iteration and a QR decomposition, which counts
    as two products.
    """
    states, products = 0.0, list[Product]()
    for side, other in ((rows, columns), (columns, rows)):
        if side > SOAP_LARGEST:
            continue
        states += 2.0 * side * side
        products += [Product(3, side, side, other), Product(1, side, other, side), Product(3 / SOAP_EVERY, *[side] * 3)]
    return MatrixUpdate(states=states, products=tuple(products))


def _adafactor(rows: int, columns: int) -> MatrixUpdate:
    """Second moments of rows and of columns instead of those of elements (Shazeer and Stern 2018, arXiv:1804.04235)."""
    return MatrixUpdate(states=float(rows + columns))


OPTIMIZERS: Final[dict[str, Optimizer]] = {
    "adamw": Optimizer(states=2, kernel="_fused_adamw_", torch="AdamW"),
    "adam": Optimizer(states=2, kernel="_fused_adam_", torch="Adam"),
    "lamb": Optimizer(states=2, kernel="lamb"),
    "sgd": Optimizer(states=1, kernel="_fused_sgd_", torch="SGD", arguments={"momentum": 0.9}),
    "sgd-plain": Optimizer(states=0, kernel="_fused_sgd_", torch="SGD"),
    "adamw8bit": Optimizer(states=2, state_bytes=_BYTE),
    "paged-adamw": Optimizer(states=2, paged=True),
    "paged-adamw8bit": Optimizer(states=2, state_bytes=_BYTE, paged=True),
    "lion": Optimizer(states=1, flops=8.0),
    "adafactor": Optimizer(states=0, flops=14.0, matrix=_adafactor),
    "muon": Optimizer(states=1, flops=8.0, matrix=_muon, beside="adamw"),
    "soap": Optimizer(states=2, flops=12.0, matrix=_soap, products=DType.TF32, beside="adamw"),
}
_OTHER: Final = Optimizer(states=2)


def matrices_of(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns the matrices in a weight of ``shape``: their number, rows and columns.

    A weight of three dimensions is a stack of matrices, such as those of experts; the kernel of a convolution is one.
    """
    if len(shape) == 3:
        return shape
    return 1, shape[0], math.prod(shape[1:])


def optimizer_called(name: str) -> Optimizer:
    """Returns the optimizer called ``name``; one like AdamW if the table has none of that name."""
    return OPTIMIZERS.get(name, _OTHER)


def optimizer_with(states: int) -> str:
    """Returns the name of the first optimizer of the table that keeps ``states`` per weight."""
    return next(name for name, optimizer in OPTIMIZERS.items() if optimizer.states == states)


def optimizer_of_class(torch: str) -> str:
    """Returns the optimizer that is this class of ``torch.optim``; the class in small letters if unknown."""
    return next((name for name, optimizer in OPTIMIZERS.items() if optimizer.torch == torch), torch.lower())
