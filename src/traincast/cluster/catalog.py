"""The catalog of known hardware, and the user's own files.

A request names a cluster as ``NAME[:NODES[xDEVICES]]``: ``dgx-h100:4`` (four nodes of a type), ``dgx-h100:1x2`` (two
devices of one node), ``rtx-4090`` (one device), ``dgx-a100:1+dgx-1-v100:2x4`` (nodes of two kinds and sizes),
``selene`` (a known cluster), ``my.toml`` or ``my.toml:8`` (the user's own file). Catalog files and users' files have
the same schema. Units are SI (bytes, bytes/s, FLOP/s, s, Hz, W) and USD/h; bandwidths are per direction.

::

    extends = "dgx-h100"              # optional: start from a cluster, a node type or another file
    device = "h200-sxm"               # or a [device] table; likewise node and cluster

    [device]                          # keys that are left out come from the device that the file extends
    extends = "h100-sxm5-80gb"        # a catalog name or the path of a file with a [device] table
    name = "my-gpu"                   # vendor, architecture, source: texts
    memory_bytes = 85.0e9             # what the device reports, not what the box says
    memory_bandwidth = 3.35e12        # l2_bytes, num_sms, clock_hz, tdp_w, price_per_hour, interference: numbers
    power_limit_w = 500               # if it is not the TDP
    usual_node = "dgx-h100"           # node type assumed for a measurement that names only the device
    [device.peak_flops]               # dense FLOP/s: fp64, fp32, tf32, fp16, bf16, fp8, nvfp4
    bf16 = 989.4e12
    [device.achievable]               # fractions of those rates measured on the device at hand, by name
    [device.reaches]                  # fractions in which this kind of device differs from its architecture
    [device.aliases]                  # model, form: words other people use; rank: 1 is preferred

    [node]
    extends = "dgx-h100"
    device = "h100-sxm5-80gb"         # a catalog name or a path; a [device] table of this file wins
    devices_per_node = 8
    intra_topology = "nvswitch"       # nvswitch, nvlink-mesh, pcie-tree, torus, none
    intra_node = { name = "NVLink4", bandwidth = 450e9, latency_s = 1.2e-6 }   # of one device
    inter_node = { name = "NDR InfiniBand", bandwidth = 50e9, latency_s = 3e-6 } # of one NIC
    nics_per_node = 8
    inter_topology = "rail-optimized" # fat-tree, rail-optimized, dragonfly, torus, none
    launch_s = 4.5e-6                 # host_memory_bytes, host_bandwidth, storage_bandwidth …: numbers
    price_per_node_hour = 24.0        # default: devices_per_node × price_per_hour
    domain_nodes = 1                  # nodes that share one domain of intra_node links (NVL72: 18)
    torus_dims = 2                    # axes of a torus of intra_node links; torus_wrap: see Cluster
    subset_bandwidth = []             # see Cluster; aliases = [...]: names of machines built of this node

    [cluster]
    node = "dgx-h100"                 # default: the node above
    num_nodes = 16                    # default 1
    oversubscription = 2.0            # also name, inter_topology, group_nodes, source
    link_rates = ["1 Gbit/s", 25e6]   # one for each node, in the order of ranks; replaces inter_node.bandwidth

    [[parts]]                         # nodes that differ, in the order of ranks; one table for each kind
    num_nodes = 2                     # default 1
    device = "v100-sxm2-32gb"         # also link_rates, and all keys of [node]; the rest comes from [node] above

    [calibration]                     # as ``traincast calibrate`` writes it
    gemm = 1.08                       # see Calibration; keys that are left out change nothing

``peak_flops`` is the rate of the fastest unit that multiplies matrices in that dtype (tensor or matrix cores; for fp32
on NVIDIA, the CUDA cores). ``price_per_hour`` in the catalog is a public on-demand price of the date beside it, good
for an order of magnitude. ``latency_s`` is the time of a small message from one device's memory to another's, with the
network card and without the library. A [device] that changes another one and has no name of its own is called
``BASE~FILE``, so that nothing fitted to the original is used for it. A change of price, power or ``achievable`` alone
keeps the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from traincast.cluster.calibration import FEATURES, Calibration
from traincast.cluster.hardware import MAX_NODES, PROCESSOR, Bandwidth, Cluster, Device, joined
from traincast.cluster.schema import Document, Table, read_file
from traincast.cluster.topology import part_of_node
from traincast.errors import FileFormatError, RequestError, UnknownNameError, expect
from traincast.schema import convert
from traincast.units import parse_rate

DATA: Final = Path(__file__).parent / "data"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*", re.ASCII)
_MAX_DEPTH: Final = 8
_KEEPS_NAME: Final = frozenset(
    {
        "name",
        "extends",
        "tdp_w",
        "power_limit_w",
        "price_per_hour",
        "achievable",
        "reaches",
        "interference",
        "aliases",
        "source",
    }
)
_SAME_NODE_ONLY: Final = ("price_per_node_hour", "node_power_w", "subset_bandwidth")
_ADD: Final = "add it, or extend an entry of the catalog"
_POWER_PER_TDP: Final = 1.6
"""Power of a whole node over that of its devices, where its file has none; DGX machines have 1.5 to 2.0."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """The merged tables of the files read so far."""

    device: Table
    node: Table
    cluster: Table
    calibration: Table
    parts: tuple[_Layers, ...] = ()


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
    """Returns the device called ``name`` in the catalog, or the one in the TOML file at the path ``name``."""
    expect("device", name, str, "a name such as h100-sxm5-80gb, or the path of a TOML file")
    return _build_device(_resolve(name, "device", Path(), _MAX_DEPTH).device, name)


def load_cluster(spec: str, *, hosts: bool = False, whole_nodes: bool = False) -> Cluster:
    """Returns the cluster that ``spec`` names as ``NAME[:NODES[xDEVICES]]``; NAME is a cluster, node type or TOML file.

    NAME may also be a device. Without NODES it is one device; with NODES it is that many nodes of the type that usually
    holds the device (see :func:`assumed_nodes`). With ``whole_nodes``, a device without NODES is one whole node, for
    callers that set the numbers of nodes and devices themselves. Names joined by ``+`` make one cluster of nodes that
    differ: ``dgx-a100:2+dgx-h100:2``. With ``hosts``, some of them may have no accelerators:
    ``dgx-a100:2+cpu-server:2``. A server may have any number of processors or processes: ``cpu-server:1x2``. Raises
    ``RequestError`` for a malformed ``spec``, ``UnknownNameError`` for an unknown NAME, and ``FileFormatError`` for a
    bad file.
    """
    expect("cluster", spec, str, "a name such as dgx-h100:4, or the path of a TOML file")
    parts = spec.split("+") if "+" in spec and not Path(spec).exists() else [spec]
    named = [_parts(part, whole_nodes=whole_nodes) for part in parts]
    cluster = joined([part for _, own in named for part in own], hosts=hosts)
    return replace(cluster, name="+".join(dict.fromkeys(name for name, _ in named))) if cluster.parts else cluster


def assumed_nodes(cluster: Cluster) -> list[str]:
    """One sentence for each kind of node that was assumed, because only its device was named."""
    said = {}
    for part in cluster.parts or (cluster,):
        if part.name in device_names():
            usual, count = device_table(part.name)["usual_node"], part.devices_per_node
            if part.num_devices == 1:
                what = f"is one device, assumed in a node like {usual} (two of them: {part.name}:1x2)"
            else:
                each = f"{count} device{'s' * (count > 1)}{' each' * (part.num_nodes > 1)}"
                nodes = "one" if part.num_nodes == 1 else f"{part.num_nodes} nodes"
                links = f"{part.intra_node.name}, {part.nics_per_node} × {part.inter_node.name}"
                what = f"names no node: assumed {nodes} like {usual}, with {each}, {links}"
            said[part.name] = f"{part.name} {what}; if yours differs, give a node type or a .toml file"
    return list(said.values())


def _parts(spec: str, *, whole_nodes: bool) -> tuple[str, list[Cluster]]:
    """The name of the cluster that ``spec`` describes, and its parts: one for each run of equal nodes."""
    name, nodes, devices = _split_spec(spec)
    layers = _resolve(name, "cluster", Path(), _MAX_DEPTH)
    if layers.parts or "link_rates" in layers.cluster:
        if nodes is not None:
            raise RequestError(
                f"cluster {spec!r}: {name} lists its nodes one by one; leave out :{spec.rpartition(':')[2]}"
            )
        parts = [one for part in layers.parts or (layers,) for one in _listed(part, name)]
        return str(layers.cluster.get("name", name)), _with_rates(parts, layers, name) if layers.parts else parts
    cluster = _build_cluster(layers, name)
    is_device = cluster.name in device_names()
    if is_device and nodes is None and not whole_nodes:
        devices = 1
    if devices is not None:
        if devices > cluster.devices_per_node and cluster.device.architecture != PROCESSOR:
            kind = f"{device_table(cluster.name)['usual_node']}, the usual node of {name}," if is_device else name
            raise RequestError(
                f"cluster {spec!r} asks for {devices} devices in a node: {kind} has {cluster.devices_per_node}; ask "
                f"for more nodes, such as {name}:2, or describe yours in a .toml file"
            )
        cluster = part_of_node(cluster, cluster.device, devices)
    return cluster.name, [cluster if nodes is None else cluster.with_nodes(nodes)]


def _listed(layers: _Layers, where: str) -> list[Cluster]:
    """The nodes that ``layers`` describe: equal nodes as one cluster, or one cluster for each of its link rates."""
    rates = layers.cluster.get("link_rates", ())
    cluster = _build_cluster(layers, where)
    if rates and cluster.num_nodes == 1 and "num_nodes" not in layers.cluster:
        cluster = cluster.with_nodes(len(rates))
    return _with_rates([cluster], layers, where)


def _with_rates(parts: list[Cluster], layers: _Layers, where: str) -> list[Cluster]:
    """``parts`` with the link rates that ``layers`` list, one for each node."""
    rates = layers.cluster.get("link_rates", ())
    if not rates:
        return parts
    nodes = [part.with_nodes(1) for part in parts for _ in range(part.num_nodes)]
    if len(rates) != len(nodes):
        raise FileFormatError(f"{where}: link_rates lists {len(rates)} rates for {len(nodes)} nodes: list one for each")
    found = []
    for number, (node, rate) in enumerate(zip(nodes, rates, strict=True)):
        what = f"{where}: link_rates[{number}]"
        try:
            read = parse_rate(rate, what=what) if isinstance(rate, str) else rate
        except RequestError as error:
            raise FileFormatError(str(error)) from None
        found.append(replace(node, inter_node=replace(node.inter_node, bandwidth=convert(read, Bandwidth, what))))
    return found


def load_node(name: str) -> tuple[Cluster, tuple[str, ...]]:
    """Returns one node of a catalog type, and the names of machines that consist of it."""
    layers = _resolve(name, "node", Path(), _MAX_DEPTH)
    return _build_cluster(layers, name), layers.node.get("aliases", ())


def device_table(name: str) -> Table:
    """Returns the checked ``[device]`` table of a catalog device, with its aliases."""
    return _resolve(name, "device", Path(), _MAX_DEPTH).device


@lru_cache(maxsize=8)
def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.name.removesuffix(".toml") for path in (DATA / kind).glob("*.toml")))


def _split_spec(spec: str) -> tuple[str, int | None, int | None]:
    """The name, the nodes and the devices per node in ``spec``."""
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
    """The merged tables of the file called ``name`` and of those it extends; ``kind`` says which folder to search."""
    if depth == 0:
        raise FileFormatError(
            f"{name!r} extends more than {_MAX_DEPTH} files in a row: check whether they extend one another in a circle"
        )
    if _is_path(name):
        path = directory / name
        layers = _layers(read_file(path), path, depth)
    else:
        layers = _from_catalog(name, kind)
    if kind == "device" and not layers.device:
        raise FileFormatError(f"{name!r} describes no device: name a device of the catalog, or add a [device] table")
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
    choices = [known for folder in (*folders, *(["devices"] if kind == "cluster" else [])) for known in _names(folder)]
    hint = f"`traincast {'devices' if kind == 'device' else 'clusters'}` lists all, or give the path of a .toml file"
    if kind == "cluster" and plain in device_names():
        node = {"extends": str(device_table(plain)["usual_node"]), "device": plain}
        return _layers({"node": node}, Path(f"{plain}.toml"), _MAX_DEPTH)
    raise UnknownNameError(kind, name[:80], choices, hint=hint)


def _layers(document: Document, path: Path, depth: int, below: _Layers | None = None) -> _Layers:
    """Merge the tables of one file into those of the files that it extends, or into ``below``."""
    folder, stem = path.parent, path.name.removesuffix(".toml")
    layers = below or _Layers({}, {}, {}, {})
    cluster, node, device = (_as_table(document.get(key)) for key in ("cluster", "node", "device"))
    for base in (document.get("extends"), cluster.get("extends")):
        if isinstance(base, str):
            layers = _resolve(base, "cluster", folder, depth - 1)
            if layers.parts or "link_rates" in layers.cluster:
                raise FileFormatError(
                    f"{path.name} extends {base}, which lists its nodes one by one: extend a file without parts and "
                    "link_rates"
                )
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
    named_here = {"name": stem} if (cluster or node or "extends" in document) and below is None else {}
    whole = _Layers(
        _overlay(layers.device, changed),
        _overlay(base_node, node),
        _overlay(layers.cluster, {**named_here, **({"name": node["name"]} if "name" in node else {}), **cluster}),
        _as_table(document.get("calibration")) or ({} if _other_device(layers.device, changed) else layers.calibration),
    )
    parts = document.get("parts", [])
    return replace(whole, parts=tuple(_part(part, whole, path, depth) for part in parts if isinstance(part, dict)))


def _part(part: Table, whole: _Layers, path: Path, depth: int) -> _Layers:
    """One table of ``[[parts]]``, as the file's other tables with the changes that the part makes."""
    own = ("num_nodes", "link_rates")
    node = {key: value for key, value in part.items() if key not in own}
    cluster = {key: part[key] for key in own if key in part}
    below = replace(whole, cluster={key: value for key, value in whole.cluster.items() if key not in own})
    return _layers({"node": node, "cluster": cluster}, path, depth, below)


