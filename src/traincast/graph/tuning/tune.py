"""Fine-tuning: training a part of a model that exists, as a transform of its captured graph.

Low-rank adapters (LoRA) are inserted, parameters are frozen, and frozen weights may be stored in 4 or 8 bits (QLoRA,
Dettmers et al. 2023, arXiv:2305.14314). A frozen parameter has no gradient, no optimizer state and no master copy, and
is listed in :attr:`traincast.graph.operator.Block.fixed`. A block whose repetitions are not all tuned in the same way
is split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, TypeAlias, cast, get_args

from traincast.errors import RequestError, expect
from traincast.graph.operator import FixedTensor, Operator, OperatorGraph
from traincast.graph.tuning.edit import Draft, renamed
from traincast.graph.tuning.freeze import freeze, quantize
from traincast.graph.tuning.lora import LowRank, insert_adapters
from traincast.graph.tuning.storage import find_storage
from traincast.graph.tuning.targets import WORDS, Linear, Part, chosen_parts, linear_layers, matches, no_match, resolved
from traincast.units import parse_count

Adapter: TypeAlias = Literal["none", "lora"]
AdapterDType: TypeAlias = Literal["fp32", "model"]
AdapterCompute: TypeAlias = Literal["fp32", "model", "fused"]
_KEYS: Final = "rank, targets, alpha, dropout, train, dtype and compute"
_MAX_RANK: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """What is trained, and how the rest is stored.

    ``targets`` are words (``attention``, ``mlp``, ``q`` …, see :data:`traincast.graph.tuning.targets.WORDS`) or
    patterns of module paths. With an adapter, everything else is frozen except modules that match ``train``; a frozen
    original of these is kept beside the trained copy. Modules that match ``freeze`` are frozen and get no adapters.
    ``quantize`` names the format of frozen weights of linear layers (see
    :data:`traincast.graph.tuning.storage.STORAGES`; empty: they stay in the precision of the model).

    Adapters are stored in ``dtype``: fp32, or the precision of the model. Their products run in ``compute``: fp32, or
    the precision of the model, as under automatic mixed precision, where adapters in fp32 and their inputs are
    converted for each product. ``fused`` products, also in the precision of the model, convert nothing, as those of
    Unsloth. ``alpha`` only scales, and costs nothing.
    """

    adapter: Adapter = "none"
    rank: int = 0
    targets: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    quantize: str = ""
    alpha: float = field(default=0.0, compare=False)
    dropout: float = 0.0
    dtype: AdapterDType = "fp32"
    compute: AdapterCompute = "model"

    def __post_init__(self) -> None:
        """Refuse values that contradict one another."""
        if self.adapter == "lora" and not 1 <= self.rank <= _MAX_RANK:
            raise RequestError(f"LoRA rank {self.rank}: expected a whole number from 1 to {_MAX_RANK}")
        if self.adapter == "lora" and not self.targets:
            raise RequestError(f"LoRA without targets: give targets=attention+mlp, or {', '.join(WORDS)} or patterns")
        if not 0.0 <= self.dropout < 1.0:
            raise RequestError(f"LoRA dropout {self.dropout:g}: expected a number from 0 to below 1")
        if self.quantize:
            find_storage(self.quantize)
            if self.adapter == "none" and not self.freeze:
                raise RequestError(
                    "quantised weights cannot be trained: add adapters with --lora, or freeze modules with --freeze"
                )

    @property
    def bits(self) -> int | None:
        """Bits per element of quantised frozen weights, or ``None``."""
        return find_storage(self.quantize).bits if self.quantize else None

    def __str__(self) -> str:
        """The options of the command line that mean the same."""
        words = []
        if self.adapter == "lora":
            words.append(f"lora rank={self.rank},targets={'+'.join(self.targets)}")
            words[-1] += f",dropout={self.dropout:g}" if self.dropout else ""
            words[-1] += f",train={'+'.join(self.train)}" if self.train else ""
            words[-1] += f",dtype={self.dtype}" if self.dtype != "fp32" else ""
            words[-1] += f",compute={self.compute}" if self.compute != "model" else ""
        words += [f"freeze {pattern}" for pattern in self.freeze]
        words += [f"quantize {self.quantize}"] if self.quantize else []
        return "; ".join(words)


def parse_fine_tuning(
    lora: str | None = None,
    freeze: Sequence[str] = (),
    quantize: int | str | None = None,
    *,
    dtype: AdapterDType = "fp32",
) -> FineTuning:
    """The fine-tuning that ``--lora``, ``--freeze`` and ``--quantize`` describe.

    ``dtype`` is that of adapters for which ``lora`` states none.
    """
    format_of = "" if quantize is None else find_storage(str(quantize)).name
    frozen = tuple(freeze)
    if any(not pattern for pattern in frozen):
        raise RequestError("freeze: expected a pattern of module paths, not an empty text")
    if lora is None:
        return FineTuning(freeze=frozen, quantize=format_of)
    expect("lora", lora, str, "a text such as rank=16,targets=attention+mlp")
    given: dict[str, str] = {}
    for part in lora.split(","):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals or key not in ("rank", "targets", "alpha", "dropout", "train", "dtype", "compute"):
            raise RequestError(f"lora {part.strip()!r}: expected NAME=VALUE with the names {_KEYS}")
        if key in given or not value:
            raise RequestError(f"lora {part.strip()!r}: {key} {'is given twice' if key in given else 'has no value'}")
        given[key] = value
    if "rank" not in given:
        raise RequestError("lora has no rank: give rank=16,targets=attention+mlp")
    return FineTuning(
        adapter="lora",
        rank=parse_count(given["rank"], what="lora rank"),
        targets=tuple(t for t in given.get("targets", "attention").split("+") if t),
        freeze=frozen,
        train=tuple(t for t in given.get("train", "").split("+") if t),
        quantize=format_of,
        alpha=_number(given.get("alpha", "0"), "alpha"),
        dropout=_number(given.get("dropout", "0"), "dropout"),
        dtype=_dtype(given.get("dtype", dtype)),
        compute=_compute(given.get("compute", "model")),
    )


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"lora {name} is {text!r}: expected a number")
    return value


def _dtype(text: str) -> AdapterDType:
    for known in get_args(AdapterDType):
        if text == known:
            return cast("AdapterDType", known)
    raise RequestError(f"lora dtype is {text!r}: expected fp32 or model")


def _compute(text: str) -> AdapterCompute:
    for known in get_args(AdapterCompute):
        if text == known:
            return cast("AdapterCompute", known)
    raise RequestError(f"lora compute is {text!r}: expected fp32, model or fused")


def fine_tuned(graph: OperatorGraph, tuning: FineTuning) -> OperatorGraph:
    """Returns the graph of a step that fine-tunes ``graph``: adapters inserted, the chosen parameters frozen.

    Without adapters and frozen parameters it is ``graph`` itself. A graph that is fine-tuned already is refused.
    """
    if tuning.adapter == "none" and not tuning.freeze:
        return graph
    if "fine_tuning" in graph.attributes:
        raise RequestError(f"{graph.name} is fine-tuned already: {graph.attributes['fine_tuning']}")
    draft = Draft(graph)
    _check_patterns(draft, tuning)
    _split_runs(draft, tuning)
    if tuning.adapter == "lora":
        _insert(draft, tuning)
    adapted = draft.finish()
    result = _frozen(adapted, tuning, peel=True)
    attributes = {**graph.attributes, "fine_tuning": str(tuning)}
    if tuning.adapter != "none":
        attributes |= {"adapter": tuning.adapter, "adapter_dtype": tuning.dtype}
    return result.finish(attributes=attributes)


def _frozen(graph: OperatorGraph, tuning: FineTuning, *, peel: bool) -> Draft:
    """Returns ``graph`` with the chosen parameters frozen.

    ``peel``: the first layer becomes a block of its own where its backward ends earlier than that of the others.
    """
    draft = Draft(graph)
    first = next(
        (n for n, b in enumerate(draft.blocks) if any(_trained(draft.operators[i], tuning) for i in b.optimizer)), -1
    )
    if first < 0:
        raise RequestError(f"every parameter of {graph.name} is frozen: nothing is left to train")
    peeled = peel and draft.blocks[first].count > 1
    if peeled:
        draft.split(first, (1, draft.blocks[first].count - 1))
    skipped = {linear.index for linear in linear_layers(draft) if linear.group == "head"}
    freeze(draft, lambda op: _trained(op, tuning))
    if peeled and _alike(draft, first):
        return _frozen(graph, tuning, peel=False)
    if tuning.quantize:
        quantize(draft, find_storage(tuning.quantize), skipped)
    if tuning.train:
        _keep_originals(draft)
    return draft


def _keep_originals(draft: Draft) -> None:
    """Keep a frozen original beside every module that is trained in full, as PEFT's ``modules_to_save`` does."""
    for block in draft.blocks:
        updates = (draft.operators[i] for i in block.optimizer)
        copied = [op for op in updates if "adapter" not in op.attributes]
        block.fixed += [FixedTensor(scope=op.scope, spec=op.parameters[0]) for op in copied]


