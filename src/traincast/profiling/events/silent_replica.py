"""A replica whose gradients fill the buckets of DistributedDataParallel and are not sent.

Annotations are not postponed here: DistributedDataParallel reads those of a hook.
"""

import torch
import torch.distributed as dist
from torch import nn


def silent_replica(module: nn.Module) -> nn.Module:
    """``module`` as a replica of data-parallel training without its messages."""
    wrapped = nn.parallel.DistributedDataParallel(module)
    wrapped.register_comm_hook(None, _send_nothing)
    return wrapped


def _send_nothing(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
