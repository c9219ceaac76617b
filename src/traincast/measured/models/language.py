"""The language model that a row trained, from its dimensions or its name."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from traincast.graph import OperatorGraph, Phase, zoo
from traincast.graph.load import load_model
from traincast.graph.zoo.known_models import known_model
from traincast.measured.dialect import Meanings, Pattern, Said, meaning, vocabulary
from traincast.measured.rates import flops_per_sample, masked_rates
from traincast.measured.run import contradiction, unstated
from traincast.measured.table import FROM_OTHERS
from traincast.strategy import Runtime
from traincast.tables import Row, RowError, figure, text, whole

_DECIMALS: Final = re.compile(r"(\d+)\.(\d+)(?=b)")
_PUBLISHERS: Final = re.compile(r"^[\w.-]+/(?=[\w.-]+$)")


def _unpunctuated(written: str) -> str:
    return re.sub(r"[^a-z0-9]", "", written)


def names(written: str) -> list[str]:
    """Return the names that a table may mean, without publisher and task, the most literal first."""
    lower = re.sub(r"\(.*?\)", "", written.lower()).strip()
    short = _PUBLISHERS.sub("", lower)
    tasks = vocabulary(Models).tasks
    said = (lower, short, short.replace("_", "-"))
    return [lower, tasks.sub("", lower), short, *(tasks.sub("", name) for name in said[1:])]


def spellings(written: str) -> list[str]:
    """Return the names without punctuation that a table may mean, the most literal first."""
    found = [_unpunctuated(said) for said in names(written)]
    words = vocabulary(Models)
    same = words.same_shape.match(found[-1])
    return list(dict.fromkeys([*found, *([f"{words.same_shape_as}{same[1]}"] if same else [])]))


def same_size(written: str, name: str) -> bool:
    """Return whether the decimals of two names agree: ``gpt3-1.3b`` and ``GPT3 1_3B`` do, ``gpt3-13b`` does not."""
    lower = written.lower()
    there = (re.search(rf"(?<!\d){whole}[^a-z0-9]{part}b", lower) for whole, part in _DECIMALS.findall(name))
    back = (f"{whole}.{part}b" in name for whole, part in _DECIMALS.findall(lower))
    return all(there) and all(back)


def published_spec(written: str) -> str | None:
    """Return the spec of a published model that is not in the zoo; ``None`` if its name is not known."""
    return next((spec for name in names(written) if (spec := known_model(name)) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsRun:
    """A ``model`` of stated width ``hidden`` that ran as ``spec`` in a ``framework``; ``by`` says how this is known."""

    model: str
    hidden: int
    framework: Said
    spec: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What tables call language models; comments in ``models.toml`` explain each entry."""

    same: dict[str, str]
    families: Meanings[str]
    rotary: Said
    rotary_as: str
    mixture: Said
    tasks: Pattern
    same_shape: Pattern
    same_shape_as: str
    further: Said
    no_further: Said
    further_runtimes: tuple[str, ...]
    written_out: Said
    written_out_activation: Meanings[str]
    lengths: Meanings[int]
    endings: Pattern
    sizes: Pattern
    as_run: tuple[AsRun, ...]


DIMENSIONS: Final = {
    "n_layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "ffn",
    "vocab": "vocab",
}
"""Columns of dimensions, and the names that models of the zoo give them."""
_LONGEST_NAME: Final = 200
"""Characters of a graph's name that its file keeps: of a longer one, the last dimension is not whole."""
_HEAD: Final = 128
"""Usual width of a head, and usual ratio of width to layers: those of GPT-3 and Llama are within a third of it."""
_WIDE: Final = 3072
_WIDE_STEP: Final = 1024
"""Width from which models are wide, and the number that widths of wide models are multiples of."""
_MISS_WEIGHT: Final = 10.0
"""Weight of missed parameters against an unusual ratio of width to layers, both as logarithms."""
_LENGTHS: Final = tuple(2**n for n in range(9, 18))
_NEAR_LENGTH: Final = 0.05
_SAME_FLOPS: Final = 0.005
"""Usual lengths of sequences, and how far they and the FLOPs of a token may be from those that stated rates make."""
_SAME_SIZE: Final = 0.01
"""How far the parameters of inferred dimensions may be from the stated ones, relative to them."""
_LEAST_INFERRED_B: Final = 1.0
"""Billions of parameters from which they tell the shape: in smaller models the vocabulary is too large a part."""
_CLOSE: Final = 1.1
_ANOTHER: Final = 1.5
"""Ratios of found to stated parameters above which the difference is reported, and above which a row is refused."""


