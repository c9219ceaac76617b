"""Keep a rank busy with matrix products while something else is timed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SIZE: Final = 384
"""Rows and columns of the matrices: a product takes about a millisecond on a processor core."""


@contextmanager
def computing(device: str) -> Iterator[None]:
    """Multiply matrices in a thread of this process as long as the context lasts; on a GPU, in a stream of its own."""
    import torch

    stop, started = threading.Event(), threading.Event()

    def run() -> None:
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream):
            a, out = torch.ones(SIZE, SIZE, device=device), torch.empty(SIZE, SIZE, device=device)
            while not stop.is_set():
                torch.mm(a, a, out=out)
                if stream is not None:
                    stream.synchronize()
                started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
