"""The operator set: distinct operators with published shapes and random shapes around them, to be profiled.

It follows swPredictor's operator set: operators of thirteen families of convolutional networks, with channel widths,
kernels and resolutions varied around the published ones, and operators of transformers, forward and backward. It is
drawn with a seed, so that all machines measure the same operators.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from traincast.errors import FileFormatError, RequestError
from traincast.estimate.events.keys import PHASES, operator_key
from traincast.files import write_json
from traincast.graph import Operator, OpKind, Phase
from traincast.graph.files import read_json
from traincast.graph.load import load_model
from traincast.profiling.operators.ask import FULL, SIZES, SMALL
from traincast.profiling.operators.opset_layers import TYPES, Operators
from traincast.profiling.operators.opset_shapes import CNN_MODELS, MAX_HIDDEN, LayerShape, published_shapes
from traincast.profiling.rows import canonical, operator_of, params_of

_TYPE_OF_KIND: Final = {OpKind.CONV: "Conv", OpKind.DEPTHWISE_CONV: "DepthConv", OpKind.BATCH_NORM: "BatchNorm"}
_TYPE_OF_NAME: Final = {
    "addmm": "FC",
    "relu": "ReLU",
    "hardtanh": "ReLU6",
    "mul": "Mul",
    "add": "Add",
    "mean": "Mean",
    "cat": "Concat",
    "split_with_sizes": "Split",
    "split_with_sizes_copy": "Split",
    "split": "Split",
    "clone": "Transpose",
    "max_pool2d_with_indices": "MaxPool",
    "avg_pool2d": "AvgPool",
}
OTHER: Final = "other"
"""The type of operators that the operator set has no type for, such as dropout and other activations."""
COLUMNS: Final = tuple(dict.fromkeys((*_TYPE_OF_KIND.values(), *_TYPE_OF_NAME.values(), OTHER)))
"""All types, in the order of a table."""


def operators_by_family() -> dict[str, dict[str, int]]:
    """The number of distinct forward operators of each type, by family of convolutional networks."""
    counts: dict[str, dict[str, int]] = {}
    for family, model in CNN_MODELS.items():
        found = {
            operator_key(operator): operator
            for operator in load_model(model, use_cache=True).operators
            if operator.phase is Phase.FORWARD and operator.kind is not OpKind.LOSS
        }
        counts[family] = {}
        for operator in found.values():
            name = type_of(operator)
            counts[family][name] = counts[family].get(name, 0) + 1
    return counts


def type_of(operator: Operator) -> str:
    """The type of the operator set that a captured operator of an image network belongs to, or :data:`OTHER`."""
    if operator.name == "clone" and len(operator.inputs[0].shape) != 5:
        return OTHER  # a plain copy, not a shuffle of channels
    return _TYPE_OF_KIND.get(operator.kind) or _TYPE_OF_NAME.get(operator.name.removesuffix("_"), OTHER)


FORMAT: Final = "traincast-opset"
VERSION: Final = 1


def save_operator_set(by_type: Mapping[str, Operators], path: Path, *, settings: Mapping[str, int]) -> None:
    """Write an operator set to ``path`` as JSON, atomically."""
    operators = [
        [name, op.kind.value, PHASES[op.phase], op.dtype.value, json.loads(params_of(op))]
        for name, chosen in by_type.items()
        for op in chosen
    ]
    data = {"format": FORMAT, "version": VERSION, "settings": dict(settings), "operators": operators}
    write_json(path, data)


def is_operator_set(path: Path) -> bool:
    """Whether a JSON file has the format of an operator set."""
    data = read_json(path)
    return isinstance(data, dict) and data.get("format") == FORMAT


def load_operator_set(path: Path) -> Operators:
    """Read an operator set that :func:`save_operator_set` wrote."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise FileFormatError(f'{path} is not an operator set of version {VERSION}: it lacks "format": "{FORMAT}"')
    try:
        return tuple(
            operator_of(op, phase, dtype, json.dumps(params)) for _, op, phase, dtype, params in data["operators"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is a damaged operator set: {error}") from error


_MOST_SAMPLES: Final = 10**4
_MOST_BATCH: Final = 10**9

_SMALL_FLOPS: Final = 1e9
_SMALL_BYTES: Final = 2**25
_SMALLER_BY: Final = {"width": 4, "ffn": 4, "heads": 4, "seq": 8, "vocab": 8, "experts": 4}
"""How much smaller the dims of transformer layers are in the small set."""

_WIDTHS: Final = (0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 1.75, 2.0)
_ATTEMPTS: Final = 60


def operator_set(*, samples: int = 40, seed: int = 0, batch: int = 1, size: str = FULL) -> Operators:
    """Return distinct operators of all types: layers of ``samples`` shapes of each type, forward and backward.

    ``seed`` fixes the draw. ``size`` is one of :data:`SIZES`.
    """
    by_type = operator_set_by_type(samples=samples, seed=seed, batch=batch, size=size)
    return tuple(op for operators in by_type.values() for op in operators)


def operator_set_by_type(*, samples: int = 40, seed: int = 0, batch: int = 1, size: str = FULL) -> dict[str, Operators]:
    """Return the operator set by type (``Conv``, ``ReLU6`` …); each operator is listed under its first type."""
    if size not in SIZES:
        raise RequestError(f"size is {size!r}: expected {' or '.join(SIZES)}")
    if not 1 <= samples <= _MOST_SAMPLES or not 1 <= batch <= _MOST_BATCH:
        raise RequestError(
            f"samples is {samples} and batch is {batch}: expected 1 to {_MOST_SAMPLES} and 1 to {_MOST_BATCH}"
        )
    published = published_shapes()
    seen: set[str] = set()
    drawn: dict[str, Operators] = {}
    for name, kind in TYPES.items():
        rng = random.Random(f"{name}/{seed}")  # noqa: S311  (a reproducible draw, no secret)
        chosen: list[Operator] = []
        count = 0
        for drawn_shape in _drawn(published[kind.templates], rng, samples):
            operators = kind.build(_shrunk(drawn_shape) if size == SMALL else drawn_shape, batch)
            if size == SMALL and not all(map(_is_small, operators)):
                continue
            fresh = {operator_key(op): canonical(op) for op in operators}
            fresh = {key: op for key, op in fresh.items() if key not in seen}
            seen.update(fresh)
            chosen += fresh.values()
            count += bool(fresh)
            if count == samples:
                break
        drawn[name] = tuple(chosen)
    return drawn


def _shrunk(shape: LayerShape) -> LayerShape:
    """``shape`` with the dims of a transformer layer divided for the small set; other layers stay as they are."""
    if not shape.seq:
        return shape
    return replace(shape, **{name: -(-getattr(shape, name) // by) for name, by in _SMALLER_BY.items()})


def _is_small(operator: Operator) -> bool:
    return operator.flops <= _SMALL_FLOPS and operator.nbytes <= _SMALL_BYTES


def _drawn(published: Sequence[LayerShape], rng: random.Random, samples: int) -> Iterator[LayerShape]:
    """Yield published shapes in random order for the first half, then random shapes around them."""
    order = list(published)
    rng.shuffle(order)
    yield from order[: -(-samples // 2)]
    for _ in range(_ATTEMPTS * samples):
        yield _around(rng.choice(published), rng)


def _around(shape: LayerShape, rng: random.Random) -> LayerShape:
    """A shape with widths, kernels, resolutions and lengths near those of ``shape``."""
    scale = rng.choice(_WIDTHS)
    height = max(1, round(shape.height * rng.uniform(0.5, 1.5))) if shape.height else 0
    kernel = shape.kernel
    if kernel > 1 and shape.stride:
        kernel = max(2 if kernel == 2 else 3, kernel + rng.choice((-2, 0, 2, 4)))
        height = max(height, kernel)
    width = _width(shape.width, scale)
    depthwise = shape.groups > 1 and shape.groups == shape.width
    heads = max(1, round(shape.heads * rng.choice(_WIDTHS))) if shape.heads else 0
    return replace(
        shape,
        width=min(width, MAX_HIDDEN) if shape.seq else width,
        steps=rng.choice((8, 16, 24, 32, 50, 64, 100, 128)) if shape.steps else 0,
        out_width=width if depthwise else _width(shape.out_width, rng.choice(_WIDTHS)),
        groups=width if depthwise else 1 if shape.groups > 1 else shape.groups,
        height=height,
        kernel=kernel,
        parts=tuple(_width(part, scale) for part in shape.parts),
        heads=heads,
        head_dim=rng.choice((32, 64, 80, 96, 128)) if shape.head_dim else 0,
        ffn=_width(shape.ffn, rng.choice(_WIDTHS)),
        seq=rng.choice((64, 128, 192, 256, 384, 512, 1024, 2048)) if shape.seq else 0,
        vocab=max(1000, round(shape.vocab * rng.uniform(0.25, 1.0))) if shape.vocab else 0,
        experts=max(2, round(shape.experts * rng.choice(_WIDTHS))) if shape.experts else 0,
    )


def _width(width: int, scale: float) -> int:
    """A scaled width, rounded to a multiple of eight as in real networks; narrow widths stay as they are."""
    return max(8, round(width * scale / 8) * 8) if width >= 8 else width