def graph_of(row: Row, assumed: list[str], *, allow_code: bool = False) -> OperatorGraph:
    """Return the operator graph of a row's model; ``assumed`` gets a sentence for each thing that is not stated."""
    graph = _graph(row, assumed, allow_code=allow_code)
    if not whole(row, "seq", 0) and graph.tokens_per_sample:
        graph = _of_stated_rates(row, graph)
        assumed.append(unstated("sequence length", graph.tokens_per_sample))
    _check_parameters(row, graph, assumed)
    return graph


def optimizer_name(graph: OperatorGraph) -> str:
    """Return the name of a graph's optimizer; "" if it has none."""
    return next((op.name for op, _ in graph if op.phase is Phase.OPTIMIZER), "")


def further_tokens(row: Row, graph: OperatorGraph, runtime: Runtime, assumed: list[str]) -> OperatorGraph:
    """Return ``graph`` with the prediction of tokens after the next one, if the row's model was trained with it.

    This concerns models that were published so. A row may say it (``w/o MTP``); otherwise the habit of the runtime's
    recipes counts.
    """
    name = zoo_name(text(row, "model"))
    depths = zoo.card(name).published.get("mtp") if name else None
    if not depths:
        return graph
    words = vocabulary(Models)
    stated = words.further(row)
    trained = not words.no_further(row) if stated else runtime.name in words.further_runtimes
    if not stated:
        assumed.append(unstated("prediction of further tokens", depths if trained else 0))
    return model(f"{graph.name}+mtp={depths}", whole(row, "seq", 0) or None) if trained else graph


@lru_cache(maxsize=1024)
def zoo_name(written: str) -> str | None:
    """Return the model of the zoo that a table spells ``Qwen3_30B_a3B`` or the like; ``None`` if there is none."""
    alike = defaultdict(list)
    for name in sorted(zoo.names(), key=lambda each: "." not in each):
        alike[_unpunctuated(name)].append(name)
    others = vocabulary(Models).same
    for plain in spellings(written):
        found = next((name for name in alike[plain] if same_size(written, name)), None) or others.get(plain)
        if found is not None:
            return found
    return None


@lru_cache(maxsize=512)
def model(spec: str, seq: int | None, *, allow_code: bool = False) -> OperatorGraph:
    """Return the graph of a model by its spec; it stays in memory and in the cache of graphs."""
    return load_model(spec, seq=seq, use_cache=True, allow_code=allow_code)


