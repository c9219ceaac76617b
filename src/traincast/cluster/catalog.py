"""The catalog of known hardware, and how a user's own file joins it.

A cluster is asked for as ``NAME[:NODES[xDEVICES]]``: ``dgx-h100:4`` (a node type and how many), ``dgx-h100:1x2``
(two devices of a node), ``dgx-a100:2+dgx-h100:2`` (nodes of two kinds), ``selene`` (a known cluster), ``my.toml`` or
``my.toml:8`` (a file of one's own). Catalog files and a user's files have one schema: SI units throughout (bytes,
bytes/s, FLOP/s, s, Hz, W, USD/h), bandwidths per direction.

::

    extends = "dgx-h100"              # optional: start from a cluster, a node type or another file
    device = "h200-sxm"               # or a [device] table; likewise node and cluster

    [device]                          # whatever is left out comes from what the file extends
    extends = "h100-sxm5-80gb"        # a catalog name or the path of a file with a [device] table
    name = "my-gpu"                   # vendor, architecture, source: texts
    memory_bytes = 85.0e9             # what the device reports, not what the box says
    memory_bandwidth = 3.35e12        # l2_bytes, num_sms, clock_hz, tdp_w, price_per_hour, interference: numbers
    usual_node = "dgx-h100"           # node type assumed for a measurement that names only the device
    [device.peak_flops]               # dense FLOP/s: fp64, fp32, tf32, fp16, bf16, fp8, nvfp4
    bf16 = 989.4e12
    [device.achievable]               # measured fractions of those rates, by name
    [device.aliases]                  # model, form: words other people use; rank: 1 is preferred

    [node]
    extends = "dgx-h100"
    device = "h100-sxm5-80gb"         # a catalog name or a path; a [device] table of this file wins
    devices_per_node = 8
    intra_topology = "nvswitch"       # nvswitch, nvlink-mesh, pcie-tree, none
    intra_node = { name = "NVLink4", bandwidth = 450e9, latency_s = 1.2e-6 }   # of one device
    inter_node = { name = "NDR InfiniBand", bandwidth = 50e9, latency_s = 3e-6 } # of one NIC
    nics_per_node = 8
    inter_topology = "rail-optimized" # fat-tree, rail-optimized, dragonfly, torus, none
    launch_s = 4.5e-6                 # host_memory_bytes, host_bandwidth, storage_bandwidth …: numbers
    price_per_node_hour = 24.0        # default: devices_per_node × price_per_hour
    domain_nodes = 1                  # nodes that share one domain of intra_node links (NVL72: 18)
    subset_bandwidth = []             # see Cluster; aliases = [...]: names of machines built of this node

    [cluster]
    node = "dgx-h100"                 # default: the node above
    num_nodes = 16                    # default 1
    oversubscription = 2.0            # also name, inter_topology, group_nodes, source

    [calibration]                     # what measured runs taught, as ``traincast calibrate`` writes it
    gemm = 1.08                       # see Calibration; whatever is left out is as datasheets have it

``peak_flops`` are those of the fastest unit that multiplies matrices in that dtype (tensor or matrix cores;
for fp32 on NVIDIA, the CUDA cores). ``price_per_hour`` in the catalog is a public on-demand price, with its
date beside it, good for an order of magnitude. ``latency_s`` is what a small message takes from one device's
memory to another's, network card included and library excluded. A changed [device] without a name of its own
is called ``BASE~FILE``, so that nothing fitted to the real one is taken for it; changing only price, power or
``achievable`` keeps the name.
"""

from __future__ import annotations

import copyreg
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast, get_args

from traincast.cluster.calibration import FEATURES, NUMBERS, Calibration, Correction, Stall
from traincast.cluster.hardware import (
    HOST_BANDWIDTH,
    HOST_MEMORY_BANDWIDTH,
    INTERFERENCE,
    PROCESSOR,
    Cluster,
    Device,
    InterTopology,
    IntraTopology,
    Link,
    joined,
)
from traincast.cluster.schema import MAX_NODES, Table, Value, read_file
from traincast.cluster.topology import part_of_node
from traincast.errors import FileFormatError, RequestError, UnknownNameError

copyreg.pickle(MappingProxyType, lambda table: (MappingProxyType, (dict(table),)))  # devices go to other processes

