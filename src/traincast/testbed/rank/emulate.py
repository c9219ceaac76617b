"""Emulated compute: an operator takes the time that a device of the catalog would need, and computes nothing.

A dispatch mode sees every operator of a real training step. Views, allocations and communication really run. Any other
operator returns tensors of the right shapes without touching them, and the process sleeps until the emulated device
would be done. So autograd, the reducer of DDP, FSDP and pipelines do their real work, with real messages, while four
fast devices run on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from traincast.cluster import Cluster
from traincast.estimate import CostModel
from traincast.estimate.power import estimated
from traincast.graph import Operator, OpKind, Phase, TensorSpec
from traincast.graph.capture.aten import describe
from traincast.graph.vocabulary import FREE
from traincast.profiling.monitor.device_counter import DeviceCounter
from traincast.profiling.operators.in_model import spec_of, without_scratch
from traincast.testbed.rank.recorder import SpanRecorder, now, sleep_until

_LEAST_SLEEP_S: Final = 2e-4
"""Shorter waits are left to the next operator: waking up costs as much."""
_REAL: Final = frozenset({"aten", "traincast"})
"""Namespaces of operators that compute; all others (communication, profiler) really run."""
_FUNCTIONAL: Final = "_c10d_functional"
"""Namespace of the collectives of distributed tensors."""
_TENSOR_COLLECTIVES: Final = frozenset({"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"})
_SEQUENCE_DIMS: Final = 3
_ZEROS_BYTES: Final = 1 << 32
_CATEGORY: Final = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}


class DeviceClock:
    """The time at which an emulated device has finished everything it was given.

    Operators follow one another without a gap, however long the host takes between them: the host of a real
    accelerator runs ahead of it. After a wait for other ranks the device starts again from the present. If the host
    has fallen behind the device when that wait begins, messages leave late. :meth:`lost_s` tells by how much.
    """

    def __init__(self, counter: DeviceCounter | None = None) -> None:
        self.free = now()
        self._counter = counter
        self._behind_s = self._late_s = self._lost_s = self._most_s = 0.0

    def run(self, seconds: float, *, nbytes: float = 0.0) -> tuple[float, float]:
        """Occupy the device; returns start and end, and comes back when the device is done or nearly so.

        Its memory moves ``nbytes`` meanwhile, which a sampler sees.
        """
        start = self.free
        self.free = start + seconds
        if self._counter is not None:
            self._counter.add(start, self.free, nbytes)
        self._behind_s = now() - self.free
        if self._behind_s < -_LEAST_SLEEP_S:
            sleep_until(self.free)
        return start, self.free

    def finish(self) -> None:
        """Wait until the device is done: something else, such as a message, depends on it."""
        self._late_s = max(0.0, self._behind_s)
        self._most_s = max(self._most_s, self._late_s)
        sleep_until(self.free)

    def resume(self) -> None:
        """Start from now: the process has waited for something that the device does not do."""
        self._lost_s += self._late_s
        self._behind_s = self._late_s = 0.0
        self.free = max(self.free, now())

    def lost_s(self) -> float:
        """Seconds by which the host made messages late since the last call.

        Delays of messages that follow one another add up; if the longest single delay is larger, it counts instead.
        """
        lost = max(self._lost_s + max(0.0, self._behind_s), self._most_s)
        self._behind_s = self._late_s = self._lost_s = self._most_s = 0.0
        return lost


class SecondsOfOperators:
    """The seconds that a device of the catalog needs for an operator, times the ``factor`` of a slow rank."""

    def __init__(self, model: CostModel, cluster: Cluster, *, factor: float = 1.0) -> None:
        self._model, self._cluster, self._factor = model, cluster, factor

    def __call__(self, operator: Operator) -> float:
        """Seconds of one operator."""
        return float(estimated(self._model, [operator], self._cluster).seconds[0]) * self._factor


class _Output(NamedTuple):
    """A tensor to make: its shape, strides and dtype; or the number of the argument that is returned."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    argument: int = -1


