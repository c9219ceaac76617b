"""ONNX files as TensorFlow's exporter writes them, made node by node, against the same network in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from traincast import FileFormatError, OperatorGraph, RequestError
from traincast.graph import OpKind, Phase
from traincast.graph.capture.capture import capture
from traincast.graph.load import load_model
from traincast.graph.zoo import Traceable

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


class File:
    """An ONNX file that is written node by node."""

    def __init__(self, *shape: int | str, kind: int = TensorProto.FLOAT) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.input = helper.make_tensor_value_info("x", kind, shape)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.tensors)}"
        values = np.random.default_rng(len(self.tensors)).uniform(0.5, 1.5, shape)
        self.tensors.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def constant(self, values: object, dtype: type = np.int64) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, dtype=dtype), name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: object) -> str:
        names = [f"v{len(self.nodes)}" if n == 0 else f"v{len(self.nodes)}:{n}" for n in range(outputs)]
        node = helper.make_node(op, inputs, names, name=f"net/n{len(self.nodes)}/{op}", domain=domain, **attributes)
        self.nodes.append(node)
        return names[0]

    def read(self, folder: Path, *outputs: str, opset: int = 17, seq: int | None = None) -> OperatorGraph:
        path = folder / "network.onnx"
        path.write_bytes(self.model(outputs, opset).SerializeToString())
        return load_model(str(path), seq=seq)

    def model(self, outputs: Sequence[str], opset: int) -> Any:
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "network", [self.input], made, self.tensors)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, producer_name="tf2onnx", opset_imports=imports)


def captured(module: nn.Module, *shape: int, whole: bool = False) -> OperatorGraph:
    dtype = torch.int64 if whole else torch.float32
    inputs = lambda batch: (torch.empty((batch, *shape), dtype=dtype),)  # noqa: E731
    return capture(Traceable(module=module, inputs=inputs), name="captured")


def same_cost(ours: OperatorGraph, theirs: OperatorGraph, *, moved: float = 0.01) -> None:
    for phase in Phase:
        assert ours.flops(phase) == pytest.approx(theirs.flops(phase), rel=0.01), phase
        one, other = (sum(op.nbytes * n for op, n in g if op.phase is phase) for g in (ours, theirs))
        assert one == pytest.approx(other, rel=moved), phase
    assert ours.num_trainable_parameters == theirs.num_trainable_parameters


def batch_norm(file: File, data: str, channels: int, *, turned: bool) -> str:
    """Keras's batch norm in training, of images with channels in front that it wants behind."""
    mean = file.add("ReduceMean", data, axes=[0, 2, 3], keepdims=1)
    flat = file.add("Squeeze", mean, file.constant([0, 2, 3]))
    away = file.add("Sub", data, file.add("Reshape", mean, file.constant([1, channels, 1, 1])))
    variance = file.add("ReduceMean", file.add("Mul", away, away), axes=[0, 2, 3], keepdims=1)
    spread = file.add("Add", file.add("Squeeze", variance, file.constant([0, 2, 3])), file.constant(1e-3, np.float32))
    factor = file.add("Mul", file.add("Reciprocal", file.add("Sqrt", spread)), file.weight(channels))
    shift = file.add("Sub", file.weight(channels), file.add("Mul", flat, factor))
    assert turned
    behind = file.add("Transpose", data, perm=[0, 2, 3, 1])
    return file.add("Add", file.add("Mul", behind, factor), shift)


