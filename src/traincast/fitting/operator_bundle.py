"""Turn fitted cells into a bundle, and read the shipped bundle as the base of a new fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.cluster import load_device
from traincast.estimate.bundle import SHIPPED, load_bundle
from traincast.estimate.cells import ANY, arrays_of, card_of
from traincast.estimate.features import FEATURES_VERSION
from traincast.fitting.dataset import OperatorTable
from traincast.fitting.device_limits import DERIVED
from traincast.fitting.operators import Base, FitConfig, FittedCell
from traincast.fitting.scores import MOST_ERROR, Score


def shipped_base() -> Base:
    """The base of a new fit: the networks and cells of the shipped bundle."""
    path = SHIPPED / "operators"
    if not path.is_dir():
        return Base(general={}, measured=())
    bundle = load_bundle(path)
    entries = bundle.card["cells"].items()
    return Base(
        general={entry["family"]: bundle.cell(name) for name, entry in entries if entry["device"] == ANY},
        measured=[
            (load_device(e["device"]), bundle.cell(name))
            for name, e in entries
            if e["device"] != ANY and "base" not in e  # those with cells of their own
        ],
    )


def bundle_of(
    fitted: Collection[FittedCell], table: OperatorTable, *, data: Mapping[str, Any], config: FitConfig
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the card and the arrays of a bundle of the ``fitted`` cells."""
    cells: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    inside = {made.cell.id for made in fitted}
    for made in fitted:
        cell = made.cell
        base = "/".join((cell.family, ANY, ANY, ANY))
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
        "data": dict(data),
        "seed": config.seed,
        "devices": {
            name: asdict(device) for name, device in sorted(table.devices.items()) if device.architecture == DERIVED
        },
        "cells": cells,
    }
    return card, arrays


def _rounded(score: Score) -> dict[str, float]:
    return {
        name: value if isinstance(value, int) else round(float(np.nan_to_num(value, nan=MOST_ERROR)), 3)
        for name, value in asdict(score).items()
    }
