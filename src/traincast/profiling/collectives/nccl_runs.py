"""The runs in one log of nccl-tests or rccl-tests: their rows, and what the log says about ranks and library.

Logs reach us through terminals, web pages, spreadsheets and launchers. :func:`lines_of` undoes what they did: HTML,
colours, tables of Markdown, prefixes of ranks, and messages of the library in the middle of a line.

A row is ``size count type [redop] [root]`` and then, out of place and in place, ``time algbw busbw [#wrong]``. Versions
differ in the columns in brackets, and copies lose the header. The bandwidth equals the size divided by the time, so a
reading of the columns can be checked: a reading for which this does not hold is refused.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from traincast.errors import FileFormatError
from traincast.units import parse_bytes

ELEMENT_BYTES: Final = {
    "int8": 1, "char": 1, "uint8": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8": 1,
    "half": 2, "float16": 2, "bfloat16": 2, "bf16": 2, "fp16": 2,
    "int32": 4, "int": 4, "uint32": 4, "float": 4, "float32": 4, "fp32": 4,
    "int64": 8, "uint64": 8, "double": 8, "float64": 8,
}  # fmt: skip
"""Bytes of one element of every type that the tests print."""
REDUCTIONS: Final = ("sum", "prod", "max", "min", "avg", "mulsum", "none", "all")

_TYPES: Final = "|".join(sorted(ELEMENT_BYTES, key=len, reverse=True))
_ROW: Final = re.compile(rf"(?<![\w.\-])(\d+)\s+(\d+)\s+({_TYPES})(?!\w)\s*(.*)$")
_START: Final = re.compile(r"(?<![\w.\-])(\d+)(?:\s+\d+)?(?:\s+[a-z0-9_]{1,8})?\s*$")
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?(?:e[+-]?\d+)?$", re.IGNORECASE)
_ROOT: Final = re.compile(r"-?\d{1,5}$")
_SLACK: Final = 0.02
"""Relative difference between the printed bandwidth and size / time that counts as rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One row: bytes and elements of the message, time in µs, bandwidths in GB/s with half a unit of their last digit.

    ``redop`` and ``root`` are "" and ``None`` if the row does not have them; ``wrong`` says that the test found wrong
    values, ``checked_in_place`` whether the in-place run was checked (``None`` if the row does not say).
    """

    line: int
    size: int
    count: int
    dtype: str
    redop: str
    root: int | None
    time_us: float
    algbw: float
    busbw: float
    rounding: float
    wrong: bool
    checked_in_place: bool | None

    @property
    def shares(self) -> int:
        """Number of equal parts of ``size`` that ``count`` elements are; 0 if it is not a whole number."""
        part = self.count * ELEMENT_BYTES[self.dtype]
        return self.size // part if part and self.size % part == 0 else 0


class RowReading(NamedTuple):
    """What became of a line: the row, or a kind of problem ("" if the line is no row)."""

    row: LogRow | None
    problem: str


def starts_row(text: str) -> bool:
    """Return whether a line holds a row or the first part of one that is continued on the next line."""
    return bool(_ROW.search(text)) or bool(_START.search(text))


def read_row(text: str, line: int, names: tuple[str, ...] = (), *, unit_us: float = 1.0) -> RowReading:
    """Read a line as a row. ``names`` are the columns of the header above it, ``unit_us`` is its unit of time in µs."""
    found = _ROW.search(text) or _ROW.search(_separated(text))
    if not found:
        return RowReading(None, "")
    size = int(found[1])
    words = found[4].split()
    redop = words.pop(0) if words and words[0].lower() in REDUCTIONS else ""
    if not size:
        return RowReading(None, "size 0: no data was moved")
    for with_root in (True, False) if "root" in names or not names else (False, True):
        row = _row(found, redop.lower(), words, line=line, names=names, with_root=with_root, unit_us=unit_us)
        if row is not None:
            return RowReading(row, "")
    if len(words) < 3:
        return RowReading(None, "the row ends before its bandwidths")
    if not all(_NUMBER.match(word) for word in words[1:3]):
        return RowReading(None, "a time or bandwidth is not a number")
    return RowReading(None, "time and bandwidth of the row disagree")


def _separated(text: str) -> str:
    """A row of a table whose cells are separated by bars, semicolons or commas."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?:,\d{3})*\s)", "", text)
    return re.sub(r"[|;,]", " ", text)


