"""Whether this machine rounds as the one that made the ledger.

NumPy and its linear algebra choose instructions by the processor: with and without AVX-512, for instance, exponentials
differ in the last bit. Where they do, the ledger compares figures to nine digits, and no digests of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from benchmarks.ledger.canonical import digest_of
from benchmarks.ledger.entries import FOLDER

_PATH: Final = FOLDER / "arithmetic.txt"
SAID: Final = (
    "this machine rounds otherwise than the one that made the ledger: figures are compared to nine digits, digests of "
    "figures are not"
)


def fingerprint() -> str:
    """Return the digest of some results of NumPy on this machine."""
    values = np.linspace(0.01, 30.0, 4001)
    square = np.sin(values[:4000]).reshape(40, 100)
    results = (
        np.exp(values),
        np.log(values),
        np.log2(values),
        np.power(values, 0.37),
        np.tanh(values),
        np.sqrt(values),
    )
    narrow = square.astype(np.float32)
    return digest_of((*results, square @ square.T, narrow @ narrow.T, values.sum(), narrow.mean(axis=0)), 16)


def is_same() -> bool:
    """Whether this machine rounds as the ledger's."""
    return _PATH.read_text(encoding="utf-8").strip() == fingerprint()


def store() -> None:
    """Write the fingerprint of this machine beside the ledger."""
    _PATH.write_text(f"{fingerprint()}\n", encoding="utf-8")
