"""Finds the node that a measured row ran on, from its device, its devices per node and its network's description."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from traincast.cluster.architecture import load_architecture
from traincast.cluster.catalog import DATA, device_names, device_table, load_node, node_names
from traincast.cluster.hardware import Cluster, Device, Link
from traincast.cluster.match import find_device, normalise, word_pattern
from traincast.cluster.topology import part_of_node
from traincast.errors import RequestError, UnknownNameError
from traincast.schema import convert, read_toml

_GBIT: Final = 1e9 / 8
_WHOLE_NODE_GBIT: Final = 800
"""In Gb/s: a rate without a count that is at least this high is that of the whole node."""
_FALLBACK_NODE: Final = "pcie-a100"
_MAX_DEVICES: Final = 10_000
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([GgTt])(bps|bit|bE|be|base\W?[tT]|b\b|Bps|BPS)")
_BARE_RATE: Final = re.compile(
    r"[x\u00d7]\s*(\d+)\s*G\b|\b(\d+)\s*G(?=\s+(?:ethernet|infiniband|ib|roce|efa|slingshot)\b|\s*[x\u00d7]\s*\d)",
    re.IGNORECASE,
)
_GENERATIONS: Final = r"(?:[SDQFEHNX]DR\d*)"
_LANES: Final = re.compile(
    # A capital X, before or after the generation; any x after a generation or a count
    rf"(?<![\w.])(?P<before>4|12)X(?=[\s-]+(?:(?i:infiniband|ib)[\s-]+)?{_GENERATIONS}\b)"
    rf"|(?:(?<=\d[xX\u00d7] )|(?<=\d [xX\u00d7] ))(?P<counted>4|12)[xX](?=[\s-]+{_GENERATIONS}\b)"
    rf"|\b{_GENERATIONS}[\s-]*(?P<after>4|12)[xX]\b(?!\s*\d)"
)
"""Lanes of an InfiniBand port: ``4X EDR``, ``2x 4x HDR``, ``NDR 4x``. Rates of generations are those of four lanes."""
_USUAL_LANES: Final = 4
_COUNT: Final = re.compile(
    r"(?<![\w.])(\d{1,3})(?!\s*[GT]b)\s*"
    r"(?:[x\u00d7]|(?=[a-z][\w -]*\b(?:links?|nics?|ports?|hcas?|cards?|adapters?|rails?)\b))"
    r"|(?:[a-z]DR\d*|infiniband|ib|roce|efa|ethernet|gbe|gbps|\dG)\s*[x\u00d7]\s*(\d{1,2})\b(?!\s*G)"
    r"|\b(single|dual|quad)\W?rail\b",
    re.IGNORECASE,
)
"""How texts count network cards: ``8x HDR``, ``4 Omni-Path links``, ``NDR x8``, ``dual-rail EDR``."""
_RAILS: Final = {"single": 1, "dual": 2, "quad": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A kind of network: the pattern of its name, Gb/s of one card if the name implies them, and its latency.

    If the processor's network stack moves the bytes (``by_processor``), ``gbit`` is what a node reaches, whatever its
    cards could carry.
    """

    pattern: str
    name: str
    latency_s: float
    gbit: float | None = None
    by_processor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkWords:
    """How texts describe networks; comments in ``data/networks.toml`` explain each entry."""

    fabrics: tuple[Fabric, ...]
    plain_ethernet_gbit: float
    intra: str
    torus: str
    other_traffic: str
    onboard: str
    per_other: str
    pcie: dict[str, Link]


@cache
def _words() -> NetworkWords:
    return convert(read_toml(DATA / "networks.toml", "file of networks"), NetworkWords, "networks.toml:")


def find_node(
    device: Device, devices_per_node: int, interconnect: str | None = None, *, system: str | None = None
) -> Cluster:
    """Returns one node with ``devices_per_node`` of ``device``, as similar to the measured node as the texts allow.

    The node type comes from the catalog and carries the device. It is the type of a machine that ``system`` or
    ``interconnect`` names (``DGX-2``, ``Perlmutter``, ``EFA``), otherwise the device's usual type. If the node has
    fewer devices than the type, it has their share of a mesh and of the NICs. Rates stated in ``interconnect``
    (``8x HDR200 IB``, ``1600Gbps RoCE``) replace those of the type.
    """
    if not 1 <= devices_per_node <= _MAX_DEVICES or devices_per_node != int(devices_per_node):
        raise RequestError(f"devices per node are {devices_per_node}: expected a whole number from 1 to {_MAX_DEVICES}")
    return _find_node(device, int(devices_per_node), (interconnect or "")[:1000], (system or "")[:1000])


@lru_cache(maxsize=1024)
def says_network(device: Device, interconnect: str, *, system: str = "") -> bool:
    """Whether the texts identify the network between nodes: by its kind, its rate, or the name of a known machine."""
    if _names_machine(device, f"{system} {interconnect}"):
        return True
    if load_architecture(device.architecture).own_network and re.search(_words().torus, interconnect):
        return True
    return bool(_networks(interconnect, device) or _networks_of_system(system, device))


