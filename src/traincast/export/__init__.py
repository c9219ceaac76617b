"""A strategy as a framework reads it: flags or a configuration file for the release that each exporter names.

An exporter refuses a setting that changes a step's time or memory and that its framework lacks. Smaller differences
become comments in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from traincast.errors import UnknownNameError
from traincast.export import deepspeed as _deepspeed
from traincast.export import megatron as _megatron
from traincast.export import nanotron as _nanotron
from traincast.export import torchtitan as _torchtitan
from traincast.strategy import Request
from traincast.strategy.prepare import prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A framework that strategies are written for.

    ``write`` returns the text that it reads, or raises :class:`StrategyError` where it cannot run a strategy.
    ``release`` is the release whose names and rules the text has. ``axes`` returns what it can express axis by axis for
    the model of a name, as constraints of a search. The runtime of the same name is what it does with a strategy.
    """

    write: Callable[[Request], str]
    release: str
    axes: Callable[[str], str]


FRAMEWORKS: Final[dict[str, Exporter]] = {
    "megatron": Exporter(write=_megatron.megatron, release=_megatron.RELEASE, axes=_megatron.axes),
    "torchtitan": Exporter(write=_torchtitan.torchtitan, release=_torchtitan.RELEASE, axes=_torchtitan.axes),
    "deepspeed": Exporter(write=_deepspeed.deepspeed, release=_deepspeed.RELEASE, axes=_deepspeed.axes),
    "nanotron": Exporter(write=_nanotron.nanotron, release=_nanotron.RELEASE, axes=_nanotron.axes),
}


def export(request: Request, framework: str) -> str:
    """The strategy of ``request`` as ``framework`` reads it.

    Raises :class:`StrategyError` for a request that cannot be forecast, and for one that the framework cannot run.
    """
    check_framework(framework)
    prepare(request)
    return FRAMEWORKS[framework].write(request)


def axes_of(framework: str, model: str) -> str:
    """What ``framework`` can express axis by axis for the model of that name, as constraints of a search.

    Not every combination of these values can be written: :func:`export` refuses the others, strategy by strategy.
    """
    check_framework(framework)
    return FRAMEWORKS[framework].axes(model)


def check_framework(framework: str) -> None:
    """Raise :class:`UnknownNameError` unless there is an exporter of that name."""
    if framework not in FRAMEWORKS:
        raise UnknownNameError("framework", framework, FRAMEWORKS)


__all__ = ["FRAMEWORKS", "Exporter", "axes_of", "check_framework", "export"]