def _row(
    found: re.Match[str],
    redop: str,
    words: list[str],
    *,
    line: int,
    names: tuple[str, ...],
    with_root: bool,
    unit_us: float,
) -> LogRow | None:
    """The row under one reading of its columns; ``None`` if its numbers contradict that reading."""
    if with_root and not (words and _ROOT.match(words[0])):
        return None
    values = words[1:] if with_root else words
    if len(values) < 3 or not all(_NUMBER.match(word) for word in values[:3]):
        return None
    size = int(found[1])
    time_us, algbw, busbw = (float(word) for word in values[:3])
    if time_us <= 0 or not _agree(size / unit_us, values[0], values[1]):
        return None
    stride = names[names.index("time") + 1 :].index("time") + 1 if names.count("time") == 2 else _stride(values)
    checks = [values[i] for i in (3, stride + 3) if stride > 3 and i < len(values)]
    return LogRow(
        line=line,
        size=size,
        count=int(found[2]),
        dtype=found[3],
        redop=redop,
        root=int(words[0]) if with_root else None,
        time_us=time_us * unit_us,
        algbw=algbw,
        busbw=busbw,
        rounding=max(_half_unit(values[1]), _half_unit(values[2])),
        wrong=bool(checks) and _is_wrong(checks[0]),
        checked_in_place=_is_checked(checks[1]) if len(checks) == 2 and _is_checked(checks[0]) else None,
    )


def _stride(values: list[str]) -> int:
    """Columns from the out-of-place time to the in-place time, in a table without a header."""
    return 3 if len(values) in (3, 6) else 4


def _agree(size: float, time: str, bandwidth: str) -> bool:
    """Whether a bandwidth in GB/s is the size in bytes divided by the time in µs, up to rounding."""
    t, d, half = float(time), _half_unit(time), _half_unit(bandwidth)
    least, most = size / (t + d) / 1e3, size / max(t - d, t / 2) / 1e3
    return least * (1 - _SLACK) - half <= float(bandwidth) <= most * (1 + _SLACK) + half


def _half_unit(word: str) -> float:
    """Half a unit of the last printed digit."""
    mantissa, _, exponent = word.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - digits))


def _is_checked(word: str) -> bool:
    return bool(_NUMBER.match(word.rstrip("*")))


def _is_wrong(word: str) -> bool:
    """Whether the check failed: a count of wrong values, or, in old versions, an error marked with an asterisk."""
    return _is_checked(word) and (word.endswith("*") or float(word) >= 1)


MAX_BYTES: Final = 200_000_000
"""Largest log that is read, in bytes."""
_LONGEST: Final = 2000
"""Characters of a line that are read."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAUNCHER: Final = re.compile(r"\[\d+,\d+\]\s*<std(?:out|err)>\s*:?")
_CELLS: Final = re.compile(r"<t[dhr][\s>]", re.IGNORECASE)
_ROW_END: Final = re.compile(r"</tr\s*>", re.IGNORECASE)
_LINE_END: Final = re.compile(r"<br\s*/?>|</(?:p|div|pre|li|code)\s*>", re.IGNORECASE)
_TAG: Final = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>")
_MESSAGE: Final = re.compile(r"[\w.\-]+:\d+:\d+\s+\[\d+\]\s.*$")


class Line(NamedTuple):
    """One line: its number in the file, its text, and the message of the library that stood in it ("" if none)."""

    number: int
    text: str
    message: str


def text_of(path: Path) -> str:
    """Return the text of a log. Any encoding is accepted; a file that cannot be read or is not text is refused."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileFormatError(f"{path} has more than {MAX_BYTES:,} bytes: is it a log of nccl-tests?")
        content = path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content:
        raise FileFormatError(f"{path} is not text: expected the output of nccl-tests or rccl-tests")
    return content.decode("utf-8-sig", errors="replace")


def lines_of(text: str) -> list[Line]:
    """Return the lines of a log without markup, colours and the prefixes of launchers; blank lines are left out."""
    text = _LAUNCHER.sub(" ", _COLOUR.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    if _CELLS.search(text):  # a cell of an HTML table may stand on a line of its own
        text = _ROW_END.sub("\n", re.sub(r"[ \t]*\n[ \t]*(?=</?t[dhr][\s>])", " ", text, flags=re.IGNORECASE))
    if "<" in text or "&" in text:
        text = html.unescape(_TAG.sub(" ", _LINE_END.sub("\n", text)))
    lines = []
    for number, long in enumerate(text.replace("\xa0", " ").split("\n"), start=1):
        if not long or long.isspace():
            continue
        raw = long[:_LONGEST]
        said = _MESSAGE.search(raw)
        plain = raw[: said.start()] if said else raw
        lines.append(Line(number, plain.replace("\t", " ").rstrip(), said.group() if said else ""))
    return lines


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
