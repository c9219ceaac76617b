"""Shapes of published layers, read from the models of the zoo; the operator set is drawn around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from traincast.graph import Operator, OpKind, Phase, zoo
from traincast.graph.load import load_model
from traincast.profiling.operators.windows import pool_window

CNN_MODELS: Final[Mapping[str, str]] = {
    "alexnet": "alexnet",
    "vgg": "vgg16",
    "googlenet": "googlenet",
    "resnet": "resnet50",
    "squeezenet": "squeezenet",
    "densenet": "densenet121",
    "mobilenet-v1": "mobilenet-v1",
    "mobilenet-v2": "mobilenet-v2",
    "mobilenet-v3": "mobilenet-v3-large",
    "mnasnet": "mnasnet",
    "proxylessnas": "proxylessnas",
    "shufflenet-v2": "shufflenet-v2",
    "nasbench": "nasbench",
}
"""The thirteen families, and the model of the zoo that represents each."""
RECURRENT_MODELS: Final = ("nmt", "nmt-medium", "tft")
"""Models of the zoo whose recurrent layers are published shapes."""
TRANSFORMER_FAMILIES: Final = frozenset({"gpt", "llama", "bert", "moe", "mpt", "vit"})
MAX_HIDDEN: Final = 8192
"""The widest transformer layer of the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The dims of a published layer; dims that a type of operator does not use are zero."""

    width: int = 0
    out_width: int = 0
    height: int = 0
    kernel: int = 0
    stride: int = 0
    groups: int = 1
    bias: bool = False
    parts: tuple[int, ...] = ()
    heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    seq: int = 0
    vocab: int = 0
    experts: int = 0
    top_k: int = 0
    causal: bool = True
    steps: int = 0


@cache
def published_shapes() -> dict[str, list[LayerShape]]:
    """The published shapes of each template, from the zoo."""
    found: dict[str, dict[LayerShape, None]] = {}

    def add(template: str, shape: LayerShape | None) -> None:
        if shape is not None:
            found.setdefault(template, {})[shape] = None

    for model in (*CNN_MODELS.values(), *RECURRENT_MODELS):
        for operator in load_model(model, use_cache=True).operators:
            if operator.phase is Phase.FORWARD:
                for template, shape in _templates(operator):
                    if (template == "recurrent") == (model in RECURRENT_MODELS):
                        add(template, shape)
    for name in zoo.names():
        known = zoo.card(name)
        if known.family in TRANSFORMER_FAMILIES:
            add("experts" if known.family == "moe" else "layer", _layer(known.parameters))
    return {template: list(shapes) for template, shapes in found.items()}


def _layer(parameters: Mapping[str, Any]) -> LayerShape | None:
    """The layer of a transformer, from the dimensions on its card; layers too wide for one device are left out."""
    hidden, heads = int(parameters["hidden"]), int(parameters["heads"])
    if hidden > MAX_HIDDEN:
        return None
    seq = int(parameters.get("seq", 512))
    return LayerShape(
        width=hidden,
        heads=heads,
        head_dim=int(parameters.get("head_dim", hidden // heads)),
        ffn=int(parameters.get("expert_ffn", parameters.get("ffn", 4 * hidden))),
        seq=min(seq, 2048),
        vocab=min(int(parameters.get("vocab", 32000)), 65536),
        experts=int(parameters.get("experts", 0)),
        top_k=int(parameters.get("top_k", 0)),
        causal="image" not in parameters,
    )


def _templates(operator: Operator) -> Iterator[tuple[str, LayerShape | None]]:
    """The types that a captured operator of an image network is an example of."""
    shapes = [t.shape for t in operator.inputs]
    images = bool(shapes) and len(shapes[0]) == 4
    match operator.kind:
        case OpKind.CONV | OpKind.DEPTHWISE_CONV if images:
            weight = shapes[1]
            shape = LayerShape(
                width=shapes[0][1],
                out_width=weight[0],
                height=shapes[0][2],
                kernel=weight[2],
                stride=int(operator.attributes["stride"]),
                groups=int(operator.attributes["groups"]),
                bias=len(shapes) > 2,
            )
            yield ("depthwise" if operator.kind is OpKind.DEPTHWISE_CONV else "conv"), shape
        case OpKind.POOL if images:
            window = pool_window(data=shapes[0][2:], out=operator.outputs[0].shape[2:])
            if window is not None and "adaptive" not in operator.name and window.kernel[0] > 1:
                name = "max_pool" if "max" in operator.name else "avg_pool"
                yield (
                    name,
                    LayerShape(
                        width=shapes[0][1], height=shapes[0][2], kernel=window.kernel[0], stride=window.stride[0]
                    ),
                )
        case OpKind.RNN:
            yield "recurrent", LayerShape(width=shapes[0][2], out_width=shapes[2][1], steps=shapes[0][0])
        case OpKind.GEMM if operator.name == "addmm":
            yield "dense", LayerShape(width=shapes[0][1], out_width=shapes[1][1])
        case OpKind.COPY if operator.name == "cat" and images and operator.outputs[0].shape[1] > shapes[0][1]:
            yield "concat", LayerShape(parts=tuple(s[1] for s in shapes)[:4], height=shapes[0][2])
        case OpKind.COPY if operator.name == "clone" and shapes and len(shapes[0]) == 5:
            yield "shuffle", LayerShape(width=shapes[0][1] * shapes[0][2], height=shapes[0][3])
        case OpKind.BATCH_NORM | OpKind.ACTIVATION | OpKind.ELEMENTWISE | OpKind.REDUCTION if images:
            yield "image", LayerShape(width=shapes[0][1], height=shapes[0][2])
        case _:
            return
