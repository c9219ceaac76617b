"""Times the operators of a model inside whole training steps.

On a processor the host and the device are one core. What autograd, Python, the allocator and page faults take between
two operators therefore belongs to the step. So the time of an operator is the time from its start to the start of the
next operator of the plan, less what watching costs. Watched and plain steps take turns, and the times of the operators
are scaled so that they add up to the mean plain step.

On a GPU the starts are CUDA events on the stream: an operator is the time from its event to the next one, which holds
the gaps in which the device waits for its host. This path could not be run where it was written.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from traincast.collector import without_collector
from traincast.estimate.events.keys import operator_key
from traincast.graph import Operator, Phase
from traincast.graph.capture.capture import sum_of
from traincast.graph.capture.recorder import gpu_kernels
from traincast.graph.capture.repeats import Repeat, folded
from traincast.graph.optimizers import optimizer_called
from traincast.graph.zoo import Traceable
from traincast.profiling.operators.in_model import (
    HALF,
    CannotRunModelError,
    ValidTargets,
    inputs_of,
    materialize,
    operator_run,
    traceable_of,
)
from traincast.profiling.timing import disturbed, quiet, run_queue_delay_s

_LEAST_STEPS: Final = 3
_FLOOR: Final = 0.05
"""An operator keeps at least this share of its watched time, however much the watching seems to have cost."""


@dataclass(slots=True, kw_only=True)
class TrainingStep:
    """A model with real weights, random inputs and its optimizer; calling it runs one training step.

    ``update_s`` has the seconds of the last update, ``waited_s`` those for which the last step waited for a core.
    """

    module: Any
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[[Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    parameter_bytes: float
    repeats: Sequence[Repeat] = ()
    update_s: float = 0.0
    waited_s: float = 0.0

    def __call__(self, watch: OperatorWatch | None = None) -> float:
        """Run one step; return its seconds. With ``watch``, the operators of forward and backward are timed."""
        with without_collector():
            waited = run_queue_delay_s()
            self._synchronize()
            start = time.perf_counter()
            self.optimizer.zero_grad(set_to_none=True)
            if watch is None:
                self._loss().backward()
            else:
                with gpu_kernels(), watch.step():
                    loss = self._loss()
                    watch.phase = Phase.BACKWARD
                    loss.backward()
            self._synchronize()
            middle = time.perf_counter()
            self.optimizer.step()
            self._synchronize()
            end = time.perf_counter()
            self.waited_s = min(run_queue_delay_s() - waited, end - start)
        self.update_s = end - middle
        return end - start

    def _synchronize(self) -> None:
        """Wait for the device, so that the clock of the host can time it."""
        if self.inputs[0].is_cuda:
            torch.cuda.synchronize()

    def _loss(self) -> torch.Tensor:
        output = self.module(*self.inputs)
        with ValidTargets():
            return self.loss(output)


def training_step(
    spec: str, *, batch: int, seq: int | None = None, precision: str = "fp32", device: str = "cpu", fold: bool = False
) -> TrainingStep:
    """Return the training step of a model: random weights and inputs, and PyTorch's fused optimizer.

    With ``fold``, runs of equal layers are cut to two.
    """
    traceable = traceable_of(spec, seq=seq)
    cut: AbstractContextManager[Any] = folded(traceable.module) if fold else nullcontext([])
    with cut as repeats:
        module = copy.deepcopy(traceable.module)
        found = list(repeats)
    dtype = HALF.get(precision, torch.float32)
    materialize(module, device=device, dtype=dtype)
    module.train()
    trained = [p for p in module.parameters() if p.requires_grad]
    return TrainingStep(
        module=module,
        inputs=inputs_of(traceable, module, batch=batch, device=device, dtype=dtype),
        loss=traceable.loss or sum_of,
        optimizer=optimizer_of(traceable, trained),
        parameter_bytes=float(sum(p.numel() for p in trained)) * 4.0,
        repeats=found,
    )


def optimizer_of(traceable: Traceable, trained: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the fused optimizer of a model; AdamW stands in for those that PyTorch does not have."""
    optimizer = optimizer_called(traceable.optimizer)
    make: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, optimizer.torch or "AdamW")
    return make(trained, lr=1e-5, fused=True, **optimizer.arguments)


