"""What a run stands for in a forecast: its cluster, and its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from traincast.cluster import load_cluster
from traincast.errors import RequestError
from traincast.forecast import make_request
from traincast.strategy import Lowered, load_runtime, lower, parse_strategy
from traincast.strategy.strategy import says_micro_batch
from traincast.testbed.request import TestbedRequest

RUNTIME = "gloo"


def lowered_of(request: TestbedRequest, cluster: Path) -> Lowered:
    """The plan of a run on the cluster in a file; refuses what the testbed cannot run."""
    made = make_request(
        request.model,
        cluster=load_cluster(str(cluster)),
        global_batch=request.global_batch,
        seq=request.seq,
        precision="fp32",
        runtime=load_runtime(RUNTIME),
        use_cache=True,
    )
    strategy = parse_strategy(request.strategy, global_batch=request.global_batch)
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
    if strategy.pp > 1 and not says_micro_batch(request.strategy):
        raise RequestError(f"strategy {request.strategy}: state the microbatches of a pipeline, such as mb=4")
    return lower(replace(made, strategy=strategy))