@pytest.mark.parametrize("batch", ["unk__7", 4])
def test_convolutions_with_batch_norms_of_keras_are_those_of_pytorch(batch: int | str, tmp_path: Path) -> None:
    file = File(batch, 16, 16, 3)
    data = file.add("Transpose", "x", perm=[0, 3, 1, 2])
    data = file.add("Conv", data, file.weight(8, 3, 3, 3), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    data = file.add("Relu", batch_norm(file, data, 8, turned=True))
    data = file.add("Transpose", data, perm=[0, 3, 1, 2])
    data = file.add("Conv", data, file.weight(8, 1, 3, 3), kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=8)
    data = file.add(
        "GlobalAveragePool", file.add("Transpose", batch_norm(file, data, 8, turned=True), perm=[0, 3, 1, 2])
    )
    data = file.add("MatMul", file.add("Squeeze", data, file.constant([2, 3])), file.weight(8, 5))
    ours = file.read(tmp_path, file.add("Add", data, file.weight(5)))

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
            self.two, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
            self.last = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm2(self.two(torch.relu(self.norm1(self.one(x.permute(0, 3, 1, 2))))))
            return self.last(x.mean(dim=(2, 3)))

    same_cost(ours, captured(Network(), 16, 16, 3))
    assert sum(n for op, n in ours if op.kind is OpKind.BATCH_NORM and op.phase is Phase.FORWARD) == 2


def test_padding_before_a_convolution_and_relu6_of_keras_cost_what_they_cost_in_pytorch(tmp_path: Path) -> None:
    file = File("unk__3", 16, 16, 8)
    data = file.add("Transpose", "x", perm=[0, 3, 1, 2])
    data = file.add("Pad", data, file.constant([0, 0, 0, 0, 0, 0, 1, 1]), file.constant(0.0, np.float32))
    data = file.add("Conv", data, file.weight(8, 1, 3, 3), kernel_shape=[3, 3], strides=[2, 2], group=8)
    data = batch_norm(file, data, 8, turned=True)
    limits = file.constant(0.0, np.float32), file.constant(6.0, np.float32)
    data = file.add("Transpose", file.add("Clip", data, *limits), perm=[0, 3, 1, 2])
    ours = file.read(tmp_path, file.add("Conv", data, file.weight(4, 8, 1, 1), kernel_shape=[1, 1]))

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm = nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False), nn.BatchNorm2d(8)
            self.two = nn.Conv2d(8, 4, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(nn.functional.pad(x.permute(0, 3, 1, 2), (0, 1, 0, 1)))
            return self.two(nn.functional.relu6(self.norm(x)))

    same_cost(ours, captured(Block(), 16, 16, 8))


def layer_norm(file: File, data: str, width: int) -> str:
    mean = file.add("GlobalAveragePool", data)
    away = file.add("Sub", data, mean)
    spread = file.add(
        "Add", file.add("GlobalAveragePool", file.add("Mul", away, away)), file.constant(1e-6, np.float32)
    )
    factor = file.add("Mul", file.add("Reciprocal", file.add("Sqrt", spread)), file.weight(1, 1, width))
    shift = file.add("Add", file.add("Mul", file.add("Neg", mean), factor), file.weight(1, 1, width))
    return file.add("Add", file.add("Mul", data, factor), shift)


def drop(file: File, data: str) -> str:
    size = file.add("Cast", file.add("Shape", data), to=TensorProto.INT32)
    drawn = file.add("StatelessRandomUniformV2", size, file.constant([1]), file.constant([0, 2]), file.constant(1))
    large = file.add("GreaterOrEqual", drawn, file.constant(0.1, np.float32))
    none = file.add("Mul", file.constant(0.0, np.float32), file.add("Cast", file.add("Not", large), to=1))
    scaled = file.add("Mul", data, file.constant(1 / 0.9, np.float32))
    return file.add("Add", file.add("Mul", file.add("Cast", large, to=1), scaled), none)


def test_look_ups_norms_dropouts_gelu_and_biases_of_keras_are_those_of_pytorch(tmp_path: Path) -> None:
    file = File("unk__1", 6, kind=TensorProto.INT32)
    below = file.add("Less", file.add("Cast", "x", to=1), file.constant(0.0, np.float32))
    kept = file.add("Mul", "x", file.add("Cast", file.add("Not", below), to=6))
    moved = file.add("Mul", file.add("Cast", below, to=6), file.add("Add", "x", file.constant(100, np.int32)))
    data = file.add("Gather", file.weight(100, 32), file.add("Add", moved, kept), axis=0)
    data = layer_norm(file, drop(file, data), 32)
    flat = file.add("MatMul", file.add("Reshape", data, file.constant([-1, 32])), file.weight(32, 64))
    wide = file.add("Add", file.add("Reshape", flat, file.constant([-1, 6, 64])), file.weight(64))
    scaled = file.add("Mul", file.add("Neg", wide), file.constant(0.7071, np.float32))
    half = file.add("Mul", file.constant(0.5, np.float32), wide)
    ours = file.read(tmp_path, file.add("Mul", half, file.add("Erfc", scaled)))
    module = nn.Sequential(nn.Embedding(100, 32), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU())
    same_cost(ours, captured(module, 6, whole=True))
    assert len(ours.operators) == len(captured(module, 6, whole=True).operators)


def recurrent_loop(file: File, turns: str) -> str:
    """The loop that Keras's GRU is exported as: both products, both biases, and the gates, turn by turn."""
    width, inputs = 16, 8
    body = [
        helper.make_node("Split", ["bias"], ["b0", "b1"], axis=0),
        helper.make_node("Gather", ["sequence", "time"], ["now"], axis=0),
        helper.make_node("MatMul", ["now", "kernel"], ["a"]),
        helper.make_node("MatMul", ["state", "recurrent"], ["b"]),
        helper.make_node("Squeeze", ["b0", "first"], ["b0_"]),
        helper.make_node("Squeeze", ["b1", "first"], ["b1_"]),
        helper.make_node("Add", ["a", "b0_"], ["c"]),
        helper.make_node("Add", ["b", "b1_"], ["d"]),
        helper.make_node("Split", ["c"], ["c0", "c1", "c2"], axis=1),
        helper.make_node("Split", ["d"], ["d0", "d1", "d2"], axis=1),
        helper.make_node("Add", ["c0", "d0"], ["e0"]),
        helper.make_node("Add", ["c1", "d1"], ["e1"]),
        helper.make_node("Sigmoid", ["e0"], ["z"]),
        helper.make_node("Sigmoid", ["e1"], ["r"]),
        helper.make_node("Mul", ["r", "d2"], ["f"]),
        helper.make_node("Add", ["c2", "f"], ["g"]),
        helper.make_node("Tanh", ["g"], ["h"]),
        helper.make_node("Mul", ["z", "state"], ["i"]),
        helper.make_node("Sub", ["one", "z"], ["j"]),
        helper.make_node("Mul", ["j", "h"], ["k"]),
        helper.make_node("Add", ["i", "k"], ["new"]),
        helper.make_node("Identity", ["new"], ["out"]),
        helper.make_node("Add", ["time", "step"], ["later"]),
        helper.make_node("Identity", ["go"], ["go_on"]),
    ]
    names = ["counter", "go", "time", "state", "bias", "kernel", "recurrent"]
    made = ["go_on", "later", "new", "bias", "kernel", "recurrent", "out"]
    values = {"first": np.array([0]), "step": np.array(1), "one": np.array(1.0, dtype=np.float32)}
    graph = helper.make_graph(
        body,
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in made],
        [numpy_helper.from_array(v, n) for n, v in values.items()],
    )
    file.nodes.append(helper.make_node("Transpose", ["x"], ["sequence"], perm=[1, 0, 2]))
    size = file.add("Slice", file.add("Shape", "x"), file.constant([0]), file.constant([1]))
    start = file.add("Expand", file.constant(0.0, np.float32), file.add("Concat", size, file.constant([width]), axis=0))
    weights = [file.weight(2, 3 * width), file.weight(inputs, 3 * width), file.weight(width, 3 * width)]
    given = [turns, file.constant(True, np.bool_), file.constant(0), start, *weights]
    node = helper.make_node("Loop", given, [f"loop{n}" for n in range(6)], name="net/gru/while_loop", body=graph)
    file.nodes.append(node)
    return "loop5"