@lru_cache(maxsize=1024)
def says_adapters(device: Device, interconnect: str, *, system: str = "") -> bool:
    """Whether the texts tell how many network adapters a node has: as a count, a rate of the node, or a machine."""
    if load_architecture(device.architecture).own_network or _names_machine(device, f"{system} {interconnect}"):
        return True
    parts = _networks(interconnect, device) or _networks_of_system(system, device)
    return any(
        _counted(_without_lanes(part)[0])
        or _fabric(part) is None
        or re.search(_words().per_other, part) is not None
        or (_stated_gbit(part) or 0.0) >= _WHOLE_NODE_GBIT
        for part in parts
    )


def _names_machine(device: Device, text: str) -> bool:
    """Whether ``text`` names a machine of the catalog that has devices like ``device``."""
    said = normalise(text)
    nodes = (_node(name) for name in node_names())
    return any(
        _family(node.device.name) == _family(device.name) and any(word_pattern(a).search(said) for a in aliases)
        for node, aliases in nodes
    )


def usual_count(device: Device) -> int:
    """Devices per node of the type that is assumed if a measurement names only the device."""
    return load_node(_usual_node(device))[0].devices_per_node


@lru_cache(maxsize=4096)
def _find_node(device: Device, count: int, text: str, system: str) -> Cluster:
    base = _choose(device, count, normalise(re.sub(r"\b(efa)\W?v\d", r"\1", f"{system} {text}", flags=re.IGNORECASE)))
    node = _with_intra(part_of_node(base, device, count), text)
    return _with_inter(node, base, _networks(text, device) or _networks_of_system(system, device))


def _choose(device: Device, count: int, said: str) -> Cluster:
    family = _family(device.name)
    usual = _usual_node(device)
    best, best_key = load_node(usual)[0], (-1, False, False, False, 0)
    for name in node_names():
        node, aliases = _node(name)
        if _family(node.device.name) != family and name != usual:
            continue
        named = max((len(alias) for alias in aliases if word_pattern(alias).search(said)), default=0)
        fits, same = node.devices_per_node >= count, node.device.name == device.name
        key = (named, fits, name == usual, same, -node.devices_per_node)
        if key > best_key:
            best, best_key = node, key
    return best


@lru_cache(maxsize=512)
def _node(name: str) -> tuple[Cluster, tuple[str, ...]]:
    return load_node(name)


def _family(name: str) -> str:
    """A device's name without its memory size and without the suffix of a user's file."""
    return re.sub(r"-\d+gb.*$", "", name.partition("~")[0])


def _usual_node(device: Device) -> str:
    name = device.name.partition("~")[0]
    return str(device_table(name).get("usual_node", _FALLBACK_NODE)) if name in device_names() else _FALLBACK_NODE


def _with_intra(node: Cluster, text: str) -> Cluster:
    """Change the link inside the node if ``text`` contradicts the node type."""
    lower = text.lower()
    if "nvswitch" in lower and node.intra_topology == "nvlink-mesh":
        return replace(node, intra_topology="nvswitch", subset_bandwidth=())
    says_pcie = re.search(r"pci\W?e(?:\W*(?:gen)?\W*([345]))?", lower)
    if says_pcie is None or re.search(r"nvlink|nvswitch|nvl\d|xgmi|infinity", lower):
        return node
    usual = load_architecture(node.device.architecture).pcie
    generation = int(says_pcie.group(1) or usual)
    if node.intra_topology == "pcie-tree" and (
        says_pcie.group(1) is None or f"PCIe {generation}.0" in node.intra_node.name
    ):
        return node
    return replace(node, intra_topology="pcie-tree", intra_node=_words().pcie[str(generation)], subset_bandwidth=())


def _with_inter(node: Cluster, base: Cluster, networks: Sequence[str]) -> Cluster:
    """Change the network between nodes to the fastest of the described ``networks``, if there is one.

    A text that says that the processor's network stack moves the bytes (``IPoIB``) decides, however fast the cards are.
    """
    slow = [part for part in networks if (kind := _fabric(part)) is not None and kind.by_processor]
    networks = slow or networks
    found = [_apply(node, base, part, _fabric(part), _stated_gbit(part)) for part in networks]
    return max(found, key=lambda made: made.inter_node.bandwidth * made.nics_per_node, default=node)


def _networks(text: str, device: Device) -> list[str]:
    """The descriptions in ``text`` that are of networks between nodes of ``device`` and for training."""
    return [
        part
        for part in _parts(text)
        if (_fabric(part) is not None or (_stated_gbit(part) is not None and not re.search(_words().intra, part)))
        and not re.search(_words().other_traffic, part)
        and not _is_about_another(part, device)
    ]


def _networks_of_system(text: str, device: Device) -> list[str]:
    """The same in the description of a whole machine: its ports on board, memories and disks are no network."""
    return [
        part
        for part in _networks(text, device)
        if not re.search(_words().onboard, part) and (_fabric(part) is not None or re.search(r"\d\s*[GT]bps", part))
    ]