def _graph(row: Row, assumed: list[str], *, allow_code: bool) -> OperatorGraph:
    words, name = vocabulary(Models), text(row, "model")
    seq = whole(row, "seq", 0) or meaning(words.lengths, name.lower())
    if ":" in name:
        return model(name, seq, allow_code=allow_code)
    layers, hidden, heads = (figure(row, key) for key in ("n_layers", "hidden", "heads"))
    if text(row, FROM_OTHERS):
        assumed.append(unstated("heads", f"{heads:g}, as in other rows of this width"))
    written_out = words.written_out(row)
    ran = (run for run in words.as_run if run.model == name and run.hidden == int(hidden or 0))
    as_run = next((run for run in ran if run.framework(row)), None)
    if as_run is not None:
        assumed.append(contradiction("hidden and heads", as_run.by, as_run.spec))
        return model(as_run.spec, seq)
    known = zoo_name(name)
    published = published_spec(name) if known is None else None
    if published is not None and (_is_mixture(row) or not (layers and hidden and heads)):
        assumed.append(f"dimensions not stated: those of the published {name}")
        return model(_resized(row, published), seq)
    if _is_mixture(row) and known is None:
        raise RowError(f"{name} is a mixture of experts, which columns cannot describe, and is not in the zoo")
    described = meaning(words.families, name.lower()) is not None
    if known is not None and (_is_mixture(row) or not (layers and hidden and heads and described)):
        return model(_resized(row, known), seq)
    if published is not None and not written_out and _has_dimensions(row, published):
        return model(published, seq)
    layers, hidden, heads = _shape(row, layers, hidden, heads, assumed)
    kv_heads, ffn, vocab = (figure(row, key) for key in ("kv_heads", "ffn", "vocab"))
    family = _family(name, ffn, hidden, assumed)
    parts = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": vocab}
    if family == "llama" or (family == "gpt" and kv_heads and kv_heads < heads):
        parts["kv_heads"] = kv_heads
    elif kv_heads and kv_heads != heads:
        assumed.append(f"kv_heads {kv_heads:g} is not modelled in {family}: {heads:g}")
    assumed += [
        unstated(key, f"default of {family}") for key in ("ffn", "vocab", "kv_heads") if not parts.get(key, 1.0)
    ]
    spec = f"{family}:" + ",".join(f"{k}={int(v)}" for k, v in parts.items() if v)
    if family == "gpt" and words.rotary(row):
        spec += f",{words.rotary_as}"
    if written_out and family == "gpt":
        spec += f",activation={meaning(words.written_out_activation, name.lower())}"
    stated = figure(row, "params_b")
    if family == "llama" and stated and vocab and _wide_heads(row, stated):
        spec += f",head_dim={_HEAD}"
        assumed.append(f"width of heads not stated: {_HEAD}, by the number of parameters")
    elif family == "llama" and stated and vocab and _closer_tied(row, stated):
        spec += ",tied=true"
    return model(spec, seq)


def _of_stated_rates(row: Row, graph: OperatorGraph) -> OperatorGraph:
    """Return ``graph`` with the sequence length that stated FLOPs and tokens per second tell; else as it is.

    Their quotient is the model FLOPs of a token, to which attention adds in proportion to the length.
    """
    speed, tokens = figure(row, "tflops_per_gpu"), figure(row, "tokens_per_s_per_gpu")
    if not speed or not tokens or zoo_name(text(row, "model")) is None:
        return graph
    stated, masked, usual = speed * 1e12 / tokens, masked_rates(row), graph.tokens_per_sample
    every, scores = (flops_per_sample(graph, masked=masked, scores_only=only) / usual for only in (False, True))
    exact = usual * (stated - every + scores) / scores if scores else 0.0
    seq = next((length for length in _LENGTHS if abs(exact / length - 1) < _NEAR_LENGTH), usual)
    found = graph if seq == usual else model(graph.name, seq)
    same = abs(flops_per_sample(found, masked=masked) / seq / stated - 1) < _SAME_FLOPS
    return found if same else graph


def _is_mixture(row: Row) -> bool:
    """Return whether a row's model has experts: its name says so, or not all of its parameters are active."""
    active, every = figure(row, "active_params_b"), figure(row, "params_b")
    fewer = active is not None and every is not None and active < 0.95 * every
    return fewer or vocabulary(Models).mixture(row)


def _has_dimensions(row: Row, spec: str) -> bool:
    """Return whether no dimension that a row states differs from those of a published model.

    What columns cannot say (tied embeddings, positions, the activation) is then that model's.
    """
    given = zoo.card(spec).parameters
    usual = {"kv_heads": given.get("heads"), "ffn": 4 * int(given.get("hidden", 0))}
    stated = {key: figure(row, column) for column, key in DIMENSIONS.items()}
    return all(value == given.get(key, usual.get(key)) for key, value in stated.items() if value)


