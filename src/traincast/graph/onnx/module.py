"""An ONNX network as a PyTorch module, so that it is captured, and differentiated, like any other module.

Each node runs inside the module that the file names for it. Layers that repeat are children of one ``ModuleList``,
of which capture traces two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from traincast.errors import CaptureError, TraincastError
from traincast.graph.capture.recorder import BATCH
from traincast.graph.onnx.contrib import CONTRIB
from traincast.graph.onnx.elements import ELEMENTS
from traincast.graph.onnx.layers import LAYERS
from traincast.graph.onnx.network import OnnxNetwork, OnnxNode
from traincast.graph.onnx.runs import LayerRun, find_layers, node_scopes
from traincast.graph.onnx.shapes import SHAPES
from traincast.graph.onnx.values import Call, UnsupportedError, Value, computed
from traincast.imports import described

FUNCTIONS: Final[dict[str, Callable[[Call], Any]]] = {**LAYERS, **ELEMENTS, **SHAPES, **CONTRIB}
_BATCHES: Final = "num_batches_tracked"


class OnnxPart(torch.nn.Module):  # type: ignore[misc]
    """A module of the network, in which nodes run."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    def extra_repr(self) -> str:
        """A text that is equal for two modules only if they stand at the same place of two repetitions."""
        return self._mark

    def forward(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Run one node, or the nodes of one repetition; the tensors among ``arguments`` are the inputs."""
        return run(*arguments)


class OnnxModule(OnnxPart):
    """The whole network; ``fixed`` is the batch that the file is made for, if it is not open."""

    def __init__(self, network: OnnxNetwork, fixed: int | None) -> None:
        super().__init__("")
        self._network, self._fixed = network, fixed
        scopes = scopes_of(network)
        self._runs = find_layers(network, scopes)
        self._scopes = node_scopes(self._runs, scopes)
        self._layers = {scope: run for run in self._runs for scope in run.scopes}
        self._containers = {scope.rpartition(".")[0] for scope in self._layers}
        self._places: dict[str, tuple[str, str]] = {}
        for node, scope in zip(network.nodes, self._scopes, strict=True):
            part = self._make(scope, _class_of(node, scope))
            for position, name in enumerate(node.inputs):
                if name in network.weights and name not in self._places:
                    self._places[name] = (scope, self._register(part, name, position))
            if node.op == "BatchNormalization" and network.by_pytorch:
                part._buffers.setdefault(_BATCHES, torch.zeros((), dtype=torch.int64))

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxModule:
        import copy

        memo[id(self._network)] = self._network
        made = OnnxModule.__new__(OnnxModule)
        memo[id(self)] = made
        made.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return made

    def _make(self, path: str, owner: str) -> torch.nn.Module:
        """The module at ``path``, made with its parents if it is not there."""
        module: torch.nn.Module = self
        parts = path.split(".") if path else []
        inside = ""
        for depth, name in enumerate(parts, 1):
            here = ".".join(parts[:depth])
            inside = here if here in self._layers else inside
            if name not in module._modules:
                if here in self._containers:
                    module._modules[name] = torch.nn.ModuleList()
                else:
                    mark = self._layers[here].digest if here in self._layers else here[len(inside) :]
                    module._modules[name] = OnnxPart(mark)
            module = module._modules[name]
        if type(module) is OnnxPart:
            module.__class__ = _subclass(owner)
        return module

    def _register(self, part: torch.nn.Module, name: str, position: int) -> str:
        """Give ``part`` the weight ``name`` and return the attribute that holds it."""
        weight = self._network.weights[name]
        last = name.rpartition(".")[2].rpartition("/")[2].partition("~")[0]
        leaf = last if last in ("weight", "bias") or last.startswith("running_") else f"weight{position}"
        while leaf in part._parameters or leaf in part._buffers:
            leaf += "_"
        tensor = torch.empty(weight.shape, device="meta")
        if weight.trainable:
            part._parameters[leaf] = torch.nn.Parameter(tensor)
        else:
            part._buffers[leaf] = tensor
        return leaf

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the network; of repeated layers, those that are still children of their container."""
        values: dict[str, Value] = {**self._network.constants, "": None}
        values |= {i.name: tensor for i, tensor in zip(self._network.inputs, inputs, strict=True)}
        for name, (path, leaf) in self._places.items():
            part = self._find(path)
            if part is not None:
                values[name] = part._parameters.get(leaf, part._buffers.get(leaf))
        runs = {run.start: run for run in self._runs}
        position = 0
        while position < len(self._network.nodes):
            if position in runs:
                self._repeat(runs[position], values)
                position = runs[position].end
            else:
                self._step(position, values)
                position += 1
        return tuple(v for name in self._network.outputs if isinstance(v := values.get(name), torch.Tensor))

    def _find(self, path: str) -> torch.nn.Module | None:
        module: torch.nn.Module | None = self
        for name in path.split(".") if path else []:
            module = module._modules.get(name) if module is not None else None
        return module

    def _repeat(self, run: LayerRun, values: dict[str, Value]) -> None:
        """Run the repetitions that are there; what follows takes the outputs of the last one for the run's."""
        last = 0
        for r, scope in enumerate(run.scopes):
            layer = self._find(scope)
            if layer is None:
                continue
            first = run.start + r * run.period

            def steps(*_: Any, first: int = first) -> None:
                for n in range(first, first + run.period):
                    self._step(n, values)

            layer(steps, *(values[name] for name in run.carried[r]))
            last = first
        final = run.end - run.period
        for n in range(run.period):
            for made, wanted in zip(
                self._network.nodes[last + n].outputs, self._network.nodes[final + n].outputs, strict=True
            ):
                if made in values:
                    values[wanted] = values[made]

    def _step(self, position: int, values: dict[str, Value]) -> None:
        """Run one node inside its module."""
        node = self._network.nodes[position]
        part = self._find(self._scopes[position])
        assert part is not None, "a module is cut away only with all of its nodes"
        try:
            given = [values[name] for name in node.inputs]
            outputs = computed(node, given, self._network.opset)
            if outputs is None:
                call = Call(node, given, BATCH, self._fixed)
                counted = part._buffers.get(_BATCHES) if node.op == "BatchNormalization" else None
                made = part(_run, call, counted) if part is not self else _run(call, counted)
                outputs = list(made) if isinstance(made, tuple | list) else [made]
        except TraincastError:
            raise
        except KeyError as error:
            raise CaptureError(f"{self._network.path}: {node.label} reads {error}, which no node makes") from error
        except Exception as error:  # a file may ask for anything
            said = str(error) if isinstance(error, UnsupportedError) else described(error)
            raise CaptureError(f"{self._network.path}: {node.label} cannot be traced: {said}") from error
        values |= dict(zip(node.outputs, outputs, strict=False))


def _run(call: Call, counted: torch.Tensor | None) -> Any:
    if counted is not None:
        counted.add_(1)  # PyTorch's batch norm counts its batches
    return FUNCTIONS[call.node.op](call)


def scopes_of(network: OnnxNetwork) -> list[str]:
    """The path of the module of each node: as the file says, or from the name of its weight, or the node's own."""
    scopes = []
    for node in network.nodes:
        weight = next((n for n in node.inputs if n in network.weights and "." in n and "::" not in n), "")
        scope = node.scope or weight.rpartition(".")[0] or (node.name if node.op in LAYERS else "")
        scopes.append(scope.replace("/", ".").strip("."))
    return scopes


def _class_of(node: OnnxNode, scope: str) -> str:
    """The class of a node's module; a module that is called a norm is one."""
    last = scope.rpartition(".")[2].lower()
    return node.owner or ("Norm" if "norm" in last or node.op.endswith("Normalization") else "Part")


_CLASSES: Final[dict[str, type[OnnxPart]]] = {"Part": OnnxPart}


def _subclass(name: str) -> type[OnnxPart]:
    """``Part`` under another name, by which a graph tells the modules of its operators."""
    if name not in _CLASSES:
        _CLASSES[name] = type(name, (OnnxPart,), {})
    return _CLASSES[name]
