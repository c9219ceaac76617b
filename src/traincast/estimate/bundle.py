"""Bundles: fitted models in a folder with a card (JSON) and weights (safetensors).

The card says what the bundle holds, what it was fitted to, how accurate it was on rows that it was not fitted to, and
the hash of card and weights. A bundle is refused if it does not match its hash, if its card is incomplete, or if it was
fitted to other features.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device, load_device
from traincast.cluster.match import GENERIC, is_processor
from traincast.errors import FileFormatError, RequestError
from traincast.estimate.collectives.features import KINDS as COLLECTIVES
from traincast.estimate.collectives.features import Condition, Route
from traincast.estimate.operators.cells import ANY, COLUMNS, Cell, cell_from
from traincast.estimate.operators.families import FAMILIES
from traincast.estimate.operators.features import CHANGED, FEATURES_VERSION
from traincast.files import check_folder, write_folder
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


FORMAT: Final = 2
"""Version of the folder's form. Since version 2, the hash covers the card as well as the weights."""
SHIPPED: Final = Path(__file__).parent.parent / "bundles"
_CARD, _WEIGHTS = "card.json", "weights.safetensors"
_NO_NUMBER: Final = re.compile(r"NaN|Infinity|[eE]\+?\d{3}")
"""Finds numbers in a card that may not be finite: these words, or a power of ten beyond any float."""
_NEEDS: Final = ("format", "kind", "sha256")


