"""A strategy as a framework reads it: flags or a configuration file, of the release that each exporter names.

What changes a step's time or memory and has no counterpart is refused; smaller differences are said in comments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from traincast.errors import UnknownNameError
from traincast.export import deepspeed as _deepspeed
from traincast.export import megatron as _megatron
from traincast.export import nanotron as _nanotron
from traincast.export import torchtitan as _torchtitan
from traincast.strategy import Request
from traincast.strategy.prepare import prepare

FRAMEWORKS: Final[dict[str, Callable[[Request], str]]] = {
    "megatron": _megatron.megatron,
    "torchtitan": _torchtitan.torchtitan,
    "deepspeed": _deepspeed.deepspeed,
    "nanotron": _nanotron.nanotron,
}
"""Name to the function that writes a request for it; the runtime of the same name is what it does with a strategy."""
RELEASES: Final[dict[str, str]] = {
    "megatron": _megatron.RELEASE,
    "torchtitan": _torchtitan.RELEASE,
    "deepspeed": _deepspeed.RELEASE,
    "nanotron": _nanotron.RELEASE,
}
"""Name to the release whose names and rules an export has."""
_AXES: Final[dict[str, Callable[[str], str]]] = {
    "megatron": lambda _: "schedule=1f1b|interleaved",
    "torchtitan": _torchtitan.axes,
    "deepspeed": lambda _: "schedule=1f1b,virtual_stages=1,cut=even,sp=false",
    "nanotron": _nanotron.axes,
}


def export(request: Request, framework: str) -> str:
    """The strategy of ``request`` as ``framework`` reads it.

    A request that could not be forecast, and one that the framework cannot run, is a :class:`StrategyError`.
    """
    check_framework(framework)
    prepare(request)
    return FRAMEWORKS[framework](request)


def axes_of(framework: str, model: str) -> str:
    """What ``framework`` can express axis by axis for a model of that name, as constraints of a search.

    What it can of their products is for :func:`export` to say, strategy by strategy.
    """
    check_framework(framework)
    return _AXES[framework](model)


def check_framework(framework: str) -> None:
    """Refuse a name that no exporter has."""
    if framework not in FRAMEWORKS:
        raise UnknownNameError("framework", framework, FRAMEWORKS)


__all__ = ["FRAMEWORKS", "RELEASES", "axes_of", "check_framework", "export"]
