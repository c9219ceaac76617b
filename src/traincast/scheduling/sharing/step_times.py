"""Forecasts the step time of a job on the GPUs where it is placed, once for each distinct case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from traincast.cluster import Cluster, cluster_names, find_device, find_node, load_cluster, node_names
from traincast.cluster.topology import part_of_node
from traincast.errors import CaptureError, FileFormatError, RequestError, UnknownNameError
from traincast.scheduling.queue.speeds import PlacedGpus
from traincast.scheduling.space.cluster import Node, NodeIndex, SharedCluster

if TYPE_CHECKING:
    from traincast.forecast import Forecast
    from traincast.graph import OperatorGraph
    from traincast.scheduling.sharing.server_programs import ServerProgram
    from traincast.scheduling.sharing.together import StepProgram
    from traincast.strategy import Strategy

NOWHERE: Final = math.inf
"""The step time on GPUs where a job cannot run."""


class What(NamedTuple):
    """What a job trains: model, global batch and strategy ("": chosen automatically, data parallel first).

    An elastic job keeps its batch on any number of GPUs: each GPU gets an equal share, rounded up (as in Pollux).
    """

    model: str
    batch: int
    strategy: str = ""
    is_elastic: bool = False


class Where(NamedTuple):
    """The GPUs of a step: their type, how many on how many nodes, in how many racks (0: unknown)."""

    gpu_type: str
    node_gpus: int  # GPUs that each of the nodes has in all
    num_gpus: int
    num_nodes: int
    num_racks: int = 0

    def __str__(self) -> str:
        spread = f" on {self.num_nodes} nodes" if self.num_nodes > 1 else ""
        return f"{self.num_gpus} × {self.gpu_type or 'GPU'}{spread}"


class JobFacts(NamedTuple):
    """The facts that decide a job's reference placement: what it trains, on how many GPUs, and where it may run."""

    what: What
    num_gpus: float
    vc: str = ""
    gpu_type: str = ""


class Reference(NamedTuple):
    """A job's reference placement, and the time of its step there.

    ``elsewhere`` are further GPU types that it may use, ``excluded`` those on which it cannot run.
    """

    where: Where
    step_s: float
    elsewhere: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


