"""One rank of the testbed: builds its part of the model, trains some steps, and writes the spans it recorded.

Started by :mod:`traincast.testbed.run`, one process per rank, with the environment that ``torch.distributed`` reads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _get_current_dispatch_mode

from traincast.cluster import Cluster
from traincast.collector import without_collector
from traincast.forecast import default_cost_model
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.graph.capture.capture import sum_of
from traincast.graph.capture.recorder import gpu_kernels
from traincast.graph.optimizers import optimizer_called
from traincast.graph.zoo import Traceable
from traincast.processes.run import end_at_once
from traincast.profiling.events.steps import optimizer_of
from traincast.profiling.monitor.device_counter import DeviceCounter
from traincast.profiling.operators.in_model import ValidTargets, inputs_of, materialize, traceable_of
from traincast.profiling.timing import disturbed, longest_delay_s, thread_delays_s
from traincast.strategy import Lowered
from traincast.strategy.lower import Layout
from traincast.strategy.mesh import Axis
from traincast.testbed.events import EVENTS_FILE
from traincast.testbed.parallel import data, tensor
from traincast.testbed.parallel.bed import Bed
from traincast.testbed.parallel.model import StageModules, layers_of, parts_of, tied_weight
from traincast.testbed.rank.emulate import DeviceClock, Emulation, SecondsOfOperators
from traincast.testbed.rank.recorder import SpanRecorder, now, sleep_until
from traincast.testbed.rank.rounds import EventRounds
from traincast.testbed.request import RunRequest
from traincast.testbed.setup import lowered_of

_LEADS_S: Final = (0.05, 0.25, 1.0)
"""All ranks start a step this long after they have agreed on it; the next of these if one has less than half left."""
_MOST_STEPS: Final = 2
"""If other processes disturb steps, at most this many times the steps that were asked for run."""


class _Targets(ValidTargets):
    """Leaves the targets of emulated steps unset: nothing is computed from them."""

    def needed(self) -> bool:
        return not isinstance(_get_current_dispatch_mode(), Emulation)


class Worker:
    """A rank that is ready to train: :meth:`step` runs one step.

    Of the last step, ``lost_s`` are the seconds by which its host delayed the emulated device, and ``waited_s`` those
    for which the thread that waited longest could run but waited for a core.
    """

    def __init__(self, request: RunRequest, lowered: Lowered, rank: int) -> None:
        self.request, self.lowered, self.rank = request, lowered, rank
        self.strategy = lowered.request.strategy
        mesh = lowered.prepared.mesh
        self.at = {axis: mesh.coordinate(rank, axis) for axis in ("dp", "tp", "pp")}
        self.lost_s = self.waited_s = self._late_s = 0.0
        self._delays: dict[str, float] = {}
        self.bed = self._bed(lowered.request.cluster)
        self.traceable = traceable_of(request.model, seq=request.seq)
        self.micro = request.global_batch // (self.strategy.dp * self.strategy.num_microbatches)
        materialize(self.traceable.module, device="cpu", dtype=torch.float32)
        self.traceable.module.train()
        self.parts = self._parts()
        self.inputs = self._inputs()
        self.run = self._pipelined() if self.strategy.pp > 1 else self._microbatches()
        self.optimize = self._optimizer()

    def _bed(self, cluster: Cluster) -> Bed:
        recorder = SpanRecorder()
        if not self.request.emulated:
            DeviceCounter.asked_for()  # tells a sampler that this rank has begun
            return Bed(recorder=recorder)
        own = cluster.kinds()[cluster.kind_of_device()[self.rank]]
        clock = DeviceClock(DeviceCounter.asked_for(memory_rate=own.device.memory_bandwidth))
        seconds = SecondsOfOperators(default_cost_model(), own, factor=self.request.factor(self.rank))
        return Bed(recorder=recorder, clock=clock, emulation=Emulation(seconds, clock, recorder))

    def _group(self, axis: Axis, *, ends: bool = False) -> Any:
        """The process group of this rank along ``axis``, or of its first and last rank; every rank makes all groups."""
        mesh = self.lowered.prepared.mesh
        mine = None
        done: set[tuple[int, ...]] = set()
        for rank in range(mesh.num_ranks):
            members = tuple(int(r) for r in mesh.group(rank, axis))
            members = (members[0], members[-1]) if ends else members
            if members not in done:
                done.add(members)
                group = dist.new_group(list(members))
                if self.rank in members:
                    mine = group
        return mine

    def _parts(self) -> StageModules:
        module, strategy = self.traceable.module, self.strategy
        if strategy.tp > 1:
            tensor.split(layers_of(module), self._mesh("tp"))
        parts = parts_of(module, self.lowered, self.at["pp"])
        if strategy.dp == 1:
            return parts
        if strategy.zero == 3:
            mesh = self._mesh("dp")
            wrapped = tuple(data.sharded(part, layers_of(part), self.bed, mesh) for part in parts.modules)
        else:
            group = self._group("dp")
            wrapped = tuple(data.replicated(part, self.bed, group) for part in parts.modules)
        return StageModules(modules=wrapped, indices=parts.indices, num_stages=parts.num_stages)

    def _mesh(self, axis: Axis) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = self.lowered.prepared.mesh
        axes: tuple[Axis, ...] = ("pp", "dp", "tp")
        order = sorted(axes, key=lambda a: -mesh.stride(a))
        whole = init_device_mesh("cpu", tuple(mesh.degree(a) for a in order), mesh_dim_names=tuple(order))
        return whole[axis]

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        """One microbatch of inputs."""
        return inputs_of(self.traceable, self.traceable.module, batch=self.micro, device="cpu", dtype=torch.float32)

    def _microbatches(self) -> Callable[[], None]:
        """Forward and backward of every microbatch, one after the other."""
        module, count = self.parts.modules[0], self.strategy.num_microbatches

        def run() -> None:
            for number in range(count):
                self.bed.recorder.microbatch = number
                with data.accumulating(module, syncs=number == count - 1):
                    with self.bed.span("forward"):
                        loss = loss_of(self.traceable, module(*self.inputs))
                    with self.bed.span("backward"):
                        loss.backward()

        return run

    def _pipelined(self) -> Callable[[], None]:
        from traincast.testbed.parallel.pipeline import schedule_of

        count, parts = self.strategy.num_microbatches, self.parts
        schedule = schedule_of(
            self.strategy.schedule,
            parts.modules,
            parts.indices,
            num_stages=parts.num_stages,
            microbatches=count,
            group=self._group("pp"),
            loss=lambda output: loss_of(self.traceable, output),
            bed=self.bed,
        )
        whole = tuple(torch.cat([t] * count) for t in self.inputs)
        first, last = 0 in parts.indices, parts.num_stages - 1 in parts.indices
        target = torch.zeros(self.micro * count)

        tied = self._tied_weights()

        def run() -> None:
            schedule.step(*(whole if first else ()), **({"target": target, "losses": []} if last else {}))
            tied()

        return run

    def _tied_weights(self) -> Callable[[], None]:
        """Adds up the gradients of tied weights between the first and the last stage, which have a copy each."""
        if not Layout(request=self.lowered.request, prepared=self.lowered.prepared).tied_stages:
            return lambda: None
        group = self._group("pp", ends=True)
        found = [weight for part in self.parts.modules if (weight := tied_weight(part)) is not None]
        if not found:
            return lambda: None

        def add_up() -> None:
            gradient = found[0].grad
            local = getattr(gradient, "to_local", lambda: gradient)()
            nbytes = float(local.numel() * local.element_size())
            self.bed.blocking("pp gradients of tied weights", nbytes, lambda: dist.all_reduce(local, group=group))

        return add_up

    def _optimizer(self) -> Callable[[], None]:
        """The update of this rank's parameters."""
        parameters = [p for part in self.parts.modules for p in part.parameters() if p.requires_grad]
        local = [getattr(p, "to_local", lambda p=p: p)() for p in parameters]
        name = self.traceable.optimizer
        if self.bed.emulation is not None:
            update = update_of(name, sum(t.numel() for t in local))
            emulation = self.bed.emulation
            return lambda: emulation.update(update)
        made = optimizer_of(self.traceable, parameters)

        def optimize() -> None:
            with self.bed.span("optimizer"):
                made.step()

        return optimize

    def step(self, number: int) -> tuple[float, float]:
        """Run step ``number``; returns its start, common to all ranks, and this rank's end."""
        self.bed.recorder.step, self.bed.recorder.microbatch = number, -1
        for part in self.parts.modules:
            part.zero_grad(set_to_none=True)
        start = self._at_once() if self.request.back_to_back and number else self._start()
        with self._mode():
            self.run()
        self.bed.device_done()
        self.lost_s = self._lost_s()
        self.bed.device_waited()
        self.bed.recorder.microbatch = -1
        self.optimize()
        end = now()
        self.waited_s = longest_delay_s(self._delays) + self._late_s
        return start, end

    def _lost_s(self) -> float:
        """Seconds that the host of an emulated device cost: messages left late, or it was late to see the last one."""
        clock = self.bed.clock
        if clock is None:
            return 0.0
        reduces = self.strategy.dp > 1 and not self.strategy.zero and self.strategy.pp == 1
        return clock.lost_s() + (max(0.0, now() - max(self.bed.reduced, clock.free)) if reduces else 0.0)

    @contextmanager
    def _mode(self) -> Iterator[None]:
        """How a step runs: as real training does, or on an emulated device."""
        if self.bed.emulation is None:
            with without_collector():
                yield
        else:
            with gpu_kernels(), self.bed.emulation:
                yield

    def _at_once(self) -> float:
        """Begin a step without a word to other ranks."""
        self._delays, self._late_s = thread_delays_s(), 0.0
        self.bed.device_waited()
        return now()

    def _start(self) -> float:
        """Agree with all ranks on a time, and wait for it; a core that computes stays awake.

        A rank that is late all the same has waited for a core: the step counts as disturbed, and is repeated.
        """
        for lead in _LEADS_S:
            when = torch.zeros(1, dtype=torch.float64)
            dist.barrier()
            if self.rank == 0:
                when[0] = now() + lead
            dist.broadcast(when, 0)
            start = float(when[0])
            left = torch.tensor([start - now()], dtype=torch.float64)
            dist.all_reduce(left, dist.ReduceOp.MIN)
            if float(left[0]) > lead / 2:
                break
        self._delays = thread_delays_s()
        self._late_s = max(0.0, now() - start)
        if self.request.emulated:
            sleep_until(start)
        while now() < start:
            pass
        if self.bed.clock is not None:
            self.bed.clock.free = start
        return start


