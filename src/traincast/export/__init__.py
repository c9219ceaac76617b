"""A strategy as a framework reads it: flags or a configuration file.

What changes a step's time or memory and has no counterpart is refused; smaller differences are said in comments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from traincast.errors import UnknownNameError
from traincast.export.deepspeed import deepspeed
from traincast.export.megatron import megatron
from traincast.export.nanotron import nanotron
from traincast.export.torchtitan import torchtitan
from traincast.strategy import Request
from traincast.strategy.prepare import prepare

FRAMEWORKS: Final[dict[str, Callable[[Request], str]]] = {
    "megatron": megatron,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "nanotron": nanotron,
}
"""Name to the function that writes a request for it."""


def export(request: Request, framework: str) -> str:
    """The strategy of ``request`` as ``framework`` reads it.

    A request that could not be forecast, and one that the framework cannot run, is a :class:`StrategyError`.
    """
    if framework not in FRAMEWORKS:
        raise UnknownNameError("framework", framework, FRAMEWORKS)
    prepare(request)
    return FRAMEWORKS[framework](request)


__all__ = ["FRAMEWORKS", "export"]
