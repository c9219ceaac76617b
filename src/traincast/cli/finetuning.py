"""``--lora``, ``--freeze``, ``--quantize`` and ``--optimizer``: what a step trains, and with which optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from traincast.cli.options import Decorator, F

OPTIMIZERS: Final = "adamw, adam, lamb, sgd, sgd-plain, adamw8bit, paged-adamw or paged-adamw8bit"
_NAMES: Final = ("lora", "quantize", "optimizer")


def fine_tuning() -> Decorator:
    """``--lora``, ``--freeze``, ``--quantize`` and ``--optimizer``."""

    def decorate(function: F) -> F:
        function = click.option(
            "--optimizer", metavar="NAME", help=f"Optimizer instead of the model's own: {OPTIMIZERS}."
        )(function)
        function = click.option(
            "--quantize",
            metavar="4|8|NAME",
            help="Store frozen weights of linear layers in 4 bits (nf4, nf4-single, gptq) or 8 bits (int8).",
        )(function)
        function = click.option(
            "--freeze",
            multiple=True,
            metavar="PATTERN",
            help="Do not train modules whose path matches PATTERN, nor give them adapters. May be given several times.",
        )(function)
        return click.option(
            "--lora",
            metavar="rank=16,targets=…",
            help="Train low-rank adapters and freeze everything else. Targets: attention, mlp, qkv, q, k, v, o, gate, "
            "up, down, all or patterns of module paths, joined by +. Also alpha, dropout, train, dtype and compute.",
        )(function)

    return decorate


def fine_tuning_words(given: Mapping[str, Any]) -> list[str]:
    """Return the options of fine-tuning in ``given``, the parameters of a command, as words of a command."""
    words = [word for name in _NAMES if given.get(name) for word in (f"--{name}", str(given[name]))]
    return words + [word for pattern in given.get("freeze") or () for word in ("--freeze", pattern)]
