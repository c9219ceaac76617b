"""Runs with parameter servers: one process for each worker and each server.

What workers and servers do is in :mod:`traincast.testbed.parallel.servers`. With emulated compute, the pieces of the
model and their seconds are those of the forecast; with real compute, pieces are blocks of a transformer, and servers
update by SGD. Started as a program, this module is one of these processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from traincast.ask import Conditions
from traincast.cluster import load_cluster
from traincast.forecast import predict
from traincast.processes.run import end_at_once
from traincast.profiling.monitor.device_counter import DeviceCounter
from traincast.profiling.operators.in_model import inputs_of, materialize, traceable_of
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.servers import ends_of_steps, measure
from traincast.strategy.program.item import Item
from traincast.strategy.servers.setup import Piece
from traincast.strategy.servers.tasks import ServerRole
from traincast.testbed.parallel.servers import (
    EmulatedPasses,
    Passes,
    ServerSpan,
    Shard,
    Updates,
    rows_of,
    run_servers,
    shards_of,
    timeline_of,
)
from traincast.testbed.rank.recorder import now, sleep_until
from traincast.testbed.request import RunRequest
from traincast.testbed.setup import RUNTIME
from traincast.work import demand_of

Floats32 = npt.NDArray[np.float32]


def parameters_of(block: nn.Module) -> Floats32:
    """Returns all trained parameters of a block, one after the other: what its piece holds."""
    trained = [p.detach().reshape(-1) for p in block.parameters() if p.requires_grad]
    flat: Floats32 = torch.cat([torch.empty(0), *trained]).numpy()
    return flat


class BlockPasses:
    """The passes of a worker through ``blocks``, which follow one another; the last is followed by ``loss``.

    The parameters of a block move into one array, and so do its gradients: they are pushed from there and pulled to
    there. A block takes one tensor and returns one.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        parts: Sequence[Shard],
        inputs: torch.Tensor,
        loss: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._blocks, self._parts, self._loss = blocks, parts, loss
        self._weights = [torch.from_numpy(parameters_of(block)) for block in blocks]
        self._gradients = [torch.zeros_like(flat) for flat in self._weights]
        for block, weights, gradients in zip(blocks, self._weights, self._gradients, strict=True):
            _move(block, weights, gradients)
        self._inputs = [inputs] + [torch.empty(0)] * (len(blocks) - 1)
        self._outputs = [torch.empty(0)] * len(blocks)

    def run(self, piece: int, *, backward: bool, earliest: float) -> tuple[float, float]:
        """Runs a pass through a block; piece −1 only waits until ``earliest``."""
        sleep_until(earliest)
        start = now()
        if piece >= 0:
            (self._backward if backward else self._forward)(piece)
        return start, now()

    def gradient(self, shard: int) -> memoryview:
        """The gradient of a shard."""
        return _part(self._gradients[self._parts[shard].piece].numpy(), self._parts[shard])

    def weights(self, shard: int) -> memoryview:
        """The parameters of a shard."""
        return _part(self._weights[self._parts[shard].piece].numpy(), self._parts[shard])

    def _forward(self, piece: int) -> None:
        if piece:
            self._inputs[piece] = self._outputs[piece - 1].detach().requires_grad_()
        output = self._blocks[piece](self._inputs[piece])
        self._outputs[piece] = self._loss(output) if piece == len(self._blocks) - 1 else output

    def _backward(self, piece: int) -> None:
        self._gradients[piece].zero_()
        follows = piece + 1 < len(self._blocks)
        self._outputs[piece].backward(self._inputs[piece + 1].grad if follows else None)


class SgdUpdates:
    """A server that subtracts ``rate`` times the mean of the gradients it is given.

    ``weights`` are the parameters of all shards at the start; those of other servers may be empty.
    """

    def __init__(self, parts: Sequence[Shard], weights: Sequence[Floats32], *, workers: int, rate: float) -> None:
        self._parts, self._rate = parts, rate
        self._weights = [flat.copy() for flat in weights]
        self._pushed = [[np.empty_like(flat) for _ in range(workers)] for flat in self._weights]

    def room(self, shard: int, worker: int) -> memoryview:
        """The memory of a worker's gradient."""
        return _bytes(self._pushed[shard][worker])

    def apply(self, shard: int, workers: Sequence[int], *, earliest: float) -> tuple[float, float]:
        """Updates a shard by the gradients of ``workers``."""
        start = max(now(), earliest)
        step = self._rate / len(workers)
        for worker in sorted(workers):
            self._weights[shard] -= step * self._pushed[shard][worker]
        return start, now()

    def weights(self, shard: int) -> memoryview:
        """The parameters of a shard."""
        return _bytes(self._weights[shard])


def shard_weights(blocks: Sequence[nn.Module], parts: Sequence[Shard]) -> list[Floats32]:
    """Returns the parameters of every shard of a model."""
    flat = [parameters_of(block) for block in blocks]
    return [np.frombuffer(_part(flat[part.piece], part), dtype=np.float32) for part in parts]


def _move(block: nn.Module, weights: torch.Tensor, gradients: torch.Tensor) -> None:
    """Lets the trained parameters of a block and their gradients live in two arrays."""
    offset = 0
    for parameter in block.parameters():
        if parameter.requires_grad:
            end = offset + parameter.numel()
            parameter.data = weights[offset:end].view_as(parameter)
            parameter.grad = gradients[offset:end].view_as(parameter)
            offset = end


def _bytes(flat: Floats32) -> memoryview:
    return flat.view(np.uint8).data


def _part(flat: Floats32, part: Shard) -> memoryview:
    return _bytes(flat)[part.offset : part.offset + part.nbytes]


_LEAST_SLEEP_S: Final = 1e-3
"""The counter may be this far ahead of the device."""


class _Share(NamedTuple):
    """An operator: its share of the time of its pass, and the bytes that it moves."""

    time: float
    nbytes: float


class CountedPasses:
    """Counts the operators of every piece while a worker with parameter servers sleeps through its passes."""

    def __init__(self, job: ServerJob, worker: int, counter: DeviceCounter) -> None:
        kind = job.setup.kind(worker)
        seconds = dict(zip(job.works, job.seconds[kind].tolist(), strict=True))
        self._counter = counter
        self._passes = [
            [
                _shares([(seconds[i.work], i) for i in items] * job.num_microbatches)
                for items in (program.forward, program.backward)
            ]
            for program in job.programs[kind]
        ]

    def run(self, piece: int, *, backward: bool, start_s: float, end_s: float) -> None:
        """Counts the operators of a pass between two moments, each as it begins."""
        at, whole = start_s, end_s - start_s
        for share in self._passes[piece][backward]:
            until = at + share.time * whole
            self._counter.add(at, until, share.nbytes)
            at = until
            if at - now() > _LEAST_SLEEP_S:
                sleep_until(at)


def _shares(items: Sequence[tuple[float, Item]]) -> list[_Share]:
    whole = sum(seconds for seconds, _ in items)
    return [_Share(seconds / whole, demand_of(item.work).memory_access_bytes) for seconds, item in items if seconds]


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
    end_at_once()
