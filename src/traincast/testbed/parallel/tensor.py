"""Tensor parallelism: the products of attention and MLP as distributed tensors, split by columns, then by rows."""

from __future__ import annotations

from typing import Any

from torch import nn

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import MLP, Attention


def split(layers: list[nn.Module], mesh: Any) -> None:
    """Split the products of each layer over the ranks of ``mesh`` (Shoeybi et al. 2019)."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ranks = mesh.size()
    for layer in layers:
        attention, mlp = getattr(layer, "attention", None), getattr(layer, "mlp", None)
        if not isinstance(attention, Attention) or not isinstance(mlp, MLP):
            raise RequestError("tp needs layers with attention and MLP: the testbed splits no others")
        if attention.heads % ranks or attention.kv_heads % ranks:
            raise RequestError(f"tp={ranks} does not divide {attention.heads} heads")
        plan = {
            "attention.qkv": ColwiseParallel(),
            "attention.out": RowwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(),
        }
        parallelize_module(layer, mesh, plan)
        attention.heads //= ranks
        attention.kv_heads //= ranks
