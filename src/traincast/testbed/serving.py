"""Runs with parameter servers: one process for each worker and each server, with emulated compute.

What workers and servers do is in :mod:`traincast.testbed.parallel.servers`; the pieces of the model and their seconds
are those of the forecast. Started as a program, this module is one of these processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast.cluster import load_cluster
from traincast.errors import RequestError
from traincast.forecast import predict
from traincast.simulate import Conditions
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.servers import ends_of_steps, measure
from traincast.strategy.servers import ServerRole
from traincast.testbed.parallel.servers import ServerSpan, run_servers, timeline_of
from traincast.testbed.request import TestbedRequest
from traincast.testbed.setup import RUNTIME

_KINDS: Final = {
    ServerRole.FORWARD: ("compute", "forward", "forward"),
    ServerRole.BACKWARD: ("compute", "backward", "backward"),
    ServerRole.PUSH: ("communication", "communication", "push"),
    ServerRole.PULL: ("communication", "communication", "pull"),
    ServerRole.UPDATE: ("compute", "optimizer", "optimizer"),
}
"""Stream, category and label of the spans of each role."""


def server_job(request: TestbedRequest, cluster: Path) -> ServerJob:
    """The workers, servers and pieces of a request; refuses what cannot be run."""
    if not request.emulated:
        raise RequestError("parameter servers run with emulated compute only: name a device with --compute")
    slow = tuple((rank, factor) for rank, factor in request.slow if factor != 1.0)
    job = predict(
        request.model,
        cluster=load_cluster(str(cluster), hosts=True),
        global_batch=request.global_batch,
        strategy=request.strategy,
        seq=request.seq,
        precision="fp32",
        runtime=RUNTIME,
        conditions=Conditions(slow=slow) if slow else None,
        use_cache=True,
    ).servers
    assert job is not None, "the strategy has parameter servers"
    return job


def served(job: ServerJob, spans: Sequence[ServerSpan], *, warmup: int) -> tuple[float, list[float], list[list[Any]]]:
    """The step time of a run, the seconds of its counted steps, and the rows of its table of spans.

    Spans of a server belong to the rank after those of the workers; a push belongs to the worker that makes it.
    """
    timeline = timeline_of(job.setup, job.pieces, spans)
    ends = ends_of_steps(job.setup, timeline)
    seconds = np.diff(ends, axis=1).mean(axis=0)[warmup - 1 :].tolist()
    starts: dict[int, float] = {}
    for span in spans:
        if span.role == ServerRole.FORWARD:
            starts[span.step] = min(starts.get(span.step, span.start), span.start)
    rows: list[list[Any]] = []
    for span in spans:
        if span.step < warmup:
            continue
        stream, category, label = _KINDS[ServerRole(span.role)]
        rank = job.setup.workers + span.server if span.role == ServerRole.UPDATE else span.worker
        start, end = (time - starts[span.step] for time in (span.start, span.end))
        rows.append([rank, span.step - warmup, -1, stream, category, label, label, start, end, span.nbytes])
    return measure(job.setup, timeline).step_s, seconds, rows


def main(request_path: str, output: str) -> None:
    """Run all steps as the worker or server that the environment names."""
    import torch.distributed as dist

    request = TestbedRequest.from_json(Path(request_path).read_text(encoding="utf-8"))
    rank = int(os.environ["RANK"])
    job = server_job(request, Path(output) / "cluster.toml")
    dist.init_process_group("gloo")
    store = dist.PrefixStore("servers", dist.distributed_c10d._get_default_store())
    spans = run_servers(rank, job.setup, job.pieces, steps=request.warmup + request.steps, store=store)
    (Path(output) / f"rank{rank}.json").write_text(json.dumps(spans), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
