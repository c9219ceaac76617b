"""Read tables of measured collectives into columns; every row left out is reported with its reason.

The cluster of a row follows from its own columns (device, interconnect, system, ranks per node), never from its source.
A configuration is a route, collective, message size, number of ranks and islands, and library. Versions, dtypes,
settings and repeats do not make a new configuration: with them on both sides of a split, the test would measure memory.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.errors import RequestError
from traincast.estimate.collectives.features import (
    KINDS,
    Condition,
    Message,
    Route,
    baseline_seconds,
    condition_of,
    link_floor_seconds,
    measured_cluster,
    message_of,
    messages,
)
from traincast.fitting.rows.problems import RowProblem, summarize_problems
from traincast.tables import number_in, read_arrow, text_in
from traincast.units import MICRO

if TYPE_CHECKING:
    import pyarrow as pa

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Texts: TypeAlias = npt.NDArray[np.object_]

FASTER_THAN_LINK: Final = 1.5
"""How much faster than its links' stated bandwidth a row may claim to be before it counts as implausible."""
DISBELIEVED_SHARE: Final = 0.2
"""If a larger share of a series (route, collective, software) is implausible, the whole series is left out."""
UNIT_FACTOR: Final = 30.0
"""Factor between a time and a stated bus bandwidth above which their units must be mixed up."""
OUTLIER_FACTOR: Final = 100.0
"""Factor between a time and the median of its series above which it counts as a mistake."""
COPIED_SHARE: Final = 0.9
_COPIED_ROWS: Final = 50
"""If at least this share of at least this many rows equals another device's rows to the digit, they are copies."""

_NEEDS: Final = ("device", "collective", "bytes", "n_ranks", "time_us")
_TEXTS: Final = ("source", "system", "device", "collective", "interconnect", "library", "dtype", "variant")
_NUMBERS: Final = (
    "bytes", "n_ranks", "n_nodes", "ranks_per_node", "time_us", "busbw_GBps", "dispersion", "n_meas",
    "concurrent_groups",
)  # fmt: skip
_FLAGS: Final = ("suspect", "beside_compute")
_TRUE: Final = frozenset({"true", "1", "1.0", "yes"})
_PER_NODE: Final = re.compile(r"\b(\d{1,3})\W*GPU", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """Measured collectives as parallel columns: one entry for each row without a problem.

    ``index`` is the row's number in the file, ``seconds`` its time, ``baseline`` what latencies and bandwidths alone
    predict, ``variance`` what the row itself says of its spread (relative, squared; 0 where nothing). ``cluster``,
    ``route`` and ``condition`` index the tuples of those names; ``key`` is a hash of the configuration. ``system`` is
    the name of the machine, or else the source with the device.
    """

    index: Ints
    source: Texts
    system: Texts
    kind: Ints
    nbytes: Floats
    ranks: Ints
    nodes: Ints
    islands: Ints
    seconds: Floats
    baseline: Floats
    variance: Floats
    cluster: Ints
    route: Ints
    condition: Ints
    key: npt.NDArray[np.uint64]
    clusters: tuple[Cluster, ...]
    routes: tuple[Route, ...]
    conditions: tuple[Condition, ...]
    problems: tuple[RowProblem, ...]

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: npt.NDArray[Any]) -> CollectiveTable:
        """The table of some rows, given by position or mask, without ``problems``."""
        columns = {name: getattr(self, name)[rows] for name in _ROW_COLUMNS}
        shared = {name: getattr(self, name) for name in ("clusters", "routes", "conditions")}
        return CollectiveTable(**columns, **shared, problems=())

    def works(self, rows: Iterable[int]) -> list[Message]:
        """The collectives and transfers that the given rows measured."""
        return [
            message_of(KINDS[self.kind[i]], float(self.nbytes[i]), int(self.ranks[i]), int(self.nodes[i])) for i in rows
        ]

    def problems_summary(self) -> list[str]:
        """One line for each reason, the most frequent first."""
        return summarize_problems(self.problems)


_ROW_COLUMNS: Final = (
    "index", "source", "system", "kind", "nbytes", "ranks", "nodes", "islands", "seconds", "baseline", "variance",
    "cluster", "route", "condition", "key",
)  # fmt: skip


# Reading


def read_collectives(path: Path) -> CollectiveTable:
    """Read a table of measured collectives (``.parquet``, ``.csv`` or ``.csv.gz``); ``problems`` has rows left out."""
    columns = _columns(read_arrow(path, needs=_NEEDS))
    count = len(columns["time_us"])
    reasons: list[str] = [_row_problem(columns, i) for i in range(count)]
    placed = _placed(columns, reasons)
    reasons = _series_problems(columns, placed, reasons)
    return _table(columns, placed, reasons)


def _columns(table: pa.Table) -> dict[str, list[Any]]:
    """The columns that are used, as texts and numbers; a missing or malformed number is NaN."""
    empty: list[Any] = [None] * table.num_rows
    found = {
        name: table[name].to_pylist() if name in table.column_names else empty for name in (*_TEXTS, *_NUMBERS, *_FLAGS)
    }
    texts = {name: [text_in(v) for v in found[name]] for name in _TEXTS}
    numbers = {name: [np.nan if (n := number_in(v)) is None else n for v in found[name]] for name in _NUMBERS}
    flags = {name: [str(v).lower() in _TRUE for v in found[name]] for name in _FLAGS}
    return {**texts, **numbers, **flags}


