"""Writes a strategy as flags or as a configuration file of a framework, for the release that each exporter names.

An exporter refuses a setting that its framework lacks if it changes a step's time or memory. Smaller differences become
comments in the text.
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
from traincast.export.shape import check_full_training
from traincast.strategy import Request
from traincast.strategy.prepare import prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A framework to export strategies to.

    ``write`` returns the text that the framework reads, or raises :class:`StrategyError` if it cannot run the strategy.
    ``release`` is the release that the text is written for. ``axes`` takes the name of a model and returns the values
    of each axis that the framework supports, as constraints of a search. The runtime of the same name describes how
    the framework runs a strategy. ``tunes`` says whether the user's own code may add adapters, freeze and quantise
    modules, and choose the optimizer; other frameworks have no setting for these at this release.
    """

    write: Callable[[Request], str]
    release: str
    axes: Callable[[str], str]
    tunes: bool = False


FRAMEWORKS: Final[dict[str, Exporter]] = {
    "megatron": Exporter(write=_megatron.megatron, release=_megatron.RELEASE, axes=_megatron.axes),
    "torchtitan": Exporter(write=_torchtitan.torchtitan, release=_torchtitan.RELEASE, axes=_torchtitan.axes),
    "deepspeed": Exporter(write=_deepspeed.deepspeed, release=_deepspeed.RELEASE, axes=_deepspeed.axes, tunes=True),
    "nanotron": Exporter(write=_nanotron.nanotron, release=_nanotron.RELEASE, axes=_nanotron.axes),
}


def export(request: Request, framework: str) -> str:
    """Return the strategy of ``request`` as the text that ``framework`` reads.

    Raises :class:`StrategyError` for a request that cannot be forecast, and for one that the framework cannot run.
    """
    check_framework(framework)
    if not FRAMEWORKS[framework].tunes:
        check_full_training(f"{framework} {FRAMEWORKS[framework].release}", request.graph)
    prepare(request)
    return FRAMEWORKS[framework].write(request)


def axes_of(framework: str, model: str) -> str:
    """Return the values of each axis that ``framework`` supports for a model, as constraints of a search.

    The framework may not support all combinations of these values; :func:`export` refuses those that it does not.
    """
    check_framework(framework)
    return FRAMEWORKS[framework].axes(model)


def check_framework(framework: str) -> None:
    """Raise :class:`UnknownNameError` unless there is an exporter of that name."""
    if framework not in FRAMEWORKS:
        raise UnknownNameError("framework", framework, FRAMEWORKS)


__all__ = ["FRAMEWORKS", "Exporter", "axes_of", "check_framework", "export"]