def _other_device(base: Table, changed: Table) -> bool:
    """Whether a file changes the device, so that a calibration of the original no longer holds."""
    return bool(changed) and not changed.keys() <= _KEEPS_NAME and changed.get("name") != base.get("name")


def _as_table(value: str | Table | list[Table] | None) -> Table:
    """A table; a text stands for a table that extends what the text names."""
    assert not isinstance(value, list), "only parts are a list of tables"
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


def _build_device(table: Table, where: str) -> Device:
    device = convert(table, Device, f"{where}: [device]", remedy=_ADD)
    if "fp32" not in device.peak_flops:
        raise FileFormatError(f"{where}: [device.peak_flops].fp32 is missing: add it; other dtypes fall back to it")
    return device


def _build_cluster(layers: _Layers, where: str) -> Cluster:
    if not layers.device:
        raise FileFormatError(
            f"{where}: [node].device is missing: name a device of the catalog, or add a [device] table"
        )
    device = _build_device(layers.device, where)
    if layers.calibration:
        _check_calibration(convert(layers.calibration, Calibration, f"{where}: [calibration]", remedy="add it"), where)
    table: Table = {"num_nodes": 1, **layers.node, **layers.cluster, "device": layers.device}
    count = table.get("devices_per_node", 1)
    table.setdefault("price_per_node_hour", count * device.price_per_hour)
    table.setdefault("node_power_w", count * device.tdp_w * _POWER_PER_TDP)
    table["calibration"] = layers.calibration or None
    return convert(table, Cluster, f"{where}: [node]", remedy=_ADD)


def _check_calibration(calibration: Calibration, where: str) -> None:
    """Refuse a calibration whose fields contradict one another."""
    low, high, nodes = calibration.low, calibration.high, calibration.nodes
    if nodes[0] > nodes[1]:
        raise FileFormatError(
            f"{where}: [calibration].nodes is {list(nodes)}: expected the fewest nodes, then the most"
        )
    if low > high:
        raise FileFormatError(f"{where}: [calibration] low = {low:g} is above high = {high:g}: exchange them")
    correction = calibration.correction
    if correction is None:
        return
    points, weights, scales = correction.points, correction.weights, correction.scales
    if len(points) != len(weights) or any(len(row) != len(FEATURES) for row in (*points, scales)):
        raise FileFormatError(
            f"{where}: [calibration.correction] has {len(points)} points, {len(weights)} weights and {len(scales)} "
            f"scales: there is one weight for each point, and points and scales have {len(FEATURES)} numbers each; "
            "calibrate again if it was made by another version"
        )