def _row_problem(c: dict[str, list[Any]], i: int) -> str:
    """The problem of a row by itself; empty if there is none."""
    kind, time_us = c["collective"][i], c["time_us"][i]
    if kind not in KINDS:
        return f"unknown collective {kind!r}: known are {', '.join(KINDS)}"
    if not np.isfinite(time_us):
        return "the time is missing or not a number"
    if time_us <= 0:
        return f"the time is {time_us:g} µs: expected more than 0"
    nbytes, ranks = c["bytes"][i], c["n_ranks"][i]
    if not (np.isfinite(nbytes) and nbytes > 0):
        return f"bytes is {nbytes:g}: expected more than 0"
    if not (2 <= ranks <= 1e6 and ranks == int(ranks)):
        return f"n_ranks is {ranks:g}: expected a whole number of 2 or more"
    nodes = _nodes(c, i)
    if not nodes:
        return f"n_nodes is {c['n_nodes'][i]:g} for {ranks:g} ranks: expected a whole number from 1 to n_ranks"
    if c["suspect"][i]:
        return "marked as suspect in the table"
    groups = c["concurrent_groups"][i]
    if not np.isnan(groups) and not (1 <= groups <= 1e6 and groups == int(groups)):
        return f"concurrent_groups is {groups:g}: expected a whole number of 1 or more"
    stated = c["busbw_GBps"][i]
    if np.isfinite(stated) and stated > 0:
        share = {"all_reduce": 2.0 * (ranks - 1) / ranks, "p2p": 1.0, "broadcast": 1.0}.get(kind, (ranks - 1) / ranks)
        apart = share * nbytes / (time_us * 1e3) / stated
        if not 1 / UNIT_FACTOR < apart < UNIT_FACTOR:
            return f"time_us and busbw_GBps are a factor of {max(apart, 1 / apart):.0f} apart: mixed units"
    return ""


