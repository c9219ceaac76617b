"""Captures the operators of one training step of a PyTorch module, without weights and without a GPU.

The module runs once, forward, backward and optimizer, on fake tensors under a dispatch mode that sees
every operator. Three tricks make it exact and fast:

* the batch is a large prime: a dim that is divisible by it grows with the batch;
* autograd's sequence numbers tie each backward operator to the forward operator that it differentiates;
* of a run of equal blocks, only two are traced (:mod:`traincast.graph.repeats`) and compared, and the run is stored
  once with a count.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from traincast.errors import CaptureError, MissingDependencyError, TraincastError
from traincast.graph.assemble import NotRepeatableError, Record, assemble
from traincast.graph.fixed import fixed_tensors, owned_tensors
from traincast.graph.operator import Operator, OperatorGraph, OpKind, Phase
from traincast.graph.recorder import BATCH, Recorder
from traincast.graph.repeats import folded
from traincast.graph.tracing import Progress, module_of
from traincast.imports import described, place_of

if TYPE_CHECKING:
    import torch

    from traincast.graph.repeats import Repeat
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
    # Repeated blocks may be indexed by number, and some operators exist in half precision only.
    for fold, half in ((True, False), (False, False), (False, True)):
        try:
            with _quiet():
                return _trace(traceable, name=name, fold=fold, half=half, progress=progress)
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


def _trace(traceable: Traceable, *, name: str, fold: bool, half: bool, progress: Progress | None) -> OperatorGraph:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    cut: AbstractContextManager[list[Repeat]] = folded(traceable.module) if fold else nullcontext([])
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
            output = module(*inputs)
            loss = traceable.loss(output) if traceable.loss is not None else sum_of(output)
            if not loss.requires_grad:
                raise CaptureError(f"model {name!r} has no trainable parameter that reaches its output")
            recorder.differentiate()
            loss.backward()
        if not recorder.repeats_agree():
            raise NotRepeatableError
        _record_optimizer(recorder, module, traceable.optimizer)
    graph = assemble(
        name=name,
        records=recorder.records,
        repeats=repeats,
        tokens_per_sample=traceable.tokens_per_sample,
        fixed=fixed_tensors(owned, updated=_updated(module)),
    )
    if not graph.operators:
        raise CaptureError(f"model {name!r} runs no operator")
    return graph


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


def _record_optimizer(recorder: Recorder, module: torch.nn.Module, optimizer: str) -> None:
    """Record one update per parameter tensor, as a fused optimizer runs it."""
    recorder.attach_saved()
    states = {"adamw": 2, "adam": 2, "lamb": 2, "sgd": 1, "sgd-plain": 0}.get(optimizer)
    if states is None:
        raise CaptureError(f"unknown optimizer {optimizer!r}: known are adamw, adam, lamb, sgd, sgd-plain")
    for path, parameter in module.named_parameters():
        if parameter.grad is None:  # frozen, or no gradient reaches it
            continue
        spec = recorder.spec(parameter)
        operator = Operator(
            name=optimizer,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            scope=path.rpartition(".")[0],
            inputs=(spec,) * (2 + states),
            outputs=(spec,) * (1 + states),
            parameters=(spec,),
        )
        recorder.records.append(Record(operator=operator, producers=(), forward=-1))
