"""The card of a bundle: its fields and their types, its hash, and the checks that name the first wrong field."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

from traincast.cluster import Device
from traincast.errors import FileFormatError
from traincast.estimate.collectives.features import KINDS as COLLECTIVES
from traincast.estimate.collectives.features import Condition, Route
from traincast.estimate.operators.cells import ANY, COLUMNS
from traincast.estimate.operators.families import FAMILIES
from traincast.schema import convert, record_of

KINDS: Final = ("operators", "collectives", "resources")
"""Kinds of bundles."""

_Interval: TypeAlias = tuple[float, float]


class _CellEntry(TypedDict):
    family: str
    setting: str
    dtype: str
    device: str
    share: float
    vocabulary: dict[str, list[str]]
    interval: dict[str, _Interval]
    rows: NotRequired[int]
    domain: NotRequired[dict[str, tuple[list[float], list[float]]]]
    network: NotRequired[dict[str, Any]]
    points: NotRequired[dict[str, Any]]
    neighbours: NotRequired[list[tuple[float, _CellEntry]]]
    base: NotRequired[str]
    near: NotRequired[list[tuple[float, str]]]


class _Operators(TypedDict):
    devices: dict[str, record_of(Device)]  # type: ignore[valid-type]
    cells: dict[str, _CellEntry]
    data: NotRequired[dict[str, Any]]


class _Model(TypedDict):
    format: int
    kinds: list[str]
    routes: list[record_of(Route)]  # type: ignore[valid-type]
    conditions: list[record_of(Condition)]  # type: ignore[valid-type]
    intervals: dict[str, _Interval]
    systems: NotRequired[dict[str, list[int]]]
    prior: NotRequired[dict[str, Any]]
    adapted: NotRequired[dict[str, Any]]


class _Collectives(TypedDict):
    model: _Model
    data: NotRequired[dict[str, Any]]


class _Resources(TypedDict):
    features: int
    shape: dict[str, int | float | str]
    grouping: dict[str, int | float | str]
    scaling: Literal["log", "maximum"]
    types: dict[str, float]
    spread: list[float]
    settings: list[str]
    scores: dict[str, float]
    data: dict[str, Any]


_CARDS: Final[dict[str, type]] = {"operators": _Operators, "collectives": _Collectives, "resources": _Resources}


def digest_of(card: Mapping[str, Any], weights: bytes) -> str:
    """SHA-256 of the weights and of the card without its own hash; the layout of the JSON does not matter."""
    said = {name: value for name, value in card.items() if name != "sha256"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    digest = hashlib.sha256(text.encode() + b"\0")
    digest.update(weights)
    return digest.hexdigest()


def check_card(card: Mapping[str, Any], where: str) -> None:
    """Raise ``FileFormatError`` if a field is missing, has a wrong type, or contradicts another one."""
    try:
        convert(card, _CARDS[card["kind"]], "")
        if card["kind"] == "operators":
            for name, entry in card["cells"].items():
                _check_cell(entry, card["cells"], f"cells.{name}")
        elif card["kind"] == "collectives" and card["model"]["kinds"] != list(COLLECTIVES):
            raise ValueError(f"model.kinds is {card['model']['kinds']!r}: expected {', '.join(COLLECTIVES)}")
    except (FileFormatError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} is damaged: {error}; fit the bundle again") from None


def check_finite(value: Any, where: str, at: str = "") -> None:
    """Raise ``FileFormatError`` if a number anywhere in a card is NaN or infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise FileFormatError(f"{where} is damaged: {at} is {value}: expected a number; fit the bundle again")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        check_finite(item, where, _join(at, key))


def _check_cell(entry: Mapping[str, Any], cells: Mapping[str, Any], at: str) -> None:
    """Check what types cannot: a known family, an interval for all operators, and either a base or an own domain."""
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
                raise ValueError(f"{at} rests on the cell {name!r}, which is not in the card")
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
        _check_cell(near, cells, f"{at}.neighbours[{number}][1]")


def _join(at: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{at}[{key}]"
    return f"{at}.{key}" if at else key