class Bundle:
    """A bundle on disk. Arrays are read when they are first needed."""

    def __init__(self, path: Path, card: Mapping[str, Any]) -> None:
        self.path = path
        self.card = card
        self._cells: dict[str, Cell] = {}

    def arrays(self, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
        """The arrays whose names begin with ``prefix``, by the rest of the name."""
        from safetensors import safe_open

        with safe_open(self.path / _WEIGHTS, "np") as file:
            found = {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
        for name, array in found.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise FileFormatError(
                    f"{self.path / _WEIGHTS}: {name} holds numbers that are not finite; fit the bundle again"
                )
        return {name[len(prefix) :]: array for name, array in found.items()}

    @cached_property
    def entries(self) -> dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]]:
        """Names and card entries of the cells, by family and device."""
        found: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
        for name, entry in self.card.get("cells", {}).items():
            found.setdefault((entry["family"], entry["device"]), []).append((name, entry))
        return found

    @cached_property
    def settings(self) -> frozenset[str]:
        """Settings that its cells were measured in."""
        return frozenset(entry["setting"] for entry in self.card.get("cells", {}).values())

    @cached_property
    def devices(self) -> dict[str, Device]:
        """Devices that it was fitted to and that the catalog does not have, by name."""
        return {text: Device(**fields) for text, fields in self.card.get("devices", {}).items()}

    def name_of(self, device: Device) -> str:
        """The name of ``device`` in this bundle; the catalog's processor means the measured one, if only one was."""
        processors = [name for name in self.devices if is_processor(name)]
        return processors[0] if device.name == GENERIC and len(processors) == 1 else device.name

    def measured(self, family: str, dtype: str) -> list[tuple[Device, Cell]]:
        """The cells of measured devices, for each device the cell with the most rows."""
        best: dict[str, tuple[int, str]] = {}
        for name, entry in self.card.get("cells", {}).items():
            if entry["family"] == family and entry["dtype"] == dtype and entry["device"] != ANY:
                if "base" in entry:
                    continue
                best[entry["device"]] = max(best.get(entry["device"], (0, "")), (entry["rows"], name))
        devices = {name: self.devices.get(name) or load_device(name) for name in best}
        return [(devices[device], self.cell(name)) for device, (_, name) in sorted(best.items())]

    def siblings(self, family: str, dtype: str, device: Device) -> list[str]:
        """The cells of ``device`` and of cards with the same chip, its own first, then those with the most rows."""
        found = []
        for name, entry in self.card.get("cells", {}).items():
            if (entry["family"], entry["dtype"]) != (family, dtype) or entry["device"] == ANY or "base" in entry:
                continue
            other = self.devices.get(entry["device"]) or load_device(entry["device"])
            if (other.architecture, other.num_sms) == (device.architecture, device.num_sms):
                found.append((entry["device"] != device.name, -entry["rows"], name))
        return [name for *_, name in sorted(found)]

    def cell(self, name: str) -> Cell:
        """The cell called ``name``."""
        if name not in self._cells:
            entry, arrays = self.card["cells"][name], self.arrays(f"{name}:")
            try:
                self._cells[name] = cell_from(entry, arrays) if "base" not in entry else self._adapted(entry, arrays)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise FileFormatError(f"{self.path}: the cell {name} is damaged: {reason}; fit it again") from error
        return self._cells[name]

    def _adapted(self, entry: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Cell:
        """The cell of an adapted device: the network of all devices with another last layer, and its neighbours."""
        base = self.cell(entry["base"])
        if base.network is None:
            raise ValueError(f"its base {entry['base']} has no network")
        return replace(
            base,
            **{name: entry[name] for name in ("setting", "dtype", "device")},
            interval={name: (float(a), float(b)) for name, (a, b) in entry["interval"].items()},
            network=replace(base.network, adapted=arrays["network.adapted"]),
            neighbours=tuple((float(weight), self.cell(near)) for weight, near in entry["near"]),
        )


def load_bundle(path: Path, *, outdated: bool = False) -> Bundle:
    """Returns the bundle in the folder ``path``; raises ``FileFormatError`` if card, weights or hash are wrong.

    With ``outdated``, it may hold cells that were fitted to features of an earlier version; see ``outdated_families``.
    """
    card, weights = _read(path)
    if card["format"] == 1:
        raise FileFormatError(
            f"{path} has format 1, whose hash does not cover its card: run `traincast fit renew {path}` once, or fit "
            "it again"
        )
    _check(path, card)
    if digest_of(card, weights) != card["sha256"]:
        raise FileFormatError(
            f"{path} does not match the hash in its card: {_CARD} or {_WEIGHTS} was changed or is damaged; copy or "
            "fit it again"
        )
    _check_weights(path)
    old = outdated_families(card)
    if old and not outdated:
        raise FileFormatError(
            f"{path} was fitted to features {card.get('features')!r} of {', '.join(sorted(old))}; this version "
            f"computes {FEATURES_VERSION!r}: fit it again"
        )
    return Bundle(path, card)


def kind_of_bundle(path: Path) -> str:
    """Return the kind of the bundle in the folder ``path``, without checking anything else."""
    return str(_read(path)[0]["kind"])


def outdated_families(card: Mapping[str, Any]) -> set[str]:
    """Families of a card's cells whose features have changed since it was written; all, if its version is unknown."""
    if card["kind"] != "operators":
        return set()
    families, version = {entry["family"] for entry in card["cells"].values()}, card.get("features")
    if not isinstance(version, int) or not 1 <= version <= FEATURES_VERSION:
        return families or {"all families"}
    return {family for family in families if CHANGED.get(family, 1) > version}


def renew_bundle(path: Path) -> bool:
    """Rewrite a bundle of format 1 in the present format, with the same weights; returns whether it had to be."""
    card, weights = _read(path)
    if card["format"] != 1:
        load_bundle(path)
        return False
    if hashlib.sha256(weights).hexdigest() != card["sha256"]:
        raise FileFormatError(
            f"{path / _WEIGHTS} does not match the hash in its card: it is damaged or of another bundle"
        )
    _check(path, {**card, "format": FORMAT})
    _check_weights(path)
    _write(path, card, weights)
    return True


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """Card and weights of a folder, the card with the fields that all cards have."""
    try:
        text = (path / _CARD).read_text(encoding="utf-8")
        card = json.loads(text)
        weights = (path / _WEIGHTS).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileFormatError(f"{path} is no bundle: expected a folder with {_CARD} and {_WEIGHTS}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path / _CARD} cannot be read: {' '.join(str(error).split())[:160]}") from None
    missing = [name for name in _NEEDS if not isinstance(card, dict) or name not in card]
    if missing:
        raise FileFormatError(f"{path / _CARD} lacks {', '.join(missing)}: this is not the card of a bundle")
    if _NO_NUMBER.search(text):
        check_finite(card, str(path / _CARD))
    return card, weights


def _check(path: Path, card: Mapping[str, Any]) -> None:
    if card["format"] != FORMAT:
        raise FileFormatError(f"{path} has format {card['format']!r}: this version reads format {FORMAT}; fit it again")
    if card["kind"] not in KINDS:
        raise FileFormatError(f"{path} is a bundle of {card['kind']!r}: known are {', '.join(KINDS)}")
    check_card(card, str(path / _CARD))


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path / _WEIGHTS, "np"):
            return
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise FileFormatError(f"{path / _WEIGHTS} is no safetensors file: {reason}; fit the bundle again") from None


def check_output(path: Path) -> None:
    """Raise an error if a bundle cannot be written to ``path``. It may replace a bundle, but nothing else."""
    check_folder(path if path.is_dir() else path.parent)
    if not path.exists():
        return
    held = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else ["a file"]
    others = [name for name in held if name not in (_CARD, _WEIGHTS)]
    if others and _CARD in held:
        raise RequestError(f"{path} is a bundle that also holds {', '.join(others[:3])}: move that away first")
    if others:
        raise RequestError(f"{path} exists and is no bundle: choose another name")


def save_bundle(path: Path, card: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a bundle to the folder ``path``, completely or not at all. It may replace a bundle, but nothing else."""
    from safetensors.numpy import save

    check_output(path)
    weights = save({name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())})
    _write(path, card, weights)


def _write(path: Path, card: Mapping[str, Any], weights: bytes) -> None:
    said = {name: value for name, value in card.items() if name not in ("format", "sha256")}
    whole: dict[str, Any] = {"format": FORMAT, **said}
    whole["sha256"] = digest_of(whole, weights)
    text = json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False)
    write_folder(path, {_WEIGHTS: weights, _CARD: f"{text}\n".encode()})
