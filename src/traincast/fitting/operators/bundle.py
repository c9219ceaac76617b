"""Turn fitted cells into a bundle, and read a bundle as the base of a new fit or keep its cells."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.cluster import load_device
from traincast.errors import RequestError
from traincast.estimate.bundle import SHIPPED, Bundle, load_bundle, outdated_families
from traincast.estimate.operators.cells import ANY, arrays_of, card_of
from traincast.estimate.operators.features import FEATURES_VERSION
from traincast.fitting.operators.fit import Base, FitConfig, FittedCell, general_name
from traincast.fitting.operators.scores import MOST_ERROR, Score
from traincast.fitting.rows.dataset import OperatorTable
from traincast.fitting.rows.device_limits import DERIVED


def base_of(path: Path = SHIPPED / "operators") -> Base:
    """The base of a new fit: the networks and cells of the bundle in ``path``, by default the shipped one."""
    if path == SHIPPED / "operators" and not path.is_dir():
        return Base(general={}, measured=())
    bundle = load_bundle(path, outdated=True)
    old = outdated_families(bundle.card)
    entries = [(name, entry) for name, entry in bundle.card["cells"].items() if entry["family"] not in old]
    return Base(
        general={entry["family"]: bundle.cell(name) for name, entry in entries if entry["setting"] == ANY},
        measured=[
            (bundle.devices.get(e["device"]) or load_device(e["device"]), bundle.cell(name))
            for name, e in entries
            if e["device"] != ANY and "base" not in e  # those with cells of their own
        ],
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptCells:
    """The cells of a bundle that a fit leaves as they are, and the patterns of those that it fits again."""

    bundle: Bundle
    only: tuple[str, ...]
    names: tuple[str, ...]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the kept cells, by their names in the bundle."""
        found = self.bundle.arrays()
        return {name: array for name, array in found.items() if name.partition(":")[0] in self.names}


def kept_cells(path: Path, only: Sequence[str]) -> KeptCells:
    """Return the cells of the bundle in ``path`` that match none of the patterns ``only``.

    A cell that was adapted from another cell is fitted again together with it: its name joins the patterns.
    """
    bundle = load_bundle(path, outdated=True)
    if bundle.card["kind"] != "operators":
        raise RequestError(f"{path} is a bundle of {bundle.card['kind']}: cells are kept from a bundle of operators")
    config, old = FitConfig(only=tuple(only)), outdated_families(bundle.card)
    for name, entry in bundle.card["cells"].items():
        if entry["family"] in old and not config.chooses(name):
            raise RequestError(f"{name} in {path} was fitted to features that have changed since: fit it again as well")
    rests = {
        name: (entry["base"], *(near for _, near in entry["near"]))
        for name, entry in bundle.card["cells"].items()
        if "base" in entry
    }
    more = [name for name, others in rests.items() if any(map(config.chooses, others)) and not config.chooses(name)]
    config = FitConfig(only=(*only, *more))
    return KeptCells(
        bundle=bundle,
        only=config.only,
        names=tuple(name for name in bundle.card["cells"] if not config.chooses(name)),
    )


def bundle_of(
    fitted: Collection[FittedCell],
    table: OperatorTable,
    *,
    data: Mapping[str, Any],
    config: FitConfig,
    kept: KeptCells | None = None,
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the card and the arrays of a bundle of the ``fitted`` cells and those ``kept``."""
    old = kept.bundle.card if kept else {"cells": {}, "devices": {}}
    cells: dict[str, Any] = {name: old["cells"][name] for name in (kept.names if kept else ())}
    arrays: dict[str, npt.NDArray[Any]] = kept.arrays() if kept else {}
    inside = {made.cell.id for made in fitted} | set(cells)
    for made in fitted:
        cell = made.cell
        base = general_name(cell.family)
        if cell.network is not None and cell.network.adapted is not None and base in inside:
            entry = {name: getattr(cell, name) for name in ("family", "setting", "dtype", "device", "share")}
            entry["vocabulary"] = {"dtype": list(cell.vocabulary["dtype"])}
            entry["interval"] = {name: list(bounds) for name, bounds in cell.interval.items()}
            entry |= {"base": base, "near": [[weight, near.id] for weight, near in cell.neighbours]}
            own = {"network.adapted": cell.network.adapted}
        else:
            entry, own = card_of(cell), arrays_of(cell)
        entry["rows"] = made.rows
        entry["scores"] = {name: _rounded(score) for name, score in made.scores.items()}
        cells[cell.id] = entry
        arrays |= {f"{cell.id}:{name}": array for name, array in own.items()}
    card = {
        "kind": "operators",
        "features": FEATURES_VERSION,
        "data": _both(old.get("data", {}), data),
        "seed": config.seed,
        "devices": old["devices"]
        | {name: asdict(device) for name, device in sorted(table.devices.items()) if device.architecture == DERIVED},
        "cells": cells,
    }
    return card, arrays


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What the card says of its data: that of the fit, and the files and sources of the cells that were kept."""
    if not old:
        return dict(new)
    files, sources = ({**old.get("files", {}), **new["files"]}, sorted({*old.get("sources", ()), *new["sources"]}))
    counts = {name: max(old.get(name, 0), new[name]) for name in ("rows", "left_out")}  # mostly the same rows
    return {**old, **new, **counts, "files": files, "sources": sources}


def _rounded(score: Score) -> dict[str, float]:
    return {
        name: value if isinstance(value, int) else round(float(np.nan_to_num(value, nan=MOST_ERROR)), 3)
        for name, value in asdict(score).items()
    }