class _Action(NamedTuple):
    """What to do for a call: run it, or take ``seconds`` and return ``outputs``."""

    runs: bool
    seconds: float = 0.0
    nbytes: float = 0.0
    name: str = ""
    category: str = ""
    outputs: tuple[_Output | None, ...] = ()
    single: bool = True


_RUN: Final = _Action(runs=True)


class Emulation(TorchDispatchMode):  # type: ignore[misc]
    """A mode in which operators take the time of an emulated device and leave their outputs unset.

    All outputs share one buffer of zeros that nothing reads but communication, so they take no memory and no time.
    """

    def __init__(self, seconds_of: Callable[[Operator], float], clock: DeviceClock, recorder: SpanRecorder) -> None:
        super().__init__()
        self._seconds_of, self._clock, self._recorder = seconds_of, clock, recorder
        self._actions: dict[Any, _Action] = {}
        self._views: set[Any] = set()
        self._copies: set[Any] = set()
        self._zeros = np.zeros(_ZEROS_BYTES, dtype=np.uint8)  # pages exist when they are touched
        self.ran: set[str] = set()
        self.phase = Phase.FORWARD

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if kind is FakeTensor:
                return func(*args, **kwargs)  # distributed tensors find shapes with them
            if kind is not torch.Tensor and kind is not torch.nn.Parameter:
                return NotImplemented  # a distributed tensor first becomes the operators of its own shard
        if func in self._views:
            return func(*args, **kwargs)
        if func in self._copies or _copies_shards(func):
            self._copies.add(func)
            return None
        if func.namespace not in _REAL:
            return self._communicated(func, args, kwargs) if func.namespace == _FUNCTIONAL else func(*args, **kwargs)
        if _is_free(func):
            self._views.add(func)
            return func(*args, **kwargs)
        bookkeeping = self.phase is Phase.BACKWARD and _between_passes()
        key = (func, self.phase, bookkeeping, _signature(args), _signature(kwargs))
        action = self._actions.get(key)
        if action is None:
            action = self._actions[key] = self._learn(func, args, kwargs, bookkeeping)
        if action.runs:
            return func(*args, **kwargs)
        if action.seconds:
            start, end = self._clock.run(action.seconds, nbytes=action.nbytes)
            self._recorder.add("compute", action.category, action.category, action.name, start, end)
        made = [self._made(output, args, kwargs) for output in action.outputs]
        return made[0] if action.single else tuple(made)

    def _communicated(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a collective of distributed tensors, which waits at once, and record it."""
        name = func._schema.name.split("::")[-1]
        if name not in _TENSOR_COLLECTIVES:
            return func(*args, **kwargs)
        if name == "all_reduce" and args[0].is_contiguous():
            func = torch.ops._c10d_functional.all_reduce_  # the copy that makes a result of its own is a device's work
        self._clock.finish()
        start = now()
        out = torch.ops._c10d_functional.wait_tensor(func(*args, **kwargs))
        self._clock.resume()
        nbytes = float(args[0].numel() * args[0].element_size())
        self._recorder.add("communication", "communication", f"tp {name}", name, start, now(), nbytes=nbytes)
        return out

    def update(self, operator: Operator) -> None:
        """Take the time of an optimizer's update of all parameters of this rank."""
        start, end = self._clock.run(self._seconds_of(operator), nbytes=operator.nbytes)
        self._recorder.add("compute", "optimizer", "optimizer", operator.name, start, end)
        self._clock.finish()

    def _made(self, output: _Output | None, args: Any, kwargs: Any) -> Any:
        if output is None:
            return None
        if output.argument >= 0:
            return tree_leaves((args, kwargs))[output.argument]
        size = 1 + sum((n - 1) * s for n, s in zip(output.shape, output.stride, strict=True)) if output.shape else 1
        if 0 in output.shape:
            return torch.empty(output.shape, dtype=output.dtype)
        flat = torch.frombuffer(self._zeros, dtype=output.dtype, count=size)
        return flat.as_strided(output.shape, output.stride)

    def _learn(self, func: Any, args: Any, kwargs: Any, bookkeeping: bool) -> _Action:
        """Decide what to do for calls like this one."""
        phase = self.phase
        name = func._schema.name.split("::")[-1]
        inputs = tree_leaves((args, kwargs))
        outputs = _outputs(func, args, kwargs, inputs)
        if outputs is None:
            self.ran.add(name)
            return _RUN
        single = not isinstance(func._schema.returns, (list, tuple)) or len(func._schema.returns) == 1
        tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
        if not outputs or bookkeeping:
            return _Action(runs=False, outputs=tuple(outputs), single=single)
        shapes = [torch.empty(o.shape, dtype=o.dtype, device="meta") for o in outputs if o is not None]
        kind, ordered, attributes = describe(name, args, tensors, shapes)
        operator = Operator(
            name=name,
            kind=kind,
            phase=phase,
            inputs=tuple(_spec(t, kind) for t in ordered),
            outputs=tuple(_spec(t, kind) for t in shapes),
            attributes=attributes,
        )
        return _Action(
            runs=False,
            seconds=self._seconds_of(operator),
            nbytes=operator.nbytes,
            name=name,
            category=_CATEGORY[phase],
            outputs=tuple(outputs),
            single=single,
        )


def _spec(tensor: torch.Tensor, kind: OpKind) -> TensorSpec:
    """The shape of a tensor; sequences of recurrent layers have the samples in their second dim."""
    spec = without_scratch(spec_of(tensor), kind)
    return replace(spec, batch_dim=1) if kind is OpKind.RNN and len(spec.shape) == _SEQUENCE_DIMS else spec


def _copies_shards(func: Any) -> bool:
    """Whether FSDP only rearranges shards in memory, which takes a device next to nothing and a processor much."""
    return func.namespace == "fsdp" and not func._schema.returns


def _between_passes() -> bool:
    """Whether backward only passes a gradient on: sums it, or copies it to or from a bucket. No device is asked."""
    node = torch._C._current_autograd_node()
    return node is None or node.name().endswith("AccumulateGrad")


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(_signature(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _signature(v)) for k, v in value.items())
    return value if isinstance(value, (int, float, bool, str, torch.dtype, type(None))) else str(value)


def _is_free(func: Any) -> bool:
    """Whether a call makes a view or allocates memory, and no device computes."""
    name = func._schema.name.split("::")[-1]
    return (
        name in FREE
        or name.startswith("sym_")
        or any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    )


def _outputs(func: Any, args: Any, kwargs: Any, inputs: Sequence[Any]) -> list[_Output | None] | None:
    """What a call returns, found on tensors without data; ``None`` if it cannot be found without running it."""
    written = {
        name: argument.name
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for name in argument.alias_info.before_set
    }
    meta = tree_map_only(
        torch.Tensor, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"), (args, kwargs)
    )
    if "device" in meta[1]:
        meta[1]["device"] = torch.device("meta")
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            found = func(*meta[0], **meta[1])
    except Exception:  # an operator without shapes for tensors without data
        return None
    flat = list(found) if isinstance(found, (list, tuple)) else [found]
    flat = [t for f in flat for t in (f if isinstance(f, (list, tuple)) else [f])]
    result: list[_Output | None] = []
    names = [a.name for a in func._schema.arguments]
    for index, tensor in enumerate(flat):
        if not isinstance(tensor, torch.Tensor):
            result.append(None)
            continue
        returns = func._schema.returns[min(index, len(func._schema.returns) - 1)]
        alias = returns.alias_info
        source = next((written[s] for s in alias.before_set if s in written), None) if alias is not None else None
        position = -1
        if source is not None:
            at = names.index(source)
            value = kwargs[source] if source in kwargs else args[at] if at < len(args) else None
            position = next((i for i, leaf in enumerate(inputs) if leaf is value), -1)
        result.append(_Output(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, position))
    return result
