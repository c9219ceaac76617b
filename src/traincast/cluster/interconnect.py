"""Finds the node that a measured row ran on, from its device, its devices per node and its network's description."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from traincast.cluster.catalog import device_names, device_table, load_node, node_names
from traincast.cluster.hardware import Cluster, Device, Link
from traincast.cluster.match import find_device, normalise, word_pattern
from traincast.cluster.topology import part_of_node
from traincast.errors import RequestError, UnknownNameError

_GBIT: Final = 1e9 / 8
_WHOLE_NODE_GBIT: Final = 800
"""In Gb/s: a rate without a count that is at least this high is that of the whole node."""
_FALLBACK_NODE: Final = "pcie-a100"
_MAX_DEVICES: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Fabric:
    """A kind of network: the pattern of its name, Gb/s of one card if the name implies them, and its latency."""

    pattern: str
    name: str
    gbit: float | None
    latency_s: float


_FABRICS: Final = (
    _Fabric(r"xdr", "XDR InfiniBand", 800, 2.5e-6),
    _Fabric(r"ndr\s*200", "NDR200 InfiniBand", 200, 3e-6),
    _Fabric(r"ndr", "NDR InfiniBand", 400, 3e-6),
    _Fabric(r"hdr\s*100", "HDR100 InfiniBand", 100, 3e-6),
    _Fabric(r"hdr", "HDR InfiniBand", 200, 3e-6),
    _Fabric(r"edr", "EDR InfiniBand", 100, 3e-6),
    _Fabric(r"fdr", "FDR InfiniBand", 56, 3.5e-6),
    _Fabric(r"qdr", "QDR InfiniBand", 32, 4e-6),
    _Fabric(r"slingshot\W*10", "Slingshot-10", 100, 4e-6),
    _Fabric(r"slingshot", "Slingshot-11", 200, 4e-6),
    _Fabric(r"omni\W*path|opa", "Omni-Path", 100, 2e-6),
    _Fabric(r"roce(?:\W*v2)?", "RoCE", None, 4e-6),
    _Fabric(r"efa", "EFA", None, 15e-6),
    _Fabric(r"tcpxo?", "TCPX", None, 20e-6),
    _Fabric(r"infiniband|ib", "InfiniBand", None, 3e-6),
    _Fabric(r"\d*\s*gbe|ethernet|tcp", "Ethernet", None, 30e-6),
)
_PLAIN_ETHERNET_GBIT: Final = 10.0
_INTRA_WORDS: Final = re.compile(r"nvlink|nvswitch|nvl\d|pcie|pci\W*e|xgmi|infinity|intra", re.IGNORECASE)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([GgTt])(bps|bit|bE|be|b\b|Bps|BPS)")
_BARE_RATE: Final = re.compile(
    r"[x\u00d7]\s*(\d+)\s*G\b|\b(\d+)\s*G(?=\s+(?:ethernet|infiniband|ib|roce|efa)\b)", re.IGNORECASE
)
_COUNT: Final = re.compile(
    r"(?<![\w.])(\d{1,3})\s*(?:[x\u00d7]|(?=[a-z][\w -]*\b(?:links?|nics?|ports?|hcas?|cards?)\b))", re.IGNORECASE
)
"""How texts count network cards: ``8x HDR``, ``4 Omni-Path links``."""
_PCIE: Final[dict[int, Link]] = {
    3: Link(name="PCIe 3.0 x16", bandwidth=15.75e9, latency_s=3.5e-6),
    4: Link(name="PCIe 4.0 x16", bandwidth=31.5e9, latency_s=3.0e-6),
    5: Link(name="PCIe 5.0 x16", bandwidth=63e9, latency_s=2.5e-6),
}
_PCIE_OF_ARCHITECTURE: Final = {
    **dict.fromkeys(("kepler", "maxwell", "pascal", "volta", "turing", "gcn5"), 3),
    **dict.fromkeys(("hopper", "blackwell", "blackwell-ultra", "cdna3", "cdna4", "xe2"), 5),
}


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
    said = normalise(f"{system} {interconnect}")
    for name in node_names():
        node, aliases = _node(name)
        if _family(node.device.name) == _family(device.name) and any(word_pattern(a).search(said) for a in aliases):
            return True
    return any(
        _fabric(part) is not None or (_stated_gbit(part) is not None and not _INTRA_WORDS.search(part))
        for part in _parts(interconnect)
    )


def usual_count(device: Device) -> int:
    """Devices per node of the type that is assumed if a measurement names only the device."""
    return load_node(_usual_node(device))[0].devices_per_node


@lru_cache(maxsize=4096)
def _find_node(device: Device, count: int, text: str, system: str) -> Cluster:
    base = _choose(device, count, normalise(f"{system} {text}"))
    node = _with_intra(part_of_node(base, device, count), text)
    return _with_inter(node, base, text)


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
    usual = _PCIE_OF_ARCHITECTURE.get(node.device.architecture, 4)
    generation = int(says_pcie.group(1) or usual)
    if node.intra_topology == "pcie-tree" and (
        says_pcie.group(1) is None or f"PCIe {generation}.0" in node.intra_node.name
    ):
        return node
    return replace(node, intra_topology="pcie-tree", intra_node=_PCIE[generation], subset_bandwidth=())


def _with_inter(node: Cluster, base: Cluster, text: str) -> Cluster:
    """Change the network between nodes if ``text`` names one or states its rate."""
    for part in _parts(text):
        fabric = _fabric(part)
        rate = _stated_gbit(part)
        if fabric is None and (rate is None or _INTRA_WORDS.search(part)):
            continue
        if _is_about_another(part, node.device):
            continue
        return _apply(node, base, part, fabric, rate)
    return node


def _fabric(part: str) -> _Fabric | None:
    """The kind of network that a text names, or ``None``."""
    return next((f for f in _FABRICS if re.search(rf"(?<![a-z])(?:{f.pattern})(?![a-z])", part.lower())), None)


def _parts(text: str) -> list[str]:
    """``text`` split into the descriptions of single networks, with ``Gb/s`` as ``Gbps``."""
    return re.split(r"[/,;+&|]", re.sub(r"([bB])(?:it)?/s(?:ec)?\b", r"\1ps", text))


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


def _apply(node: Cluster, base: Cluster, part: str, fabric: _Fabric | None, rate: float | None) -> Cluster:
    lower, counted = part.lower(), _COUNT.search(part)
    link, nics = node.inter_node, node.nics_per_node
    if fabric is not None and fabric.name.split()[-1].split("-")[0] not in link.name:
        link = replace(link, name=fabric.name, latency_s=fabric.latency_s)
    per_nic = rate if rate is not None else fabric.gbit if fabric is not None else None
    if per_nic is None:
        if fabric is not None and fabric.name == "Ethernet" and "Ethernet" not in node.inter_node.name:
            link, nics = replace(link, bandwidth=_PLAIN_ETHERNET_GBIT * _GBIT), 1
        return replace(node, inter_node=link, nics_per_node=nics)
    card = fabric.gbit if fabric is not None else None
    if counted is not None:
        nics = max(1, int(counted.group(1)))
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
