"""Logs of nccl-tests and rccl-tests as a table of collectives.

Every value of a row comes from the first of these that states it: an option of the user, the log, the numbers of the
log, the catalog, the name of the file. Everything but the first two is listed in ``assumed``.

nccl-tests prints the bandwidth of the algorithm, size / time, and the bandwidth of the bus. Their ratio depends on the
collective and the number of ranks n only: 2 (n − 1) / n for all_reduce; (n − 1) / n for all_gather, reduce_scatter and
all_to_all; 1 for broadcast, reduce and send/receive (PERFORMANCE.md of nccl-tests). In the tests in which every rank
has a part of the message, ``count`` is one part and ``size`` all n parts, which gives n exactly.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from traincast import files
from traincast.ask import paths_of, verb
from traincast.cluster.interconnect import usual_count
from traincast.cluster.match import find_device
from traincast.errors import FileFormatError, RequestError, TraincastError
from traincast.profiling.collectives.ask import LogImport
from traincast.profiling.collectives.nccl_runs import TESTS, LogContents, LogRow, LogRun, lines_of, runs_of, text_of
from traincast.profiling.output import write_table
from traincast.profiling.rows import COLLECTIVE_COLUMNS, Row

_PARTS: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_LEAST_ALGBW: Final = 0.02
"""Bandwidths below this, in GB/s, have too few digits for a ratio."""
MAX_RANKS: Final = 1_000_000
_STEPS: Final = tuple(1 << k for k in range(20, -1, -1))


def collectives_of(run: LogRun) -> tuple[str, ...]:
    """Return the collectives that the columns of a run allow, the most usual first."""
    rows = run.rows
    if run.from_bandwidth:
        return ("all_reduce",)
    rooted = any(row.root is not None and row.root >= 0 for row in rows)
    reduces = any(row.redop not in ("", "none") for row in rows)
    parts = shared_parts(rows) > 1
    low, high = ratio_of(rows)
    unchecked = any(row.checked_in_place is False for row in rows)
    if rooted:
        found: tuple[str, ...] = ("reduce",) if reduces else ("gather", "scatter") if parts else ("broadcast",)
    elif parts:
        if reduces:
            found = ("reduce_scatter",)
        elif unchecked:
            found = ("all_to_all",)
        elif any(row.checked_in_place for row in rows):
            found = ("all_gather",)
        else:
            found = ("all_gather", "all_to_all")
    elif unchecked or not (reduces or high < 1):
        found = ("p2p",)
    elif high < 1:
        found = ("reduce_scatter",) if reduces else ("all_gather", "all_to_all")
    elif low > 1 or any(row.checked_in_place for row in rows):
        found = ("all_reduce",)
    else:
        found = ("all_reduce", "p2p", "reduce_scatter")
    return found


def shared_parts(rows: Sequence[LogRow]) -> int:
    """Return how many times ``count`` elements fit in ``size``, if that is the same in all rows; else 0."""
    found = {row.shares for row in rows if row.count}
    return found.pop() if len(found) == 1 else 0


def ratio_of(rows: Sequence[LogRow]) -> tuple[float, float]:
    """Return the least and the largest ratio busbw / algbw that agrees with the digits of all rows.

    If the rows contradict each other, only the row with the largest bandwidth counts.
    """
    spans = [
        (
            (row.busbw - row.rounding) / (row.algbw + row.rounding),
            (row.busbw + row.rounding) / (row.algbw - row.rounding),
        )
        for row in rows
        if row.algbw >= _LEAST_ALGBW
    ]
    if not spans:
        return 0.0, math.inf
    low, high = max(a for a, _ in spans), min(b for _, b in spans)
    return (low, high) if low <= high else min(spans, key=lambda span: span[1] - span[0])


def ranks_in(run: LogRun, collective: str) -> tuple[int, int]:
    """Return the least and the largest number of ranks that the numbers of a run allow; (0, 0) if they allow any."""
    if collective in _PARTS and (parts := shared_parts(run.rows)) > 1:
        return parts, parts
    scale = 2.0 if collective == "all_reduce" else 1.0 if collective in _PARTS else 0.0
    low, high = ratio_of(run.rows)
    if not scale or not low:
        return 0, 0
    least = scale / (scale - low) if low < scale else MAX_RANKS
    most = scale / (scale - high) if high < scale else MAX_RANKS
    first, last = math.ceil(least - 1e-9), math.floor(min(most, MAX_RANKS) + 1e-9)
    if first > last:  # the digits are one unit off
        first = last = round((least + most) / 2)
    return max(2, first), max(2, last)


def likely_ranks(least: int, most: int) -> int:
    """Return the roundest number in a range: a multiple of the largest power of two, near the middle of the range."""
    for step in _STEPS:
        first = -(-least // step) * step
        if first <= most:
            middle = round((least + min(most, 4 * least)) / 2 / step) * step
            return min(max(first, middle), most // step * step)
    return least


FORMATS: Final = (".csv", ".parquet")
_SUFFIXES: Final = ("", ".txt", ".log", ".out", ".md", ".html", ".htm", ".stdout", ".rst", ".csv", ".tsv")
_SHOWN_LINES: Final = 5
_WIDEST: Final = 1.5
"""Largest factor between the least and the largest number of ranks from which one is chosen."""
_NODES_IN_NAME: Final = re.compile(r"(?<![a-z0-9])(\d{1,4})[-_ ]?n(?:odes?)?(?![a-z0-9])", re.IGNORECASE)
_AMD_DEVICES: Final = {
    "6860": "MI25", "66a1": "MI60", "738c": "MI100", "7408": "MI250X", "740c": "MI250X", "740f": "MI210",
    "74a0": "MI300A", "74a1": "MI300X", "74a5": "MI325X", "75a0": "MI350X",
}  # fmt: skip
"""PCI device numbers that ROCm prints instead of a name, from the list of PCI ids."""


@dataclass(slots=True)
class ImportedLogs:
    """The rows of all logs; ``files`` has counts by file; ``assumed`` and ``skipped`` name the file they concern."""

    rows: list[Row] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    assumed: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@verb(LogImport)
def import_logs(request: LogImport) -> ImportedLogs:
    """Read logs and folders of logs. A log without a row becomes an error; if no log has one, it is raised."""
    result = ImportedLogs()
    for path in _logs(paths_of(request.logs)):
        try:
            _import_log(path, request, result)
        except TraincastError as error:
            result.errors.append(str(error))
    if not result.rows:
        more = f" (and {len(result.errors) - 1} other files without a row)" if len(result.errors) > 1 else ""
        raise FileFormatError(result.errors[0] + more)
    return result


def save_collectives(rows: Sequence[Row], path: Path) -> None:
    """Write rows as ``.csv`` or ``.parquet``; an existing file is replaced in one step."""
    if path.suffix == ".parquet":
        write_table(rows, path, table="collectives")
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(COLLECTIVE_COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write_text(path, text.getvalue())


def _logs(paths: Sequence[Path]) -> list[Path]:
    """The files that the user named, and all texts in the folders that the user named."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.suffix.lower() in _SUFFIXES)
            if not inside:
                raise RequestError(f"{path} has no logs: expected text files ({', '.join(_SUFFIXES[1:6])} …)")
            found += inside
        elif path not in found:
            found.append(path)
    return found


