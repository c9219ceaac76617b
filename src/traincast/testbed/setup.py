"""What a run stands for in a forecast: its cluster, and its plan."""

from __future__ import annotations

from pathlib import Path

from traincast.ask import Ask
from traincast.errors import RequestError
from traincast.resolve import resolve, stated_strategy
from traincast.strategy import Lowered, lower
from traincast.testbed.request import RunRequest

RUNTIME = "gloo"


def ask_of(request: RunRequest, cluster: Path) -> Ask:
    """The step of a run on the cluster in a file, as ``predict`` is asked for it."""
    return Ask(
        request.model,
        cluster=str(cluster),
        strategy=request.strategy,
        global_batch=request.global_batch,
        seq=request.seq,
        precision="fp32",
        runtime=RUNTIME,
        use_cache=True,
    )


def lowered_of(request: RunRequest, cluster: Path) -> Lowered:
    """The plan of a run on the cluster in a file; refuses what the testbed cannot run.

    A strategy that states no micro batch gets the largest that fits, as in ``predict``.
    """
    ask = ask_of(request, cluster)
    strategy = stated_strategy(ask)
    if strategy.dp * strategy.tp * strategy.pp != request.ranks:
        raise RequestError(
            f"strategy {request.strategy} has dp·tp·pp = {strategy.dp * strategy.tp * strategy.pp} ranks, "
            f"but --ranks is {request.ranks}"
        )
    for name in ("cp", "ep"):
        if getattr(strategy, name) > 1:
            raise RequestError(f"strategy {request.strategy}: the testbed runs dp, tp and pp, not {name}")
    if strategy.zero not in (0, 3):
        raise RequestError(f"strategy {request.strategy}: the testbed runs zero=0 (DDP) and zero=3 (FSDP)")
    replicated = strategy.pp > 1 and strategy.dp > 1 and strategy.zero == 0
    if replicated and (strategy.schedule != "1f1b" or strategy.num_microbatches <= strategy.pp):
        raise RequestError(
            f"strategy {request.strategy}: PyTorch's DDP fails in a pipeline if all forwards come before the first "
            "backward; use schedule=1f1b and more microbatches than stages"
        )
    return lower(resolve(ask).request)
