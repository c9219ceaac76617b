"""Captures the operators of one training step of a PyTorch module, without weights and without a GPU.

The module runs once, forward, backward and optimizer, on fake tensors under a dispatch mode that sees
every operator. Three tricks make it exact and fast:

* the batch is a large prime: a dim that is divisible by it grows with the batch;
* autograd's sequence numbers tie each backward operator to the forward operator that it differentiates;
* of a run of equal blocks, only two are traced (:mod:`traincast.graph.capture.repeats`) and compared, and the run is
  stored once with a count. Three are traced if all of them read one tensor that has a gradient, such as the output of
  an encoder: all but the last add their part of that gradient to the sum of those behind them.
"""

from __future__ import annotations

import copy
import fnmatch
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from traincast.errors import CaptureError, MissingDependencyError, TraincastError
from traincast.graph.capture.assemble import AddsUpError, NotRepeatableError, Record, assemble
from traincast.graph.capture.fixed import fixed_tensors, owned_tensors
from traincast.graph.capture.recorder import BATCH, Recorder
from traincast.graph.capture.repeats import folded
from traincast.graph.capture.tracing import Progress, module_of
from traincast.graph.operator import FixedTensor, Operator, OperatorGraph
from traincast.graph.optimizers import OPTIMIZERS
from traincast.graph.tensor import TensorSpec
from traincast.graph.vocabulary import OpKind, Phase
from traincast.imports import described, place_of

if TYPE_CHECKING:
    import torch

    from traincast.graph.capture.repeats import Repeat
    from traincast.graph.zoo.traceable import Traceable


def require_torch(purpose: str = "tracing a model") -> None:
    """Raise ``MissingDependencyError`` if PyTorch, which ``purpose`` needs, is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("PyTorch", purpose, extra="torch") from error


def capture(traceable: Traceable, *, name: str, progress: Progress | None = None) -> OperatorGraph:
    """Trace one training step of ``traceable`` and return its operators for one sample.

    Raises ``CaptureError`` if the module cannot be traced.
    """
    require_torch()
    failure: Exception | None = None
    idle: set[str] = set()
    thrice: set[str] = set()
    # Repeated blocks may be indexed by number, and some operators exist in half precision only.
    attempts = [(True, False), (False, False), (False, True)]
    while attempts:
        fold, half = attempts.pop(0)
        try:
            with _quiet():
                return _trace(traceable, name=name, fold=fold, half=half, progress=progress, idle=idle, thrice=thrice)
        except _IdleError as error:
            idle |= error.containers
            attempts.insert(0, (fold, half))
        except AddsUpError as error:
            thrice |= error.containers
            attempts.insert(0, (fold, half))
        except NotRepeatableError:
            continue
        except TraincastError:
            raise
        except Exception as error:  # the module's own code may raise anything
            failure = failure if half else error
    assert failure is not None, "the last attempt returns or fails"
    raise CaptureError(
        f"tracing {name!r} failed{module_of(failure)}{place_of(failure)}: {described(failure)}; the module must run "
        f"on any batch size with fake tensors (no .item(), no data-dependent shapes)"
    ) from failure


class _IdleError(Exception):
    """Repeated modules never ran, so that two of them cannot stand for all."""

    def __init__(self, containers: set[str]) -> None:
        super().__init__(f"modules in {', '.join(sorted(containers))} never ran")
        self.containers = containers


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's log of errors that we report in one line."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _trace(
    traceable: Traceable,
    *,
    name: str,
    fold: bool,
    half: bool,
    progress: Progress | None,
    idle: Collection[str] = (),
    thrice: Collection[str] = (),
) -> OperatorGraph:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    cut: AbstractContextManager[list[Repeat]] = folded(traceable.module, idle, thrice) if fold else nullcontext([])
    with cut as repeats:
        module = copy.deepcopy(traceable.module)
        owned = owned_tensors(traceable.module)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        _make_fake(module, half=half)
        module.train()
        recorder = Recorder(module, repeats, progress)
        inputs = tuple(
            torch.empty_like(t, device="cpu", dtype=torch.bfloat16 if half and t.is_floating_point() else t.dtype)
            for t in traceable.inputs(BATCH)
        )
        recorder.mark_inputs(inputs)
        with recorder.watching():
            for loss in _losses(traceable, module, inputs):
                if not loss.requires_grad:
                    raise CaptureError(f"model {name!r} has no trainable parameter that reaches its output")
                recorder.differentiate()
                loss.backward(retain_graph=traceable.losses is not None)
                recorder.resume()
        if recorder.idle(repeats):
            raise _IdleError(recorder.idle(repeats))
        if not recorder.repeats_agree():
            raise NotRepeatableError
        sparse = _record_optimizer(recorder, module, {"*": traceable.optimizer, **(traceable.optimizers or {})})
    graph = assemble(
        name=name,
        records=recorder.records,
        repeats=repeats,
        tokens_per_sample=traceable.tokens_per_sample,
        fixed=[*fixed_tensors(owned, updated=_updated(module) - sparse.keys()), *_states_of(module, sparse)],
    )
    if not graph.operators:
        raise CaptureError(f"model {name!r} runs no operator")
    return graph


def _losses(traceable: Traceable, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Iterable[torch.Tensor]:
    """The losses of a step, computed one after the other."""
    if traceable.losses is not None:
        yield from traceable.losses(module, *inputs)
    else:
        output = module(*inputs) if traceable.call is None else traceable.call(module, *inputs)
        yield traceable.loss(output) if traceable.loss is not None else sum_of(output)


def _make_fake(module: torch.nn.Module, *, half: bool) -> None:
    """Replace parameters and buffers of ``module`` by fake tensors; shared tensors stay shared."""
    import torch

    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            dtype = torch.bfloat16 if half and tensor.is_floating_point() else tensor.dtype
            empty = torch.empty_like(tensor, device="cpu", dtype=dtype)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return made[id(tensor)]

    for child in module.modules():
        for tensors in (child._parameters, child._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = fake(tensor)


def _updated(module: torch.nn.Module) -> set[str]:
    """Names of the parameters that a gradient reached."""
    return {path for path, p in module.named_parameters(remove_duplicate=False) if p.grad is not None}


def _states_of(module: torch.nn.Module, sparse: Mapping[str, int]) -> list[FixedTensor]:
    """The optimizer's states of tables whose gradients are sparse: held whole, changed by rows."""
    return [
        FixedTensor(
            scope=path.rpartition(".")[0],
            spec=TensorSpec((sparse[path] * parameter.numel(),)),
            buffer=True,
        )
        for path, parameter in module.named_parameters()
        if sparse.get(path)
    ]


