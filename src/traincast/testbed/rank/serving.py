"""Runs with parameter servers: one process for each worker and each server.

What workers and servers do is in :mod:`traincast.testbed.parallel.servers`. With emulated compute, the pieces of the
model and their seconds are those of the forecast; with real compute, pieces are blocks of a transformer, and servers
update by SGD. Started as a program, this module is one of these processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.ask import Conditions
from traincast.cluster import load_cluster
from traincast.forecast import predict
from traincast.profiling.monitor.device_counter import DeviceCounter
from traincast.profiling.operators.in_model import inputs_of, materialize, traceable_of
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.servers import ends_of_steps, measure
from traincast.strategy.servers.setup import Piece
from traincast.strategy.servers.tasks import ServerRole
from traincast.testbed.parallel.counted import CountedPasses
from traincast.testbed.parallel.server_spans import ServerSpan, rows_of, timeline_of
from traincast.testbed.parallel.servers import EmulatedPasses, Passes, Updates, run_servers, shards_of
from traincast.testbed.request import RunRequest
from traincast.testbed.setup import RUNTIME

_RATE = 1e-3
"""The learning rate of servers that really update."""


def server_job(request: RunRequest, cluster: Path) -> ServerJob:
    """The workers, servers and pieces of a request: those of the forecast or, with real compute, blocks of modules."""
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
    if request.emulated:
        return job
    from traincast.testbed.parallel.model import blocks_of

    blocks = blocks_of(traceable_of(request.model, seq=request.seq).module)
    sizes = [4.0 * sum(p.numel() for p in block.parameters() if p.requires_grad) for block in blocks]
    return replace(job, pieces=tuple(Piece(forward_s=0.0, backward_s=0.0, nbytes=size) for size in sizes))


def _memory_rate(request: RunRequest, rank: int, cluster: Path) -> float:
    """Bytes per second that the memory of a worker's emulated device moves; 0 if there is none."""
    emulated = request.emulated and rank < request.ranks
    return load_cluster(str(cluster), hosts=True).device.memory_bandwidth if emulated else 0.0


def _emulated(job: ServerJob, rank: int, counter: DeviceCounter | None) -> tuple[Passes | None, Updates | None]:
    """The passes of an emulated worker that a sampler watches; everything else is emulated as usual."""
    if counter is None or rank >= job.setup.workers:
        return None, None
    device = CountedPasses(job, rank, counter)
    return EmulatedPasses(job.setup, job.pieces, shards_of(job.setup, job.pieces), rank, device=device), None


def _real(request: RunRequest, job: ServerJob, rank: int) -> tuple[Passes | None, Updates | None]:
    """What a worker or a server really computes."""
    import torch

    from traincast.testbed.parallel.model import blocks_of
    from traincast.testbed.parallel.served import BlockPasses, SgdUpdates, shard_weights
    from traincast.testbed.rank.worker import loss_of

    torch.set_num_threads(request.threads)
    model = traceable_of(request.model, seq=request.seq)
    materialize(model.module, device="cpu", dtype=torch.float32)
    model.module.train()
    blocks, parts = blocks_of(model.module), shards_of(job.setup, job.pieces)
    if rank >= job.setup.workers:
        return None, SgdUpdates(parts, shard_weights(blocks, parts), workers=job.setup.workers, rate=_RATE)
    batch = request.global_batch // job.setup.workers
    inputs = inputs_of(model, model.module, batch=batch, device="cpu", dtype=torch.float32)
    return BlockPasses(blocks, parts, inputs[0], lambda output: loss_of(model, output)), None


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
    names = [f"block {number}" for number in range(len(job.pieces))]
    counted = [span for span in spans if span.step >= warmup]
    rows = [
        row.columns(rank, step=row.step - warmup, start=starts[row.step])
        for rank, row in rows_of(job.setup, counted, names)
        if row.category == "optimizer" or rank < job.setup.workers
    ]
    return measure(job.setup, timeline).step_s, seconds, rows


def window_of(spans: Sequence[ServerSpan], *, warmup: int) -> tuple[float, float]:
    """The time in which all workers run counted steps: from the last first forward to the first last backward."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for span in spans:
        if span.role == ServerRole.FORWARD and span.step == warmup:
            first[span.worker] = min(first.get(span.worker, span.start), span.start)
        elif span.role == ServerRole.BACKWARD:
            last[span.worker] = max(last.get(span.worker, span.end), span.end)
    return max(first.values()), min(last.values())


def main(request_path: str, output: str) -> None:
    """Run all steps as the worker or server that the environment names."""
    import torch.distributed as dist

    request = RunRequest.from_json(Path(request_path).read_text(encoding="utf-8"))
    rank = int(os.environ["RANK"])
    job = server_job(request, Path(output) / "cluster.toml")
    dist.init_process_group("gloo")
    store = dist.PrefixStore("servers", dist.distributed_c10d._get_default_store())
    counter = DeviceCounter.asked_for(memory_rate=_memory_rate(request, rank, Path(output) / "cluster.toml"))
    passes, updates = _emulated(job, rank, counter) if request.emulated else _real(request, job, rank)
    steps = request.warmup + request.steps
    spans = run_servers(rank, job.setup, job.pieces, steps=steps, store=store, passes=passes, updates=updates)
    (Path(output) / f"rank{rank}.json").write_text(json.dumps(spans), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