class StepTimes:
    """Step times on the GPUs of a cluster, by `traincast.predict`, each distinct case forecast once.

    ``hardware`` maps a GPU type to a node type, a cluster, a TOML file or a device (``{"V100": "dgx-1-v100"}``). A type
    that it does not have is looked up in the catalog by its own name. A strategy is chosen for each type and number of
    GPUs, packed on the fewest nodes. It is kept when they are spread, because memory does not change. GPUs that are
    spread unevenly count as spread evenly over the next larger number of nodes that divides them. Between racks, the
    bandwidth is ``oversubscription`` times smaller than below one switch (None: the value of the catalog). If the
    cluster states the rate of its uplinks, a job has all of them: others slow it down only while they send, too.
    ``use_cache`` keeps captured models on disk, as `predict` does. Jobs come from a data file, so models and schedules
    that are Python code (``package.module:factory``) are refused unless ``allow_code``.
    """

    def __init__(
        self,
        cluster: SharedCluster,
        *,
        hardware: Mapping[str, str] | None = None,
        precision: str | None = None,
        runtime: str | None = None,
        oversubscription: float | None = None,
        use_cache: bool = False,
        allow_code: bool = False,
    ) -> None:
        if oversubscription is not None and not oversubscription >= 1:
            raise RequestError(f"oversubscription={oversubscription}: expected a number from 1")
        self.cluster = cluster
        self.hardware = dict(hardware or {})
        self.precision = precision
        self.runtime = runtime
        self.oversubscription = oversubscription
        self.use_cache = use_cache
        self.allow_code = allow_code
        self.num_forecasts = 0
        self._layout = NodeIndex(cluster)
        self._steps: dict[tuple[What, Where], tuple[float, str]] = {}
        self._strategies: dict[tuple[What, Where], Strategy] = {}
        self._references: dict[JobFacts, Reference] = {}
        self._programs: dict[tuple[What, Where], StepProgram | ServerProgram] = {}
        self._switch_programs: dict[tuple[What, Where], StepProgram] = {}
        self._graphs: dict[str, OperatorGraph] = {}
        self._nodes: dict[tuple[str, int], Cluster] = {}

    def __getstate__(self) -> dict[str, object]:
        """Pickle the known step times without what a process can load again."""
        return {**self.__dict__, "_graphs": {}, "_nodes": {}}

    def step_s(self, what: What, where: Where) -> float:
        """Return the seconds of one step; infinite if the job cannot run there."""
        return self._step(what, where)[0]

    def program(self, what: What, where: Where) -> StepProgram | ServerProgram | None:
        """Return the step as a program that can run beside others; ``None`` if the job cannot run there.

        The program states its use of the network as a share of all NICs of a node. A job that holds only some GPUs of
        a node uses at most the NICs that belong to these GPUs.
        """
        even = _evened(_used(what, where))
        if not math.isfinite(self.step_s(what, even)):
            return None
        if (what, even) not in self._programs:
            from traincast.scheduling.sharing.programs import forecast_program

            made = self._predicted(what, even)
            share = self._place(even).nics_per_node / self._nodes[even.gpu_type, even.node_gpus].nics_per_node
            self._programs[what, even] = forecast_program(made).scaled(min(1.0, share))
        return self._programs[what, even]

    def switch_program(self, what: What, where: Where) -> StepProgram | None:
        """Return the step as a program that shares the uplinks of racks; ``None`` if it has none to share."""
        even = _evened(_used(what, where))
        if even.num_racks < 2 or not self.cluster.uplink or not math.isfinite(self.step_s(what, even)):
            return None
        if (what, even) not in self._switch_programs:
            from traincast.scheduling.sharing.programs import switch_program

            self._switch_programs[what, even] = switch_program(self._predicted(what, even), self.cluster.uplink)
        return self._switch_programs[what, even]

    def check_types(self) -> None:
        """Refuse a cluster in which no node states its GPU type: no job can be forecast there."""
        if not any(self.hardware.get(node.gpu_type, node.gpu_type) for node in self.cluster.nodes):
            raise RequestError("the nodes state no GPU type, which a forecast needs: give one, such as 5x8:V100")

    def why_not(self, what: What, where: Where) -> str:
        """Return in one line why a job cannot run there; "" if it can."""
        return self._step(what, where)[1]

    def where(self, placed: PlacedGpus) -> Where:
        """Return the description of the GPUs that a job was given."""
        nodes = placed.nodes
        return Where(
            gpu_type=nodes[0].gpu_type,
            node_gpus=max(node.num_gpus for node in nodes),
            num_gpus=placed.num_gpus,
            num_nodes=len(nodes),
            num_racks=_num_racks(nodes),
        )

    def reference(self, ask: JobFacts) -> Reference:
        """Return a job's reference placement: packed on the fewest nodes of the first GPU type on which it can run.

        Types are tried in the order of the nodes. A job that can run nowhere is refused with the reason.
        """
        found = self._references.get(ask)
        if found is None:
            found = self._references[ask] = self._find_reference(ask)
        return found

    def placements(self, ask: JobFacts) -> list[Where]:
        """Return all distinct placements that a job may get: every GPU type, on few or many nodes."""
        reference = self.reference(ask)
        found: dict[Where, None] = {}
        for where in self._packed(ask):
            if where.gpu_type in (reference.where.gpu_type, *reference.elsewhere):
                most = min(where.num_gpus, sum(node.gpu_type == where.gpu_type for node in self.cluster.nodes))
                for nodes in range(where.num_nodes, most + 1):
                    racks = range(1, nodes + 1) if where.num_racks else (0,)
                    found |= dict.fromkeys(
                        _evened(where._replace(num_nodes=nodes, num_racks=number)) for number in racks
                    )
        return list(found)

    def _packed(self, ask: JobFacts) -> list[Where]:
        """Return, for each GPU type, the job packed on the fewest nodes that have room."""
        whole = max(1, math.ceil(ask.num_gpus))
        found: list[Where] = []
        for pool in self._layout.pools(vc=ask.vc, gpu_type=ask.gpu_type):
            nodes = [node for at, node in enumerate(self.cluster.nodes) if pool.nodes >> at & 1 and node.num_gpus]
            nodes.sort(key=lambda node: -node.num_gpus)
            taken: list[Node] = []
            while nodes[len(taken) :] and sum(node.num_gpus for node in taken) < whole:
                taken.append(nodes[len(taken)])
            if sum(node.num_gpus for node in taken) >= whole:
                racks = _fewest_racks(nodes, len(taken))
                found.append(Where(pool.gpu_type, taken[0].num_gpus, whole, len(taken), racks))
        return found

    def _find_reference(self, ask: JobFacts) -> Reference:
        packed = self._packed(ask)
        if not packed:
            kind = f" of type {ask.gpu_type}" if ask.gpu_type else ""
            raise RequestError(
                f"{ask.what.model} asks for {ask.num_gpus:g} GPUs{kind}, which the cluster does not have: add nodes"
            )
        runs = [where for where in packed if math.isfinite(self.step_s(ask.what, where))]
        if not runs:
            raise RequestError(self.why_not(ask.what, packed[0]))
        return Reference(
            where=runs[0],
            step_s=self.step_s(ask.what, runs[0]) / min(1.0, ask.num_gpus),
            elsewhere=tuple(where.gpu_type for where in runs[1:]),
            excluded=tuple(where.gpu_type for where in packed if where not in runs),
        )

    def _step(self, what: What, where: Where) -> tuple[float, str]:
        found = self._steps.get((what, where))
        if found is None:
            used = _used(what, where)
            even = _evened(used)
            found = self._forecast(what, even) if even == where else self._step(what, even)
            self._steps[what, where] = found
        return found

    def _forecast(self, what: What, where: Where) -> tuple[float, str]:
        """Return the seconds of a step, and why it cannot run ("" if it can)."""
        asked = f"{what.model} with batch {what.batch} on {where}"
        self._graph(what.model)
        self._check_schedule(what.strategy)
        self.num_forecasts += 1
        try:
            result = self._predicted(what, where)
        except (UnknownNameError, CaptureError, FileFormatError):
            raise  # of the model or the hardware, not of the placement
        except RequestError as error:
            return NOWHERE, f"{asked} cannot run: {error}"
        self._strategies[what, where] = result.request.strategy
        report = result.report
        if not report.fits:
            there = result.request.cluster.device
            return NOWHERE, (
                f"{asked} does not fit in memory: a GPU needs {report.peak_memory_bytes / 1e9:.1f} GB of the "
                f"{there.memory_bytes / 1e9:.1f} GB of {there.name} (enough with {report.fits_probability:.0%}, "
                f"{report.fits_margin:.0%} are asked for); take more GPUs, a smaller batch or another strategy"
            )
        return report.step_s, ""

    def _predicted(self, what: What, where: Where) -> Forecast:
        """Return the forecast of a step."""
        from traincast.forecast import predict

        strategy = self._strategy(what, where)
        return predict(
            self._graph(what.model),
            cluster=self._place(where),
            global_batch=_rounded(what, where.num_gpus),
            strategy=strategy or _scaled(what, where.num_gpus) or None,
            precision=self.precision,
            runtime=self.runtime,
        )

    def _strategy(self, what: What, where: Where) -> Strategy | None:
        """Return the strategy for GPUs that are spread: the one chosen for packed GPUs."""
        packed = _evened(where._replace(num_nodes=-(-where.num_gpus // where.node_gpus), num_racks=0))
        if packed == where._replace(num_racks=0):
            return None
        self._step(what, packed)
        return self._strategies.get((what, packed))

    def _graph(self, model: str) -> OperatorGraph:
        from traincast.graph.load import load_model

        if model not in self._graphs:
            self._graphs[model] = load_model(model, use_cache=self.use_cache, allow_code=self.allow_code)
        return self._graphs[model]

    def _check_schedule(self, strategy: str) -> None:
        """Refuse a strategy of a data file whose schedule is Python code, unless that is allowed."""
        from traincast.strategy.schedules import check_schedule_of_data

        for item in strategy.split(","):
            key, _, value = (part.strip() for part in item.partition("="))
            if key == "schedule":
                check_schedule_of_data(value, allow_code=self.allow_code)

    def _place(self, where: Where) -> Cluster:
        """Return the cluster that a job has: its nodes, with its GPUs on each, and the network between them."""
        key = (where.gpu_type, where.node_gpus)
        if key not in self._nodes:
            self._nodes[key] = self._node(*key)
        node, gpus = self._nodes[key], where.num_gpus // where.num_nodes
        if gpus != node.devices_per_node:
            node = part_of_node(node, node.device, gpus)
        node = node.with_nodes(where.num_nodes)
        if where.num_racks:
            node = replace(node, group_nodes=-(-where.num_nodes // where.num_racks))
        if where.num_racks and self.cluster.uplink:
            edge = node.group_nodes * node.inter_node.bandwidth * node.nics_per_node
            topology = "fat-tree" if node.inter_topology == "none" else node.inter_topology
            node = replace(node, oversubscription=max(1.0, edge / self.cluster.uplink), inter_topology=topology)
        elif self.oversubscription is not None:
            node = replace(node, oversubscription=self.oversubscription)
        return node

    def _node(self, gpu_type: str, num_gpus: int) -> Cluster:
        """Return one node of a GPU type: the catalog's node type of that name, or a typical node of the device."""
        name = self.hardware.get(gpu_type, gpu_type)
        if not name:
            raise RequestError(
                "the nodes state no GPU type, which a forecast needs: give one, such as 5x8:V100 or "
                'hardware={"": "dgx-a100"}'
            )
        return node_of(name, num_gpus)


def node_of(name: str, num_gpus: int) -> Cluster:
    """Return one node with that many GPUs: a node type, cluster or file of that name, or a typical node of a device."""
    if name in node_names() or name in cluster_names() or name.endswith(".toml"):
        node = load_cluster(name).with_nodes(1)
        return node if num_gpus == node.devices_per_node else part_of_node(node, node.device, num_gpus)
    return find_node(find_device(name), num_gpus)


def _num_racks(nodes: Iterable[Node]) -> int:
    """Return the number of racks of some nodes; 0 if no node states its rack."""
    racks = {(node.switch, node.rack) for node in nodes}
    return 0 if racks == {("", "")} else len(racks)


def _fewest_racks(nodes: list[Node], count: int) -> int:
    """Return the smallest number of racks that hold ``count`` of the nodes; 0 if no node states its rack."""
    if not _num_racks(nodes):
        return 0
    sizes: dict[tuple[str, str], int] = {}
    for node in nodes:
        sizes[node.switch, node.rack] = sizes.get((node.switch, node.rack), 0) + 1
    racks = 0
    for size in sorted(sizes.values(), reverse=True):
        racks += 1
        count -= size
        if count <= 0:
            break
    return racks


def _evened(where: Where) -> Where:
    """Return the same GPUs, spread evenly over the same or the next larger number of nodes that divides them."""
    nodes = next(number for number in range(where.num_nodes, where.num_gpus + 1) if where.num_gpus % number == 0)
    return where._replace(num_nodes=nodes, num_racks=min(where.num_racks, nodes))


def _rest(strategy: str) -> int:
    """Return the ranks of one replica under a strategy such as ``tp=2,pp=4``: tp · pp · cp."""
    rest = 1
    for item in strategy.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        if key in ("tp", "pp", "cp") and value.isdecimal():
            rest *= int(value)
    return rest


def _used(what: What, where: Where) -> Where:
    """Return the GPUs that an elastic job can use: whole replicas, at most one per sample."""
    if not what.is_elastic:
        return where
    rest = _rest(what.strategy)
    gpus = max(rest, min(where.num_gpus // rest, what.batch) * rest)
    if gpus > where.num_gpus:
        return where  # too few for one replica: refused by the forecast
    return where._replace(num_gpus=gpus, num_nodes=min(where.num_nodes, gpus))


def _rounded(what: What, num_gpus: int) -> int:
    """Return the batch of an elastic job, rounded up to a multiple of its replicas."""
    replicas = max(1, num_gpus // _rest(what.strategy)) if what.is_elastic else 1
    return -(-what.batch // replicas) * replicas


def _scaled(what: What, num_gpus: int) -> str:
    """Return the strategy of an elastic job with as many replicas as fit on ``num_gpus``."""
    if not what.strategy or not what.is_elastic:
        return what.strategy
    others = [item for item in what.strategy.split(",") if item.partition("=")[0].strip() != "dp"]
    return ",".join([f"dp={max(1, num_gpus // _rest(what.strategy))}", *others])