def _alike(draft: Draft, first: int) -> bool:
    """Whether blocks ``first`` and the next one run the same operators."""
    one, other = draft.blocks[first], draft.blocks[first + 1]
    pairs = [*zip(one.forward, other.forward, strict=True)]
    if len(one.backward) != len(other.backward):
        return False
    pairs += zip(one.backward, other.backward, strict=True)
    ops = draft.operators
    return all(
        (ops[a].name, ops[a].outputs, ops[a].saved) == (ops[b].name, ops[b].outputs, ops[b].saved) for a, b in pairs
    )


def _trained(op: Operator, tuning: FineTuning) -> bool:
    """Whether the parameter of an update stays trained."""
    if "adapter" in op.attributes:
        return True
    if any(matches(op.scope, pattern) for pattern in tuning.freeze):
        return False
    return tuning.adapter == "none" or any(matches(op.scope, pattern) for pattern in tuning.train)


def _check_patterns(draft: Draft, tuning: FineTuning) -> None:
    """Refuse patterns that match no module with parameters, in any repetition."""
    owned: list[str] = []
    for block in draft.blocks:
        scopes = dict.fromkeys(
            [*(draft.operators[i].scope for i in block.optimizer), *(t.scope for t in block.fixed if not t.buffer)]
        )
        owned += [renamed(scope, block.scope, n) for n in range(block.count) for scope in scopes]
    for what, patterns in (("freeze", tuning.freeze), ("train", tuning.train)):
        for pattern in patterns:
            if not any(matches(scope, pattern) for scope in owned):
                raise no_match(what, pattern, owned)