def _shape(
    row: Row, layers: float | None, hidden: float | None, heads: float | None, assumed: list[str]
) -> tuple[float, float, float]:
    """Return layers, width and heads, as stated or inferred.

    They are inferred from the number of parameters of a model of a known family: a transformer of L layers of width h
    has about 12·L·h².
    """
    if layers and hidden and heads:
        return layers, hidden, heads
    name, stated_b = text(row, "model"), figure(row, "params_b") or 0.0
    named = meaning(vocabulary(Models).families, name.lower()) is not None
    if not (layers and hidden) and not (named and stated_b >= _LEAST_INFERRED_B):
        raise RowError(f"the dimensions of {name or 'the model'} are not stated and it is not in the zoo")
    each = whole(row, "pp", 1) * whole(row, "vp", 1)
    if not hidden and layers:
        hidden = float(round(math.sqrt(stated_b * 1e9 / (12 * layers)) / _HEAD) * _HEAD)
    elif not hidden:
        layers, hidden = _usual_shape(stated_b * 1e9, each)
    elif not layers:
        layers = float(max(1, round(stated_b * 1e9 / (12 * hidden**2) / each)) * each)
    if not heads:
        heads = _usual_heads(int(hidden), whole(row, "tp", 1))
    missing = [key for key in ("n_layers", "hidden", "heads") if not figure(row, key)]
    assumed.append(f"{', '.join(missing)} not stated: {layers:g} layers of width {hidden:g} with {heads:g} heads")
    return layers, hidden, heads


