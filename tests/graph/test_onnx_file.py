"""An ONNX file against a capture of the network that it was exported from, and files that are refused."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from traincast import CaptureError, FileFormatError, OperatorGraph, RequestError, predict
from traincast.cli.main import main
from traincast.graph import Phase, zoo
from traincast.graph.capture.capture import capture
from traincast.graph.load import load_model
from traincast.graph.zoo import Traceable

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

NETWORKS = [
    "resnet:layers=18,resolution=32,classes=10",
    "resnet:layers=50,resolution=32,classes=10",
    "mobilenet-v2:resolution=32,classes=10",
    "mobilenet-v3:resolution=32,classes=10",
    "densenet-cifar:layers=22,growth=12",
    "mnasnet:resolution=32,classes=10",
    "shufflenet-v2:resolution=32,classes=10",
    "squeezenet:resolution=64,classes=10",
    "bert:layers=4,hidden=64,heads=4,vocab=100,seq=32",
    "gpt:layers=4,hidden=64,heads=4,vocab=100,seq=32",
]


def real(spec: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A network of the zoo with weights, and a batch of two for it."""
    traceable = zoo.build(spec)
    module = traceable.module.to_empty(device="cpu").train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        for buffer in module.buffers():
            buffer.fill_(1)
    return module, tuple(torch.zeros(t.shape, dtype=t.dtype) for t in traceable.inputs(2))


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path, *, open_batch: bool = True) -> Path:
    names = [f"input{n}" for n in range(len(inputs))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            inputs,
            path,
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            input_names=names,
            dynamic_axes={name: {0: "batch"} for name in names} if open_batch else None,
        )
    return path


