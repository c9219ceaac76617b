"""Code that all exporters share: a model's dimensions, its layers by stage, and common refusals."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Final

from traincast.errors import RequestError, StrategyError
from traincast.graph import OperatorGraph, Phase, shipped
from traincast.graph.optimizers import optimizer_called
from traincast.graph.zoo import ModelCard, card
from traincast.strategy import Request, Strategy
from traincast.strategy.prepare import prepare

DECODERS: Final = frozenset({"gpt", "llama", "mpt", "moe", "deepseek", "gpt-oss"})
"""Families of the zoo whose models are one stack of decoder layers."""
_ROUNDED: Final = 0.02
"""Relative difference allowed: published numbers of parameters are rounded, and exclude position embeddings."""
_PLAIN_FFN: Final = frozenset({"gpt", "mpt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Dimensions of a language model from its card in the zoo; ``experts`` is 0 for a dense model.

    ``other`` has all settings of the card. ``rotary_base``, ``rope_scaling`` and ``norm_epsilon`` change no cost; 0
    means that they are not known, or, for the scaling, that there is none.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq: int
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    first_dense: int = 0
    tied: bool = False
    rotary_base: int = 0
    rope_scaling: float = 0.0
    norm_epsilon: float = 0.0
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)


def decoder_of(graph: OperatorGraph) -> Decoder | None:
    """Return the dimensions of ``graph``'s model, or ``None`` if it is not a decoder of the zoo.

    A user's model may have the same name as one of the zoo; it is recognized by another number of parameters.
    """
    try:
        known = card(graph.name)
    except RequestError:
        return None
    published = float(known.published.get("parameters", graph.num_parameters))
    if known.family not in DECODERS or abs(graph.num_parameters / published - 1) > _ROUNDED:
        return None
    return decoder_from(known, graph.tokens_per_sample)


def family_of(name: str) -> str:
    """Return the family of the zoo's model ``name``, or an empty text if there is none."""
    try:
        return card(name).family
    except RequestError:
        return ""


