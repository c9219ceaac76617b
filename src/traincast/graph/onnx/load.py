"""Loads the operator graph of an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traincast.errors import FileFormatError, RequestError
from traincast.graph.capture.capture import capture, require_torch
from traincast.graph.capture.light_torch import without_compiler
from traincast.graph.capture.tracing import Progress
from traincast.graph.onnx.network import Input, OnnxNetwork
from traincast.graph.onnx.read import read_network
from traincast.graph.onnx.rewrite import rewritten, without_optimizations
from traincast.graph.operator import OperatorGraph
from traincast.graph.zoo.traceable import Traceable

if TYPE_CHECKING:
    import torch

_NO_LOSS: Final = "has no loss: the sum of its outputs is taken"
_MERGED: Final = "batch norms that its exporter merged into convolutions: they are forecast as they were before"
_IN_PLACE: Final = "activations behind convolutions, taken to be in place as in torchvision: the file does not say"
_UNNAMED: Final = ("dim 0 of ", "unk__")
"""Beginnings of names that stand for no name: a file has one for each input."""
_BATCH_WORDS: Final = ("batch", "n", "b", "bs", "unk__0", "n_samples")


def load_onnx(path: Path, *, seq: int | None = None, progress: Progress | None = None) -> OperatorGraph:
    """Returns the operators of one training step of the network in the ONNX file ``path``.

    The file gives the forward pass. The loss is the file's scalar output or, if it has none, the sum of its outputs,
    and the graph's attribute ``note`` says so. ``seq`` is the length of open dims other than the batch.
    """
    read, norms = without_optimizations(read_network(path))
    network = rewritten(read)
    require_torch(f"tracing {path}")
    with without_compiler():
        graph = capture(traceable(network, seq=seq), name=path.stem, progress=progress)
    notes = [] if network.has_loss else [f"{path.name} {_NO_LOSS}"]
    if norms:
        notes.append(f"{path.name} has {norms} {_MERGED}")
    in_place = sum(bool(node.attributes.get("in_place")) for node in network.nodes)
    if in_place:
        notes.append(f"{path.name} has {in_place} {_IN_PLACE}")
    return replace(graph, attributes={"note": "; ".join(notes)}) if notes else graph


def traceable(network: OnnxNetwork, *, seq: int | None) -> Traceable:
    """``network`` as something that can be traced."""
    import torch

    from traincast.graph.onnx.module import FUNCTIONS, OnnxModule

    for node in network.nodes:
        if node.op not in FUNCTIONS:
            raise FileFormatError(f"{network.path}: {node.label} is an operator that Traincast does not know")
    batch, fixed = _batch_of(network)
    shapes = [_sized(network, i, batch, seq) for i in network.inputs]
    if seq is not None and not any(_open(i, batch) for i in network.inputs):
        raise RequestError(
            f"{network.path}: a sequence length of {seq} is asked for, and every dim but the batch has a size; leave "
            f"the sequence length out, or export the file with an open dim"
        )
    dtypes = [getattr(torch, i.dtype) for i in network.inputs]

    def inputs(count: int) -> tuple[torch.Tensor, ...]:
        made = zip(shapes, dtypes, strict=True)
        return tuple(torch.empty([count * -s if s < 0 else s for s in shape], dtype=d) for shape, d in made)

    first, shape = network.inputs[0], shapes[0]
    tokens = shape[1] if len(shape) == 2 and not first.dtype.startswith("float") else 0
    return Traceable(module=OnnxModule(network, fixed), inputs=inputs, tokens_per_sample=tokens)


def _batch_of(network: OnnxNetwork) -> tuple[str, int | None]:
    """The name of the open batch dim; or, if the first dim of the first input has a size, that size."""
    if not network.inputs:
        raise FileFormatError(f"{network.path}: the network has no inputs")
    opened = [dim for i in network.inputs for dim in i.shape if isinstance(dim, str)]
    named = [dim for dim in opened if "batch" in dim.lower() or dim.lower() in _BATCH_WORDS]
    first = network.inputs[0].shape[0] if network.inputs[0].shape else 1
    if named:
        return named[0], None
    if isinstance(first, str):
        return first, None
    return "", max(1, first)


def _open(given: Input, batch: str) -> list[str]:
    """Names of the dims that have neither a size nor the batch; with a fixed batch, all open ones."""
    return [dim for n, dim in enumerate(given.shape) if isinstance(dim, str) and not _is_batch(dim, n, batch)]


def _is_batch(dim: str, position: int, batch: str) -> bool:
    unnamed = (dim.startswith(word) and batch.startswith(word) for word in _UNNAMED)
    return dim == batch or (position == 0 and any(unnamed))


def _sized(network: OnnxNetwork, given: Input, batch: str, seq: int | None) -> list[int]:
    """The shape of an input; the batch dim is -1, or -n if a sample has n rows."""
    shape: list[int] = []
    for n, dim in enumerate(given.shape):
        if isinstance(dim, str) and not _is_batch(dim, n, batch):
            if seq is None:
                raise RequestError(
                    f"{network.path}: dim {dim!r} of input {given.name!r} is open: give its length as sequence length "
                    f"(--seq N), or export the file with that size"
                )
            shape.append(seq)
        else:
            shape.append(-1 if isinstance(dim, str) or (n == 0 and not batch) else dim)
    return shape
