"""What must stand in the card of a bundle: every field, its type, and its hash; what is amiss is named."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from traincast.cluster import Device
from traincast.errors import FileFormatError
from traincast.estimate.cells import ANY, COLUMNS
from traincast.estimate.collective_features import KINDS as COLLECTIVES
from traincast.estimate.collective_features import Condition, Route
from traincast.estimate.features import FAMILIES

KINDS: Final = ("operators", "collectives")
"""What a bundle can be of."""
_WORDS: Final = {str: "a text", int: "a whole number", float: "a number", dict: "an object", list: "a list"}


class _Each:
    """An object of any keys, all of whose values are alike."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec


class _Field(str):
    """A key that may be missing."""

    __slots__ = ()


def _of_dataclass(cls: type) -> dict[str, Any]:
    """The fields of a dataclass of texts, numbers and tables of numbers; those with a default may be missing."""
    types = {"str": str, "int": int, "float": float}
    found: dict[str, Any] = {}
    for field in fields(cls):
        required = field.default is MISSING and field.default_factory is MISSING
        name = field.name if required else _Field(field.name)
        found[name] = types.get(str(field.type), _Each(float))
    return found


_INTERVAL: Final = (float, float)
_CELL: Final[dict[str, Any]] = {
    **dict.fromkeys(("family", "setting", "dtype", "device"), str),
    "share": float,
    "vocabulary": _Each([str]),
    "interval": _Each(_INTERVAL),
    _Field("rows"): int,
    _Field("domain"): _Each(([float], [float])),
    _Field("network"): dict,
    _Field("neighbours"): [(float, dict)],
    _Field("base"): str,
    _Field("near"): [(float, str)],
}
_CARDS: Final[dict[str, Any]] = {
    "operators": {"devices": _Each(_of_dataclass(Device)), "cells": _Each(_CELL), _Field("data"): dict},
    "collectives": {
        "model": {
            "format": int,
            "kinds": [str],
            "routes": [_of_dataclass(Route)],
            "conditions": [_of_dataclass(Condition)],
            "intervals": _Each(_INTERVAL),
        },
        _Field("data"): dict,
    },
}


def digest_of(card: Mapping[str, Any], weights: bytes) -> str:
    """SHA-256 of all that a card says but its own hash, and of the weights; the layout of the JSON does not count."""
    said = {name: value for name, value in card.items() if name != "sha256"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    digest = hashlib.sha256(text.encode() + b"\0")
    digest.update(weights)
    return digest.hexdigest()


def check_card(card: Mapping[str, Any], where: str) -> None:
    """Refuse a card in which a field is missing, of another type, or contradicts another one."""
    try:
        _fits(card, _CARDS[card["kind"]], "")
        if card["kind"] == "operators":
            for name, entry in card["cells"].items():
                _check_cell(entry, card["cells"], f"cells.{name}")
        elif card["model"]["kinds"] != list(COLLECTIVES):
            raise ValueError(f"model.kinds is {card['model']['kinds']!r}: expected {', '.join(COLLECTIVES)}")
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} is damaged: {error}; fit the bundle again") from None


def check_finite(value: Any, where: str, at: str = "") -> None:
    """Refuse a number that is none, anywhere in a card."""
    if isinstance(value, float) and not math.isfinite(value):
        raise FileFormatError(f"{where} is damaged: {at} is {value}: expected a number; fit the bundle again")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        check_finite(item, where, _join(at, key))


def _fits(value: Any, spec: Any, at: str) -> None:
    """Check ``value`` against what is expected at a place of the card."""
    match spec:
        case type():
            numbers = (int, float) if spec is float else (spec,)
            if not isinstance(value, numbers) or isinstance(value, bool):
                raise ValueError(f"{at} is {_shown(value)}: expected {_WORDS[spec]}")
        case _Each():
            _fits(value, dict, at)
            for key, item in value.items():
                _fits(item, spec.spec, _join(at, key))
        case dict():
            _fits(value, dict, at)
            for key, expected in spec.items():
                if key in value:
                    _fits(value[key], expected, _join(at, key))
                elif not isinstance(key, _Field):
                    raise ValueError(f"{_join(at, key)} is missing")
        case list():
            _fits(value, list, at)
            for number, item in enumerate(value):
                _fits(item, spec[0], _join(at, number))
        case _:
            _fits(value, list, at)
            if len(value) != len(spec):
                raise ValueError(f"{at} has {len(value)} entries: expected {len(spec)}")
            for number, (item, expected) in enumerate(zip(value, spec, strict=True)):
                _fits(item, expected, _join(at, number))


def _check_cell(entry: Mapping[str, Any], cells: Mapping[str, Any], at: str) -> None:
    """What a cell needs beyond its types: a known family, an interval for all, and its base or its own domain."""
    if entry["family"] not in FAMILIES:
        raise ValueError(f"{at}.family is {entry['family']!r}: known are {', '.join(FAMILIES)}")
    if ANY not in entry["interval"]:
        raise ValueError(f"{at}.interval.{ANY} is missing")
    if not 0.0 <= entry["share"] <= 1.0:
        raise ValueError(f"{at}.share is {entry['share']:g}: expected a number from 0 to 1")
    for name, (low, high) in entry["interval"].items():
        if low > high:
            raise ValueError(f"{at}.interval.{name} is {low:g} to {high:g}: expected the smaller first")
    if "base" in entry:
        for name in (entry["base"], *(name for _, name in entry.get("near", []))):
            if name not in cells:
                raise ValueError(f"{at} rests on the cell {name!r}, which the card lacks")
        return
    missing = [column for column in COLUMNS if not entry["vocabulary"].get(column)]
    if missing:
        raise ValueError(f"{at}.vocabulary.{missing[0]} is missing or empty")
    if "domain" not in entry:
        raise ValueError(f"{at}.domain is missing")
    width = len(FAMILIES[entry["family"]].sizes)
    for name, sides in entry["domain"].items():
        if any(len(side) != width for side in sides):
            raise ValueError(f"{at}.domain.{name} has {len(sides[0])} sizes: {entry['family']} has {width}")
    for number, (_, near) in enumerate(entry.get("neighbours", [])):
        _fits(near, _CELL, f"{at}.neighbours.{number}.1")
        _check_cell(near, cells, f"{at}.neighbours.{number}.1")


def _join(at: str, key: object) -> str:
    return f"{at}.{key}" if at else str(key)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
