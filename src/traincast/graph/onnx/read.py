"""Reads an ONNX file: its nodes, which of its tensors are trained, and the modules that its nodes belong to."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from traincast.errors import FileFormatError, MissingDependencyError
from traincast.graph.onnx.contrib import CONTRIB, CONTRIB_WEIGHTS
from traincast.graph.onnx.loops import without_loops
from traincast.graph.onnx.network import Input, OnnxNetwork, OnnxNode, Weight
from traincast.imports import described

if TYPE_CHECKING:
    import onnx

_SMALL: Final = 65_536
"""Untrained tensors with up to this many elements are read with their values."""
_MASKED: Final = -1000.0
"""A table with values below this is a mask."""
_DOMAINS: Final = ("", "ai.onnx")
_KIND: Final = "pkg.torch.export.graph_signature.InputSpec.kind"
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_CLASSES: Final = "pkg.torch.onnx.class_hierarchy"
_ORIGIN: Final = "pkg.torch.onnx.fx_node"
_TRAINED: Final[dict[str, tuple[int, ...]]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "Einsum": (0, 1, 2, 3),
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "RMSNormalization": (1,),
    "PRelu": (1,),
    "Gather": (0,),
    "LSTM": (1, 2, 3),
    "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
    "RecurrentLayer": (1, 2, 3),
    **CONTRIB_WEIGHTS,
}
"""Inputs of each operator that a network trains."""
_STATISTICS: Final = {"BatchNormalization": (3, 4)}
_VIEWS: Final = frozenset(
    "Transpose Reshape Unsqueeze Squeeze Flatten Identity Cast CastLike Slice Concat Split Expand".split()
)


def read_network(path: Path) -> OnnxNetwork:
    """Returns the contents of the ONNX file ``path``; weights are read by shape only.

    Raises ``FileFormatError`` if the file is missing, damaged or not ONNX, and ``MissingDependencyError`` if the
    package that reads it is not installed.
    """
    model = _parsed(path)
    graph = model.graph
    tensors = {t.name: t for t in graph.initializer}
    nodes = []
    for number, proto in enumerate(without_loops(path, graph, tensors)):
        if proto.domain not in _DOMAINS and f"{proto.domain}.{proto.op_type}" not in CONTRIB:
            raise FileFormatError(
                f"{path}: node {proto.name or number!r} ({proto.op_type}) is of the domain {proto.domain!r}; "
                f"known are operators of the ONNX standard and fused ones of ONNX Runtime: {', '.join(_fused_names())}"
            )
        if proto.op_type == "Constant":
            tensors[proto.output[0]] = _constant(proto)
        else:
            nodes.append(_node(proto, number))
    kinds = {v.name: p.value for v in graph.value_info for p in v.metadata_props if p.key == _KIND}
    kinds |= {v.name: p.value for v in graph.initializer for p in v.metadata_props if p.key == _KIND}
    weights, constants = _told_apart(path, nodes, tensors, kinds)
    return OnnxNetwork(
        path=str(path),
        nodes=tuple(nodes),
        weights=weights,
        constants=constants,
        inputs=tuple(_input(path, value) for value in graph.input if value.name not in tensors),
        outputs=tuple(value.name for value in graph.output),
        opset=max((o.version for o in model.opset_import if o.domain in _DOMAINS), default=1),
        by_pytorch=model.producer_name == "pytorch",
        has_loss=any(_is_scalar(value) for value in graph.output),
    )


def _parsed(path: Path) -> onnx.ModelProto:
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError("the package onnx", f"reading {path}", extra="onnx") from error
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except DecodeError as error:
        raise FileFormatError(f"{path} is not an ONNX file, or is damaged or cut off") from error
    if not model.graph.node:
        raise FileFormatError(f"{path} is not an ONNX file with a network: it holds no nodes")
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    return model


def _fused_names() -> list[str]:
    return [name.rpartition(".")[2] for name in CONTRIB]


def _constant(proto: onnx.NodeProto) -> onnx.TensorProto:
    from onnx import helper, numpy_helper

    attribute = proto.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        tensor: onnx.TensorProto = value
        return tensor
    dtype = np.int64 if "int" in attribute.name else np.float32
    return numpy_helper.from_array(np.asarray(value, dtype=dtype))


def _node(proto: onnx.NodeProto, number: int) -> OnnxNode:
    from onnx import helper

    said = {p.key: p.value for p in proto.metadata_props}
    scope, owner = _place(said)
    if not scope and "/" in proto.name:
        scope = _joined(proto.name.strip("/").split("/")[:-1])
    return OnnxNode(
        op=proto.op_type if proto.domain in _DOMAINS else f"{proto.domain}.{proto.op_type}",
        name=proto.name or f"#{number}",
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes={a.name: helper.get_attribute_value(a) for a in proto.attribute},
        scope=scope,
        owner=owner,
        origin=said.get(_ORIGIN, ""),
    )


def _joined(parts: Sequence[str]) -> str:
    """The path of a module whose name is written level by level; a level may repeat the name of the one above it.

    >>> _joined(["features", "features.1", "conv", "conv.0"])
    'features.1.conv.0'
    """
    kept: list[str] = []
    for part in parts:
        if kept and part.startswith(f"{kept[-1]}."):
            kept.pop()
        kept.append(part)
    return ".".join(kept)


def _place(said: Mapping[str, str]) -> tuple[str, str]:
    """The module of a node and its class, as PyTorch's exporter writes them; the last entry is the operator."""
    try:
        scopes, classes = ast.literal_eval(said.get(_SCOPES, "[]")), ast.literal_eval(said.get(_CLASSES, "[]"))
        scope = str(scopes[-2]) if len(scopes) > 1 else ""
        owner = str(classes[-2]).rpartition(".")[2] if len(classes) > 1 else ""
    except (ValueError, SyntaxError, TypeError):
        return "", ""
    return scope, owner


