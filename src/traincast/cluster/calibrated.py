"""Calibrated clusters: finds the one most like a given cluster, and writes calibrations to files."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from traincast.cluster.calibration import NUMBERS, Calibration, SeenModel
from traincast.cluster.catalog import DATA, cluster_names, load_cluster
from traincast.cluster.hardware import Cluster
from traincast.files import write_text

INDEX: Final = DATA / "calibrated.toml"
"""Which device and runtimes each calibrated cluster speaks for, to find it without reading its file.

``python -m benchmarks.clusters`` writes it after a cluster of the catalog has changed; a test fails until then.
"""


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


_DIGITS: Final = 5


@lru_cache(maxsize=1)
def calibrated_clusters() -> tuple[Cluster, ...]:
    """All clusters of the catalog that have a calibration."""
    found = (load_cluster(name) for name in cluster_names())
    return tuple(cluster for cluster in found if cluster.calibration is not None)


def find_calibrated(cluster: Cluster, runtime: str, *, models: str = "") -> Cluster | None:
    """Returns the calibrated cluster most like ``cluster`` under ``runtime``, or ``None``.

    It must have the same device and the same runtime, and serve ``models``, a kind of models. Of several, one for this
    kind alone is taken, then the one with the nearest number of nodes.
    """
    entry = find_entry(cluster, runtime, models=models)
    return load_cluster(entry.name) if entry else None


def find_calibration(cluster: Cluster, runtime: str, *, models: str = "") -> Calibration | None:
    """Returns the calibration of the cluster that :func:`find_calibrated` finds, or ``None``."""
    known = find_calibrated(cluster, runtime, models=models)
    return known.calibration if known else None


def calibration_toml(calibration: Calibration, *, comments: Mapping[str, str] | None = None) -> str:
    """Returns the ``[calibration]`` table of a cluster file; ``comments`` are added to the parameters they name."""
    said = comments or {}
    default = Calibration()
    lines = ["[calibration]"]
    lines.append(f"runtimes = [{', '.join(_quoted(name) for name in calibration.runtimes)}]")
    if calibration.models:
        lines.append(f"models = [{', '.join(_quoted(kind) for kind in calibration.models)}]")
    lines.append(f"nodes = [{calibration.nodes[0]}, {calibration.nodes[1]}]")
    lines.append(f"runs = {calibration.runs}")
    for name in NUMBERS:
        value = getattr(calibration, name)
        if value != getattr(default, name) or name in ("low", "high"):
            comment = f"  # {said[name]}" if name in said else ""
            lines.append(f"{name} = {_number(value)}{comment}")
    if calibration.seen:
        lines += ["seen = [", *(f"  {_seen(each)}," for each in calibration.seen), "]"]
    for name, table in (("stall", calibration.stall), ("few", calibration.few)):
        if table is not None:
            lines += ["", f"[calibration.{name}]"]
            lines += [f"{key} = {_number(getattr(table, key))}" for key in type(table).__slots__]
    if calibration.correction is not None:
        correction = calibration.correction
        lines += ["", "[calibration.correction]"]
        lines.append(f"scales = {_list(correction.scales)}")
        lines.append(f"weights = {_list(correction.weights)}")
        lines += ["points = [", *(f"  {_list(point)}," for point in correction.points), "]"]
    return "\n".join(lines) + "\n"


def _seen(each: SeenModel) -> str:
    names = f"model = {_quoted(each.model)}, precision = {_quoted(each.precision)}"
    doubt = f", doubt = {_number(each.doubt)}" if each.doubt < 1.0 else ""
    return f"{{ {names}, factor = {_number(each.factor)}, runs = {each.runs}{doubt} }}"


def write_calibrated(
    path: Path,
    *,
    extends: str,
    calibration: Calibration,
    name: str = "",
    source: str = "",
    device: str = "",
    num_nodes: int = 0,
    comments: Mapping[str, str] | None = None,
) -> None:
    """Write a cluster file that ``extends`` another cluster or file and adds ``calibration``."""
    lines = [f"extends = {_quoted(extends)}", *([f"device = {_quoted(device)}"] if device else [])]
    lines += ["", "[cluster]", f"name = {_quoted(name or path.stem)}"]
    if num_nodes:
        lines.append(f"num_nodes = {num_nodes}")
    if source:
        lines.append(f"source = {_quoted(source)}")
    text = "\n".join(lines) + "\n\n" + calibration_toml(calibration, comments=comments)
    write_text(path, text)


def _number(value: float) -> str:
    text = f"{value:.{_DIGITS}g}"
    return text if any(c in text for c in ".en") else f"{text}.0"


def _list(values: tuple[float, ...]) -> str:
    return f"[{', '.join(_number(v) for v in values)}]"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # strings of JSON are strings of TOML