DATA: Final = Path(__file__).parent / "data"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*", re.ASCII)
_MAX_DEPTH: Final = 8
_KEEPS_NAME: Final = frozenset(
    {"name", "extends", "tdp_w", "price_per_hour", "achievable", "interference", "aliases", "source"}
)
_SAME_NODE_ONLY: Final = ("price_per_node_hour", "node_power_w", "subset_bandwidth")
_POWER_PER_TDP: Final = 1.6
"""Power of a whole node over that of its devices, where its file has none; DGX machines have 1.5 to 2.0."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """What the files read so far say of the device, the node and the cluster."""

    device: Table
    node: Table
    cluster: Table
    calibration: Table


def device_names() -> tuple[str, ...]:
    """Names of the devices in the catalog, sorted."""
    return _names("devices")


def node_names() -> tuple[str, ...]:
    """Names of the node types in the catalog, sorted."""
    return _names("nodes")


def cluster_names() -> tuple[str, ...]:
    """Names of the known clusters in the catalog, sorted."""
    return _names("clusters")


def load_device(name: str) -> Device:
    """The device called ``name`` in the catalog, or that of the TOML file at the path ``name``."""
    return _build_device(_resolve(name, "device", Path(), _MAX_DEPTH).device, name)


def load_cluster(spec: str, *, hosts: bool = False) -> Cluster:
    """The cluster asked for as ``NAME[:NODES[xDEVICES]]``; NAME is a cluster, a node type or a TOML file.

    Several, joined by ``+``, make one cluster of unlike nodes: ``dgx-a100:2+dgx-h100:2``. With ``hosts``, some of them
    may have no accelerators: ``dgx-a100:2+cpu-server:2``. A server may have any number of processors, or of processes
    that each count as one: ``cpu-server:1x2``.
    """
    parts = spec.split("+") if "+" in spec and not Path(spec).exists() else [spec]
    return joined([_one_cluster(part) for part in parts], hosts=hosts)


def _one_cluster(spec: str) -> Cluster:
    name, nodes, devices = _split_spec(spec)
    cluster = _build_cluster(_resolve(name, "cluster", Path(), _MAX_DEPTH), name)
    if devices is not None:
        if devices > cluster.devices_per_node and cluster.device.architecture != PROCESSOR:
            raise RequestError(
                f"cluster {spec!r} asks for {devices} devices in a node, but {name} has {cluster.devices_per_node}"
            )
        cluster = part_of_node(cluster, cluster.device, devices)
    return cluster if nodes is None else cluster.with_nodes(nodes)


def load_node(name: str) -> tuple[Cluster, tuple[str, ...]]:
    """One node of a catalog type, and the names of machines that are built of it."""
    layers = _resolve(name, "node", Path(), _MAX_DEPTH)
    return _build_cluster(layers, name), cast("tuple[str, ...]", layers.node.get("aliases", ()))


def device_table(name: str) -> Table:
    """The checked ``[device]`` table of a catalog device, aliases included."""
    return _resolve(name, "device", Path(), _MAX_DEPTH).device


@lru_cache(maxsize=8)
def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.name.removesuffix(".toml") for path in (DATA / kind).glob("*.toml")))


def _split_spec(spec: str) -> tuple[str, int | None, int | None]:
    """Name, nodes and devices of each node that ``spec`` asks for."""
    shown = repr(spec if len(spec) <= 80 else spec[:79] + "…")
    name, colon, numbers = spec.strip().rpartition(":")
    if not colon:
        name, numbers = numbers, ""
    name = name.strip()
    if not name or len(spec) > 4096:
        raise RequestError(f"cluster {shown} has no usable name: write NAME[:NODES], such as dgx-h100:4")
    if not colon:
        return name, None, None
    nodes, times, devices = (part.strip() for part in numbers.partition("x"))
    for number, what in ((nodes, "nodes"), *([(devices, "devices in a node")] if times else [])):
        if not (number.isascii() and number.isdigit()) or len(number) > 9 or not 1 <= int(number) <= MAX_NODES:
            raise RequestError(
                f"cluster {shown} asks for {number[:20]!r} {what}: expected a whole number from 1 to {MAX_NODES}, "
                "such as dgx-h100:4 (four nodes) or dgx-h100:1x2 (two devices of one node)"
            )
    return name, int(nodes), int(devices) if times else None


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name or "\\" in name


def _resolve(name: str, kind: str, directory: Path, depth: int) -> _Layers:
    """Everything the file behind ``name`` says, what it extends included; ``kind`` is where to look."""
    if depth == 0:
        raise FileFormatError(f"{name!r} extends more than {_MAX_DEPTH} files in a row: is there a circle?")
    if _is_path(name):
        path = directory / name
        layers = _layers(read_file(path), path, depth)
    else:
        layers = _from_catalog(name, kind)
    if kind == "device" and not layers.device:
        raise FileFormatError(f"{name!r} describes no device: name one of the catalog, or add a [device] table")
    if kind != "device" and not layers.node:
        raise FileFormatError(f'{name!r} describes no node: add extends = "dgx-h100" or a [node] table')
    return layers


@lru_cache(maxsize=1024)
def _from_catalog(name: str, kind: str) -> _Layers:
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    folders = {"device": ("devices",), "node": ("nodes",), "cluster": ("clusters", "nodes")}[kind]
    if _NAME.fullmatch(plain) and len(plain) <= 80:
        for folder in folders:
            path = DATA / folder / f"{plain}.toml"
            if path.is_file():
                return _layers(read_file(path), path, _MAX_DEPTH)
    choices = [known for folder in folders for known in _names(folder)]
    hint = f"`traincast {'devices' if kind == 'device' else 'clusters'}` lists all, or give the path of a .toml file"
    raise UnknownNameError(kind, name[:80], choices, hint=hint)


def _layers(document: dict[str, str | Table], path: Path, depth: int) -> _Layers:
    """Lay the tables of one file over what they extend."""
    folder, stem = path.parent, path.name.removesuffix(".toml")
    layers = _Layers({}, {}, {}, {})
    cluster, node, device = (_as_table(document.get(key)) for key in ("cluster", "node", "device"))
    for base in (document.get("extends"), cluster.get("extends")):
        if isinstance(base, str):
            layers = _resolve(base, "cluster", folder, depth - 1)
    for base in (cluster.get("node"), node.get("extends")):
        if isinstance(base, str):
            named = _resolve(base, "node", folder, depth - 1)
            layers = replace(layers, device=named.device, node=named.node)
    if isinstance(node.get("device"), str):
        layers = replace(layers, device=_resolve(str(node["device"]), "device", folder, depth - 1).device)
    base_node = layers.node
    if "devices_per_node" in node or "device" in node:
        base_node = {key: value for key, value in base_node.items() if key not in _SAME_NODE_ONLY}
    if isinstance(device.get("extends"), str):
        layers = replace(layers, device=_resolve(str(device["extends"]), "device", folder, depth - 1).device)
    changed = dict(device)
    if changed and "name" not in changed and not layers.device:
        changed["name"] = stem
    elif "name" not in changed and not changed.keys() <= _KEEPS_NAME:
        changed["name"] = f"{layers.device['name']}~{stem}"
    named_here = {"name": stem} if cluster or node or "extends" in document else {}
    return _Layers(
        _overlay(layers.device, changed),
        _overlay(base_node, node),
        _overlay(layers.cluster, {**named_here, **({"name": node["name"]} if "name" in node else {}), **cluster}),
        _as_table(document.get("calibration")) or ({} if _other_device(layers.device, changed) else layers.calibration),
    )


def _other_device(base: Table, changed: Table) -> bool:
    """Whether a file changes the device, so that what was learned of the old one does not hold."""
    return bool(changed) and not changed.keys() <= _KEEPS_NAME and changed.get("name") != base.get("name")


def _as_table(value: str | Table | None) -> Table:
    return {"extends": value} if isinstance(value, str) else dict(value or {})


def _overlay(base: Table, top: Table) -> Table:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = {**below, **value}
        elif key not in {"extends", "node", "device"}:
            merged[key] = value
    return merged


def _need(table: Table, key: str, where: str, title: str) -> Value:
    if key not in table:
        raise FileFormatError(f"{where}: [{title}] lacks {key}: add it, or extend an entry of the catalog")
    return table[key]


def _build_device(table: Table, where: str) -> Device:
    def number(key: str) -> float:
        return cast("float", _need(table, key, where, "device"))

    rates = cast("dict[str, float]", _need(table, "peak_flops", where, "device"))
    if "fp32" not in rates:
        raise FileFormatError(f"{where}: [device.peak_flops] lacks fp32, which every other dtype falls back to: add it")
    return Device(
        name=str(_need(table, "name", where, "device")),
        vendor=str(_need(table, "vendor", where, "device")),
        architecture=str(_need(table, "architecture", where, "device")),
        peak_flops=MappingProxyType(dict(rates)),
        memory_bytes=number("memory_bytes"),
        memory_bandwidth=number("memory_bandwidth"),
        l2_bytes=number("l2_bytes"),
        num_sms=int(number("num_sms")),
        clock_hz=number("clock_hz"),
        tdp_w=number("tdp_w"),
        price_per_hour=cast("float", table.get("price_per_hour", 0.0)),
        achievable=MappingProxyType(dict(cast("dict[str, float]", table.get("achievable", {})))),
        interference=cast("float", table.get("interference", INTERFERENCE)),
        source=str(table.get("source", "")),
    )


def _build_calibration(table: Table, where: str) -> Calibration:
    numbers = {name: cast("float", table[name]) for name in NUMBERS if name in table}
    nodes = cast("tuple[float, ...]", table.get("nodes", (1.0, 1.0)))
    if len(nodes) != 2 or nodes[0] > nodes[1]:
        raise FileFormatError(f"{where}: [calibration] nodes are {list(nodes)}: expected the fewest and the most")
    default = Calibration()
    low, high = numbers.get("low", default.low), numbers.get("high", default.high)
    if low > high:
        raise FileFormatError(f"{where}: [calibration] low = {low:g} is above high = {high:g}: exchange them")
    stall = cast("dict[str, float]", table.get("stall", {}))
    if stall and not {"seconds", "base"} <= stall.keys():
        raise FileFormatError(f"{where}: [calibration.stall] lacks seconds or base: add them, or leave it out")
    return Calibration(
        **numbers,
        runtimes=cast("tuple[str, ...]", table.get("runtimes", ())),
        nodes=(int(nodes[0]), int(nodes[1])),
        runs=int(cast("int", table.get("runs", 0))),
        stall=Stall(**stall) if stall else None,
        correction=_build_correction(cast("Table", table.get("correction", {})), where),
    )


def _build_correction(table: Table, where: str) -> Correction | None:
    if not table:
        return None
    points = cast("tuple[tuple[float, ...], ...]", table.get("points", ()))
    weights = cast("tuple[float, ...]", table.get("weights", ()))
    scales = cast("tuple[float, ...]", table.get("scales", ()))
    if len(points) != len(weights) or any(len(row) != len(FEATURES) for row in (*points, scales)):
        raise FileFormatError(
            f"{where}: [calibration.correction] has {len(points)} points, {len(weights)} weights and {len(scales)} "
            f"scales: there is one weight for each point, and points and scales have {len(FEATURES)} numbers each; "
            "calibrate again if it was made by another version"
        )
    return Correction(points=points, weights=weights, scales=scales)


def _build_link(table: Table, key: str, where: str) -> Link:
    link = cast("Table", _need(table, key, where, "node"))
    title = f"node.{key}"
    return Link(
        name=str(_need(link, "name", where, title)),
        bandwidth=cast("float", _need(link, "bandwidth", where, title)),
        latency_s=cast("float", _need(link, "latency_s", where, title)),
    )


def _build_cluster(layers: _Layers, where: str) -> Cluster:
    if not layers.device:
        raise FileFormatError(f"{where}: [node] lacks device: name one of the catalog, or add a [device] table")
    device = _build_device(layers.device, where)
    table = {**layers.node, **layers.cluster}
    count = int(cast("int", _need(table, "devices_per_node", where, "node")))
    intra, inter = (str(_need(table, key, where, "node")) for key in ("intra_topology", "inter_topology"))
    assert intra in get_args(IntraTopology) and inter in get_args(InterTopology)

    def number(key: str, default: float) -> float:
        return cast("float", table.get(key, default))

    return Cluster(
        name=str(_need(table, "name", where, "cluster")),
        device=device,
        num_nodes=int(number("num_nodes", 1)),
        devices_per_node=count,
        intra_node=_build_link(table, "intra_node", where),
        inter_node=_build_link(table, "inter_node", where),
        nics_per_node=int(cast("int", _need(table, "nics_per_node", where, "node"))),
        intra_topology=cast("IntraTopology", intra),
        inter_topology=cast("InterTopology", inter),
        oversubscription=number("oversubscription", 1.0),
        launch_s=number("launch_s", 5e-6),
        host_memory_bytes=number("host_memory_bytes", 0.0),
        host_bandwidth=number("host_bandwidth", HOST_BANDWIDTH),
        host_memory_bandwidth=number("host_memory_bandwidth", HOST_MEMORY_BANDWIDTH),
        storage_bandwidth=number("storage_bandwidth", 2e9),
        price_per_node_hour=number("price_per_node_hour", count * device.price_per_hour),
        node_power_w=number("node_power_w", count * device.tdp_w * _POWER_PER_TDP),
        domain_nodes=int(number("domain_nodes", 1)),
        group_nodes=int(number("group_nodes", 1)),
        subset_bandwidth=cast("tuple[float, ...]", table.get("subset_bandwidth", ())),
        calibration=_build_calibration(layers.calibration, where) if layers.calibration else None,
        source=str(table.get("source", "")),
    )
