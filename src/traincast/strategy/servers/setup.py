"""The setup of training with parameter servers: pieces of the model, workers, servers, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from traincast.cluster import Cluster, Link
from traincast.errors import RequestError, StrategyError
from traincast.strategy.mesh import workers_of
from traincast.strategy.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of the model whose gradients are sent together: its seconds on a worker, and the bytes of its parameters.

    Pieces are in forward order; backward runs from the last to the first. A pass takes the time in which the device
    computes (``forward_s``, ``backward_s``) or in which the host launches it, whichever is longer. ``elsewhere`` is the
    same piece on devices of the second, third … kind.
    """

    forward_s: float
    backward_s: float
    nbytes: float
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    elsewhere: tuple[Piece, ...] = ()

    def on(self, kind: int) -> Piece:
        """This piece on a device of ``kind``."""
        return self.elsewhere[kind - 1] if kind else self

    def computes_s(self, factor: float) -> tuple[float, float]:
        """Seconds in which the device computes forward and backward, each multiplied by ``factor``."""
        return self.forward_s * factor, self.backward_s * factor

    def takes_s(self, factor: float) -> tuple[float, float]:
        """Seconds that forward and backward take, launches included, if the device is ``factor`` times slower."""
        forward_s, backward_s = self.computes_s(factor)
        return max(forward_s, self.forward_host_s), max(backward_s, self.backward_host_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNode:
    """A node: all its NICs as one link, the link inside it, and the seconds that a server needs to apply a byte."""

    nic: Link
    local: Link
    update_s_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """Workers and servers, where they are, and the links between them.

    Workers fill nodes one after the other, and so do servers. Servers have nodes of their own, or share those of the
    workers from the first node on. A node with workers has a ``worker_nic``, a node with only servers a ``server_nic``;
    messages inside a node use ``local``. A server applies gradients in ``update_s_per_byte``. If nodes differ,
    ``nodes`` has these figures for every node. With ``server_nodes``, servers are spread evenly over that many nodes
    instead of filling them. ``nodes_of_workers`` and ``nodes_of_servers`` list the node of each instead.

    ``sharding``: ``greedy`` gives each piece to the server that holds least so far (TensorFlow's greedy strategy),
    ``even`` divides every piece equally among all servers. ``kind_of_worker`` is the kind of device of each worker.
    ``worker_factors``: a worker with factor 1.5 computes 1.5 times slower. ``interference`` is the weight of a message
    on the device of its worker: while the worker computes, both take 1 + weight times as long.

    The starts of asynchronous workers are spread over ``spread`` steps of the fastest worker, run alone. Equal workers
    that started together would always push and pull together, and use their links in one direction at a time.
    """

    servers: int
    workers: int
    asynchronous: bool = False
    workers_per_node: int = 1
    servers_per_node: int = 1
    server_nodes: int = 0
    own_nodes: bool = True
    sharding: Literal["greedy", "even"] = "greedy"
    worker_nic: Link
    server_nic: Link
    local: Link
    update_s_per_byte: float = 0.0
    nodes: tuple[ServerNode, ...] = ()
    nodes_of_workers: tuple[int, ...] = ()
    nodes_of_servers: tuple[int, ...] = ()
    kind_of_worker: tuple[int, ...] = ()
    worker_factors: tuple[float, ...] = ()
    interference: float = 0.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        for name in ("servers", "workers", "workers_per_node", "servers_per_node"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}: expected a whole number from 1")
        for name, given, count, whose in (
            ("worker factors", len(self.worker_factors), self.workers, "workers"),
            ("kinds of devices", len(self.kind_of_worker), self.workers, "workers"),
            ("nodes of workers", len(self.nodes_of_workers), self.workers, "workers"),
            ("nodes of servers", len(self.nodes_of_servers), self.servers, "servers"),
            ("descriptions of nodes", len(self.nodes), self.num_nodes, "nodes"),
        ):
            if given not in (0, count):
                raise RequestError(f"{given} {name} are given for {count} {whose}")
        links = (link for node in self.nodes for link in (node.nic, node.local))
        for link in (self.worker_nic, self.server_nic, self.local, *links):
            if not (link.bandwidth > 0.0 and link.latency_s >= 0.0):
                raise RequestError(
                    f"link {link.name} moves {link.bandwidth} bytes/s after {link.latency_s} s: expected more than 0 "
                    "bytes/s and no negative latency"
                )
        for name in ("update_s_per_byte", "spread", "interference"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise RequestError(f"{name} is {getattr(self, name)}: expected a number from 0")

    @property
    def worker_nodes(self) -> int:
        """Nodes that have workers."""
        if self.nodes_of_workers:
            return max(self.nodes_of_workers) + 1
        return -(-self.workers // self.workers_per_node)

    @property
    def num_nodes(self) -> int:
        """All nodes."""
        if self.nodes_of_servers:
            return max(self.worker_nodes, max(self.nodes_of_servers) + 1)
        server_nodes = self.server_nodes or -(-self.servers // self.servers_per_node)
        return self.worker_nodes + server_nodes if self.own_nodes else max(self.worker_nodes, server_nodes)

    def node_of_worker(self, worker: int) -> int:
        """The node of a worker."""
        if self.nodes_of_workers:
            return self.nodes_of_workers[worker]
        return worker // self.workers_per_node

    def node_of_server(self, server: int) -> int:
        """The node of a server."""
        if self.nodes_of_servers:
            return self.nodes_of_servers[server]
        first = self.worker_nodes if self.own_nodes else 0
        if self.server_nodes:
            return first + server * self.server_nodes // self.servers
        return first + server // self.servers_per_node

    def node(self, number: int) -> ServerNode:
        """The links and the speed of a node."""
        if self.nodes:
            return self.nodes[number]
        nic = self.worker_nic if number < self.worker_nodes else self.server_nic
        return ServerNode(nic=nic, local=self.local, update_s_per_byte=self.update_s_per_byte)

    def factor(self, worker: int) -> float:
        """The factor on the computing time of a worker; 1 is the usual time."""
        return self.worker_factors[worker] if self.worker_factors else 1.0

    def kind(self, worker: int) -> int:
        """The kind of device that a worker has."""
        return self.kind_of_worker[worker] if self.kind_of_worker else 0

    @property
    def alike(self) -> bool:
        """Whether all workers compute at the same speed, on nodes with the same links."""
        same_speed = len(set(self.worker_factors)) <= 1 and len(set(self.kind_of_worker)) <= 1
        return same_speed and len({self.node(self.node_of_worker(worker)) for worker in range(self.workers)}) == 1


def shards(pieces: Sequence[Piece], setup: ServerSetup) -> list[list[tuple[int, float]]]:
    """For every piece, the servers that hold it, each with the bytes of its share."""
    if setup.sharding == "even":
        return [
            [(server, piece.nbytes / setup.servers) for server in range(setup.servers)] if piece.nbytes else []
            for piece in pieces
        ]
    held = [0.0] * setup.servers
    chosen: list[list[tuple[int, float]]] = []
    for piece in pieces:
        server = held.index(min(held))
        held[server] += piece.nbytes
        chosen.append([(server, piece.nbytes)] if piece.nbytes else [])
    return chosen


def setup_on(
    cluster: Cluster,
    strategy: Strategy,
    *,
    update_bytes: float,
    factors: tuple[float, ...] = (),
    busy_network: float = 0.0,
    interference: float = 0.0,
) -> ServerSetup:
    """Workers and servers of ``strategy`` on ``cluster``, every node with its own links and its own host memory.

    A server reads and writes ``update_bytes`` bytes of host memory for each byte of gradients. ``factors`` multiply the
    computing time of each worker. Other jobs use the share ``busy_network`` of every NIC. Raises
    :class:`StrategyError` if servers are placed on nodes that the cluster does not have, or if a node has neither
    workers nor servers.
    """
    workers = workers_of(cluster, strategy)
    nodes = []
    for part in (*(cluster.parts or (cluster,)), *cluster.hosts):
        bandwidth = part.inter_node.bandwidth * part.nics_per_node * (1.0 - busy_network)
        node = ServerNode(
            nic=replace(part.inter_node, bandwidth=bandwidth),
            local=replace(part.intra_node, name="host", bandwidth=part.host_bandwidth),
            update_s_per_byte=update_bytes / part.host_memory_bandwidth,
        )
        nodes += [node] * part.num_nodes
    sizes = [part.devices_per_node for part in workers.parts or (workers,) for _ in range(part.num_nodes)]
    uneven = len(set(sizes)) > 1
    placed = _placed(strategy, cluster, num_nodes=len(nodes), worker_nodes=len(sizes))
    return ServerSetup(
        servers=strategy.servers,
        workers=strategy.dp,
        asynchronous=strategy.asynchronous,
        workers_per_node=workers.devices_per_node,
        servers_per_node=-(-strategy.servers // cluster.num_nodes),
        server_nodes=strategy.server_nodes,
        own_nodes=min(placed) >= len(sizes) if placed else strategy.server_nodes > 0,
        worker_nic=nodes[0].nic,
        server_nic=nodes[-1].nic,
        local=nodes[0].local,
        nodes=tuple(nodes),
        nodes_of_workers=tuple(node for node, size in enumerate(sizes) for _ in range(size)) if uneven else (),
        nodes_of_servers=placed,
        kind_of_worker=tuple(workers.kind_of_device()),
        worker_factors=factors,
        interference=interference,
    )


def _placed(strategy: Strategy, cluster: Cluster, *, num_nodes: int, worker_nodes: int) -> tuple[int, ...]:
    """The node of each server, if the strategy lists the nodes of servers; else empty."""
    chosen = strategy.placement
    if not chosen:
        return ()
    text = f"placement={'/'.join(map(str, chosen))}"
    if max(chosen) >= num_nodes:
        raise StrategyError(f"{text}: {cluster.name} has nodes 0 to {num_nodes - 1}; list some of these")
    idle = [node for node in range(worker_nodes, num_nodes) if node not in chosen]
    if idle:
        raise StrategyError(
            f"{text} with server_nodes={strategy.server_nodes}: node {idle[0]} has neither workers nor servers; "
            "list it as well, or use fewer server_nodes"
        )
    return tuple(chosen[server * len(chosen) // strategy.servers] for server in range(strategy.servers))
