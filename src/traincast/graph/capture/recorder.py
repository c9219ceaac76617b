"""Records the operators that a module runs while it is traced, and how they hang together.

A dispatch mode sees every operator, hooks on modules tell where it runs, and hooks on saved tensors tell what backward
needs. Autograd's sequence numbers tie a backward operator to the forward operator that it differentiates.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from traincast.graph.capture.assemble import Record
from traincast.graph.capture.aten import describe
from traincast.graph.capture.fixed import dtype_of
from traincast.graph.capture.recurrent import fused_recurrence
from traincast.graph.capture.tracing import Progress, Steps
from traincast.graph.operator import Operator
from traincast.graph.tensor import TensorSpec
from traincast.graph.vocabulary import FREE, OpKind, Phase

if TYPE_CHECKING:
    import torch

    from traincast.graph.capture.repeats import Repeat

_NO_SEQUENCE: Final = -1
_POINTWISE: Final = frozenset({OpKind.ELEMENTWISE, OpKind.ACTIVATION, OpKind.COPY, OpKind.DROPOUT, OpKind.REDUCTION})
"""Kinds that read each element of their inputs once."""
BATCH: Final = 10007
"""The traced number of samples: a prime larger than the prime factors of layer widths."""


class Recorder:
    """Turns dispatched operators into records; tracks which storages are parameters and which operator wrote each."""

    def __init__(self, module: torch.nn.Module, repeats: list[Repeat], progress: Progress | None = None) -> None:
        self.records: list[Record] = []
        self.phase = Phase.FORWARD
        self._names = {id(child): path for path, child in module.named_modules()}
        self._stack: list[tuple[str, torch.nn.Module]] = [("", module)]
        self._progress = Steps(len(self._names), progress)
        self._num_forward = 1
        self._keep_alive: list[object] = []
        self._parameters = {p.untyped_storage()._cdata for p in module.parameters()}
        self._producer: dict[int, int] = {}
        buffers = {b.untyped_storage()._cdata for b in module.buffers()}
        self._saved: set[int] = self._parameters | buffers  # of the module: kept whether or not backward needs them
        self._saved_by: dict[int, list[tuple[TensorSpec, int]]] = {}
        self._used_in: dict[int, set[tuple[int, int]]] = {}
        self._by_sequence: dict[int, int] = {}
        traced = [(r, which, part) for r, repeat in enumerate(repeats) for which, part in enumerate(repeat.scopes)]
        self._repeat_scopes = {scope: (r, which) for r, which, part in traced for scope in part}
        self._touched: dict[int, list[int]] = {}
        self._sparse_uses: list[tuple[int, int]] = []
        self._again = [(r, which) for r, which, part in traced if which and part]
        self._block_inputs: dict[tuple[int, int], list[tuple[tuple[int, ...], ...]]] = {}

    def mark_inputs(self, inputs: Iterable[torch.Tensor]) -> None:
        """Mark the input batch: no operator produces it, and it does not count as saved for backward."""
        for tensor in inputs:
            self._keep_alive.append(tensor)
            self._saved.add(tensor.untyped_storage()._cdata)

    def differentiate(self) -> None:
        """Start the backward pass: operators from here on belong to it."""
        self.phase = Phase.BACKWARD
        self._num_forward = max(1, len(self.records))

    def resume(self) -> None:
        """Go on with the forward pass, behind the backward pass of an earlier loss."""
        self.phase = Phase.FORWARD

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which every operator is recorded."""
        from torch.autograd.graph import saved_tensors_hooks
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_forward_pre_hook,
        )

        enter = register_module_forward_pre_hook(self._enter)
        leave = register_module_forward_hook(self._leave)
        try:
            with (
                gpu_kernels(self._touch),
                fused_recurrence(),
                _dispatch_mode(self),
                saved_tensors_hooks(self._pack, lambda tensor: tensor),
            ):
                yield
        finally:
            enter.remove()
            leave.remove()

    def _enter(self, module: torch.nn.Module, inputs: tuple[object, ...]) -> None:
        import torch

        scope = self._names.get(id(module), self._stack[-1][0])
        self._stack.append((scope, module))
        self._progress.forward(scope)
        if scope in self._repeat_scopes:
            shapes = tuple(tuple(t.shape) for t in inputs if isinstance(t, torch.Tensor))
            self._block_inputs.setdefault(self._repeat_scopes[scope], []).append(shapes)

    def _touch(self, table: torch.Tensor, ids: torch.Tensor) -> None:
        """A look-up with sparse gradients reads the rows ``ids`` of ``table``."""
        self._touched.setdefault(table.untyped_storage()._cdata, []).append(self.spec(ids).numel)

    def touched(self, parameter: torch.Tensor) -> int:
        """Rows of a table that a sample touches, if its gradients are sparse; else 0. A row counts once per use."""
        return sum(self._touched.get(parameter.untyped_storage()._cdata, []))

    def record_sparse_update(self, parameter: torch.Tensor, *, optimizer: str, states: int, scope: str) -> None:
        """Record the update of the rows of a table that a sample touches, as part of its backward pass."""
        storage = parameter.untyped_storage()._cdata
        rows = TensorSpec((self.touched(parameter), parameter.shape[-1]), dtype_of(parameter), 0)
        forward = next(i for i, used in self._sparse_uses if used == storage)
        operator = Operator(
            name=f"sparse_{optimizer}",
            kind=OpKind.EMBEDDING,
            phase=Phase.BACKWARD,
            scope=scope,
            inputs=(rows,) * (2 + states),
            outputs=(rows,) * (1 + states),
        )
        self.records.append(Record(operator=operator, producers=(), forward=forward))

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        self._stack.pop()

    def repeats_agree(self) -> bool:
        """Whether all traced repetitions of each run took inputs of the same shapes."""
        return all(self._block_inputs.get((r, 0)) == self._block_inputs.get((r, which)) for r, which in self._again)

    def idle(self, repeats: list[Repeat]) -> set[str]:
        """Containers of repeated modules that never ran."""
        return {repeat.container for r, repeat in enumerate(repeats) if (r, 0) not in self._block_inputs}

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        storage = tensor.untyped_storage()
        if storage._cdata not in self._saved:
            self._saved.add(storage._cdata)
            self._keep_alive.append(tensor)
            spec = self.spec(tensor)
            if spec.nbytes * BATCH != storage.nbytes() and spec.batch_dim is not None:
                # A saved view keeps the whole tensor alive that it is a view of.
                spec = TensorSpec((int(storage.nbytes() / spec.dtype.nbytes) // BATCH,), spec.dtype, 0)
            self._saved_by.setdefault(torch._C._autograd._get_sequence_nr(), []).append((spec, storage._cdata))
        return tensor

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        """Shape and dtype for one sample."""
        shape = tuple(int(size) for size in tensor.shape)
        dtype = dtype_of(tensor)
        for dim, size in enumerate(shape):
            if size and size % BATCH == 0:
                return TensorSpec((*shape[:dim], size // BATCH, *shape[dim + 1 :]), dtype, dim)
        return TensorSpec(shape, dtype)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> None:
        """Add one dispatched operator."""
        import torch
        from torch.utils._pytree import tree_leaves

        name = func._schema.name.split("::")[-1]
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self._keep_alive.extend(outputs)
        if self.phase is Phase.FORWARD:
            sequence = torch._C._autograd._get_sequence_nr()
        else:
            node = torch._C._current_autograd_node()
            sequence = node._sequence_nr() + 1 if node is not None else _NO_SEQUENCE
            if node is not None and node.name().endswith("AccumulateGrad"):
                return  # the first gradient is taken over, not copied; later ones are the strategy's business
        if name in FREE or name.startswith("sym_") or not outputs:
            if self.phase is Phase.FORWARD and self.records:
                # The gradient of a view belongs to the maker of the viewed tensor, if both are in one repetition.
                maker = self._maker_of(inputs)
                if self._run_of(self.records[maker].operator.scope) == self._run_of(self._stack[-1][0]):
                    self._by_sequence.setdefault(sequence, maker)
            return
        phase = self.phase
        index = len(self.records)
        if phase is Phase.FORWARD:
            # An operator without a gradient has the sequence number of the last operator that has one.
            self._by_sequence.setdefault(sequence, index)
            scope, module = self._stack[-1]
        else:
            scope, module = "", None
        forward = self._by_sequence.get(sequence, -1) if phase is Phase.BACKWARD else -1
        producers = {self._producer[s] for t in inputs if (s := t.untyped_storage()._cdata) in self._producer}
        if phase is Phase.FORWARD and (run := self._run_of(scope)) is not None:
            for tensor in inputs:
                self._used_in.setdefault(tensor.untyped_storage()._cdata, set()).add(run)
        kind, ordered, attributes = describe(name, args, inputs, outputs)
        if kind in _POINTWISE and (share := self._distinct(ordered)) < 1.0:
            attributes["distinct"] = share
        if module is not None:
            attributes["module"] = type(module).__name__
            if kind is OpKind.ATTENTION:
                window = next(
                    (getattr(m, "window", None) for _, m in reversed(self._stack) if hasattr(m, "window")),
                    None,
                )
                if isinstance(window, int) and window > 0:
                    attributes["window"] = window
        elif forward >= 0:
            source = self.records[forward]
            scope = source.operator.scope
            self._progress.backward(forward / self._num_forward)
            attributes |= {k: v for k, v in source.operator.attributes.items() if k in ("module", "window")}
        specs = tuple(self.spec(t) for t in outputs)
        if kind is OpKind.EMBEDDING and phase is Phase.FORWARD:
            storages = (t.untyped_storage()._cdata for t in inputs)
            self._sparse_uses += [(index, storage) for storage in storages if storage in self._touched]
        elif kind is OpKind.EMBEDDING and any(i == forward for i, _ in self._sparse_uses):
            # The gradient is the rows that were read and their numbers, not a whole table.
            looked_up = self.records[forward].operator.inputs[1]
            specs = (TensorSpec((looked_up.numel, specs[0].shape[-1]), specs[0].dtype, 0),)
        operator = Operator(
            name=name,
            kind=kind,
            phase=phase,
            scope=scope,
            inputs=tuple(self.spec(t) for t in ordered),
            outputs=specs,
            parameters=tuple(self.spec(t) for t in inputs if t.untyped_storage()._cdata in self._parameters),
            attributes=attributes,
        )
        self.records.append(Record(operator=operator, producers=tuple(sorted(producers)), forward=forward))
        for tensor in outputs:
            self._producer[tensor.untyped_storage()._cdata] = index

    def _distinct(self, inputs: list[torch.Tensor]) -> float:
        """The share of its inputs' bytes that a kernel reads from memory.

        The same tensor counts once, and so does a value that ``expand`` repeats in every sample.
        """
        whole = held = 0.0
        seen: set[tuple[object, ...]] = set()
        for tensor in inputs:
            spec, strides = self.spec(tensor), tensor.stride()
            whole += spec.nbytes
            place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), spec.shape, strides)
            if place not in seen:
                seen.add(place)
                repeated = (dim != spec.batch_dim and not step for dim, step in enumerate(strides))
                once = math.prod(1 if again else n for n, again in zip(spec.shape, repeated, strict=True))
                held += once * spec.dtype.nbytes
        return held / whole if whole else 1.0

    def _maker_of(self, inputs: list[torch.Tensor]) -> int:
        made = [self._producer[s] for t in inputs if (s := t.untyped_storage()._cdata) in self._producer]
        return max(made, default=len(self.records) - 1)

    def _run_of(self, scope: str) -> tuple[int, int] | None:
        """The traced repetition that ``scope`` lies in."""
        while scope and scope not in self._repeat_scopes:
            scope = scope.rpartition(".")[0]
        return self._repeat_scopes.get(scope)

    def attach_saved(self) -> None:
        """Give each forward operator the tensors it was the first to keep for backward."""
        ordered = sorted(self._by_sequence)
        for sequence, kept in self._saved_by.items():
            index = self._by_sequence.get(sequence)
            if index is None:
                later = next((s for s in ordered if s >= sequence), ordered[-1])
                index = self._by_sequence[later]
            for spec, storage in kept:
                keeper = self._keeper(storage, index)
                operator = self.records[keeper].operator
                operator = replace(operator, saved=(*operator.saved, spec))
                self.records[keeper] = replace(self.records[keeper], operator=operator)

    def _keeper(self, storage: int, first: int) -> int:
        """The operator that keeps a tensor: the first that saved it, unless all repetitions of a block save the same.

        Rotary tables and masks that are made once and given to all layers are kept by the operator that made them, so
        that the first layer does not differ from the others.
        """
        run = self._run_of(self.records[first].operator.scope)
        if run is None or not {(run[0], 0), (run[0], 1)} <= self._used_in.get(storage, set()):
            return first
        maker = self._producer.get(storage, 0)
        inside = self._run_of(self.records[maker].operator.scope)
        return first if inside is not None and inside[0] == run[0] else maker


def gpu_kernels(touch: Callable[[torch.Tensor, torch.Tensor], None] | None = None) -> Any:
    """A mode in which functions that are one kernel on a GPU are traced as one operator, not as several.

    Fake tensors cannot be sparse. With ``touch``, look-ups with sparse gradients run with dense ones, and it is called
    with their table and row numbers.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    functional = torch.nn.functional
    tables = {function: inspect.signature(function) for function in (functional.embedding, functional.embedding_bag)}

    class AsOnGpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.nn.functional.dropout:
                names = ("input", "p", "training", "inplace")
                given = {"p": 0.5, "training": True, **dict(zip(names, args, strict=False)), **kwargs}
                if given["training"] and given["p"] > 0:
                    return torch.native_dropout(given["input"], given["p"], True)[0]
                return given["input"]
            if touch is not None and func in tables:
                call = tables[func].bind(*args, **kwargs)
                if call.arguments.get("sparse"):
                    table, ids = call.arguments["weight"], call.arguments["input"]
                    touch(*((ids, table) if ids.is_floating_point() else (table, ids)))
                    call.arguments["sparse"] = False
                    return func(*call.args, **call.kwargs)
            return func(*args, **kwargs)

    return AsOnGpu()


def _dispatch_mode(recorder: Recorder) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func.namespace != "prim":
                recorder.record(func, args, kwargs or {}, out)
            return out

    return Watch()
