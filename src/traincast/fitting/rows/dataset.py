"""Read tables of measured operators into columns; every row left out is reported with its reason."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device, find_device
from traincast.cluster.match import GENERIC, own_name
from traincast.errors import FileFormatError, RequestError, UnknownNameError
from traincast.estimate.operators.features import family_of
from traincast.fitting.rows.device_limits import DTYPE_CODE, MeasuredRates, amounts_of, limits_of
from traincast.fitting.rows.operator import RowConfig, canonical_name, key_of, operator_of
from traincast.fitting.rows.problems import RowChecks, RowProblem, summarize_problems
from traincast.graph import Operator
from traincast.tables import RowError, read_arrow
from traincast.units import MICRO

if TYPE_CHECKING:
    import pyarrow as pa


Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]
Texts: TypeAlias = npt.NDArray[np.object_]

ROOFLINE_FACTOR: Final = 3.0
"""How much faster than its device's peak rates a measurement may claim to be before it counts as implausible."""
CELL_SHARE: Final = 0.2
"""If a larger share of a source's rows of an operator on a device is implausible, all of them are left out."""
UNIT_FACTOR: Final = 30.0
"""Factor between a time and a stated rate above which their units must be mixed up."""

_FILTERS: Final = {
    "op": "ops",
    "phase": "phases",
    "dtype": "dtypes",
    "source": "sources",
    "device": "devices",
    "framework": "frameworks",
}
"""The columns that rows can be chosen by, and the argument of :func:`read_operators` for each."""
_NEEDS: Final = ("device", "dtype", "op", "phase", "time_us")
_TEXTS: Final = ("source", "device", "dtype", "op", "phase", "framework", "params")
_SIZES: Final = ("b", "m", "n", "k")
_NUMBERS: Final = (*_SIZES, "time_us", "time_us_min", "n_meas", "tflops")
_COLUMNS: Final = (*_TEXTS, *_NUMBERS, "suspect")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """Measured operators as parallel columns: one entry for each row without a problem.

    ``index`` is the row's number in the file, ``seconds`` its time, ``min_seconds`` the shortest of its ``n_meas``
    repeats (NaN and 0 where not stated). Rows that ran the same thing share one entry of ``configurations``, by
    ``configuration``; ``key`` is a stable hash of :func:`traincast.fitting.rows.operator.key_of`, the same on every
    device. ``problems`` has every row that was asked for and left out.
    """

    index: Ints
    source: Texts
    device: Texts
    framework: Texts
    seconds: Floats
    min_seconds: Floats
    n_meas: Ints
    key: Hashes
    configuration: Ints
    configurations: tuple[Operator, ...]
    problems: tuple[RowProblem, ...]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def operators(self) -> list[Operator]:
        """The operator of every row."""
        return [self.configurations[i] for i in self.configuration.tolist()]

    @property
    def groups(self) -> Ints:
        """A number for each row's device and framework: rows of one configuration and group are repeats."""
        pairs = [(d.name, f) for d, f in zip(self.device.tolist(), self.framework.tolist(), strict=True)]
        number = {pair: i for i, pair in enumerate(sorted(set(pairs)))}
        return np.array([number[pair] for pair in pairs], dtype=np.int64)

    @property
    def devices(self) -> dict[str, Device]:
        """The devices of the table, by name."""
        return {d.name: d for d in dict.fromkeys(self.device.tolist())}

    def take(self, rows: npt.NDArray[Any]) -> OperatorTable:
        """The table of some rows, given by position or mask, without ``problems``."""
        columns = {name: getattr(self, name)[rows] for name in _ROW_COLUMNS}
        return OperatorTable(**columns, configurations=self.configurations, problems=())

    def problems_summary(self) -> list[str]:
        """One line for each reason, the most frequent first: ``rows 12, 40–44 and 31 more: the time is NaN``."""
        return summarize_problems(self.problems)


_ROW_COLUMNS: Final = (
    "index", "source", "device", "framework", "seconds", "min_seconds", "n_meas", "key", "configuration",
)  # fmt: skip