def _fabric(part: str) -> Fabric | None:
    """The kind of network that a text names, or ``None``."""
    return next((f for f in _words().fabrics if re.search(rf"(?<![a-z])(?:{f.pattern})(?![a-z])", part.lower())), None)


def _parts(text: str) -> list[str]:
    """``text`` split into the descriptions of single networks, with ``Gb/s`` as ``Gbps``.

    A rate or a count that stands apart from the kind of its network (``InfiniBand, 200Gb/s``) is joined to it.
    """
    plain = re.sub(r"([bB])(?:it)?/s(?:ec)?\b", r"\1ps", text)
    plain = re.sub(r"\(([^()]*)\)", lambda m: " " if re.search(_words().other_traffic, m[1]) else m[0], plain)
    parts: list[str] = []
    for part in re.split(r"[/,;+&|\n\uff0c\uff1b\u3001]|\b(?:and|plus)\b", plain):
        alone = parts and _fabric(parts[-1]) is not None and _stated_gbit(parts[-1]) is None
        rate = _fabric(part) is None and _stated_gbit(part) is not None and not re.search(_words().intra, part)
        if alone and rate and not _COUNT.search(parts[-1]) and not re.search(_words().other_traffic, part):
            parts[-1] = f"{parts[-1]} {part}"
        else:
            parts.append(part)
    return parts


def _stated_gbit(part: str) -> float | None:
    """The Gb/s that the text states. ``GB/s`` are bytes; ``80GB`` or ``80gb`` alone is a memory size."""
    match = _RATE.search(part)
    if match is not None and (match.group(2) + match.group(3)) not in {"gb", "tb"}:
        scale = 1000.0 if match.group(2) in "tT" else 1.0
        return float(match.group(1)) * scale * (8.0 if match.group(3) == "Bps" else 1.0)
    bare = _BARE_RATE.search(part)
    return float(bare.group(1) or bare.group(2)) if bare else None


def _is_about_another(part: str, device: Device) -> bool:
    for inner in re.findall(r"\(([^)]*)\)?", part):
        try:
            named = find_device(inner)
        except UnknownNameError:
            continue
        return named.name.split("-")[0] != device.name.split("-")[0]
    return False


def _apply(node: Cluster, base: Cluster, part: str, fabric: Fabric | None, rate: float | None) -> Cluster:
    part, lanes = _without_lanes(part)
    lower, counted = part.lower(), _counted(part)
    link, nics = node.inter_node, node.nics_per_node
    if fabric is not None and fabric.by_processor and fabric.gbit is not None:
        link = Link(name=fabric.name, bandwidth=fabric.gbit * _GBIT, latency_s=fabric.latency_s)
        return replace(node, inter_node=link, nics_per_node=1)
    if fabric is not None and fabric.name.split()[-1].split("-")[0] not in link.name:
        link = replace(link, name=fabric.name, latency_s=fabric.latency_s)
    card = fabric.gbit * lanes / _USUAL_LANES if fabric is not None and fabric.gbit is not None else None
    per_nic = rate if rate is not None else card
    if per_nic is None:
        if fabric is not None and fabric.name == "Ethernet" and "Ethernet" not in node.inter_node.name:
            link, nics = replace(link, bandwidth=_words().plain_ethernet_gbit * _GBIT), 1
        return replace(node, inter_node=link, nics_per_node=counted or nics)
    if counted:
        nics = counted
    elif re.search(r"per\W*(?:gpu|device|accelerator)", lower):
        nics = node.devices_per_node
    elif rate is not None and card != rate and not re.search(r"per\W*(?:nic|port|card|link|hca)", lower):
        whole_node = rate >= _WHOLE_NODE_GBIT or "node" in lower
        if whole_node or fabric is None or fabric.name in {"EFA", "TCPX"}:
            per_nic = rate / base.nics_per_node
        elif fabric.name == "Ethernet":
            nics = 1
    if fabric is not None and (fabric.gbit is not None or per_nic * _GBIT != link.bandwidth):
        link = replace(link, name=fabric.name)
    return replace(node, inter_node=replace(link, bandwidth=per_nic * _GBIT), nics_per_node=nics)


def _without_lanes(part: str) -> tuple[str, int]:
    """``part`` without the lanes of its ports, and how many lanes there are: 4 if it does not say."""
    found = _LANES.search(part)
    if found is None:
        return part, _USUAL_LANES
    lanes = next(group for group in ("before", "counted", "after") if found[group])
    return part[: found.start(lanes)] + part[found.end(lanes) + 1 :], int(found[lanes])


def _counted(part: str) -> int:
    """How many network cards ``part`` counts; 0 if it counts none."""
    found = _COUNT.search(part)
    if found is None:
        return 0
    return _RAILS[found[3].lower()] if found[3] else max(1, int(found[1] or found[2]))