def _import_log(path: Path, request: LogImport, result: ImportedLogs) -> None:
    contents = runs_of(lines_of(text_of(path)))
    before = len(result.rows)
    assumed: dict[str, None] = {}
    for run in contents.runs:
        result.rows += _rows(run, path, request, assumed, contents)
    result.skipped += _problems(contents, path)
    if len(result.rows) == before:
        reason = next(iter(contents.problems), "no line looks like one")
        raise FileFormatError(f"{path} has no row of nccl-tests or rccl-tests: {reason}")
    result.assumed += [{"file": str(path), "what": text} for text in assumed]
    result.files.append({"file": str(path), "rows": len(result.rows) - before, "runs": len(contents.runs)})


def _problems(contents: LogContents, path: Path) -> Iterator[dict[str, Any]]:
    for reason, numbers in contents.problems.items():
        yield {"file": str(path), "reason": reason, "count": len(numbers), "lines": numbers[:_SHOWN_LINES]}


def _rows(
    run: LogRun, path: Path, request: LogImport, assumed: dict[str, None], contents: LogContents
) -> Iterator[Row]:
    """The rows of one run as rows of the table."""
    collective = _collective(run, path, assumed)
    device = request.device or _device(run, path, assumed)
    ranks = request.ranks or _ranks(run, path, assumed, collective=collective, nodes=request.nodes, device=device)
    if ranks < 2:
        reason = "one rank: nothing is sent" if ranks else "the number of ranks is not stated: give --ranks"
        contents.problems.setdefault(reason, []).extend(row.line for row in run.rows)
        return
    nodes = request.nodes or _nodes(run, ranks, device, path, assumed)
    if nodes and nodes > ranks:
        raise RequestError(f"--nodes {nodes}: {path} has only {ranks} ranks")
    hosts = sorted({host for host, _ in run.ranks.values()})
    about = {
        "source": request.source,
        "system": request.system or (hosts[0] if hosts else path.stem),
        "device": device,
        "collective": collective,
        "n_ranks": ranks,
        "n_nodes": nodes or None,
        "ranks_per_node": -(-ranks // nodes) if nodes else None,
        "interconnect": request.interconnect or (run.interconnect if nodes != 1 else ""),
        "library": f"{run.library or 'NCCL'} {run.version}".strip(),
        "variant": "in-place" if run.is_in_place or run.from_bandwidth else "out-of-place",
        "stat": "derived time" if run.from_bandwidth else "mean over iters",
        "n_meas": run.iterations or None,
    }
    for row in run.rows:
        yield dict.fromkeys(COLLECTIVE_COLUMNS) | about | _measured(row, run)


def _measured(row: LogRow, run: LogRun) -> Row:
    return {
        "bytes": row.size,
        "dtype": "" if run.from_bandwidth else row.dtype,
        "time_us": row.time_us,
        "busbw_GBps": row.busbw,
        "suspect": row.wrong,
    }


def _collective(run: LogRun, path: Path, assumed: dict[str, None]) -> str:
    possible = collectives_of(run)
    if run.test and (run.test in possible or not run.from_bandwidth):
        return run.test
    named = next((TESTS[name] for name in sorted(TESTS, key=len, reverse=True) if name in path.stem.lower()), "")
    if len(possible) > 1 and named in possible:
        assumed[f"collective {named}, from the name of the file"] = None
        return named
    why = (
        "from its columns"
        if len(possible) == 1
        else f"which its columns allow, as they allow {', '.join(possible[1:])}"
    )
    assumed[f"collective {possible[0]}, {why}"] = None
    return possible[0]


def _ranks(
    run: LogRun, path: Path, assumed: dict[str, None], *, collective: str, nodes: int | None, device: str
) -> int:
    """The number of ranks; 0 if it is unknown."""
    if run.listed_ranks or run.stated_ranks:
        return run.listed_ranks or run.stated_ranks
    least, most = ranks_in(run, collective)
    nodes = nodes or run.stated_nodes or _nodes_in_name(path)
    per_node = _usual_count(device)
    if least and least == most:
        found, why = least, "from the ratio of its bandwidths or of size and count"
    elif run.least_ranks > 1 and (not least or least <= run.least_ranks <= most):
        found, why = run.least_ranks, f"with rank {run.least_ranks - 1} as the last one of an incomplete list"
    elif nodes and per_node and (not least or least <= nodes * per_node <= most):
        found, why = nodes * per_node, f"{nodes} nodes of the {per_node} devices that are usual for {device}"
    elif least and most <= _WIDEST * least:
        found, why = likely_ranks(least, most), f"the roundest of the {least} to {most} that its bandwidths allow"
    elif run.local_devices > 1 or collective != "p2p":
        found, why = run.local_devices, "from nThread × nGpus"
    else:
        found, why = per_node, f"one node of the {per_node} devices that are usual for {device}"
    if found:
        assumed[f"{found} ranks, {why}"] = None
    return found


def _device(run: LogRun, path: Path, assumed: dict[str, None]) -> str:
    if run.devices:
        if len(run.devices) > 1:
            every = ", ".join(sorted(run.devices))
            assumed[f"device {run.devices.most_common(1)[0][0]}, the most frequent of {every}"] = None
        name = run.devices.most_common(1)[0][0]
        number = re.fullmatch(r"Device ([0-9a-f]{4})", name, re.IGNORECASE)
        return f"AMD {_AMD_DEVICES.get(number[1].lower(), name)}" if number else name
    for word in re.split(r"[-_. ]+", re.sub(r"(?i)dgx", "dgx ", path.stem)):
        try:
            found = find_device(word).name
        except TraincastError:
            continue
        assumed[f"device {found}, from the name of the file"] = None
        return found
    assumed["device unknown: give --device"] = None
    return ""


def _nodes(run: LogRun, ranks: int, device: str, path: Path, assumed: dict[str, None]) -> int:
    """The number of nodes; 0 if it is unknown."""
    if run.nodes:
        return run.nodes
    if 1 <= (named := _nodes_in_name(path)) <= ranks:
        assumed[f"{named} nodes, from the name of the file"] = None
        return named
    if not (per_node := _usual_count(device)):
        assumed["nodes unknown: give --nodes"] = None
        return 0
    nodes = -(-ranks // per_node)
    assumed[f"{nodes} nodes, with the {per_node} devices per node that are usual for {device}"] = None
    return nodes


def _nodes_in_name(path: Path) -> int:
    """The number of nodes in a name such as ``h100-2n`` or ``16_nodes``; 0 if there is none."""
    said = _NODES_IN_NAME.search(path.stem)
    return int(said[1]) if said else 0


def _usual_count(device: str) -> int:
    """Devices per node that are usual for a device; 0 if the catalog does not know it."""
    try:
        return usual_count(find_device(device)) if device else 0
    except TraincastError:
        return 0