def _split_runs(draft: Draft, tuning: FineTuning) -> None:
    """Split every repeated block whose repetitions are tuned in different ways."""
    patterns = [*tuning.freeze, *tuning.train, *(t for t in tuning.targets if t not in WORDS)]
    if not any(c.isdigit() or c in "?[" for pattern in patterns for c in pattern):
        return
    for number in reversed(range(len(draft.blocks))):
        block = draft.blocks[number]
        if block.count == 1:
            continue
        scopes = list(dict.fromkeys(draft.operators[i].scope for i in (*block.forward, *block.optimizer)))
        keys = [
            tuple(matches(renamed(scope, block.scope, n), pattern) for scope in scopes for pattern in patterns)
            for n in range(block.count)
        ]
        counts = [1]
        for before, key in pairwise(keys):
            if key == before:
                counts[-1] += 1
            else:
                counts.append(1)
        draft.split(number, counts)


def _insert(draft: Draft, tuning: FineTuning) -> None:
    """Add the adapters of all targets that do not lie in frozen modules."""
    layers = [
        linear
        for linear in linear_layers(draft)
        if not any(matches(linear.scope, pattern) for pattern in tuning.freeze)
    ]
    targets = resolved(layers, tuning.targets)
    chosen = {linear.index: (linear, parts) for linear in layers if (parts := chosen_parts(linear, targets))}
    _check_targets(layers, tuning)
    wide = tuning.compute == "fp32"
    how = LowRank(
        rank=tuning.rank,
        dropout=tuning.dropout > 0.0,
        wide=wide,
        cast=tuning.dtype == "fp32" and tuning.compute == "model",
    )
    for block in draft.blocks:
        here: list[tuple[Linear, tuple[Part, ...]]] = [chosen[i] for i in block.forward if i in chosen]
        if here:
            insert_adapters(draft, block, here, how)


def _check_targets(layers: Sequence[Linear], tuning: FineTuning) -> None:
    for target in tuning.targets:
        if not any(chosen_parts(linear, resolved(layers, [target])) for linear in layers):
            raise no_match("lora target", target, [linear.scope for linear in layers])
