"""Frozen parameters and buffers: tensors of a module that a step does not change.

They take memory like any other tensor, but have no gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traincast.graph.operator import FixedTensor
from traincast.graph.tensor import DType, TensorSpec

if TYPE_CHECKING:
    import torch

_DTYPES: Final = {
    "float64": DType.FP64,
    "float32": DType.FP32,
    "float16": DType.FP16,
    "bfloat16": DType.BF16,
    "float8_e4m3fn": DType.FP8,
    "float8_e5m2": DType.FP8,
    "int64": DType.INT64,
    "int32": DType.INT32,
    "int16": DType.INT16,
    "int8": DType.INT8,
    "uint8": DType.INT8,
    "bool": DType.BOOL,
    "complex64": DType.FP64,
}


def dtype_of(tensor: torch.Tensor) -> DType:
    """The :class:`DType` of a tensor."""
    return _DTYPES.get(str(tensor.dtype).removeprefix("torch."), DType.FP32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A parameter or buffer of one module, and the storage behind it."""

    path: str
    spec: TensorSpec
    buffer: bool
    storage: int


def owned_tensors(module: torch.nn.Module) -> list[Owned]:
    """Parameters and buffers of ``module`` and all modules in it; a tensor with several owners is listed for each."""
    return [
        Owned(path=path, spec=_spec(tensor), buffer=buffer, storage=tensor.untyped_storage()._cdata)
        for path, tensor, buffer in _named(module)
    ]


def _named(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    for path, parameter in module.named_parameters(remove_duplicate=False):
        yield path, parameter, False
    for path, buffer in module.named_buffers(remove_duplicate=False):
        yield path, buffer, True


def _spec(tensor: torch.Tensor) -> TensorSpec:
    """Shape and dtype; of a view its whole storage, which it keeps alive (or the little that an expanded one has)."""
    dtype = dtype_of(tensor)
    stored = tensor.untyped_storage().nbytes()
    if dtype.nbytes != tensor.element_size():  # packed or rare: its bytes are all that counts
        return TensorSpec((stored,), DType.INT8)
    if stored != tensor.numel() * tensor.element_size():
        return TensorSpec((stored // tensor.element_size(),), dtype)
    return TensorSpec(tuple(int(size) for size in tensor.shape), dtype)


def fixed_tensors(owned: Sequence[Owned], *, updated: Collection[str]) -> list[FixedTensor]:
    """Returns the tensors of ``owned`` that no update changes: all but the parameters named in ``updated``."""
    trained = {tensor.storage for tensor in owned if tensor.path in updated}
    fixed = [tensor for tensor in owned if tensor.storage not in trained and tensor.spec.numel]
    owners = Counter(tensor.storage for tensor in fixed)
    names: dict[int, str] = {}
    return [
        FixedTensor(
            scope=tensor.path.rpartition(".")[0],
            spec=tensor.spec,
            buffer=tensor.buffer,
            shared=names.setdefault(tensor.storage, tensor.path) if owners[tensor.storage] > 1 else "",
        )
        for tensor in fixed
    ]
