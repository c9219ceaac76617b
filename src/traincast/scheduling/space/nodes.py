"""Lists of nodes: your own table, Alibaba's or Philly's, or a text such as ``5x8``.

::

    load_nodes("5x8")                     # five nodes with eight GPUs each
    load_nodes("2x8:V100+16x4:T4")        # of two types
    load_nodes("nodes.csv")               # node,gpu_type,gpus[,rack,switch,vc]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from traincast.errors import FileFormatError, RequestError
from traincast.scheduling.joblogs.source import open_source, printable
from traincast.scheduling.joblogs.table import need, read_table
from traincast.scheduling.space.cluster import Node

MAX_NODES: Final = 1_000_000
MAX_GPUS_PER_NODE: Final = 1024

_PART: Final = re.compile(r"(\d{1,9})\s*[x×]\s*(\d{1,9})(?::([^+:]+))?")
_SPEC: Final = re.compile(r"\s*\d*\s*[x×]\s*\d*.*")


class NodeColumns(NamedTuple):
    """Column names of a node list; "" marks a column that the list lacks."""

    name: str
    gpu_type: str
    gpus: str
    rack: str = ""
    switch: str = ""
    vc: str = ""


LAYOUTS: Final = {
    "native": NodeColumns(name="node", gpu_type="gpu_type", gpus="gpus", rack="rack", switch="switch", vc="vc"),
    "openb": NodeColumns(name="sn", gpu_type="model", gpus="gpu"),
    "pai": NodeColumns(name="machine", gpu_type="gpu_type", gpus="cap_gpu"),
    "philly": NodeColumns(name="machineId", gpu_type="single GPU mem", gpus="number of GPUs"),
}
"""Known lists: this project's, openb_node_list and pai_machine_spec of Alibaba, cluster_machine_list of Philly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """Nodes with GPUs, in the order of the list, and notes on what was left out."""

    nodes: tuple[Node, ...]
    notes: tuple[str, ...] = ()


def load_nodes(what: str | Path) -> NodeList:
    """Return the nodes that a text such as ``NODESxGPUS[:TYPE][+…]`` describes, or those of a table."""
    if isinstance(what, str) and _SPEC.fullmatch(what) and not Path(what).exists():
        return NodeList(nodes=_parse_nodes(what))
    return read_nodes(Path(what))


def uniform_nodes(num_nodes: int, gpus_per_node: int, *, gpu_type: str = "", first: int = 0) -> tuple[Node, ...]:
    """Return ``num_nodes`` equal nodes, named ``node0``, ``node1`` … counting from ``first``."""
    if not (1 <= num_nodes <= MAX_NODES and 1 <= gpus_per_node <= MAX_GPUS_PER_NODE):
        raise RequestError(
            f"{num_nodes} nodes of {gpus_per_node} GPUs: expected 1 to {MAX_NODES} nodes of 1 to {MAX_GPUS_PER_NODE}"
        )
    return tuple(
        Node(name=f"node{number}", num_gpus=gpus_per_node, gpu_type=gpu_type)
        for number in range(first, first + num_nodes)
    )


def _parse_nodes(text: str) -> tuple[Node, ...]:
    nodes: tuple[Node, ...] = ()
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise RequestError(
                f"nodes {printable(text, 60)!r}: expected NODESxGPUS or NODESxGPUS:TYPE, such as 5x8 or 2x8:V100+4x4:T4"
            )
        nodes += uniform_nodes(int(match[1]), int(match[2]), gpu_type=(match[3] or "").strip(), first=len(nodes))
    if len(nodes) > MAX_NODES:
        raise RequestError(f"nodes {printable(text, 60)!r} are {len(nodes)} nodes: a cluster has at most {MAX_NODES}")
    return nodes


def read_nodes(path: Path) -> NodeList:
    """Read and check the nodes of a table; nodes without GPUs are left out, and a note counts them."""
    source = open_source(path)
    kind = next((k for k in LAYOUTS.values() if {k.name, k.gpus} <= set(source.header)), LAYOUTS["native"])
    need(source, (kind.name, kind.gpu_type, kind.gpus), what="a list of nodes")
    table = read_table(source, [column for column in kind if column])
    if not len(table):
        raise FileFormatError(f"{path} has no nodes: expected one on each line below the header")
    if len(table) > MAX_NODES:
        raise FileFormatError(f"{path} has {len(table):,} nodes: a cluster has at most {MAX_NODES:,}")
    unparsable: dict[str, dict[int, str]] = {}
    gpus = table.numbers(kind.gpus, unparsable)
    names = table.texts(kind.name).tolist()

    def refuse(row: int, found: str, rule: str) -> FileFormatError:
        return FileFormatError(f"{path}: {table.place} {table.lines[row]} {found}: {rule}; correct it")

    sound = (gpus >= 0) & (gpus <= MAX_GPUS_PER_NODE) & (gpus == np.floor(gpus))
    if not np.all(sound):
        row = int(np.flatnonzero(~sound)[0])
        cell = unparsable.get(kind.gpus, {}).get(row)
        shown = repr(printable(cell)) if cell is not None else "nothing" if np.isnan(gpus[row]) else f"{gpus[row]:.15g}"
        raise refuse(
            row,
            f"(node {printable(names[row])}) has {shown} as {kind.gpus}",
            f"expected a whole number from 0 to {MAX_GPUS_PER_NODE}",
        )
    seen: dict[str, int] = {}
    for row, name in enumerate(names):
        if not name:
            raise refuse(row, f"has no {kind.name}", "every node must be named")
        if name in seen:
            raise refuse(
                row,
                f"has node {printable(name)} again, after {table.place} {table.lines[seen[name]]}",
                "a node is named once",
            )
        seen[name] = row
    others = [table.texts(column).tolist() for column in (kind.gpu_type, kind.rack, kind.switch, kind.vc)]
    nodes = tuple(
        Node(name=name, num_gpus=int(count), gpu_type=gpu_type, rack=rack, switch=switch, vc=vc)
        for name, count, gpu_type, rack, switch, vc in zip(names, gpus.tolist(), *others, strict=True)
        if count > 0
    )
    if not nodes:
        raise FileFormatError(f"{path} has no node with a GPU among its {len(table):,}: give nodes with GPUs")
    bare = len(table) - len(nodes)
    notes = (f"{path}: {bare:,} node{'s' if bare > 1 else ''} without GPUs left out",) if bare else ()
    return NodeList(nodes=nodes, notes=notes)