def loss_of(model: Traceable, output: Any) -> torch.Tensor:
    """The loss of an output, with valid targets."""
    if model.loss is None:
        return sum_of(output)
    with _Targets():
        return model.loss(output)


def update_of(optimizer: str, parameters: int) -> Operator:
    """The update of all ``parameters`` of a rank, as a plan has it."""
    spec = TensorSpec((max(1, parameters),), DType.FP32)
    states = optimizer_called(optimizer).states
    return Operator(
        name=optimizer,
        kind=OpKind.OPTIMIZER,
        phase=Phase.OPTIMIZER,
        inputs=(spec,) * (2 + states),
        outputs=(spec,) * (1 + states),
    )


def train(worker: Worker, rounds: EventRounds) -> dict[str, Any]:
    """Run the steps of a request, with a round of events after each; return when they ran and which of them count.

    A step that other processes disturbed does not count: another takes its place, as long as there are at most twice
    as many as asked for. Steps without a common start follow one another, and all of them count.
    """
    request = worker.request
    times = [worker.step(number) for number in range(request.warmup)]
    shares: list[float] = []
    lost: list[float] = []
    if not request.back_to_back:
        rounds.warm_up(times[-1][1] - times[-1][0])
    while wants_another(shares, request):
        times.append(worker.step(len(times)))
        start, end = times[-1]
        shares.append(worker.waited_s / (end - start))
        lost.append(worker.lost_s / (end - start))
        if not request.back_to_back:
            most = torch.tensor([shares[-1], lost[-1]], dtype=torch.float64)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            shares[-1], lost[-1] = most.tolist()
            rounds.round()
    return {"times": times, "waited": shares, "lost": lost, "counted": counted_steps(shares, request)}


