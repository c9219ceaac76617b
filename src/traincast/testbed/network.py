"""Networks of the testbed: nodes in network namespaces with shaped links, or all on the loopback interface.

:func:`shaped` gives every node a network namespace. A veth pair joins it to a bridge in a namespace of its own. The
link of a node has the same rate in both directions: ``htb`` shapes what leaves the node, and what the bridge sends to
it. The namespaces have no link to the host or to other testbeds, so their addresses clash with nobody's.

Rates are bytes of TCP payload per second: the link is faster than the rate asked for by the share of the headers.

A timer of the kernel fires late, here by about 0.1 ms. ``htb`` makes up for at most a burst, so the burst is what the
link moves in ``_LATE_S``; a smaller one does not sustain the rate. A burst passes at once after a pause, so a message
arrives up to that time earlier than on a real link. A packet that the device would cut into frames later (GSO) passes
``htb`` as a whole: its size is limited to a burst. Unlike ``tbf``, ``htb`` lets a packet pass that is larger than the
burst, and waits afterwards.

A link moves data in both directions at once, and the nodes that use it share it equally. TCP and a queue do not see to
that: the connection with the larger window takes the larger share, and acknowledgements that wait behind data slow down
the other direction. So every other node has a queue of its own on a link, the queues take turns, and acknowledgements
without data go first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

from traincast.errors import RequestError, TraincastError
from traincast.processes.janitor import NAMESPACES, Janitor, delete_namespace, namespace_prefix, sweep

SLOWEST: Final = 125e3
FASTEST: Final = 500e6
"""Rates that can be shaped, in bytes per second: 1 Mbit/s to 4 Gbit/s."""
_MTU: Final = 1500
_FRAME: Final = _MTU + 14  # with the Ethernet header
_PAYLOAD: Final = _MTU - 52  # without the headers of IP and TCP with timestamps
_LATE_S: Final = 150e-6
_LARGEST_PACKET: Final = 65536
_QUEUE: Final = 64 << 20
_FIRST_LEAF: Final = 16
_ACK: Final = 52  # bytes of a TCP acknowledgement without data
_SUBNET: Final = "10.213.0"
_MOST_NODES: Final = 250
_NEEDED: Final = ("ip", "tc", "nsenter", "unshare")
_PROBE: Final = (
    "ip link add one type veth peer name other && tc qdisc add dev one root handle 1: htb && "
    "tc filter add dev one parent 1: protocol ip u32 match ip src 10.0.0.1/32 flowid 1:1"
)
_TCP: Final = {
    "tcp_congestion_control": "cubic",  # BBR sends at its own estimate of the rate, and pauses every ten seconds
    "tcp_slow_start_after_idle": "0",  # the pause between two steps does not make a connection slow
    "tcp_wmem": "4096 65536 262144",  # a send ends when nearly all its bytes have left
    "tcp_rmem": "4096 131072 1048576",  # a receiver with several senders has no more than 1 MB of each in its queue
}
_serial = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNode:
    """Where processes of a node run: ``namespace`` and ``rate`` (bytes/s, each direction) are None on loopback."""

    address: str
    interface: str
    namespace: Path | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """Nodes that reach each other, and the janitor that cleans up if this process is killed.

    ``warnings`` say in what the network differs from one that a cluster has.
    """

    nodes: tuple[NetworkNode, ...]
    janitor: Janitor
    warnings: tuple[str, ...] = ()

    @property
    def is_shaped(self) -> bool:
        """Whether links have rates of their own."""
        return self.nodes[0].namespace is not None


def why_not_shaped() -> str:
    """Returns what keeps this machine from shaping links, and what to do, or "" if nothing does."""
    if sys.platform != "linux":
        return f"links are shaped only on Linux, not on {sys.platform}"
    missing = [name for name in _NEEDED if shutil.which(name, path=_search_path()) is None]
    if missing:
        return f"links are shaped with {', '.join(missing)}, which are missing: install iproute2 and util-linux"
    if os.geteuid() != 0:
        return "only root may shape links: run the command with sudo"
    return _refused()


@contextlib.contextmanager
def loopback(num_nodes: int) -> Iterator[NodeNetwork]:
    """Nodes that share the loopback interface: fast, without latency, and limited by the processor."""
    reason = why_not_shaped()
    told = "all ranks share the loopback interface; its speed depends on the processor"
    with Janitor() as janitor:
        yield NodeNetwork(
            nodes=(NetworkNode(address="127.0.0.1", interface="lo"),) * num_nodes,
            janitor=janitor,
            warnings=(f"{told} ({reason})" if reason else told,),
        )


@contextlib.contextmanager
def shaped(rates: Sequence[float]) -> Iterator[NodeNetwork]:
    """Make one node for each of ``rates``, with a link of that rate: bytes of payload per second in each direction.

    Refuses rates below ``SLOWEST`` and above ``FASTEST``, and machines on which links cannot be shaped. Removes
    everything at the end. Before it starts, it removes what earlier testbeds that no longer run left behind.
    """
    _check(rates)
    sweep()
    prefix = f"{namespace_prefix(os.getpid())}{next(_serial)}"
    hub, names = f"{prefix}-hub", [f"{prefix}-n{node}" for node in range(len(rates))]
    with Janitor() as janitor:
        for name in (hub, *names):
            janitor.watch_namespace(name)
        try:
            _make_hub(hub)
            packet = _quantum(min(rates))
            for number, (name, rate) in enumerate(zip(names, rates, strict=True)):
                _join(hub, name, number, count=len(rates), rate=rate, packet=packet)
            yield NodeNetwork(
                nodes=tuple(
                    NetworkNode(address=_address(number), interface="eth0", namespace=NAMESPACES / name, rate=rate)
                    for number, (name, rate) in enumerate(zip(names, rates, strict=True))
                ),
                janitor=janitor,
            )
        finally:
            for name in (*names, hub):
                delete_namespace(name)


def _check(rates: Sequence[float]) -> None:
    reason = why_not_shaped()
    if reason:
        raise RequestError(f"links with a rate were asked for: {reason}, or use the loopback network without a rate")
    if not 1 <= len(rates) <= _MOST_NODES:
        raise RequestError(f"{len(rates)} nodes were asked for: expected 1 to {_MOST_NODES}")
    for rate in rates:
        if not SLOWEST <= rate <= FASTEST:
            raise RequestError(
                f"a link of {rate * 8e-6:g} Mbit/s cannot be shaped here: expected 1 Mbit/s to {FASTEST * 8e-9:g} "
                "Gbit/s, or the loopback network without a rate"
            )


@cache
def _refused() -> str:
    """Try to make a shaped link in a namespace of its own; return the kernel's error, or "" if it works."""
    try:
        _run("unshare", "--net", "sh", "-c", _PROBE)
    except TraincastError as error:
        return f"this machine does not let root shape links (a container?): {str(error).rpartition('failed: ')[2]}"
    return ""