def sum_of(output: Any) -> torch.Tensor:
    """The loss of a module that has none: its first scalar output, or the sum of all floating-point outputs."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    scalars = [t for t in tensors if t.ndim == 0 and t.requires_grad]
    if scalars:
        return scalars[0]
    if not tensors:
        raise CaptureError("the module returns no floating-point tensor, so there is no loss to differentiate")
    total: torch.Tensor = sum((t.sum() for t in tensors[1:]), tensors[0].sum())
    return total


def _record_optimizer(recorder: Recorder, module: torch.nn.Module, optimizers: Mapping[str, str]) -> dict[str, int]:
    """Record one update per parameter tensor, as a fused optimizer runs it; the first pattern that matches counts.

    Returns the tables whose gradients are sparse, with the number of states that their optimizer keeps.
    """
    recorder.attach_saved()
    states: dict[str, int] = {}
    known = {name: optimizer.states for name, optimizer in OPTIMIZERS.items() if optimizer.ordinary}
    for name in optimizers.values():
        if name not in known:
            raise CaptureError(f"unknown optimizer {name!r}: known are {', '.join(known)}")
    paths = [path for path, _ in module.named_parameters()]
    idle = [pattern for pattern in optimizers if pattern != "*" and not fnmatch.filter(paths, pattern)]
    if idle:
        raise CaptureError(
            f"optimizers: no parameter matches {idle[0]!r}; the first parameters are {', '.join(paths[:3])}"
        )
    for path, parameter in module.named_parameters():
        if parameter.grad is None:  # frozen, or no gradient reaches it
            continue
        found = (name for pattern, name in optimizers.items() if pattern != "*" and fnmatch.fnmatchcase(path, pattern))
        name = next(found, optimizers["*"])
        if recorder.touched(parameter):
            scope = path.rpartition(".")[0]
            recorder.record_sparse_update(parameter, optimizer=name, states=known[name], scope=scope)
            states[path] = known[name]
            continue
        spec = recorder.spec(parameter)
        operator = Operator(
            name=name,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            scope=path.rpartition(".")[0],
            inputs=(spec,) * (2 + known[name]),
            outputs=(spec,) * (1 + known[name]),
            parameters=(spec,),
        )
        recorder.records.append(Record(operator=operator, producers=(), forward=-1))
    return states