def _nodes(c: dict[str, list[Any]], i: int) -> int:
    """The nodes of a row: as stated, or from ranks per node, or from a text such as ``8-GPU nodes``; else 0."""
    ranks, nodes, per_node = c["n_ranks"][i], c["n_nodes"][i], c["ranks_per_node"][i]
    if np.isnan(nodes) and np.isnan(per_node):
        said = _PER_NODE.search(c["interconnect"][i]) or _PER_NODE.search(c["system"][i])
        per_node = float(said.group(1)) if said else np.nan
    if np.isnan(nodes) and per_node >= 1:
        nodes = -(-ranks // per_node)
    return int(nodes) if 1 <= nodes <= ranks and nodes == int(nodes) else 0


class _Placed(NamedTuple):
    """Where each row ran: indices of its cluster, route and condition (−1 for a row with a problem), and baselines."""

    nodes: Ints
    islands: Ints
    cluster: Ints
    route: Ints
    condition: Ints
    baseline: Floats
    floor: Floats
    clusters: tuple[Cluster, ...]
    routes: tuple[Route, ...]
    conditions: tuple[Condition, ...]


def _placed(c: dict[str, list[Any]], reasons: list[str]) -> _Placed:
    """Find the cluster of every sound row from its own columns; note a reason for rows with an unknown device."""
    count = len(reasons)
    nodes, islands, cluster, route, condition = (np.full(count, -1, dtype=np.int64) for _ in range(5))
    clusters: dict[Cluster, int] = {}
    conditions: dict[Condition, int] = {}
    by_cluster: dict[int, list[int]] = defaultdict(list)
    for i, reason in enumerate(reasons):
        if reason:
            continue
        nodes[i] = _nodes(c, i)
        try:
            found = measured_cluster(
                c["device"][i],
                ranks_per_node=int(-(-c["n_ranks"][i] // nodes[i])),
                nodes=int(nodes[i]),
                interconnect=c["interconnect"][i],
                system=c["system"][i],
            )
        except RequestError as error:
            reasons[i] = str(error)
            continue
        cluster[i] = clusters.setdefault(found, len(clusters))
        by_cluster[int(cluster[i])].append(i)
        groups = c["concurrent_groups"][i]
        software = condition_of(
            c["library"][i],
            c["variant"][i],
            c["dtype"][i],
            c["beside_compute"][i],
            1 if np.isnan(groups) else int(groups),
        )
        condition[i] = conditions.setdefault(software, len(conditions))
    baseline, floor = np.zeros(count), np.zeros(count)
    routes: dict[Route, int] = {}
    for number, place in enumerate(clusters):
        rows = by_cluster[number]
        works = [message_of(c["collective"][i], c["bytes"][i], int(c["n_ranks"][i]), int(nodes[i])) for i in rows]
        m = messages(works, place)
        here = np.array([routes.setdefault(r, len(routes)) for r in m.routes], dtype=np.int64)
        route[rows], islands[rows] = here[m.route], m.islands
        baseline[rows] = baseline_seconds(works, place)
        floor[rows] = [link_floor_seconds(work, place) for work in works]
    return _Placed(
        nodes, islands, cluster, route, condition, baseline, floor, tuple(clusters), tuple(routes), tuple(conditions)
    )


def _series_problems(c: dict[str, list[Any]], p: _Placed, reasons: list[str]) -> list[str]:
    """Problems of rows compared with their series: impossibly fast, copied, or far off."""
    result = list(reasons)
    sound = np.array([not reason for reason in reasons])
    seconds = np.array(c["time_us"]) * MICRO
    with np.errstate(invalid="ignore"):
        impossible = sound & (seconds * FASTER_THAN_LINK < p.floor)
    ratio = np.log(np.where(sound, seconds, 1.0) / np.where(sound, p.baseline, 1.0))
    series: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for i in np.flatnonzero(sound).tolist():
        series[int(p.route[i]), c["collective"][i], int(p.condition[i])].append(i)
    for rows in series.values():
        where = np.array(rows)
        bad = where[impossible[where]]
        for i in bad.tolist():
            result[i] = "faster than the stated bandwidth of its links allows: implausible"
        if len(bad) > DISBELIEVED_SHARE * len(rows):
            for i in where[~impossible[where]].tolist():
                result[i] = f"{len(bad)} of the {len(rows)} rows of its series are faster than the links: none is used"
            continue
        off = np.abs(ratio[where] - np.median(ratio[where])) > np.log(OUTLIER_FACTOR)
        for i in where[off & ~impossible[where]].tolist():
            result[i] = f"more than {OUTLIER_FACTOR:g} times off the rest of its series: a mistake or mixed units"
    for i in _copies(c, p, [not reason for reason in result]):
        result[i] = "equal to the digit to rows of another device: one of the two was not measured"
    return result


def _copies(c: dict[str, list[Any]], p: _Placed, sound: Sequence[bool]) -> list[int]:
    """Rows of a device and collective that nearly all appear under another device as well."""
    groups: dict[tuple[str, str, int], dict[tuple[float, float, float], int]] = defaultdict(dict)
    for i in np.flatnonzero(sound).tolist():
        place = (p.clusters[p.cluster[i]].device.name, c["collective"][i], int(p.nodes[i]))
        groups[place][c["bytes"][i], c["n_ranks"][i], c["time_us"][i]] = i
    copied = set()
    for here, rows in groups.items():
        for there, others in groups.items():
            if here[0] != there[0] and here[1:] == there[1:] and len(rows) >= _COPIED_ROWS:
                same = rows.keys() & others.keys()
                if len(same) >= COPIED_SHARE * len(rows):
                    copied |= {rows[k] for k in same} | {others[k] for k in same}
    return sorted(copied)


def _table(c: dict[str, list[Any]], p: _Placed, reasons: Sequence[str]) -> CollectiveTable:
    source = np.array([s or "unknown" for s in c["source"]], dtype=object)
    named = zip(c["system"], source.tolist(), c["device"], strict=True)
    system = np.array([name or f"{origin} {device}" for name, origin, device in named], dtype=object)
    problems = tuple(RowProblem(row=i, reason=r, source=source[i]) for i, r in enumerate(reasons) if r)
    rows = np.array([i for i, r in enumerate(reasons) if not r], dtype=np.int64)
    kind = np.array([KINDS.index(c["collective"][i]) for i in rows], dtype=np.int64)
    nbytes = np.array(c["bytes"], dtype=np.float64)[rows]
    ranks = np.array(c["n_ranks"], dtype=np.float64)[rows].astype(np.int64)
    spread = np.nan_to_num(np.array(c["dispersion"], dtype=np.float64)[rows], posinf=1.0)
    repeats = np.maximum(1.0, np.nan_to_num(np.array(c["n_meas"], dtype=np.float64)[rows], nan=1.0))
    key = [
        f"{p.routes[r].key} {KINDS[k]} {b:.6g} {n} {m} {p.conditions[s].family}{p.conditions[s].pattern}"
        for r, k, b, n, m, s in zip(
            p.route[rows].tolist(), kind.tolist(), nbytes.tolist(), ranks.tolist(), p.islands[rows].tolist(),
            p.condition[rows].tolist(), strict=True,
        )
    ]  # fmt: skip
    return CollectiveTable(
        index=rows,
        source=source[rows],
        system=system[rows],
        kind=kind,
        nbytes=nbytes,
        ranks=ranks,
        nodes=p.nodes[rows],
        islands=p.islands[rows],
        seconds=np.array(c["time_us"], dtype=np.float64)[rows] * MICRO,
        baseline=p.baseline[rows],
        variance=np.minimum(spread, 1.0) ** 2 / repeats,
        cluster=p.cluster[rows],
        route=p.route[rows],
        condition=p.condition[rows],
        key=np.array([_hash(text) for text in key], dtype=np.uint64),
        clusters=p.clusters,
        routes=p.routes,
        conditions=p.conditions,
        problems=problems,
    )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
