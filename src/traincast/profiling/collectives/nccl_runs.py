"""The runs in one log of nccl-tests or rccl-tests: their rows, and what the log says about ranks and library."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from traincast.profiling.collectives.nccl_rows import LogRow, RowReading, read_row, starts_row
from traincast.profiling.collectives.nccl_text import Line
from traincast.units import parse_bytes

_LONGEST_WRAP: Final = 4
"""Lines over which a terminal may have wrapped one row."""

_SETTINGS: Final = re.compile(r"nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)", re.IGNORECASE)
_RANK: Final = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]*)\]\s*(.*)$", re.IGNORECASE
)
_TEST: Final = re.compile(r"\b([a-z_]+?)_perf\b")
_COMMUNICATOR: Final = re.compile(r"\bnRanks\s+(\d+)(?:.*?\bnNodes\s+(\d+))?", re.IGNORECASE)
_VERSION: Final = re.compile(r"\b([NR]CCL) version\s*:?\s*v?(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
_VERSION_CODE: Final = re.compile(r"\bnccl-library=(\d{4,6})")
_ITERATIONS: Final = re.compile(r"(?<!warmup )(?<!agg )\biters:\s*(\d+)")
_MAKER: Final = re.compile(r"\brccl|\bAMD\b|Instinct|\bROCm|\bHIP\b", re.IGNORECASE)
_NETWORKS: Final = (
    (re.compile(r"NET/OFI.*\befa\b|provider is efa", re.IGNORECASE), "EFA"),
    (re.compile(r"mlx\d+_\d+:\d+/RoCE|NET/IB.*RoCE"), "RoCE"),
    (re.compile(r"mlx\d+_\d+:\d+/IB\b|NET/IB.*/IB\b"), "InfiniBand"),
    (re.compile(r"Using network Socket|NET/Socket : Using"), "Ethernet TCP sockets"),
)
_PORTS: Final = re.compile(r"NET/IB : Using (.*)")
_PORT: Final = re.compile(r"\[\d+\]\w+:\d+/(?:IB|RoCE)")
_PORT_SPEED: Final = re.compile(r"NET/IB.*\bspeed=(\d+)")
_PAYLOAD: Final = re.compile(r"^\W*(\d+(?:\.\d+)?)\s*([KMGT]?i?B)\b(.*)$", re.IGNORECASE)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:GBps|GB/s)?", re.IGNORECASE)

TESTS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "p2p",
    "gather": "gather",
    "scatter": "scatter",
}
"""Collectives by the name of their test."""


@dataclass(slots=True)
class LogRun:
    """One run of a test, as far as its log describes it; empty texts and zeros mean that the log does not say it."""

    rows: list[LogRow] = field(default_factory=list)
    names: tuple[str, ...] = ()
    test: str = ""
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    devices: Counter[str] = field(default_factory=Counter)
    stated_ranks: int = 0
    stated_nodes: int = 0
    local_devices: int = 0
    library: str = ""
    version: str = ""
    iterations: int = 0
    network: str = ""
    ports: int = 0
    port_gbit: float = 0.0
    from_bandwidth: bool = False
    time_unit_us: float = 1.0

    @property
    def is_in_place(self) -> bool:
        """Whether the table holds in-place times only."""
        return "in-place" in self.names and "out-of-place" not in self.names

    @property
    def interconnect(self) -> str:
        """The network between nodes, such as ``2x25G RoCE``; "" if the log does not name it."""
        if not (self.network and self.ports):
            return self.network
        return f"{self.ports}x{f'{self.port_gbit:g}G' if self.port_gbit else ''} {self.network}"

    @property
    def nodes(self) -> int:
        """Number of hosts in the list of ranks; 0 if the list is missing or has gaps.

        A device that appears twice under one host name means two hosts with the same name.
        """
        if not self.listed_ranks:
            return self.stated_nodes
        hosts = {host for host, _ in self.ranks.values()}
        copies = Counter(self.ranks.values())
        return sum(max(n for (host, _), n in copies.items() if host == name) for name in hosts)

    @property
    def listed_ranks(self) -> int:
        """Number of ranks if all are listed, else 0."""
        return len(self.ranks) if self.ranks and max(self.ranks) == len(self.ranks) - 1 else 0

    @property
    def least_ranks(self) -> int:
        """Number of ranks if the largest listed one is the last; 0 without a list."""
        return max(self.ranks, default=-1) + 1


@dataclass(slots=True)
class LogContents:
    """The runs of a log that have rows, and the numbers of unread lines by kind of problem."""

    runs: list[LogRun] = field(default_factory=list)
    problems: dict[str, list[int]] = field(default_factory=dict)


def runs_of(lines: Sequence[Line]) -> LogContents:
    """Find the runs of a log."""
    found, run, shown = LogContents(), LogRun(), 0
    everything: list[LogRun] = [run]
    while shown < len(lines):
        line = lines[shown]
        used = 1
        if _begins_run(line.text, run):
            run = LogRun(
                test=run.test,
                library=run.library,
                version=run.version,
                network=run.network,
                ports=run.ports,
                port_gbit=run.port_gbit,
            )
            everything.append(run)
        _note(run, line)
        if not _note_header(run, line.text):
            reading, used = _row_at(lines, shown, run)
            if reading.row is not None:
                run.rows.append(reading.row)
            elif reading.problem:
                found.problems.setdefault(reading.problem, []).append(line.number)
            elif "payload" in run.names:
                _note_payload(run, line)
        shown += used
    found.runs = [run for run in everything if run.rows]
    return found


def _begins_run(text: str, run: LogRun) -> bool:
    """Whether a line starts another run than ``run``."""
    if not run.rows:
        return False
    rank = _RANK.search(text)
    return bool(
        _SETTINGS.search(text)
        or (rank and int(rank[1]) in run.ranks)
        or "Using devices" in text
        or "Collective test starting" in text
        or ((test := _TEST.search(text)) and TESTS.get(test[1], "") not in ("", run.test))
    )


def _note(run: LogRun, line: Line) -> None:
    """Take from one line what it says about its run."""
    text = f"{line.text} {line.message}"
    if found := _SETTINGS.search(text):
        run.local_devices = int(found[1]) * int(found[2])
        if iterations := _ITERATIONS.search(text):
            run.iterations = int(iterations[1])
    if found := _RANK.search(line.text):
        run.ranks[int(found[1])] = (found[2], f"{found[3]} {found[4]}")
        if device := found[5].strip().strip("#").strip():
            run.devices[device] += 1
    if (found := _TEST.search(line.text)) and found[1] in TESTS:
        run.test = TESTS[found[1]]
    if found := _COMMUNICATOR.search(line.message):
        run.stated_ranks = int(found[1])
        run.stated_nodes = int(found[2] or 0) or run.stated_nodes
    if found := _VERSION.search(text):
        run.library, run.version = found[1].upper(), found[2]
    elif (found := _VERSION_CODE.search(text)) and not run.version:
        run.version = _version(int(found[1]))
    if not run.library and _MAKER.search(line.text):
        run.library = "RCCL"
    if found := _PORTS.search(line.message):
        run.ports = run.ports or len(_PORT.findall(found[1]))
    if found := _PORT_SPEED.search(line.message):
        run.port_gbit = int(found[1]) / 1000  # the library prints Mbit/s
    for pattern, name in _NETWORKS:
        if pattern.search(line.message):
            run.network = run.network or name


def _version(code: int) -> str:
    """2.23.4 from 22304, and 2.8.4 from 2804."""
    if code < 10_000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"


def _note_header(run: LogRun, text: str) -> bool:
    """Take the names of the columns from a line of the header; return whether the line belongs to it."""
    words = re.sub(r"[#|]+(?=\s|$)|^\W+", " ", text.replace("cputime", "time")).split()
    places = tuple(word for word in words if word in ("out-of-place", "in-place"))
    if places:
        run.names = places
        return True
    if {"size", "type", "time"} <= set(words) or {"payload", "busbw"} <= set(words):
        run.names = (*(name for name in run.names if name.endswith("-place")), *words)
        return True
    if "(elements)" in words:
        run.time_unit_us = {"(ms)": 1e3, "(s)": 1e6}.get(next((w for w in words if w in ("(ms)", "(s)")), ""), 1.0)
        return True
    return False


def _row_at(lines: Sequence[Line], start: int, run: LogRun) -> tuple[RowReading, int]:
    """Read the row that starts at a line, and the number of lines that it covers.

    A row that a terminal wrapped, or that a message of the library interrupted, continues on the next lines. It is
    taken together if that makes sense of its numbers.
    """

    def read(text: str) -> RowReading:
        return read_row(text, first.number, run.names, unit_us=run.time_unit_us)

    first = lines[start]
    alone = read(first.text)
    wanted = run.names.count("time") == 2
    if (alone.row is not None and not (wanted and alone.row.checked_in_place is None)) or not starts_row(first.text):
        return alone, 1
    for joint in ("", " "):
        joined = first.text
        for more in range(1, _LONGEST_WRAP):
            if start + more >= len(lines) or read(lines[start + more].text).row is not None:
                break
            joined = joined.rstrip() + joint + lines[start + more].text.strip()
            reading = read(joined)
            fits = reading.row is not None and reading.row.shares > 0
            if fits and (alone.row is None or (reading.row and reading.row.checked_in_place is not None)):
                return reading, more + 1
    return alone, 1


def _note_payload(run: LogRun, line: Line) -> None:
    """Read a row ``payload busbw algbw`` of all_reduce_bench.py, whose time follows from its bandwidth."""
    found = _PAYLOAD.match(line.text)
    columns = [name for name in run.names if name in ("payload", "busbw", "algbw")]
    if not found or len(columns) < 3:
        return
    rates = [float(rate) for rate in _RATE.findall(found[3])]
    values = dict(zip(columns[1:], rates, strict=False))
    if len(values) < 2 or values["algbw"] <= 0:
        return
    size = int(parse_bytes(found[1] + found[2], what="payload"))
    run.from_bandwidth, run.test = True, run.test or "all_reduce"
    run.rows.append(
        LogRow(
            line=line.number,
            size=size,
            count=0,
            dtype="float",
            redop="sum",
            root=None,
            time_us=size / values["algbw"] / 1e3,
            algbw=values["algbw"],
            busbw=values["busbw"],
            rounding=0.005,
            wrong=False,
            checked_in_place=None,
        )
    )