def wants_another(shares: Sequence[float], request: RunRequest) -> bool:
    """Whether more steps must run, after those that waited for a core for these ``shares`` of their time."""
    if request.back_to_back:
        return len(shares) < request.steps
    return len(counted_steps(shares, request)) < request.steps and len(shares) < _MOST_STEPS * request.steps


def counted_steps(shares: Sequence[float], request: RunRequest) -> list[int]:
    """The numbers of the steps that count; steps before the first of ``shares`` warm up."""
    noisy = [False] * len(shares) if request.back_to_back else disturbed(shares)
    quiet = [request.warmup + number for number, out in enumerate(noisy) if not out]
    return quiet[: request.steps]


def main(request_path: str, output: str) -> None:
    """Train the steps of a request as the rank that the environment names."""
    place = Path(output)
    request = RunRequest.from_json(Path(request_path).read_text(encoding="utf-8"))
    events = json.loads((place / EVENTS_FILE).read_text(encoding="utf-8")) if request.events else None
    torch.set_num_threads(request.threads)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    worker = Worker(request, lowered_of(request, place / "cluster.toml"), rank)
    rounds = EventRounds(events, rank=rank, ranks=request.ranks)
    trained = train(worker, rounds)
    counted = set(trained["counted"])
    rows = [row for row in worker.bed.recorder.rows if row.step in counted]
    ran = worker.bed.emulation.ran if worker.bed.emulation is not None else set()
    facts = {"rank": rank, **trained, "rows": rows, "ran": sorted(ran), "events": rounds.facts()}
    (place / f"rank{rank}.json").write_text(json.dumps(facts), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_at_once()
