"""What an inspector sees of a request: the setting in which its graph is trained."""

from __future__ import annotations

from traincast.estimate.inspector.features import StepSetting
from traincast.strategy import Request
from traincast.strategy.prepare import for_workers


def setting_of(request: Request) -> StepSetting:
    """Return the setting of ``request``, on the nodes that run ranks."""
    request = for_workers(request)
    strategy, precision = request.strategy, request.precision
    return StepSetting(
        cluster=request.cluster,
        batch=strategy.micro_batch(request.global_batch),
        microbatches=strategy.num_microbatches,
        workers=strategy.dp * strategy.cp,
        ranks=strategy.num_ranks,
        tp=strategy.tp,
        pp=strategy.pp,
        zero=strategy.zero,
        recompute=strategy.recompute != "none",
        servers=strategy.servers,
        own_nodes=strategy.server_nodes > 0,
        asynchronous=strategy.asynchronous,
        products=precision.products.value,
        activation_bytes=precision.activations.nbytes,
        gradient_bytes=precision.gradients.nbytes,
        updates=not strategy.servers and request.optimizer,
    )
