"""Pauses Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Run a block without garbage collection, then restore what was set before.

    Making many objects takes about half the time: the collector would walk all of them and find nothing. In a timed
    block, a collection would be counted as the time of the operator.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