def _usual_shape(parameters: float, each: int) -> tuple[float, float]:
    """Return the layers, a multiple of ``each``, and the width of a transformer with this many parameters.

    Widths are usually about 128 times the layers, and multiples of 1024 in large models. Where the stages of a pipeline
    allow few numbers of layers, the parameters tell more than that ratio: a tenth more or less of them counts as much
    as a width of e times the usual one.
    """
    usual = (parameters * _HEAD / 12) ** (1 / 3)
    step = _WIDE_STEP if usual >= _WIDE else _HEAD

    def unlikely(width: int) -> tuple[float, float]:
        layers = max(1, round(parameters / (12 * width**2) / each)) * each
        misses = _MISS_WEIGHT * abs(math.log(12 * layers * width**2 / parameters))
        return misses + abs(math.log(width / layers / _HEAD)), float(layers)

    nearest = max(1, round(usual / step))
    widths = range(step * max(1, nearest // 2), step * 2 * nearest + 1, step)
    best = min(widths, key=unlikely)
    return unlikely(best)[1], float(best)


def _usual_heads(hidden: int, tp: int) -> float:
    """Return the number of heads, a multiple of ``tp``, whose width is nearest to the usual one."""
    choices: Sequence[int] = [d for d in range(1, hidden + 1) if hidden % d == 0 and d % tp == 0]
    if not choices:
        raise RowError(f"heads is not stated, and no multiple of tp={tp} divides hidden={hidden}")
    return float(min(choices, key=lambda d: abs(math.log(hidden / d / _HEAD))))


def _check_parameters(row: Row, graph: OperatorGraph, assumed: list[str]) -> None:
    """Compare the stated number of parameters: report a small difference, and refuse the row for a large one."""
    stated_b = figure(row, "params_b")
    if not stated_b:
        return
    found_b = graph.num_parameters / 1e9
    apart = max(found_b / stated_b, stated_b / found_b)
    if apart > _ANOTHER:
        raise RowError(
            f"params_b is {stated_b:g}, but the stated dimensions of {text(row, 'model') or 'the model'} give "
            f"{found_b:.3g} billion parameters"
        )
    if apart > _CLOSE:
        assumed.append(f"number of parameters differs from params_b: {found_b:.3g} B instead of {stated_b:.3g} B")


def _resized(row: Row, known: str) -> str:
    """Return the spec of a known model with the dimensions that a row states; ``known`` itself if they are the same."""
    family, dims = _family_and_dimensions(known)
    stated = {key: int(value) for column, key in DIMENSIONS.items() if (value := figure(row, column))}
    if dims.get("heads", stated.get("heads")) == stated.get("kv_heads") and "kv_heads" not in dims:
        del stated["kv_heads"]  # as many as heads, which is the default
    if "expert_ffn" in dims and (ffn := stated.pop("ffn", None)) not in (None, dims["expert_ffn"], dims.get("ffn")):
        if "ffn" in dims:
            raise RowError(
                f"ffn is {ffn}, but {known} has {dims['ffn']} in dense layers and {dims['expert_ffn']} in experts"
            )
        stated["expert_ffn"] = ffn
    changed = {key: value for key, value in stated.items() if dims.get(key) != value}
    if not changed:
        return known
    if "first_dense" in dims and "layers" in changed:
        changed["first_dense"] = max(1, round(dims["first_dense"] * changed["layers"] / dims["layers"]))
    return f"{family}:" + ",".join(f"{k}={_plain(v)}" for k, v in {**dims, **changed}.items() if k != "seq")


def dimensions_of(name: str) -> dict[str, Any]:
    """Return the dimensions of a graph by its name; none if it was not made from a model of the zoo or a spec."""
    whole = name if len(name) < _LONGEST_NAME else name.rpartition(",")[0]
    plain = re.sub(r" \(.*$|\+mtp=\d+|:classes=\d+$", "", whole)
    return _family_and_dimensions(plain)[1] if ":" in plain or plain in zoo.names() else {}


def _family_and_dimensions(known: str) -> tuple[str, dict[str, Any]]:
    """Return the family and the dimensions of a model: by its name in the zoo, or as its spec gives them."""
    family, given, parts = known.partition(":")
    if not given:
        card = zoo.card(known)
        return card.family, dict(card.parameters)
    pairs = (part.partition("=") for part in parts.split(","))
    return family, {key: int(value) if value.isdecimal() else value for key, _, value in pairs}


def _plain(value: object) -> str:
    """Return a dimension as specs write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _family(name: str, ffn: float | None, hidden: float, assumed: list[str]) -> str:
    if (family := meaning(vocabulary(Models).families, name.lower())) is not None:
        return family
    taken = "llama" if ffn and ffn != 4 * hidden else "gpt"
    assumed.append(f"family of {name or 'the model'} is not known: {taken}")
    return taken


def _closer_tied(row: Row, stated_b: float) -> bool:
    """Return whether the stated parameters are closer to a Llama with one embedding table than to one with two."""
    one, two = (_llama_size(row, tables=n) for n in (1, 2))
    return abs(one - stated_b) < abs(two - stated_b)


def _wide_heads(row: Row, stated_b: float) -> bool:
    """Return whether heads of the usual width, instead of the layer's width over their number, explain ``stated_b``.

    Some programs scale the number of heads and the width of layers apart from the width of heads.
    """
    usual, wide = (abs(_llama_size(row, tables=2, head_dim=dim) / stated_b - 1) for dim in (0, _HEAD))
    return wide < _SAME_SIZE < _CLOSE - 1 < usual


def _llama_size(row: Row, *, tables: int, head_dim: int = 0) -> float:
    """Return the billions of parameters of a Llama with the dimensions of a row and so many embedding tables."""
    layers, hidden, ffn, vocab = (figure(row, k) or 0.0 for k in ("n_layers", "hidden", "ffn", "vocab"))
    heads = figure(row, "heads") or 1.0
    kv_heads = figure(row, "kv_heads") or heads
    attention = hidden * (head_dim or hidden / heads) * (2 * heads + 2 * kv_heads)
    return (layers * (attention + 3 * hidden * ffn) + tables * vocab * hidden) / 1e9