def _input(path: Path, value: onnx.ValueInfoProto) -> Input:
    from onnx import helper

    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise FileFormatError(
            f"{path}: input {value.name!r} is not a tensor with a known number of dims; export it with a shape, in "
            f"which batch and sequence may be open"
        )
    shape = tuple(
        int(d.dim_value) if d.HasField("dim_value") else d.dim_param or f"dim {n} of {value.name}"
        for n, d in enumerate(kind.shape.dim)
    )
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return Input(name=value.name, shape=shape, dtype="float32" if dtype.kind not in "iub" else dtype.name)


def _is_scalar(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    return bool(kind.HasField("shape") and not kind.shape.dim)


def _told_apart(
    path: Path, nodes: Sequence[OnnxNode], tensors: Mapping[str, onnx.TensorProto], kinds: Mapping[str, str]
) -> tuple[dict[str, Weight], dict[str, np.ndarray]]:
    """Weights, which training changes or keeps as buffers, and constants, whose values the forward pass needs."""
    users: dict[str, list[tuple[OnnxNode, int]]] = {}
    for node in nodes:
        for position, name in enumerate(node.inputs):
            users.setdefault(name, []).append((node, position))
    weights: dict[str, Weight] = {}
    constants: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        if name not in users:
            continue
        shape = tuple(int(size) for size in tensor.dims)
        count = int(np.prod(shape))
        floating = _is_floating(tensor)
        trainable = floating and count > 1 and _trained(path, name, tensor, users, kinds)
        statistic = any(position in _STATISTICS.get(n.op, ()) for n, position in users[name])
        if trainable or statistic or (floating and count > _SMALL):
            weights[name] = Weight(shape=shape, trainable=trainable)
        else:
            constants[name] = _values(path, name, tensor)
    return weights, constants


def _is_floating(tensor: onnx.TensorProto) -> bool:
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).kind not in "iubOSU"


def _trained(
    path: Path,
    name: str,
    tensor: onnx.TensorProto,
    users: Mapping[str, list[tuple[OnnxNode, int]]],
    kinds: Mapping[str, str],
) -> bool:
    """Whether training changes a tensor: the file says so, or it stands where a network has a weight."""
    if name in kinds:
        return kinds[name] == "PARAMETER"
    dims = sum(1 for size in tensor.dims if size > 1)
    for node, position in users.get(name, []):
        if position in _TRAINED.get(node.op, ()):
            return True
        if node.op in ("Mul", "Div") and dims <= 1:
            return True
        if node.op in ("Add", "Sub") and (dims <= 1 or _lowest(path, name, tensor) > _MASKED):
            return True
        if (
            node.op in _VIEWS
            and position == 0
            and any(_leads_to_weight(o, users, vector=dims <= 1) for o in node.outputs)
        ):
            return True
    return False


def _leads_to_weight(name: str, users: Mapping[str, list[tuple[OnnxNode, int]]], *, vector: bool) -> bool:
    """Whether a view of a tensor, or a view of that view, stands where a network has a weight."""
    return any(
        position in _TRAINED.get(node.op, ())
        or (vector and node.op in ("Add", "Sub", "Mul", "Div"))
        or (node.op in _VIEWS and any(_leads_to_weight(o, users, vector=vector) for o in node.outputs))
        for node, position in users.get(name, [])
    )


def _lowest(path: Path, name: str, tensor: onnx.TensorProto) -> float:
    return float(np.min(_values(path, name, tensor).astype(np.float64)))


def _values(path: Path, name: str, tensor: onnx.TensorProto) -> np.ndarray:
    from onnx import numpy_helper

    try:
        return np.asarray(numpy_helper.to_array(tensor, base_dir=str(path.parent)))
    except Exception as error:  # data in another file that is missing or cut, or too few bytes
        raise FileFormatError(f"{path}: the values of {name!r} cannot be read: {described(error)}") from error