def test_a_loop_over_a_recurrent_cell_is_a_recurrent_layer(tmp_path: Path) -> None:
    file = File("unk__2", 12, 8)
    ours = file.read(tmp_path, recurrent_loop(file, file.constant(12)))
    same_cost(ours, captured(nn.GRU(8, 16, batch_first=True), 12, 8), moved=0.1)  # both biases are one tensor


def counted_loop(file: File, turns: str) -> str:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "matrix"], ["product"]),
            helper.make_node("Tanh", ["product"], ["new"]),
            helper.make_node("Identity", ["new"], ["each"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("counter", "go", "state")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("go_on", "new", "each")],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), "matrix")],
    )
    given = [turns, file.constant(True, np.bool_), "x"]
    file.nodes.append(helper.make_node("Loop", given, ["last", "all"], name="steps", body=body))
    return "all"


def test_a_loop_of_known_length_is_written_out(tmp_path: Path) -> None:
    file = File("batch", 8)
    graph = file.read(tmp_path, counted_loop(file, file.constant(5)))
    assert graph.num_trainable_parameters == 64
    assert sum(n for op, n in graph if op.kind is OpKind.GEMM and op.phase is Phase.FORWARD) == 5


def test_a_loop_whose_length_depends_on_data_is_refused_by_name(tmp_path: Path) -> None:
    file = File("batch", 8)
    turns = file.add("Cast", file.add("ReduceMax", "x", keepdims=0), to=TensorProto.INT64)
    with pytest.raises(FileFormatError, match=r"node 'steps' \(Loop\) has a length that depends on data"):
        file.read(tmp_path, counted_loop(file, turns))


