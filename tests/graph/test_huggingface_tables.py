"""The tables of Hugging Face types say only what their interpreter knows."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from traincast.graph import zoo
from traincast.graph.huggingface.codes import CODES, LAYER_TYPES
from traincast.graph.huggingface.fields import ACTIVATIONS
from traincast.graph.huggingface.types import _ABOUT, _MUST, _READERS, tables

OPTIONS = {"default", "low", "times", "plus", "nonzero", "automatic", "then", "else", "known", "period", "every", "why"}


def lines() -> Iterator[tuple[str, str, Any]]:
    for name, table in tables().items():
        for part in (table, *table.get("if", {}).values()):
            yield from ((name, key, line) for key, line in part.items() if key not in _ABOUT)


def family_of(name: str) -> str:
    table = tables()[name]
    return str(table["family"] if "family" in table else family_of(table["like"]))


def test_every_line_has_one_reader_and_only_known_options() -> None:
    for name, key, line in lines():
        if isinstance(line, dict):
            assert len(set(line) & set(_READERS)) == 1, (name, key)
            assert set(line) <= set(_READERS) | OPTIONS, (name, key)


def test_lists_and_functions_that_tables_name_exist_and_none_is_left_over() -> None:
    used = [line for _, _, line in lines() if isinstance(line, dict)]
    assert {line["code"] for line in used if "code" in line} == set(CODES)
    assert {line["layers"] for line in used if "layers" in line} <= set(LAYER_TYPES)
    assert {line["known"] for line in used if "known" in line} <= set(ACTIVATIONS)


def test_every_dimension_is_one_of_its_family() -> None:
    for name, key, _ in lines():
        if not name.startswith("_") and not key.startswith(_MUST):
            dimensions = set(key.split()) - set(tables()[name].get("omit", ()))
            module, _, function = zoo.FAMILIES[family_of(name)].partition(":")
            builder = getattr(importlib.import_module(module), function)
            assert dimensions <= set(inspect.signature(builder).parameters), (name, key)
