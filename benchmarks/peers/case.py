"""What the peers are asked: a dense decoder with data, tensor and pipeline parallelism."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from traincast.cluster import Cluster
from traincast.errors import TraincastError
from traincast.estimate.operators.efficiency import achievable
from traincast.graph.zoo.registry import card, defaults_of
from traincast.strategy import Request

_FAMILIES: Final = ("gpt", "mpt", "llama", "decoder")
_PLAIN: Final = {"mixers": "*", "feeds": "d", "window": 0, "experts": 0, "mtp": 0, "gated_attention": False}
"""Dimensions that make a model another than a plain decoder, and their values in one."""


class MissingPeerError(Exception):
    """A peer that is not on this machine; its text is the line that says so."""


class NotExpressibleError(Exception):
    """A row that a peer cannot express; its text is the reason."""


class Peer(Protocol):
    """Another forecaster: its name, which version of it runs, and its seconds of one step."""

    name: str
    version: str

    def seconds(self, request: Request) -> float:
        """Return the seconds of one step, or raise :class:`NotExpressibleError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request in the words that peers share: dimensions of a dense decoder, and sizes of batches.

    ``gated`` feed-forward parts have three matrices of ``ffn`` columns, others two. ``compute`` is the format in which
    linear layers compute: ``fp32``, ``bf16``, ``fp8`` …
    """

    request: Request
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    seq: int
    micro_batch: int
    compute: str

    @property
    def block_weights(self) -> int:
        """Weights of the matrices of one block."""
        attention = self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.hidden * (attention + (3 if self.gated else 2) * self.ffn)


def case_of(request: Request) -> Case:
    """Return what peers are asked, or raise :class:`NotExpressibleError`."""
    strategy, device = request.strategy, request.cluster.device
    if not achievable(device).graphics:
        raise NotExpressibleError("not a GPU")
    if request.cluster.parts:
        raise NotExpressibleError("nodes of several kinds")
    if strategy.cp * strategy.ep > 1 or strategy.servers:
        raise NotExpressibleError("context or expert parallelism, or parameter servers")
    if strategy.offload or strategy.shares or strategy.layers or strategy.recompute_every > 1:
        raise NotExpressibleError("offloading, or unequal replicas or layers")
    if not request.optimizer:
        raise NotExpressibleError("no optimizer step")
    passes = strategy.dp * strategy.num_microbatches
    if request.global_batch % passes:
        raise NotExpressibleError("microbatches of several sizes")
    sizes = _dimensions(request)
    heads = int(sizes["heads"])
    hidden = int(sizes["hidden"])
    gated = str(sizes.get("activation") or "swiglu").endswith("glu")
    return Case(
        request=request,
        layers=int(sizes["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(sizes.get("kv_heads") or heads),
        head_dim=int(sizes.get("head_dim") or hidden // heads),
        ffn=int(sizes.get("ffn") or (-(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden)),
        gated=gated,
        vocab=int(sizes["vocab"]),
        seq=request.graph.tokens_per_sample,
        micro_batch=request.global_batch // passes,
        compute=device.computes_in(request.precision.linear.value),
    )


def _dimensions(request: Request) -> dict[str, Any]:
    """Return the dimensions of a plain decoder, as given or by default; refuse other models."""
    try:
        known = card(request.graph.name)
    except TraincastError:
        raise NotExpressibleError("not a plain dense decoder") from None
    if known.family not in _FAMILIES:
        raise NotExpressibleError("not a plain dense decoder")
    sizes = {"activation": "gelu" if known.family == "mpt" else None, **defaults_of(known.family), **known.parameters}
    if any(sizes.get(key, plain) != plain for key, plain in _PLAIN.items()):
        raise NotExpressibleError("not a plain dense decoder")
    return sizes


def domain_devices(cluster: Cluster) -> int:
    """Return how many devices fast links join."""
    return cluster.devices_per_node * cluster.domain_nodes


def node_bandwidth(cluster: Cluster) -> float:
    """Return the bytes/s with which one node reaches the others."""
    return cluster.inter_node.bandwidth * cluster.nics_per_node


def found(name: str, option: str, module: str, folder: Path | None) -> tuple[Any, Path]:
    """Return a peer's ``module`` and the folder of its checkout; with ``folder``, it is imported from there."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise MissingPeerError(f"{name} is skipped: {error}; install it, or give {option} DIR") from None
    package = importlib.import_module(module.partition(".")[0])
    return imported, folder or Path(next(iter(package.__path__))).parent
