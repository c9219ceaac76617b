"""Run a model and time every operator in it.

Repeated blocks are cut to two, as in a capture, so that the operators of a large model can be timed on a machine that
could not hold all its layers. Weights and inputs are random: times do not depend on their values.
"""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict
from collections.abc import Container
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from traincast.errors import TraincastError
from traincast.estimate.events.keys import operator_key
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec, zoo
from traincast.graph.capture.aten import describe
from traincast.graph.capture.capture import sum_of
from traincast.graph.capture.own_modules import load_factory
from traincast.graph.capture.recorder import gpu_kernels
from traincast.graph.capture.repeats import folded
from traincast.graph.load import load_model
from traincast.graph.optimizers import optimizer_called
from traincast.graph.vocabulary import FREE
from traincast.graph.zoo import Traceable
from traincast.profiling.operators.executors import executor_of
from traincast.profiling.operators.tensors import CannotRunError
from traincast.profiling.timing import SLOW_RATE, Timing
from traincast.units import format_bytes, format_seconds

_DTYPES: Final = {
    torch.float64: DType.FP64,
    torch.float32: DType.FP32,
    torch.float16: DType.FP16,
    torch.bfloat16: DType.BF16,
    torch.int64: DType.INT64,
    torch.int32: DType.INT32,
    torch.int16: DType.INT16,
    torch.int8: DType.INT8,
    torch.uint8: DType.INT8,
    torch.bool: DType.BOOL,
}
HALF: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_INIT: Final = 0.02
_MAKES_UNSET: Final = (torch.empty, torch.empty_like, torch.Tensor.new_empty)
_UNSET: Final = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty"})


class ValidTargets(TorchFunctionMode):  # type: ignore[misc]
    """Makes the targets that a loss of the zoo leaves unset valid ones: zeros."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.zero_() if func in _MAKES_UNSET and self.needed() else out

    def needed(self) -> bool:
        """Whether something is computed from the targets."""
        return True


class CannotRunModelError(Exception):
    """The model cannot be run here; the message is the reason."""


def run_model(
    spec: str,
    *,
    batch: int,
    seq: int | None,
    precision: str,
    device: str,
    steps: int,
    memory: float = math.inf,
    seconds: float = math.inf,
) -> list[tuple[Operator, Timing]]:
    """Run training steps of ``spec``; return each distinct operator with its time over ``steps`` steps.

    One more step warms up. If all steps would take longer than ``seconds``, fewer are run, but at least one.
    """
    traceable = traceable_of(spec, seq=seq)
    activations = _check_size(spec, seq=seq, batch=batch, device=device, memory=memory, seconds=seconds)
    failure: Exception | None = None
    for fold in (True, False):  # repeated blocks may be indexed by number
        try:
            return _run(
                traceable,
                fold=fold,
                batch=batch,
                precision=precision,
                device=device,
                steps=steps,
                memory=memory - activations,
                seconds=seconds,
            )
        except (CannotRunModelError, TraincastError):
            raise
        except Exception as error:  # the module's own code may raise anything
            failure = failure or error
    assert failure is not None, "both attempts failed"
    reason = " ".join(str(failure).split())[:200] or type(failure).__name__
    raise CannotRunModelError(f"{type(failure).__name__}: {reason}") from failure


def traceable_of(spec: str, *, seq: int | None) -> Traceable:
    """Return the module of a model of the zoo or of a user's factory; refuse what is not one module with one loss."""
    if spec.endswith((".json", ".onnx")):
        raise CannotRunModelError("a file of operators has no module to run")
    own = ":" in spec and spec.partition(":")[0] not in zoo.FAMILIES
    found = load_factory(spec, seq=seq) if own else zoo.build(spec, seq=seq)
    if found.losses is not None or found.optimizers:
        raise CannotRunModelError("a step with several losses or optimizers cannot be timed")
    return found


