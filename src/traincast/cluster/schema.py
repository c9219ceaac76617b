"""What may stand in a catalog file: the known keys of each table, their types and their ranges."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, get_args

from traincast.cluster.calibration import FACTORS
from traincast.cluster.hardware import InterTopology, IntraTopology
from traincast.errors import FileFormatError

Value: TypeAlias = (
    str | int | float | tuple[float, ...] | tuple[str, ...] | tuple[tuple[float, ...], ...] | Mapping[str, "Value"]
)
Table: TypeAlias = dict[str, Value]
_Check: TypeAlias = Callable[[object, str], Value]

MAX_FILE_BYTES: Final = 1_000_000
MAX_NODES: Final = 1_000_000


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _number(value: object, where: str, *, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FileFormatError(f"{where} is {_shown(value)}: expected a number from {low:g} to {high:g}")
    if not math.isfinite(value) or not low <= value <= high:
        raise FileFormatError(f"{where} is {_shown(value)}: must be from {low:g} to {high:g} (SI units)")
    return float(value)


def _whole(value: object, where: str, *, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FileFormatError(f"{where} is {_shown(value)}: expected a whole number from {low} to {high}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 1000:
        raise FileFormatError(f"{where} is {_shown(value)}: expected a text of 1 to 1000 characters")
    return " ".join(value.split())


def _choice(value: object, where: str, *, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise FileFormatError(f"{where} is {_shown(value)}: expected one of {', '.join(choices)}")
    return str(value)


def _words(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise FileFormatError(f"{where} is {_shown(value)}: expected a list of texts")
    return tuple(_text(item, f"{where}[{i}]") for i, item in enumerate(value))


def _numbers(value: object, where: str, *, low: float, high: float) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise FileFormatError(f"{where} is {_shown(value)}: expected a list of numbers")
    return tuple(_number(item, f"{where}[{i}]", low=low, high=high) for i, item in enumerate(value))


def _points(value: object, where: str) -> tuple[tuple[float, ...], ...]:
    if not isinstance(value, list):
        raise FileFormatError(f"{where} is {_shown(value)}: expected a list of lists of numbers")
    return tuple(_numbers(item, f"{where}[{i}]", low=-1e3, high=1e3) for i, item in enumerate(value))


def _open_table(value: object, where: str, *, low: float, high: float) -> Table:
    if not isinstance(value, dict):
        raise FileFormatError(f"{where} is {_shown(value)}: expected a table of numbers")
    return {key: _number(item, f"{where}.{key}", low=low, high=high) for key, item in value.items()}


def _closed_table(value: object, where: str, *, keys: Mapping[str, _Check]) -> Table:
    if not isinstance(value, dict):
        raise FileFormatError(f"{where} is {_shown(value)}: expected a table with {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise FileFormatError(f"{where} has unknown key {_shown(key)}: known are {', '.join(keys)}")
    return {key: keys[key](item, f"{where}.{key}") for key, item in value.items()}


_rate: Final = partial(_number, low=1e6, high=1e19)
_bandwidth: Final = partial(_number, low=1e6, high=1e15)
_bytes: Final = partial(_number, low=1e3, high=1e18)
_delay: Final = partial(_number, low=0.0, high=1.0)
_amount: Final = partial(_number, low=0.0, high=1e9)
_count: Final = partial(_whole, low=1, high=MAX_NODES)

_LINK: Final[Mapping[str, _Check]] = {"name": _text, "bandwidth": _bandwidth, "latency_s": _delay}
_RATES: Final[Mapping[str, _Check]] = dict.fromkeys(("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"), _rate)
_DEVICE_ALIASES: Final[Mapping[str, _Check]] = {"model": _words, "form": _words, "rank": _count}

DEVICE_KEYS: Final[Mapping[str, _Check]] = {
    "extends": _text,
    "name": _text,
    "vendor": _text,
    "architecture": _text,
    "memory_bytes": _bytes,
    "memory_bandwidth": _bandwidth,
    "l2_bytes": _bytes,
    "num_sms": partial(_whole, low=1, high=100_000),
    "clock_hz": partial(_number, low=1e6, high=1e11),
    "tdp_w": partial(_number, low=0.1, high=1e6),
    "price_per_hour": _amount,
    "interference": partial(_number, low=0.0, high=10.0),
    "usual_node": _text,
    "source": _text,
    "peak_flops": partial(_closed_table, keys=_RATES),
    "achievable": partial(_open_table, low=1e-6, high=10.0),
    "aliases": partial(_closed_table, keys=_DEVICE_ALIASES),
}
_NETWORK_KEYS: Final[Mapping[str, _Check]] = {
    "name": _text,
    "inter_topology": partial(_choice, choices=get_args(InterTopology)),
    "oversubscription": partial(_number, low=1.0, high=1e3),
    "group_nodes": _count,
    "source": _text,
}
NODE_KEYS: Final[Mapping[str, _Check]] = {
    "extends": _text,
    "device": _text,
    "devices_per_node": partial(_whole, low=1, high=10_000),
    "intra_topology": partial(_choice, choices=get_args(IntraTopology)),
    "nics_per_node": partial(_whole, low=1, high=10_000),
    "launch_s": _delay,
    "host_memory_bytes": _bytes,
    "host_bandwidth": _bandwidth,
    "host_memory_bandwidth": _bandwidth,
    "storage_bandwidth": _bandwidth,
    "price_per_node_hour": _amount,
    "node_power_w": _amount,
    "domain_nodes": _count,
    "subset_bandwidth": partial(_numbers, low=1e6, high=1e15),
    "aliases": _words,
    "intra_node": partial(_closed_table, keys=_LINK),
    "inter_node": partial(_closed_table, keys=_LINK),
    **_NETWORK_KEYS,
}
CLUSTER_KEYS: Final[Mapping[str, _Check]] = {
    "extends": _text,
    "node": _text,
    "num_nodes": _count,
    **_NETWORK_KEYS,
}
_share: Final = partial(_number, low=1e-6, high=1e6)
_plain: Final = partial(_number, low=-1e6, high=1e6)
_STALL: Final[Mapping[str, _Check]] = {
    "seconds": _delay,
    **dict.fromkeys(("base", "per_node", "pipeline", "per_tensor_node"), _plain),
}
_CORRECTION: Final[Mapping[str, _Check]] = {
    "points": _points,
    "weights": partial(_numbers, low=-10.0, high=10.0),
    "scales": partial(_numbers, low=1e-3, high=1e3),
}
CALIBRATION_KEYS: Final[Mapping[str, _Check]] = {
    **dict.fromkeys((*FACTORS, "memory_share", "low", "high"), _share),
    **dict.fromkeys(("intra_latency_s", "inter_latency_s"), _delay),
    "step_s": partial(_number, low=0.0, high=1e4),
    "interference": partial(_number, low=0.0, high=1e3),
    "jitter": partial(_number, low=0.0, high=10.0),
    "unknown": partial(_number, low=0.0, high=10.0),
    "runtimes": _words,
    "nodes": partial(_numbers, low=1.0, high=float(MAX_NODES)),
    "runs": partial(_whole, low=0, high=10**9),
    "source": _text,
    "stall": partial(_closed_table, keys=_STALL),
    "correction": partial(_closed_table, keys=_CORRECTION),
}
_TABLES: Final = {
    "device": DEVICE_KEYS,
    "node": NODE_KEYS,
    "cluster": CLUSTER_KEYS,
    "calibration": CALIBRATION_KEYS,
}


def read_file(path: Path) -> dict[str, str | Table]:
    """The checked tables of a file (``device``, ``node``, ``cluster``, or a name for each) and ``extends``."""
    shown = _shown(str(path))
    try:
        if not path.is_file():
            found = "is not a regular file" if path.exists() else "does not exist"
            raise FileFormatError(f"cluster file {shown} {found}: give the path of a TOML file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FileFormatError(f"cluster file {shown} is larger than {MAX_FILE_BYTES} bytes: not a catalog file")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileFormatError(f"cluster file {shown} cannot be read as TOML: {reason}") from error
    tables: dict[str, str | Table] = {}
    for key, value in document.items():
        if key == "extends" or (key in _TABLES and isinstance(value, str)):
            tables[key] = _text(value, f"{path.name}: {key}")
        elif key in _TABLES:
            tables[key] = _closed_table(value, f"{path.name}: [{key}]", keys=_TABLES[key])
        else:
            known = ", ".join(("extends", *_TABLES))
            raise FileFormatError(f"{path.name} has unknown key {_shown(key)} at its top: known are {known}")
    if not tables:
        raise FileFormatError(f"{path.name} is empty: it needs extends, device, node or cluster")
    return tables
