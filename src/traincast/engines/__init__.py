"""Engines run many independent tasks: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from traincast.engines.local import local_engine
from traincast.engines.protocol import Engine
from traincast.engines.ray_engine import ray_engine
from traincast.errors import RequestError, UnknownNameError


def load_engine(name: str, *, workers: int | None = None, address: str | None = None) -> Engine:
    """Return the engine ``name``, which runs at most ``workers`` tasks at once; ``address`` is for Ray only."""
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if name == "local" and address is not None:
        raise RequestError(f"the local engine takes no address, and {address!r} was given: choose the engine ray")
    given = {"workers": workers, "address": address}
    return ENGINES[name](**{option: value for option, value in given.items() if value is not None})


ENGINES: Final[dict[str, Callable[..., Engine]]] = {
    "local": local_engine,
    "ray": ray_engine,
}

__all__ = ["ENGINES", "Engine", "load_engine", "local_engine", "ray_engine"]