def _check_size(spec: str, *, seq: int | None, batch: int, device: str, memory: float, seconds: float) -> float:
    """Bytes kept for backward, with repeated blocks cut to two; refuses a model that is far too large or slow."""
    graph = load_model(spec, seq=seq, use_cache=True)
    kept, flops = 0.0, 0.0
    for block in graph.blocks:
        for index in (*block.forward, *block.backward):
            operator = graph.operators[index].with_batch(batch)
            kept += sum(t.nbytes for t in operator.saved) * min(block.count, 2)
            flops += operator.flops * min(block.count, 2)
    if kept > memory:
        raise CannotRunModelError(
            f"needs {format_bytes(kept)} for activations, but {format_bytes(memory)} are free: use a smaller batch"
        )
    if device == "cpu" and flops / SLOW_RATE > 10 * seconds:
        raise CannotRunModelError(f"a step may take {format_seconds(flops / SLOW_RATE)}, far more than --seconds")
    return kept


def _run(
    traceable: Traceable,
    *,
    fold: bool,
    batch: int,
    precision: str,
    device: str,
    steps: int,
    memory: float,
    seconds: float,
) -> list[tuple[Operator, Timing]]:
    cut: AbstractContextManager[Any] = folded(traceable.module) if fold else nullcontext()
    with cut:
        module = copy.deepcopy(traceable.module)
    weights = sum(p.numel() for p in module.parameters()) * 4.0
    need = weights * (2 + optimizer_called(traceable.optimizer).states) * 1.2
    if need > memory:
        raise CannotRunModelError(
            f"needs {format_bytes(need)} for weights, gradients and optimizer, but {format_bytes(memory)} are free"
        )
    dtype = HALF.get(precision, torch.float32)
    materialize(module, device=device, dtype=dtype)
    module.train()
    inputs = inputs_of(traceable, module, batch=batch, device=device, dtype=dtype)
    watch = _Watch(device)
    start = time.monotonic()
    for step in range(steps + 1):
        _step(traceable, module, inputs, watch)
        if step == 0:
            watch.forget()
        elif time.monotonic() - start > seconds:
            break
    return watch.timings()


