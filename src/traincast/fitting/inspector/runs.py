"""Tables of runs: what ran where, and the twelve figures that were measured or simulated.

======================  =================================================================================
column                  meaning
======================  =================================================================================
``model``               as ``predict`` takes it
``global_batch``        samples per step
``strategy``            as ``predict`` takes it, such as ``dp=4,servers=2``
``cluster``             as ``predict`` takes it; a file is looked for beside the table
``device, nodes,``      instead of ``cluster``, or changes of it: a server with devices of the catalog
``devices_per_node,``
``link_bytes_s``        bytes/s of each node's network
``seq``                 tokens per sample; empty: the model's own
``precision, runtime``  as ``predict`` takes them; empty: the default
``setting``             any text: runs with the same text belong to one setting
``step_s``              seconds of a step, for information
RESOURCE ``_burst_amount``, ``_burst_s``, ``_idle_s``, ``_pattern``
                        for ``compute``, ``memory``, ``receive`` and ``send``; a figure of bursts may be empty, if
                        samples cannot carry it
======================  =================================================================================
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from traincast.ask import Ask
from traincast.cluster import Cluster, load_cluster, load_device
from traincast.cluster.hardware import Link
from traincast.errors import FileFormatError, RequestError
from traincast.estimate.inspector.targets import PATTERNS
from traincast.estimate.resource_use import FIGURES, RESOURCES, Pattern, ResourceUse
from traincast.files import write_bytes
from traincast.graph import OperatorGraph
from traincast.graph.load import load_model
from traincast.resolve import resolve, stated_strategy
from traincast.strategy import Request
from traincast.tables import figure, read_rows, text, whole

SERVER: Final = "pcie-1080ti"
"""The server of a row that names only its device: a PCIe tree and one NIC."""
NEEDS: Final = ("model", "global_batch", "strategy", *(f"{r}_{f}" for r in RESOURCES for f in (*FIGURES, "pattern")))
_DESCRIBED: Final = (
    "setting", "model", "seq", "global_batch", "strategy", "precision", "runtime", "cluster", "device", "nodes",
    "devices_per_node", "link_bytes_s", "step_s",
)  # fmt: skip
COLUMNS: Final = (*_DESCRIBED, *(f"{r}_{f}" for r in RESOURCES for f in (*FIGURES, "pattern")))
_EMPTY: Final = "the table has no value"
_LATENCY_S: Final = 3e-5
"""Seconds that a message takes at least over Ethernet and the host's network stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """One row of a table: the request that ran, the figures of its resources, and its setting."""

    request: Request
    uses: Mapping[str, ResourceUse]
    model: str
    setting: str
    step_s: float


def read_runs(paths: Sequence[Path]) -> tuple[list[ObservedRun], list[str]]:
    """Return the runs of tables, and the reasons why others are left out; refuses tables with no usable row."""
    runs: list[ObservedRun] = []
    problems: list[str] = []
    requests: dict[tuple[Any, ...], Request] = {}
    for path in paths:
        for number, row in enumerate(read_rows(path, needs=NEEDS), start=2):
            try:
                runs.append(observed_run(row, beside=path.parent, requests=requests))
            except RequestError as error:
                problems.append(f"{path.name}, row {number}: {error}")
    if not runs:
        reason = f"; the first reason: {problems[0]}" if problems else ""
        raise FileFormatError(f"{', '.join(map(str, paths))}: no run can be read{reason}")
    return runs, problems


def observed_run(
    row: Mapping[str, Any], *, beside: Path | None = None, requests: dict[tuple[Any, ...], Request] | None = None
) -> ObservedRun:
    """Return the run of one row; ``requests`` are those of earlier rows, which equal rows share."""
    requests = {} if requests is None else requests
    uses = {}
    for resource in RESOURCES:
        pattern = text(row, f"{resource}_pattern")
        if pattern not in PATTERNS:
            raise FileFormatError(f"{resource}_pattern is {pattern!r}: expected one of {', '.join(PATTERNS)}")
        values = {name: figure(row, f"{resource}_{name}") for name in FIGURES}
        if any(value < 0.0 if value is not None else pattern != "bursts" for value in values.values()):
            raise FileFormatError(f"{resource}: expected {', '.join(FIGURES)} of at least 0")
        known: Pattern = pattern  # type: ignore[assignment]
        refused = {name: _EMPTY for name, value in values.items() if value is None}
        uses[resource] = ResourceUse(**values, pattern=known, refused=refused)
    key = tuple(str(row.get(name, "")) for name in _DESCRIBED[1:-1])
    if key not in requests:
        requests[key] = request_of(row, beside=beside)
    request = requests[key]
    return ObservedRun(
        request=request,
        uses=uses,
        model=text(row, "model"),
        setting=text(row, "setting") or f"{request.cluster.name} {request.strategy}",
        step_s=figure(row, "step_s") or 0.0,
    )


def request_of(row: Mapping[str, Any], *, beside: Path | None = None) -> Request:
    """Return the request that a row describes; files are looked for in the folder ``beside``."""
    seq = whole(row, "seq", 0) or None
    ask = Ask(
        _graph(text(row, "model"), seq),
        cluster=cluster_of(row, beside=beside),
        global_batch=whole(row, "global_batch"),
        precision=text(row, "precision") or None,
        runtime=text(row, "runtime") or None,
        strategy=text(row, "strategy"),
    )
    return resolve(replace(ask, strategy=stated_strategy(ask))).request  # no micro batch is chosen


@lru_cache(maxsize=512)
def _graph(model: str, seq: int | None) -> OperatorGraph:
    """One graph for all runs of a model: features are computed once for each graph. Tables run no code."""
    return load_model(model, seq=seq, use_cache=True, allow_code=False)


def cluster_of(row: Mapping[str, Any], *, beside: Path | None = None) -> Cluster:
    """Return the cluster of a row, from its ``cluster`` or from its ``device``, ``nodes`` and ``link_bytes_s``."""
    name, device = text(row, "cluster"), text(row, "device")
    if not name and not device:
        raise RequestError("a run needs a cluster, or a device")
    if not name:
        name = f"{SERVER}:{whole(row, 'nodes', 1)}x{whole(row, 'devices_per_node', 1)}"
    elif beside is not None and (beside / name.partition(":")[0]).is_file():
        name = str(beside / name)
    cluster = load_cluster(name, hosts=True)
    if device:
        cluster = replace(cluster, name=f"{cluster.name}-{device}", device=load_device(device))
    rate = figure(row, "link_bytes_s")
    if rate:
        latency_s = max(_LATENCY_S, cluster.inter_node.latency_s)
        link = Link(name=f"{8e-9 * rate:g} Gb/s", bandwidth=rate, latency_s=latency_s)
        cluster = replace(cluster, inter_node=link, nics_per_node=1)
    return cluster


def use_columns(uses: Mapping[str, ResourceUse]) -> dict[str, Any]:
    """Return the sixteen columns of the uses of one run."""
    return {f"{r}_{f}": getattr(uses[r], f) for r in RESOURCES for f in (*FIGURES, "pattern")}


def write_runs(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to a .csv or .csv.gz file."""
    made = io.StringIO()
    writer = csv.DictWriter(made, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()})
    content = made.getvalue().encode()
    write_bytes(path, gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)
