"""The tables that a hardware file may have: ``[device]``, ``[node]``, ``[cluster]``, ``[[parts]]``, ``[calibration]``.

Fields and their ranges are declared where the values are: ``Device``, ``Link``, ``Cluster`` and ``Calibration``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict

from traincast.cluster.calibration import Calibration, SeenModel
from traincast.cluster.hardware import Cluster, Count, Device, Rate
from traincast.errors import FileFormatError, nearest
from traincast.schema import Text, Words, convert, read_table, read_toml, table_of

Table: TypeAlias = dict[str, Any]
Document: TypeAlias = dict[str, str | Table | list[Table]]
"""The tables of one file by name; ``parts`` is a list of tables."""


class _Rates(TypedDict, total=False):
    fp64: Rate
    fp32: Rate
    tf32: Rate
    fp16: Rate
    bf16: Rate
    fp8: Rate
    nvfp4: Rate


class _DeviceAliases(TypedDict, total=False):
    model: Words
    form: Words
    rank: Count


_IN_CLUSTER: Final = ("name", "num_nodes", "inter_topology", "oversubscription", "group_nodes", "source")
_IN_NODE: Final = ("num_nodes", "parts", "hosts", "calibration")
_REST: Final = tuple(name for name in Cluster.__slots__ if name not in _IN_CLUSTER)

Rates: TypeAlias = tuple[float | Text, ...]
"""Rates of links, one for each node: bytes/s, or texts such as ``1 Gbit/s``."""

TABLES: Final[dict[str, Any]] = {
    "device": table_of(Device, extends=Text, usual_node=Text, peak_flops=_Rates, aliases=_DeviceAliases),
    "node": table_of(Cluster, without=_IN_NODE, extends=Text, device=Text, aliases=Words),
    "cluster": table_of(Cluster, without=_REST, extends=Text, node=Text, link_rates=Rates),
    "calibration": table_of(Calibration, source=Text),
}
"""Types of the tables by name."""
_SEEN: Final[Any] = table_of(SeenModel)
PART: Final[Any] = table_of(
    Cluster, without=_IN_NODE, extends=Text, device=Text, aliases=Words, num_nodes=Count, link_rates=Rates
)
"""The type of one of the tables in ``[[parts]]``: the keys of ``[node]``, and how many nodes it describes."""


def read_file(path: Path) -> Document:
    """Returns the checked tables of a file and its ``extends``; a table may be a text, the name of what it extends."""
    tables: Document = {}
    for key, value in read_toml(path, "cluster file").items():
        if key == "extends" or (key in TABLES and isinstance(value, str)):
            tables[key] = _one_line(convert(value, Text, f"{path.name}: {key}"))
        elif key in TABLES:
            tables[key] = _one_line(read_table(value, TABLES[key], f"{path.name}: [{key}]"))
            for n, seen in enumerate(value.get("seen", ()), start=1):  # refuses keys that no entry has
                read_table(seen, _SEEN, f"{path.name}: [{key}] seen {n}")
        elif key == "parts":
            tables[key] = _read_parts(value, path.name)
        else:
            known = nearest(key, ("extends", "parts", *TABLES))
            raise FileFormatError(f"{path.name} has unknown key {key[:60]!r} at its top: {known}")
    if not tables:
        raise FileFormatError(f"{path.name} is empty: it needs extends, device, node or cluster")
    return tables


def _read_parts(value: Any, file: str) -> list[Table]:
    if not isinstance(value, list) or not value or not all(isinstance(part, dict) for part in value):
        raise FileFormatError(f"{file}: parts is {str(value)[:60]}: expected one or more [[parts]] tables")
    return [_one_line(read_table(part, PART, f"{file}: [[parts]] {n}")) for n, part in enumerate(value, start=1)]


def _one_line(value: Any) -> Any:
    """``value`` with the spaces and line breaks in its texts reduced to single spaces."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {key: _one_line(item) for key, item in value.items()}
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return tuple(_one_line(item) for item in value)
    return value