def decoder_from(known: ModelCard, seq: int) -> Decoder:
    """Return the dimensions of a decoder's card, with the defaults of its family, for ``seq`` tokens per sample."""
    given = {**shipped.defaults_of(known.family), **known.parameters}
    family, hidden, heads = known.family, int(given["hidden"]), int(given["heads"])
    ffn = 4 * hidden if family in _PLAIN_FFN else -(-8 * hidden // 3 // 256) * 256
    experts = int(given.get("experts", 0))
    expert_ffn = int(given.get("expert_ffn") or (hidden if experts else 0))
    shared = int(given.get("shared_experts", 0)) * expert_ffn
    return Decoder(
        family=family,
        layers=int(given["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(given.get("kv_heads") or heads),
        head_dim=int(given.get("head_dim") or hidden // heads),
        ffn=int(given.get("ffn") or ffn),
        vocab=int(given["vocab"]),
        seq=seq,
        experts=experts,
        top_k=int(given.get("top_k", 0)),
        expert_ffn=expert_ffn,
        shared_ffn=int(given.get("shared_ffn", 0)) or shared,
        first_dense=int(given.get("first_dense", 0)),
        tied=bool(given.get("tied", False)),
        rotary_base=int(_setting("rotary_base", known.name)),
        rope_scaling=_setting("rope_scaling", known.name),
        norm_epsilon=_setting("norm_epsilon", known.name),
        other=dict(known.parameters),
    )


@cache
def _settings() -> dict[str, dict[str, float]]:
    """The settings of ``settings.toml``: for each, its value by the name of a model."""
    text = resources.files("traincast.export").joinpath("settings.toml").read_text(encoding="utf-8")
    return {
        setting: {name: float(value) for value, names in values.items() for name in names}
        for setting, values in tomllib.loads(text).items()
    }


def _setting(setting: str, name: str) -> float:
    return _settings()[setting].get(name, 0.0)


def not_stated(model: Decoder) -> list[str]:
    """Return the settings of a model that the framework's defaults decide, because none is known."""
    turned = model.family not in _PLAIN_FFN or model.other.get("positions") == "rope"
    missing = {"base of rotary positions": turned and not model.rotary_base, "epsilon of norms": not model.norm_epsilon}
    return [what for what, unknown in missing.items() if unknown]


def layers_by_stage(request: Request, num_layers: int) -> list[int]:
    """Return the number of layers of every chunk of the pipeline in the forecast, in the order of the model.

    The repeated blocks of the graph are counted. A block may hold several layers; layers outside of blocks belong to
    the first stage. Empty if the graph has no repeated blocks.
    """
    prepared = prepare(replace(request, strategy=replace(request.strategy, recompute_every=1)))
    repeated = {i for i, block in enumerate(request.graph.blocks) if block.repeated}
    counts = [sum(b in repeated for b in piece.blocks) for piece in prepared.pieces]
    if not sum(counts):
        return [num_layers] if len(counts) == 1 else []
    each = num_layers // sum(counts)
    split = [count * each for count in counts]
    split[0] += num_layers - sum(split)
    return split


def parameters_of_largest_block(graph: OperatorGraph) -> int:
    """Return the number of parameters of the largest repeated block."""
    sizes = (
        sum(graph.operators[i].parameters[0].numel for i in block.optimizer if graph.operators[i].parameters)
        for block in graph.blocks
        if block.repeated
    )
    return max((int(size) for size in sizes), default=0)


def refuse(framework: str, asked: str, because: str) -> StrategyError:
    """Return a :class:`StrategyError`: what was asked, and why ``framework`` cannot do it, with a remedy."""
    return StrategyError(f"{asked} cannot be written for {framework}: {because}")


def check_common(framework: str, strategy: Strategy, *, recomputes: Collection[str]) -> None:
    """Refuse settings that no framework supports, and recomputation other than ``recomputes``."""
    if strategy.recompute not in recomputes:
        choices = ", ".join(recomputes)
        raise refuse(framework, f"recompute={strategy.recompute}", f"it does not support it; choose one of {choices}")
    if strategy.servers:
        raise refuse(framework, f"servers={strategy.servers}", "it has no parameter servers; leave servers out")
    if strategy.shares:
        asked = f"shares={':'.join(map(str, strategy.shares))}"
        raise refuse(framework, asked, "its replicas have equal batches; leave shares out")
    if strategy.compression != 1.0:
        asked = f"compression={strategy.compression:g}"
        raise refuse(framework, asked, "it exchanges whole gradients; leave compression out")
    if strategy.tables != "replicated":
        raise refuse(framework, f"tables={strategy.tables}", "it does not divide embedding tables; leave tables out")
    if strategy.shard_rules and strategy.tp > 1:
        asked = f"{len(strategy.shard_rules)} shard rules with tp={strategy.tp}"
        raise refuse(framework, asked, "it shards layers by its own rules; leave them out")
    if strategy.pp > 1 and ":" in strategy.schedule:
        raise refuse(
            framework, f"schedule={strategy.schedule}", "it does not know your own schedule; name a built-in one"
        )


def check_full_training(framework: str, graph: OperatorGraph) -> None:
    """Refuse fine-tuning and optimizers for which a framework has no setting."""
    tuning = graph.attributes.get("fine_tuning")
    if tuning:
        raise refuse(framework, str(tuning), "it has no setting for it; use deepspeed, whose models are your own code")
    optimizer = optimizer_of(graph)
    if not optimizer_called(optimizer).ordinary:
        raise refuse(framework, f"optimizer {optimizer}", "it has no such optimizer; use deepspeed with your own code")


def optimizer_of(graph: OperatorGraph) -> str:
    """Return the name of the optimizer that updates the model's parameters, or an empty text."""
    return next((op.name for op in graph.operators if op.phase is Phase.OPTIMIZER), "")


def check_tokens(framework: str, graph: OperatorGraph) -> None:
    """Refuse a model that is not a language model."""
    if not graph.tokens_per_sample:
        raise refuse(framework, graph.name, "it trains language models; use deepspeed for others")


def gradient_dtype(request: Request) -> str:
    """Return the dtype that sums gradients: the runtime's if there are master weights, else the precision's."""
    if request.runtime.defaults.gradient_dtype and request.precision.master is not None:
        return request.runtime.defaults.gradient_dtype
    return request.precision.gradients.value


def sent_dtype(request: Request) -> str:
    """Return the dtype in which the forecast exchanges gradients between replicas."""
    if request.runtime.exchange.reduce_dtype:
        return request.runtime.exchange.reduce_dtype
    return request.precision.activations.value if request.strategy.zero == 3 else gradient_dtype(request)


def comments(notes: list[str]) -> list[str]:
    """Return one comment line per note, without line breaks, which a user's text may contain."""
    return [f"# {' '.join(note.split())}" for note in notes]


def header(request: Request, target: str) -> list[str]:
    """Return the first notes of a file: model, cluster, strategy, batch."""
    strategy, tuning = request.strategy, request.graph.attributes.get("fine_tuning")
    return [
        f"{request.graph.name} on {request.cluster.num_devices} devices of {request.cluster.name}, for {target}",
        f"strategy {strategy}; global batch {request.global_batch}, precision {request.precision.name}",
        *([f"fine-tuning: {tuning}"] if tuning else []),
    ]