def materialize(module: torch.nn.Module, *, device: str, dtype: torch.dtype) -> None:
    """Give ``module`` real tensors with harmless values; shared tensors stay shared."""
    made: dict[int, torch.Tensor] = {}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            floating = tensor.is_floating_point()
            shape, kind = tuple(tensor.shape), dtype if floating else tensor.dtype
            parameter = isinstance(tensor, torch.nn.Parameter)
            if floating and parameter and len(shape) > 1:
                value = torch.randn(shape, device=device, dtype=kind) * _INIT
            elif floating:
                value = torch.ones(shape, device=device, dtype=kind)
            else:
                value = torch.zeros(shape, device=device, dtype=kind)
            made[id(tensor)] = torch.nn.Parameter(value, tensor.requires_grad) if parameter else value
        return made[id(tensor)]

    for child in module.modules():
        for tensors in (child._parameters, child._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = real(tensor)


def inputs_of(
    traceable: Traceable, module: torch.nn.Module, *, batch: int, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Random inputs; integers stay below the number of rows of every embedding table."""
    tables = [child.num_embeddings for child in module.modules() if isinstance(child, torch.nn.Embedding)]
    rows = min(tables, default=1)
    made = []
    for example in traceable.inputs(batch):
        if example.is_floating_point():
            made.append(torch.randn(example.shape, device=device, dtype=dtype))
        elif example.dtype is torch.bool:
            made.append(torch.ones(example.shape, device=device, dtype=torch.bool))
        else:
            made.append(torch.randint(0, rows, example.shape, device=device, dtype=example.dtype))
    return tuple(made)


def _step(traceable: Traceable, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], watch: _Watch) -> None:
    """Forward, backward, and the update of each parameter."""
    module.zero_grad(set_to_none=True)
    watch.begin()
    watch.phase = Phase.FORWARD
    watch.parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    with gpu_kernels(), watch:
        output = module(*inputs)
        loss = traceable.loss(output) if traceable.loss is not None else sum_of(output)
        watch.phase = Phase.BACKWARD
        loss.backward()
    for parameter in module.parameters():
        if parameter.grad is not None:
            watch.update(parameter, traceable.optimizer)


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Times every operator that is dispatched.

    The first step warms up and records which operators run in which order. Later steps only take times: any other code
    between two operators would make the next one slower.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.phase = Phase.FORWARD
        self.parameters: set[int] = set()
        self._cuda = device == "cuda"
        self._device = device
        self._script: list[tuple[Any, str]] = []
        self._position = 0
        self._operators: dict[str, Operator] = {}
        self._taken: list[tuple[str, Any, Any]] = []
        self._updates: dict[tuple[str, tuple[int, ...]], tuple[str, Any]] = {}

    def begin(self) -> None:
        """Begin a step."""
        self._position = 0

    def forget(self) -> None:
        """Drop all times so far: they were for warming up."""
        self._taken.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        start = self._now()
        out = func(*args, **kwargs)
        end = self._now()
        position = self._position
        self._position = position + 1
        if position < len(self._script) and self._script[position][0] is func:
            key = self._script[position][1]
        else:
            key = self._learn(func, args, kwargs, out)
        if key:
            self._taken.append((key, start, end))
        return out

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _learn(self, func: Any, args: Any, kwargs: Any, out: Any) -> str:
        """Record that ``func`` runs next; return the key of its operator, or an empty text if it is no operator."""
        if func._schema.name in _UNSET:
            out.zero_()  # a loss leaves labels unset: give it valid ones
        operator = operator_run(func, args, kwargs, out, phase=self.phase, parameters=self.parameters)
        key = ""
        if operator is not None:
            key = operator_key(operator)
            self._operators.setdefault(key, operator)
        if func._schema.name in _UNSET:
            func = None  # so that later steps come here again and set the labels
        if self._position - 1 == len(self._script):
            self._script.append((func, key))
        return key

    def update(self, parameter: torch.Tensor, optimizer: str) -> None:
        """Run and time the update of one parameter, right after the backward pass."""
        where = (optimizer, tuple(parameter.shape))
        if where not in self._updates:
            self._updates[where] = self._build_update(*where)
        key, call = self._updates[where]
        if call is not None:
            start = self._now()
            call()
            self._taken.append((key, start, self._now()))

    def _build_update(self, optimizer: str, shape: tuple[int, ...]) -> tuple[str, Any]:
        spec = TensorSpec(shape, DType.FP32)
        states = optimizer_called(optimizer).states
        operator = Operator(
            name=optimizer,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            inputs=(spec,) * (2 + states),
            outputs=(spec,) * (1 + states),
            parameters=(spec,),
        )
        try:
            call = executor_of(operator, device=self._device)
        except CannotRunError:
            return "", None
        key = operator_key(operator)
        self._operators.setdefault(key, operator)
        return key, call

    def timings(self) -> list[tuple[Operator, Timing]]:
        """Each distinct operator with its time over all its calls."""
        if self._cuda:
            torch.cuda.synchronize()
        samples: defaultdict[str, list[float]] = defaultdict(list)
        for key, start, end in self._taken:
            samples[key].append(start.elapsed_time(end) * 1e-3 if self._cuda else end - start)
        return [(self._operators[key], Timing.of(times)) for key, times in samples.items()]


def operator_run(
    func: Any, args: Any, kwargs: Any, out: Any, *, phase: Phase, parameters: Container[int] = ()
) -> Operator | None:
    """Return the operator that ran, as a capture would describe it; ``None`` for views and for gradients passed on.

    ``parameters`` are the addresses of the storages of the model's parameters.
    """
    name = func._schema.name.split("::")[-1]
    outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
    if func.namespace == "prim" or name in FREE or name.startswith("sym_") or not outputs:
        return None
    if phase is Phase.BACKWARD:
        node = torch._C._current_autograd_node()
        if node is not None and node.name().endswith("AccumulateGrad"):
            return None
    inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    kind, ordered, attributes = describe(name, args, inputs, outputs)
    return Operator(
        name=name,
        kind=kind,
        phase=phase,
        inputs=tuple(without_scratch(spec_of(t), kind) for t in ordered),
        outputs=tuple(without_scratch(spec_of(t), kind) for t in outputs),
        parameters=tuple(spec_of(t) for t in inputs if t.untyped_storage().data_ptr() in parameters),
        attributes=attributes,
    )


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Return the shape and dtype of a tensor."""
    return TensorSpec(tuple(tensor.shape), _DTYPES.get(tensor.dtype, DType.FP32))


def without_scratch(spec: TensorSpec, kind: OpKind) -> TensorSpec:
    """Drop the size of a recurrent layer's scratch memory, which a capture does not have."""
    return TensorSpec((0,), spec.dtype) if kind is OpKind.RNN and spec.dtype is DType.INT8 else spec
