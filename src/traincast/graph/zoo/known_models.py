"""Specs of well-known language models that have no card in the zoo: ``known_models.toml``."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Final

_COLUMNS: Final = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
"""What the numbers of a line of ``[llama]`` and ``[gpt]`` are."""


def known_model(written: str) -> str | None:
    """Return the spec of a well-known model, as ``Llama-3.1-8B`` or ``opt-1.3b`` is spelt; ``None`` if not known.

    A point counts: ``opt-1.3b`` and ``opt-13b`` are two models.
    """
    return _specs().get(_plain(written))


def spelled(written: str) -> str:
    """Return the name of a well-known model as its publisher spells it."""
    return next(name for name in known_names() if _plain(name) == _plain(written))


def known_names() -> list[str]:
    """Return the names of all well-known models, as their publishers spell them."""
    return [name for table in ("specs", "llama", "gpt") for names in _tables()[table] for name in names.split()]


def _plain(written: str) -> str:
    joined = re.sub(r"(?<=\d)_(?=\d+b)", ".", written.lower())
    return re.sub(r"[^a-z0-9.]", "", joined)


@cache
def _tables() -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files(__package__).joinpath("known_models.toml").read_text(encoding="utf-8"))


@cache
def _specs() -> dict[str, str]:
    found: dict[str, str] = {}
    for names, spec in _tables()["specs"].items():
        whole = re.sub(r"\{(.+?)\}", lambda part: _tables()["parts"][part[1]], spec)
        found.update(dict.fromkeys(map(_plain, names.split()), _written_out(whole)))
    for family in ("llama", "gpt"):
        for names, line in _tables()[family].items():
            found.update(dict.fromkeys(map(_plain, names.split()), _spec_of(family, line.split())))
    return found


def _written_out(spec: str) -> str:
    """``d(e)27`` as a ``d`` and 27 times ``e``."""
    return re.sub(r"\(([^)]+)\)(\d+)", lambda part: part[1] * int(part[2]), spec)


def _spec_of(family: str, words: list[str]) -> str:
    """The spec of a line of six numbers and further parameters."""
    sizes, more = dict(zip(_COLUMNS, words, strict=False)), words[len(_COLUMNS) :]
    if family == "gpt" and sizes["kv_heads"] == sizes["heads"]:
        del sizes["kv_heads"]
    given = [f"{name}={size}" for name, size in sizes.items()]
    tied = "true" if "tied" in more else "false"
    return f"{family}:" + ",".join([*given, f"tied={tied}", *(each for each in more if each != "tied")])
