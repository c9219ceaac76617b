"""Data parallelism: PyTorch's DistributedDataParallel, and its FSDP."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from traincast.testbed.parallel.bed import Bed


def replicated(module: nn.Module, bed: Bed, group: Any) -> nn.Module:
    """``module`` under DDP: the real reducer, with a hook that records the all-reduce of each bucket."""
    _localize(module)
    wrapped = nn.parallel.DistributedDataParallel(module, process_group=group, broadcast_buffers=False, init_sync=False)

    def reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return bed.asynchronous("dp gradients", bucket.buffer(), group)

    wrapped.register_comm_hook(None, reduce)
    return wrapped


def _localize(module: nn.Module) -> None:
    """Let DDP see this rank's shards of distributed tensors as plain tensors."""
    from torch.distributed.tensor import DTensor

    if any(isinstance(p, DTensor) for p in module.parameters()):
        from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

        _pre_dp_module_transform(module)


def sharded(module: nn.Module, layers: list[nn.Module], bed: Bed, mesh: Any) -> nn.Module:
    """``module`` under FSDP: each of ``layers`` is a group of its own, the rest is the root's."""
    from torch.distributed.fsdp import fully_shard

    _record_collectives(bed)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def _record_collectives(bed: Bed) -> None:
    """Record the collectives of FSDP; over gloo they block."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    for kind, label in (("DefaultAllGather", "dp all_gather"), ("DefaultReduceScatter", "dp reduce_scatter")):
        original = getattr(collectives, kind).__call__

        def call(self: Any, *args: Any, _original: Any = original, _label: str = label, **kwargs: Any) -> Any:
            whole = kwargs["output_tensor" if _label.endswith("gather") else "input_tensor"]
            nbytes = float(whole.numel() * whole.element_size())
            return bed.blocking(_label, nbytes, lambda: _original(self, *args, **kwargs))

        getattr(collectives, kind).__call__ = call


def accumulating(module: nn.Module, *, syncs: bool) -> AbstractContextManager[Any]:
    """The context of a microbatch: DDP exchanges gradients in the last one only, FSDP in all of them."""
    if isinstance(module, nn.parallel.DistributedDataParallel) and not syncs:
        quiet: AbstractContextManager[Any] = module.no_sync()
        return quiet
    return nullcontext()