def filters(where: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """Return the arguments of :func:`read_operators` that keep rows with one of the given values in each column."""
    unknown = sorted(set(where) - set(_FILTERS))
    if unknown:
        raise RequestError(f"cannot choose rows by {', '.join(unknown)}: expected {', '.join(_FILTERS)}")
    return {_FILTERS[name]: values for name, values in where.items()}


def read_operators(
    path: Path,
    *,
    ops: Collection[str] | None = None,
    phases: Collection[str] | None = None,
    dtypes: Collection[str] | None = None,
    sources: Collection[str] | None = None,
    devices: Collection[str] | None = None,
    frameworks: Collection[str] | None = None,
    families: Collection[str] | None = None,
    rows: int | None = None,
    known: Mapping[str, Device] | None = None,
    derive: bool = False,
) -> OperatorTable:
    """Read a table of measured operators (``.parquet``, ``.csv`` or ``.csv.gz``).

    The filters keep rows whose column is among the given values, before anything is converted: ``ops`` are names of
    operations (``attention``) or a table's own (``flash_atten``), ``devices`` any spelling of a device. ``families``
    drops operations of other families, by the first row of each. ``rows`` keeps at most this many of the remaining
    rows, spread evenly. ``known`` are devices beside those of the catalog, by name; with ``derive``, a device that is
    in neither takes its rates from the best of its own measurements.
    """
    table = _load(path)
    wanted = _matching(
        table, ops=ops, phase=phases, dtype=dtypes, source=sources, devices=devices, framework=frameworks
    )
    if families is not None:
        wanted = wanted[_of_families(table.take(wanted), families)]
    if rows is not None and rows < len(wanted):
        if rows < 1:
            raise RequestError(f"rows is {rows}: expected 1 or more")
        wanted = wanted[np.linspace(0, len(wanted) - 1, rows).astype(np.int64)]
    if len(wanted) < table.num_rows:
        table = table.take(wanted)
    return _converted(table, wanted, known=known or {}, derive=derive)


# Reading


def _load(path: Path) -> pa.Table:
    """The columns that are used, in their types; missing columns are empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = read_arrow(path, needs=_NEEDS, wants=_COLUMNS)
    columns = {}
    for name in _COLUMNS:
        kind = pa.string() if name in _TEXTS else pa.bool_() if name == "suspect" else pa.float64()
        if name not in table.column_names:
            columns[name] = pa.nulls(table.num_rows, kind)
            continue
        try:
            column = table[name]
            if name in _TEXTS and not pa.types.is_dictionary(column.type):
                column = pc.dictionary_encode(column.cast(kind))
            elif name not in _TEXTS:
                column = column.cast(kind, safe=False)
        except pa.ArrowException as error:
            raise FileFormatError(f"{path}: column {name} holds {table[name].type}, not {kind}") from error
        columns[name] = column
    return pa.table(columns)


def _coded(column: Any) -> tuple[Ints, list[str | None]]:
    """A column of texts as indices into its distinct values; index 0 is ``None``, a missing text."""
    import pyarrow.compute as pc

    whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if not hasattr(whole, "dictionary"):
        whole = pc.dictionary_encode(whole)
        whole = whole.combine_chunks() if hasattr(whole, "combine_chunks") else whole
    codes = pc.fill_null(whole.indices.cast("int64"), -1).to_numpy(zero_copy_only=False) + 1
    return codes, [None, *whole.dictionary.to_pylist()]


def _matching(table: pa.Table, **wanted: Collection[str] | None) -> Ints:
    """Positions of the rows that pass the filters."""
    keep = np.ones(table.num_rows, dtype=bool)
    for name, values in wanted.items():
        if values is None:
            continue
        chosen = set(values)
        codes, texts = _coded(table[{"ops": "op", "devices": "device"}.get(name, name)])
        if name == "ops":
            passes = [t is not None and (t in chosen or canonical_name(t) in chosen) for t in texts]
        elif name == "devices":
            names = {find_device(value).name for value in chosen}
            passes = [(d := _device(t)) is not None and d.name in names for t in texts]
        else:
            passes = [t in chosen for t in texts]
        keep &= np.array(passes, dtype=bool)[codes]
    return np.flatnonzero(keep)


def _of_families(table: pa.Table, families: Collection[str]) -> npt.NDArray[np.bool_]:
    """Rows whose operation may be of one of ``families``, as far as the first row of each operation tells."""
    codes, texts = _coded(table["op"])
    keep = np.ones(len(texts), dtype=bool)
    first = {int(code): int(row) for code, row in zip(*np.unique(codes, return_index=True), strict=True)}
    for code, row in first.items():
        op = texts[code]
        if op is None or canonical_name(op) is None:
            continue
        values = {name: table[name][row].as_py() for name in RowConfig._fields}
        sizes = {name: _whole(float(values[name])) for name in _SIZES if values[name] is not None}
        try:
            operator = operator_of(RowConfig(**(values | sizes)))
        except RowError:
            continue
        keep[code] = family_of(operator) in (*families, None)
    return keep[codes]


def _device(text: str | None) -> Device | None:
    try:
        return find_device(text) if text else None
    except UnknownNameError:
        return None


# Converting and checking


def _converted(table: pa.Table, index: Ints, *, known: Mapping[str, Device], derive: bool) -> OperatorTable:
    codes = {name: _coded(table[name]) for name in _TEXTS}
    numbers = {name: table[name].to_numpy() for name in _NUMBERS}
    first, configuration = _distinct(
        [codes[name][0] for name in ("op", "phase", "dtype", "params")],
        [numbers[name] for name in _SIZES],
    )
    operators, reasons = _operators(first, codes, numbers)
    device_codes, device_texts = codes["device"]
    devices = [known.get(own_name(text or "")) or _device(text) for text in device_texts]
    if derive:  # the catalog has one entry for all processors; a measured processor has rates of its own
        devices = [None if d is not None and d.name == GENERIC else d for d in devices]
    seconds = numbers["time_us"] * MICRO
    flops, nbytes = amounts_of(operators)
    dtype = np.array([DTYPE_CODE[op.dtype] for op in operators], dtype=np.int64)
    if derive:
        moved = np.array([op.nbytes for op in operators])
        rows = MeasuredRates(device_codes, dtype[configuration], flops[configuration], moved[configuration], seconds)
        devices = [
            d or (rows.device(i, t) if t else None) for i, (d, t) in enumerate(zip(devices, device_texts, strict=True))
        ]

    checks = RowChecks(len(index))
    suspect = table["suspect"].fill_null(False).to_numpy().astype(bool)
    checks.add(np.array([r is not None for r in reasons], dtype=bool)[configuration], "", configuration, reasons)
    unknown = [None if d else f"unknown device {t!r}" for d, t in zip(devices, device_texts, strict=True)]
    checks.add(np.array([d is None for d in devices], dtype=bool)[device_codes], "", device_codes, unknown)
    checks.add(np.isnan(seconds), "the time is NaN or missing")
    checks.add(np.isinf(seconds), "the time is infinite")
    checks.add(seconds <= 0, "the time is zero or negative")
    checks.add(suspect, "marked as suspect in the table")
    every = np.array([op.flops for op in operators])
    rate = every[configuration] / np.where(seconds > 0, seconds, np.nan) * 1e-12
    ratio = rate / np.where(numbers["tflops"] > 0, numbers["tflops"], np.nan)
    checks.add(
        (ratio > UNIT_FACTOR) | (ratio < 1 / UNIT_FACTOR),
        f"time and tflops disagree more than {UNIT_FACTOR:g}-fold (mixed units?)",
    )
    rates, bandwidth, cache = limits_of(devices)
    compute = flops[configuration] / rates[device_codes, dtype[configuration]]
    traffic = np.maximum(0.0, nbytes[configuration] - cache[device_codes]) / bandwidth[device_codes]
    implausible = seconds * ROOFLINE_FACTOR < np.maximum(compute, traffic)
    checks.add(
        implausible,
        f"more than {ROOFLINE_FACTOR:g} times faster than the device's peak rates allow (implausible, or mixed units)",
    )
    sources, frameworks = codes["source"], codes["framework"]
    name = np.unique([op.name for op in operators], return_inverse=True)[1][configuration]
    checks.add(
        _share_of_cell([name, device_codes, sources[0]], implausible) > CELL_SHARE,
        f"more than {CELL_SHARE:.0%} of the source's rows of this operator on this device are implausibly fast",
    )
    again = _repeated([configuration, device_codes, sources[0], frameworks[0]], [seconds, numbers["n_meas"]])
    checks.add(again, "identical to an earlier row")

    good = np.flatnonzero(checks.passed)
    keys = _keys(operators)
    return OperatorTable(
        index=index[good],
        source=_texts(sources, good, "unknown"),
        device=np.array(devices, dtype=object)[device_codes[good]],
        framework=_texts(frameworks, good, ""),
        seconds=seconds[good],
        min_seconds=numbers["time_us_min"][good] * MICRO,
        n_meas=np.nan_to_num(numbers["n_meas"][good]).astype(np.int64),
        key=keys[configuration[good]],
        configuration=configuration[good],
        configurations=tuple(operators),
        problems=checks.problems(index, _texts(sources, np.arange(len(index)), "unknown")),
    )


def joined(tables: Sequence[OperatorTable]) -> OperatorTable:
    """Join several tables into one; row numbers remain those of each file."""
    if len(tables) == 1:
        return tables[0]
    offsets = np.cumsum([0, *(len(t.configurations) for t in tables[:-1])])
    columns = {name: np.concatenate([getattr(t, name) for t in tables]) for name in _ROW_COLUMNS}
    columns["configuration"] = np.concatenate(
        [t.configuration + offset for t, offset in zip(tables, offsets, strict=True)]
    )
    return OperatorTable(
        **columns,
        configurations=tuple(op for t in tables for op in t.configurations),
        problems=tuple(problem for t in tables for problem in t.problems),
    )


def _texts(coded: tuple[Ints, list[str | None]], rows: Ints, missing: str) -> Texts:
    return np.array([t if t is not None else missing for t in coded[1]], dtype=object)[coded[0][rows]]


def _distinct(codes: Sequence[Ints], numbers: Sequence[Floats]) -> tuple[Ints, Ints]:
    """``(first, group)``: the first row of each distinct combination, and the combination of each row."""
    columns = [*codes, *(np.unique(x, return_inverse=True)[1] for x in numbers)]
    group = np.zeros(len(codes[0]), dtype=np.int64)
    first = np.zeros(min(1, len(group)), dtype=np.int64)
    for column in columns:
        combined = group * (int(column.max(initial=0)) + 1) + column
        _, first, group = np.unique(combined, return_index=True, return_inverse=True)
    return first, group


def _repeated(codes: Sequence[Ints], numbers: Sequence[Floats]) -> npt.NDArray[np.bool_]:
    """Rows whose columns all equal those of an earlier row."""
    first, group = _distinct(codes, numbers)
    repeated: npt.NDArray[np.bool_] = first[group] != np.arange(len(group))
    return repeated


def _share_of_cell(codes: Sequence[Ints], failed: npt.NDArray[np.bool_]) -> Floats:
    """For each row, the share of rows with the same codes that failed."""
    first, group = _distinct(codes, [])
    shares = np.bincount(group, weights=failed, minlength=len(first)) / np.maximum(1, np.bincount(group))
    return shares[group]


def _operators(
    rows: Ints, codes: dict[str, tuple[Ints, list[str | None]]], numbers: dict[str, Floats]
) -> tuple[list[Operator], list[str | None]]:
    """The operator of each row, or a placeholder and the reason why there is none."""
    texts = [[values[i] for i in column[rows].tolist()] for column, values in (codes[n] for n in _CONFIG_TEXTS)]
    sizes = [[_whole(x) for x in numbers[name][rows].tolist()] for name in _SIZES]
    operators: list[Operator] = []
    reasons: list[str | None] = []
    for op, phase, dtype, params, b, m, n, k in zip(*texts, *sizes, strict=True):
        try:
            if op is None or phase is None or dtype is None:
                raise RowError("op, phase or dtype is missing")
            operators.append(operator_of(RowConfig(op, phase, dtype, b, m, n, k, params)))
            reasons.append(None)
        except RowError as error:
            operators.append(_PLACEHOLDER)
            reasons.append(str(error))
    return operators, reasons


def _whole(value: float) -> Any:
    """Return a size as ``int`` if it is whole, ``None`` if it is missing, and otherwise unchanged."""
    if value.is_integer():
        return int(value)
    return None if math.isnan(value) else value


_CONFIG_TEXTS: Final = ("op", "phase", "dtype", "params")
_PLACEHOLDER: Final = operator_of(RowConfig("gemm", "fwd", "fp32", 1, 1, 1, 1))


def _keys(operators: Sequence[Operator]) -> Hashes:
    """A stable hash of each operator's configuration."""
    digests = b"".join([hashlib.blake2b(key_of(op).encode(), digest_size=8).digest() for op in operators])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