class OperatorWatch(TorchDispatchMode):  # type: ignore[misc]
    """Notes when each operator starts. The first step learns which operators run, in which order and how often.

    ``weights`` has, for each dispatched call, how many calls of the whole model it stands for.
    """

    def __init__(self, repeats: Sequence[Repeat], module: Any, *, cuda: bool = False) -> None:
        super().__init__()
        self._cuda = cuda
        self._events: list[Any] = []
        self.phase = Phase.FORWARD
        self.operators: list[Operator | None] = []
        self.weights: list[float] = []
        self.learning = True
        self.starts: list[float] = []
        self._inside: list[tuple[int, int, float]] = []
        self._repeats = repeats
        self._module = module

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context in which the operators of one step are timed; the end of the step follows the last start."""
        self.phase = Phase.FORWARD
        self.starts = []
        handles = self._marks() if self.learning else []
        try:
            with self:
                yield
        finally:
            self._note_start()
            self._read_events()
            for handle in handles:
                handle.remove()
            if self.learning:
                self.weights = [1.0 if seq < 0 else self._weight(seq) for seq in self._numbers]
                self.learning = False

    def _note_start(self) -> None:
        """Note that an operator starts now, on the clock of the device that runs it."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self.starts.append(time.perf_counter())

    def _read_events(self) -> None:
        """Turn the events of a GPU into seconds since the first of them."""
        if self._events:
            torch.cuda.synchronize()
            self.starts = [self._events[0].elapsed_time(event) * 1e-3 for event in self._events]
            self._events = []

    def _marks(self) -> list[Any]:
        """Note the range of autograd's sequence numbers that each repeated layer takes."""
        self._numbers: list[int] = []
        self.operators = []
        entered: list[int] = []
        handles = []
        for repeat in self._repeats:
            weight = repeat.count / 2.0
            for scope in (*repeat.scopes[0], *repeat.scopes[1]):
                child = self._module.get_submodule(scope)

                def enter(*_: object) -> None:
                    entered.append(torch._C._autograd._get_sequence_nr())

                def leave(*_: object, weight: float = weight) -> None:
                    self._inside.append((entered.pop(), torch._C._autograd._get_sequence_nr(), weight))

                handles += [child.register_forward_pre_hook(enter), child.register_forward_hook(leave)]
        self._entered = entered
        return handles

    def _weight(self, number: int) -> float:
        weight = 1.0
        for first, last, times in self._inside:
            if first <= number < last:
                weight *= times
        return weight

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note_start()
        if not self.learning:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.phase is Phase.FORWARD:
            number = torch._C._autograd._get_sequence_nr() - 1 if not self._entered else self._current()
        else:
            node = torch._C._current_autograd_node()
            number = node._sequence_nr() if node is not None else -1
        self.operators.append(operator_run(func, args, kwargs, out, phase=self.phase))
        self._numbers.append(number)
        return out

    def _current(self) -> int:
        """Return a number inside the layer that runs now."""
        return max(self._entered[-1], int(torch._C._autograd._get_sequence_nr()) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSteps:
    """What steps of one model took.

    ``operators`` has, for each key, the mean seconds of one call in the whole model. ``update_s`` is the mean of the
    update of all ``parameter_bytes``. ``spread`` is the (least, greatest) plain step over the mean one, 90 % interval.
    ``watching_s`` is what watching cost for each dispatched call.
    """

    operators: dict[str, tuple[Operator, float]]
    plain_s: tuple[float, ...]
    update_s: float
    parameter_bytes: float
    spread: tuple[float, float]
    watching_s: float
    missing: tuple[Operator, ...]

    @property
    def mean_s(self) -> float:
        """Mean seconds of a plain step."""
        return sum(self.plain_s) / len(self.plain_s)


Slowest: TypeAlias = Callable[[list[float]], list[float]]
"""Turns a value of each of this rank's steps into the greatest of all ranks, step by step."""


class StepTimer:
    """Times plain and watched steps in turns, and divides the mean plain step among the operators.

    ``wanted`` are the operators of the plan. Steps in which other processes took the core are left out. If ranks wait
    for one another in every step, ``slowest`` makes the steps of this rank those of the slowest rank. Without
    ``whole``, the plan divides some operators of the model among ranks; the time of these is left out.
    """

    def __init__(
        self, step: TrainingStep, wanted: Sequence[Operator], *, slowest: Slowest | None = None, whole: bool = True
    ) -> None:
        self.watch = OperatorWatch(step.repeats, step.module, cuda=step.inputs[0].is_cuda)
        self._step, self._slowest, self._whole = step, slowest, whole
        self._known = {operator_key(op): op for op in wanted}
        self._plain: list[tuple[float, float]] = []
        self._watched: list[tuple[float, float]] = []
        self._starts: list[list[float]] = []
        self._updates: list[float] = []

    def run(self, *, steps: int, seconds: float, ready: Callable[[int], int] = lambda count: count) -> None:
        """Take up to ``steps`` turns for about ``seconds``, but at least three.

        ``ready`` is called before them with their number, and returns the number that all ranks agreed on.
        """
        count = ready(max(_LEAST_STEPS, min(steps, int(seconds / (2.2 * self.warm_up())))))
        self._step(self.watch)
        for _ in range(count):
            self.turn()

    def warm_up(self) -> float:
        """Run a few steps that do not count; return the seconds of a plain one."""
        self._step()  # the optimizer makes its states
        self._step()  # DistributedDataParallel arranges its buckets anew
        self._step(self.watch)
        return self._step()

    def turn(self) -> None:
        """Run a plain step, then a watched one."""
        self._plain.append((self._step(), self._step.waited_s))
        self._updates.append(self._step.update_s)
        taken_s = self._step(self.watch)
        if len(self.watch.starts) == len(self.watch.operators) + 1:
            self._watched.append((taken_s, self._step.waited_s))
            self._starts.append(self.watch.starts)

    def result(self) -> TimedSteps:
        """Return what the steps took; every rank must ask."""
        if not self._starts:
            raise CannotRunModelError("it runs other operators in every step")
        plain, updates = self._plain, self._updates
        if self._slowest is None:
            kept = quiet_indices(plain)
            counted = [plain[i][0] - plain[i][1] for i in kept]
            updated = [updates[i] * (1.0 - plain[i][1] / plain[i][0]) for i in kept]
        else:  # ranks wait for the slowest of them, and share cores with their own communication: waits count
            noisy = disturbed(self._slowest([waited / seconds for seconds, waited in plain]))
            taken = self._slowest([seconds for seconds, _ in plain])
            counted = [seconds for seconds, out in zip(taken, noisy, strict=True) if not out]
            updated = [seconds for seconds, out in zip(updates, noisy, strict=True) if not out]
        return _composed(
            self.watch,
            self._known,
            counted,
            [_on_core(self._starts[i], *self._watched[i]) for i in quiet_indices(self._watched)],
            update_s=sum(updated) / len(updated),
            parameter_bytes=self._step.parameter_bytes,
            whole=self._whole,
        )


def _on_core(starts: Sequence[float], whole: float, waited: float) -> list[float]:
    """Return ``starts`` from 0, on a clock that stands still while the process waits for a core."""
    share = (whole - waited) / whole
    return [(start - starts[0]) * share for start in starts]


def quiet_indices(samples: Sequence[tuple[float, float]]) -> list[int]:
    """Return the positions of the samples that :func:`quiet` keeps."""
    kept = quiet(samples)
    return [i for i, sample in enumerate(samples) if sample in kept]


def _composed(
    watch: OperatorWatch,
    known: Mapping[str, Operator],
    plain: Sequence[float],
    taken: Sequence[Sequence[float]],
    *,
    update_s: float,
    parameter_bytes: float,
    whole: bool,
) -> TimedSteps:
    """Divide the mean plain step among the operators ``known`` to the plan."""
    keys = ["" if op is None else operator_key(op) for op in watch.operators]
    raw = [sum(row[i + 1] - row[i] for row in taken) / len(taken) for i in range(len(keys))]
    mean_plain = sum(plain) / len(plain)
    passes = mean_plain - update_s
    watching = max(0.0, (sum(raw) - passes) / max(1, len(raw)))
    total: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, float] = defaultdict(float)
    first = next((key for key in keys if key in known), "")
    current, weight, covered = first, 1.0, 0.0
    for key, seconds, times in zip(keys, raw, watch.weights, strict=True):
        if key in known:
            current, weight = key, times
            calls[key] += times
        elif key and not whole:
            current, weight = "", times
        own = max(seconds - watching, _FLOOR * seconds)
        covered += own
        total[current] += own * (weight if key in known else times)
    scale = passes / covered if covered else 1.0
    ordered = sorted(plain)
    low, high = ordered[int(0.05 * len(ordered))], ordered[int(0.95 * (len(ordered) - 1))]
    return TimedSteps(
        operators={key: (known[key], scale * total[key] / calls[key]) for key in calls},
        plain_s=tuple(plain),
        update_s=update_s,
        parameter_bytes=parameter_bytes,
        spread=(low / mean_plain, high / mean_plain),
        watching_s=watching,
        missing=tuple(op for key, op in known.items() if key not in calls),
    )