def _address(number: int) -> str:
    return f"{_SUBNET}.{number + 1}"


def _quantum(rate: float) -> int:
    """Bytes of a burst, and of the largest packet, on a link of ``rate`` bytes of payload per second."""
    return max(2 * _FRAME, int(rate * _LATE_S))


def _make_hub(hub: str) -> None:
    _run("ip", "netns", "add", hub)
    _run("ip", "-n", hub, "link", "add", "bridge", "mtu", str(_MTU), "type", "bridge")
    _run("ip", "-n", hub, "link", "set", "bridge", "up")


def _join(hub: str, name: str, number: int, *, count: int, rate: float, packet: int) -> None:
    """Makes the namespace of a node and its link to the bridge."""
    port = f"port{number}"
    _run("ip", "netns", "add", name)
    _run("ip", "link", "add", port, "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", name)
    size = ("mtu", str(_MTU), "gso_max_size", str(min(packet, _LARGEST_PACKET)))
    _run("ip", "-n", hub, "link", "set", port, "master", "bridge", *size, "up")
    _run("ip", "-n", name, "link", "set", "eth0", *size, "up")
    _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", name, "address", "add", f"{_address(number)}/24", "dev", "eth0")
    settings = "; ".join(f"echo {value} > /proc/sys/net/ipv4/{key}" for key, value in _TCP.items())
    _run("nsenter", f"--net={NAMESPACES / name}", "sh", "-c", settings)
    _shape(name, "eth0", rate=rate, number=number, count=count, field="dst")
    _shape(hub, port, rate=rate, number=number, count=count, field="src")


def _shape(namespace: str, device: str, *, rate: float, number: int, count: int, field: str) -> None:
    """Limits what leaves ``device`` to ``rate`` bytes of payload per second, shared equally by the other nodes.

    A packet belongs to the node whose address is in its ``field``: ``src`` or ``dst``. The link is that of node
    ``number`` of ``count``.
    """
    bits, burst = int(rate * 8 * _FRAME / _PAYLOAD), _quantum(rate)
    others = [other for other in range(count) if other != number]
    limits = f"ceil {bits}bit burst {burst} cburst {burst} quantum {max(2 * _FRAME, min(burst, _LARGEST_PACKET))}"
    match = f"filter add dev {device} parent 1: protocol ip"
    lines = [
        f"qdisc add dev {device} root handle 1: htb",
        f"class add dev {device} parent 1: classid 1:1 htb rate {bits}bit {limits}",
        f"class add dev {device} parent 1:1 classid 1:2 htb prio 0 rate {bits // 20}bit {limits}",
        f"{match} prio 1 u32 match u16 {_ACK} 0xffff at 2 flowid 1:2",
    ]
    for other in others:
        leaf = f"{_FIRST_LEAF + other:x}"
        lines += [
            f"class add dev {device} parent 1:1 classid 1:{leaf} htb prio 1 rate {bits // len(others)}bit {limits}",
            f"qdisc add dev {device} parent 1:{leaf} bfifo limit {_QUEUE}",
            f"{match} prio 2 u32 match ip {field} {_address(other)}/32 flowid 1:{leaf}",
        ]
    _run("tc", "-n", namespace, "-batch", "-", given="\n".join(lines) + "\n")


def _search_path() -> str:
    """The search path with the folders of system tools, which the path of a user may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _run(*words: str, given: str = "") -> None:
    """Runs a command that reads ``given``; raises what it says if it fails."""
    environment = {**os.environ, "PATH": _search_path()}
    done = subprocess.run(  # noqa: S603
        words, input=given, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TraincastError(f"`{' '.join(words)}` failed: {said}")