def captured(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> OperatorGraph:
    shapes = [(tuple(t.shape[1:]), t.dtype) for t in inputs]
    return capture(
        Traceable(
            module=module,
            inputs=lambda batch: tuple(torch.empty((batch, *shape), dtype=dtype) for shape, dtype in shapes),
            tokens_per_sample=inputs[0].shape[1] if not inputs[0].is_floating_point() else 0,
        ),
        name="captured",
    )


def moved(graph: OperatorGraph, phase: Phase) -> float:
    return sum(op.nbytes * count for op, count in graph if op.phase is phase)


def kernels(graph: OperatorGraph) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for op, count in graph:
        found[op.phase, op.kind, op.inputs, op.outputs] += count
    return found


def step_of(graph: OperatorGraph, batch: int = 64, precision: str | None = None) -> float:
    return predict(graph, cluster="dgx-a100:1", global_batch=batch, strategy="dp=8", precision=precision).report.step_s


@cache
def both(spec: str) -> tuple[OperatorGraph, OperatorGraph]:
    """The graph of a network from its file, and as captured; made once."""
    module, inputs = real(spec)
    with TemporaryDirectory() as folder:
        return load_model(str(exported(module, inputs, Path(folder, "network.onnx")))), captured(module, inputs)


@pytest.mark.long(but=lambda spec: spec.startswith(("bert", "gpt")))
@pytest.mark.parametrize("spec", NETWORKS)
def test_a_file_costs_what_the_network_costs_that_it_was_exported_from(spec: str) -> None:
    ours, theirs = both(spec)
    for phase in Phase:
        assert ours.flops(phase) == pytest.approx(theirs.flops(phase), rel=0.01)
        assert moved(ours, phase) == pytest.approx(moved(theirs, phase), rel=0.01)
    assert ours.num_trainable_parameters == theirs.num_trainable_parameters
    assert ours.num_parameters == theirs.num_parameters
    assert ours.tokens_per_sample == theirs.tokens_per_sample
    assert step_of(ours) == pytest.approx(step_of(theirs), rel=0.01)


@pytest.mark.long(but=lambda spec: spec.startswith(("bert", "gpt")))
@pytest.mark.parametrize("spec", [NETWORKS[0], NETWORKS[2], NETWORKS[4], NETWORKS[8], NETWORKS[9]])
def test_a_file_has_the_operators_of_the_network_one_by_one(spec: str) -> None:
    ours, theirs = both(spec)
    assert kernels(ours) == kernels(theirs)


def test_layers_that_repeat_are_stored_once_under_their_own_names(tmp_path: Path) -> None:
    module, inputs = real(NETWORKS[9])
    graph = load_model(str(exported(module, inputs, tmp_path / "gpt.onnx")))
    assert graph.name == "gpt"
    assert [(b.scope, b.count) for b in graph.blocks if b.repeated] == [("layers.0", 4)]


class Attends(nn.Module):  # type: ignore[misc]
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.joint, self.fused = nn.Linear(32, 96), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.joint(x).view(x.shape[0], x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v


@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_one_kernel_if_it_was_one(fused: bool, tmp_path: Path) -> None:
    module, inputs = Attends(fused), (torch.zeros(2, 16, 32),)
    ours = load_model(str(exported(module, inputs, tmp_path / "attends.onnx")))
    theirs = captured(module, inputs)
    names = Counter(op.name for op in ours.operators if op.phase is Phase.FORWARD)
    assert names["_scaled_dot_product_flash_attention_for_cpu"] == int(fused)
    assert names["bmm"] == (0 if fused else 2)
    for phase in Phase:
        assert ours.flops(phase) == theirs.flops(phase)


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers, self.head = (
            nn.Embedding(50, 16),
            nn.LSTM(16, 24, 2, batch_first=True),
            nn.Linear(24, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.table(x))[0])


class Normed(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.interpolate(functional.silu(self.norm(self.conv(x))), scale_factor=2, mode="bilinear")
        return functional.leaky_relu(self.last(self.up(functional.max_pool2d(x, 2))))


@pytest.mark.parametrize(
    ("module", "example"), [(Recurrent(), torch.zeros(2, 12, dtype=torch.int64)), (Normed(), torch.zeros(2, 3, 16, 16))]
)
def test_layers_that_exporters_take_apart_cost_what_they_cost_whole(
    module: nn.Module, example: torch.Tensor, tmp_path: Path
) -> None:
    ours, theirs = load_model(str(exported(module, (example,), tmp_path / "a.onnx"))), captured(module, (example,))
    for phase in Phase:
        assert ours.flops(phase) == theirs.flops(phase)
        assert moved(ours, phase) == pytest.approx(moved(theirs, phase), rel=0.01)
    assert ours.num_parameters == theirs.num_parameters


class Both(nn.Module):  # type: ignore[misc]
    """A recurrent layer in both directions, and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(8, 16, batch_first=True, bidirectional=True), nn.Linear(32, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.last(self.layer(x)[0]))


def convolutions() -> nn.Module:
    norms = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), norms[0], nn.ReLU(), norms[1], nn.Flatten(), nn.Linear(512, 4)
    )


@pytest.mark.long(guard="test_a_file_has_the_operators_of_the_network_one_by_one")
@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize(("make", "shape"), [(convolutions, (3, 8, 8)), (Both, (5, 8))])
def test_the_new_exporter_of_pytorch_gives_the_same_operators(
    optimize: bool, make: Callable[[], nn.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    module, inputs = make().train(), (torch.zeros(2, *shape),)
    for name, parameter in module.named_parameters():
        if "weight" in name:
            torch.nn.init.normal_(parameter.data)
    path = tmp_path / "new.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch")
        torch.onnx.export(
            module, inputs, path, dynamo=True, optimize=optimize, verbose=False, dynamic_shapes=({0: batch},)
        )
    ours, theirs = load_model(str(path)), captured(module, inputs)
    for phase in Phase:
        assert ours.flops(phase) == theirs.flops(phase)
        assert moved(ours, phase) == pytest.approx(moved(theirs, phase), rel=0.02)
    assert ours.num_parameters == theirs.num_parameters
    merged = optimize and make is convolutions
    assert ("1 batch norms that its exporter merged" in str(ours.attributes["note"])) is merged


def test_a_fixed_batch_is_taken_for_any_number_of_samples(tmp_path: Path) -> None:
    module, inputs = real(NETWORKS[8])
    opened = load_model(str(exported(module, inputs, tmp_path / "a.onnx")))
    fixed = load_model(str(exported(module, inputs, tmp_path / "b.onnx", open_batch=False)))
    assert kernels(fixed) == kernels(opened)


def model_of(
    nodes: list[object], inputs: list[object], weights: dict[str, np.ndarray], outputs: list[str] | None = None
) -> bytes:
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs or ["out"]]
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "test", inputs, made, stored)
    content: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    return content


def images(*shape: object) -> list[object]:
    return [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))]


def test_masks_and_statistics_are_not_trained(tmp_path: Path) -> None:
    path = tmp_path / "mask.onnx"
    weights = {
        "scale": np.ones(8, np.float32),
        "shift": np.zeros(8, np.float32),
        "mean": np.zeros(8, np.float32),
        "var": np.ones(8, np.float32),
        "mask": np.triu(np.full((8, 8), -1e9, np.float32)),
        "table": np.ones((8, 8), np.float32),
    }
    nodes = [
        helper.make_node("BatchNormalization", ["x", "scale", "shift", "mean", "var"], ["n"]),
        helper.make_node("Add", ["n", "mask"], ["m"]),
        helper.make_node("Add", ["m", "table"], ["out"]),
    ]
    path.write_bytes(model_of(nodes, images("n", 8, 8), weights))
    graph = load_model(str(path))
    assert graph.num_trainable_parameters == 8 + 8 + 64
    assert sum(t.spec.numel for b in graph.blocks for t in b.fixed if t.buffer) == 16


@pytest.mark.parametrize(
    ("nodes", "shape", "said"),
    [
        ([("Celu", ["x"], ["out"])], ("n", 4), r"node 'a0' \(Celu\) is an operator that Traincast does not know"),
        ([("MatMul", ["x", "w"], ["out"])], ("n", 5), r"node 'a0' \(MatMul\) cannot be traced: RuntimeError: "),
        ([("MatMul", ["nothing", "w"], ["out"])], ("n", 4), r"node 'a0' \(MatMul\) reads 'nothing', which no node"),
        ([("NonZero", ["x"], ["out"])], ("n", 4), r"node 'a0' \(NonZero\) is an operator"),
        ([("MatMul", ["x", "w"], ["out"])], ("batch", "length", 4), "dim 'length' of input 'x' is open"),
    ],
)
def test_a_node_that_cannot_be_traced_is_named_in_one_line(
    nodes: list[tuple[str, list[str], list[str]]], shape: tuple[object, ...], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.onnx"
    made = [helper.make_node(op, given, out, name=f"a{n}") for n, (op, given, out) in enumerate(nodes)]
    path.write_bytes(model_of(made, images(*shape), {"w": np.ones((4, 4), np.float32)}))
    with pytest.raises(RequestError, match=said) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


def damaged(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damaged, "is not an ONNX file, or is damaged or cut off"),
        (lambda content: b"", "it holds no nodes"),
        (lambda content: b"not a network at all", "is not an ONNX file"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(change: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    weights = {"w": np.ones((4, 400), np.float32)}
    path.write_bytes(change(model_of([helper.make_node("MatMul", ["x", "w"], ["out"])], images("n", 4), weights)))
    with pytest.raises(FileFormatError, match=said) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot read .*none.onnx: No such file"):
        load_model(str(tmp_path / "none.onnx"))


def test_open_dims_take_the_sequence_length(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["out"])]
    path.write_bytes(model_of(nodes, images("batch", "length", 4), {"w": np.ones((4, 6), np.float32)}))
    assert load_model(str(path), seq=7).operators[0].outputs[0].shape == (7, 6)
    path.write_bytes(model_of(nodes, images("batch", 5, 4), {"w": np.ones((4, 6), np.float32)}))
    with pytest.raises(RequestError, match="every dim but the batch has a size"):
        load_model(str(path), seq=7)


def test_a_network_without_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    path.write_bytes(model_of([helper.make_node("Relu", ["x"], ["out"])], images("n", 4), {}))
    with pytest.raises(CaptureError, match="has no trainable parameter"):
        load_model(str(path))


def test_a_loss_that_is_added_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plain.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["out"])]
    path.write_bytes(model_of(nodes, images("n", 4), {"w": np.ones((4, 6), np.float32)}))
    with pytest.raises(SystemExit) as done:
        main(["capture", str(path), "-o", str(tmp_path / "graph.json")])
    assert done.value.code == 0
    assert "note: plain.onnx has no loss: the sum of its outputs is taken" in capsys.readouterr().err
    assert load_model(str(tmp_path / "graph.json")).num_parameters == 24
