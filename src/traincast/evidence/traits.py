"""What a run is like: the facts by which two runs are compared."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

from traincast.graph import OperatorGraph, OpKind, Phase
from traincast.graph.vocabulary import LINEAR
from traincast.strategy import Request
from traincast.strategy.model_kind import model_kind
from traincast.strategy.releases import has_experts

RunKind: TypeAlias = Literal["language", "experts", "images", "other", "tuned"]
"""A language model, a mixture of experts, a network for images, another model, or a model that is partly trained."""

_ALL: Final = 0.99
"""Share of the parameters that must be trained for a run to count as training, not as tuning."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run by which it is compared with others.

    ``active_parameters`` are those that one token uses: fewer than ``parameters`` in a mixture of experts. ``tokens``
    is the length of a sample (0 if samples are not sequences). ``power_w`` is the most that a device may draw. ``tp``
    to ``servers`` are those of the strategy, ``replicas`` is ``dp·cp``, and ``sharded`` the number of replicas that
    share states under ZeRO (1: none). ``tensor_nodes`` is the number of nodes that a tensor group spans.
    """

    model: str
    kind: RunKind
    parameters: float
    active_parameters: float
    layers: int
    tokens: int
    device: str
    vendor: str
    architecture: str
    power_w: float
    devices: int
    nodes: int
    strategy: str
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    virtual_stages: int
    zero: int
    replicas: int
    sharded: int
    tensor_nodes: int
    sequence_parallel: bool
    recompute: str
    offload: str
    servers: int
    precision: str
    products: str
    runtime: str
    micro_batch: int
    global_batch: int


def traits_of(request: Request) -> Traits:
    """Return the traits of a request."""
    strategy, cluster, graph = request.strategy, request.cluster, request.graph
    parameters, active, layers, kind = _of_graph(graph)
    joined = cluster.devices_per_node * cluster.domain_nodes
    return Traits(
        model=graph.name,
        kind=kind,
        parameters=parameters,
        active_parameters=active,
        layers=layers,
        tokens=graph.tokens_per_sample,
        device=cluster.device.name,
        vendor=cluster.device.vendor,
        architecture=cluster.device.architecture,
        power_w=cluster.device.limit_w,
        devices=cluster.num_devices,
        nodes=sum(part.num_nodes for part in cluster.parts or (cluster,)),
        strategy=str(strategy),
        dp=strategy.dp,
        tp=strategy.tp,
        pp=strategy.pp,
        cp=strategy.cp,
        ep=strategy.ep,
        virtual_stages=strategy.virtual_stages,
        zero=strategy.zero,
        replicas=strategy.dp * strategy.cp,
        sharded=(strategy.shard or strategy.dp * strategy.cp) if strategy.zero else 1,
        tensor_nodes=-(-strategy.tp // joined),
        sequence_parallel=strategy.sequence_parallel,
        recompute=strategy.recompute,
        offload="+".join(strategy.offload),
        servers=strategy.servers,
        precision=request.precision.name,
        products=request.precision.linear.value,
        runtime=request.runtime.name,
        micro_batch=max(1, round(strategy.micro_batch(request.global_batch))),
        global_batch=request.global_batch,
    )


@lru_cache(maxsize=64)
def _of_graph(graph: OperatorGraph) -> tuple[float, float, int, RunKind]:
    """Return all parameters, those that one token uses, the layers, and the kind of a model."""
    parameters, trained = graph.num_parameters, graph.num_trainable_parameters
    kind: RunKind
    if trained < _ALL * parameters:
        kind = "tuned"
    elif has_experts(graph):
        kind = "experts"
    elif model_kind(graph) == "images":
        kind = "images"
    else:
        causal = any(op.kind is OpKind.ATTENTION and op.attributes.get("causal") for op in graph.operators)
        kind = "language" if causal and model_kind(graph) == "sequences" else "other"
    layers = sum(block.count for block in graph.blocks if block.repeated)
    return float(parameters), _active(graph, float(parameters)), layers, kind


def _active(graph: OperatorGraph, parameters: float) -> float:
    """Return the parameters that one token uses: half the FLOPs of its linear layers if the model has experts."""
    if not has_experts(graph) or not graph.tokens_per_sample:
        return parameters
    flops = sum(op.flops * count for op, count in graph if op.phase is Phase.FORWARD and op.kind in LINEAR)
    return min(parameters, flops / (2.0 * graph.tokens_per_sample))
