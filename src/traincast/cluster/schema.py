"""The tables that a hardware file may have: ``[device]``, ``[node]``, ``[cluster]`` and ``[calibration]``.

Fields and their ranges are declared where the values are: ``Device``, ``Link``, ``Cluster`` and ``Calibration``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict

from traincast.cluster.calibration import Calibration
from traincast.cluster.hardware import Cluster, Count, Device, Rate
from traincast.errors import FileFormatError, nearest
from traincast.schema import Text, Words, convert, read_table, read_toml, table_of

Table: TypeAlias = dict[str, Any]


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

TABLES: Final[dict[str, Any]] = {
    "device": table_of(Device, extends=Text, usual_node=Text, peak_flops=_Rates, aliases=_DeviceAliases),
    "node": table_of(Cluster, without=_IN_NODE, extends=Text, device=Text, aliases=Words),
    "cluster": table_of(Cluster, without=_REST, extends=Text, node=Text),
    "calibration": table_of(Calibration, source=Text),
}
"""Types of the tables by name."""


def read_file(path: Path) -> dict[str, str | Table]:
    """Returns the checked tables of a file and its ``extends``; a table may be a text, the name of what it extends."""
    tables: dict[str, str | Table] = {}
    for key, value in read_toml(path, "cluster file").items():
        if key == "extends" or (key in TABLES and isinstance(value, str)):
            tables[key] = _one_line(convert(value, Text, f"{path.name}: {key}"))
        elif key in TABLES:
            tables[key] = _one_line(read_table(value, TABLES[key], f"{path.name}: [{key}]"))
        else:
            known = nearest(key, ("extends", *TABLES))
            raise FileFormatError(f"{path.name} has unknown key {key[:60]!r} at its top: {known}")
    if not tables:
        raise FileFormatError(f"{path.name} is empty: it needs extends, device, node or cluster")
    return tables


def _one_line(value: Any) -> Any:
    """``value`` with the spaces and line breaks in its texts reduced to single spaces."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {key: _one_line(item) for key, item in value.items()}
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return tuple(_one_line(item) for item in value)
    return value
