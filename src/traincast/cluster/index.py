"""The index of calibrated clusters: which device and runtimes each one speaks for, without reading its file.

The index is the file ``data/calibrated.toml``. ``python -m benchmarks.clusters`` writes it after a cluster
of the catalog has changed; a test fails until then.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from traincast.cluster.catalog import DATA
from traincast.cluster.hardware import Cluster
from traincast.files import write_text

INDEX: Final = DATA / "calibrated.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedEntry:
    """A calibrated cluster: its name, its device, the runtimes, the range of nodes and the number of measured runs.

    ``models`` are the kinds of models that it serves; empty: all.
    """

    name: str
    device: str
    runtimes: tuple[str, ...]
    nodes: tuple[int, int]
    runs: int
    models: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster) -> CalibratedEntry:
        """The entry of a cluster that has a calibration."""
        known = cluster.calibration
        assert known is not None
        return cls(
            name=cluster.name,
            device=cluster.device.name,
            runtimes=known.runtimes,
            nodes=known.nodes,
            runs=known.runs,
            models=known.models,
        )


@lru_cache(maxsize=1)
def calibrated_index() -> tuple[CalibratedEntry, ...]:
    """The entries of all calibrated clusters of the catalog, sorted by the names of their files."""
    table = tomllib.loads(INDEX.read_text(encoding="utf-8"))
    return tuple(
        CalibratedEntry(
            name=name,
            device=entry["device"],
            runtimes=tuple(entry["runtimes"]),
            nodes=(entry["nodes"][0], entry["nodes"][1]),
            runs=entry["runs"],
            models=tuple(entry.get("models", ())),
        )
        for name, entry in table.items()
    )


def find_entry(cluster: Cluster, runtime: str, *, models: str = "") -> CalibratedEntry | None:
    """The calibrated cluster with the same device and runtime as ``cluster`` that serves ``models``, or None.

    Of several, one that serves only this kind of models is taken, then the one whose number of nodes is nearest.
    """
    best: tuple[tuple[bool, float], CalibratedEntry] | None = None
    for entry in calibrated_index():
        if entry.device != cluster.device.name or runtime not in entry.runtimes:
            continue
        if entry.models and models not in entry.models:
            continue
        fewest, most = entry.nodes
        distance = max(math.log(fewest / cluster.num_nodes), math.log(cluster.num_nodes / most), 0.0)
        key = not entry.models, distance
        if best is None or key < best[0]:
            best = key, entry
    return best[1] if best else None


def index_toml(clusters: Iterable[Cluster]) -> str:
    """The text of the index of these calibrated clusters."""
    lines = ["# Written by python -m benchmarks.clusters"]
    for entry in map(CalibratedEntry.of, clusters):
        runtimes, nodes = json.dumps(list(entry.runtimes)), list(entry.nodes)
        values = f'device = "{entry.device}", runtimes = {runtimes}, nodes = {nodes}, runs = {entry.runs}'
        values += f", models = {json.dumps(list(entry.models))}" if entry.models else ""
        lines.append(f"{json.dumps(entry.name)} = {{ {values} }}")
    return "\n".join(lines) + "\n"


def write_index(clusters: Iterable[Cluster], path: Path = INDEX) -> None:
    """Write the index of these calibrated clusters to ``path``."""
    write_text(path, index_toml(clusters))