def test_a_scan_over_a_known_dim_is_written_out(tmp_path: Path) -> None:
    file = File(6, "batch", 8)
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "part"], ["new"]), helper.make_node("Identity", ["new"], ["each"])],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("state", "part")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("new", "each")],
    )
    start = file.add("MatMul", file.add("Gather", "x", file.constant(0), axis=0), file.weight(8, 8))
    file.nodes.append(helper.make_node("Scan", [start, "x"], ["last", "all"], body=body, num_scan_inputs=1))
    graph = file.read(tmp_path, "all")
    assert sum(n for op, n in graph if op.name == "add" and op.phase is Phase.FORWARD) == 6


def test_fused_operators_of_onnx_runtime_cost_what_their_parts_cost(tmp_path: Path) -> None:
    file = File("batch", 10, 32)
    own: dict[str, Any] = {"domain": "com.microsoft"}
    mixed = file.add("Attention", "x", file.weight(32, 96), file.weight(96), num_heads=4, **own)
    normed = file.add("SkipLayerNormalization", mixed, "x", file.weight(32), file.weight(32), **own)
    ours = file.read(tmp_path, file.add("QuickGelu", file.add("MatMul", normed, file.weight(32, 64)), **own))

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.joint, self.norm, self.up = nn.Linear(32, 96), nn.LayerNorm(32), nn.Linear(32, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.joint(x).chunk(3, dim=-1))
            mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
            return nn.functional.silu(self.up(self.norm(mixed + x)))

    same_cost(ours, captured(Layer(), 10, 32))


def test_an_operator_of_another_domain_is_refused_and_known_ones_are_listed(tmp_path: Path) -> None:
    file = File("batch", 8)
    with pytest.raises(FileFormatError, match=r"is of the domain 'com.microsoft'; known are .*MultiHeadAttention"):
        file.read(tmp_path, file.add("Inverse", "x", domain="com.microsoft"))


def test_an_open_dim_is_named_with_the_option_that_sets_it(tmp_path: Path) -> None:
    file = File("unk__1", "unk__2", 8)
    with pytest.raises(RequestError, match=r"dim 'unk__2' of input 'x' is open: .*--seq N"):
        file.read(tmp_path, file.add("MatMul", "x", file.weight(8, 4)))
    assert file.read(tmp_path, "v0", seq=7).operators[0].flops == 2 * 7 * 8 * 4
