"""The arithmetic in which the ledger is made and compared.

NumPy and its linear algebra choose instructions by the processor: with and without AVX-512, for instance, exponentials
and products differ in the last bit. So the ledger's process asks for instructions that nearly every x86 processor has.
On other processors, figures are compared to six digits, and digests of figures are not compared.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from benchmarks.ledger.canonical import digest_of
from benchmarks.ledger.entries import FOLDER

_PATH: Final = FOLDER / "arithmetic.txt"
PINNED: Final = {
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4,AVX512_ICL,AVX512_SPR",
}
"""Variables that fix the instructions; they must be set before NumPy is imported."""
SAID: Final = (
    "this machine rounds otherwise than the one that made the ledger: figures are compared to six digits, digests of "
    "figures are not"
)


def is_pinned() -> bool:
    """Whether this process was started with the ledger's arithmetic."""
    return all(os.environ.get(name) == value for name, value in PINNED.items())


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
    sums = (values.sum(), narrow.mean(axis=0))
    wide = np.sin(np.arange(256.0 * 128)).astype(np.float32).reshape(256, 128)  # as large as the layers of a network
    return digest_of((*results, square @ square.T, narrow @ narrow.T, wide @ wide.T, *sums), 16)


def is_same() -> bool:
    """Whether this machine rounds as the ledger's."""
    return _PATH.read_text(encoding="utf-8").strip() == fingerprint()


def store() -> None:
    """Write the fingerprint of this machine beside the ledger."""
    _PATH.write_text(f"{fingerprint()}\n", encoding="utf-8")
