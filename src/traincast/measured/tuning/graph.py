"""The graph of a fine-tuning run: adapters, frozen and quantised weights, and the extra kernels of a method."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final

from traincast.graph import Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.graph.tuning.tune import AdapterDType, FineTuning, fine_tuned
from traincast.measured.dialect import vocabulary
from traincast.measured.run import unstated
from traincast.measured.tuning.words import AdapterHabit, Adapters, Method, Methods, Quantized, Tuning
from traincast.strategy import Runtime
from traincast.tables import Row, RowError, figure, text

_TILE: Final = 128
"""Side of the tiles of scores that kernels of attention compute at once."""
_LORA: Final = "lora"
"""The method that stands for those that are not known."""
_FP32: Final = {"reads": "fp32", "writes": "fp32"}


def method_of(row: Row, tuning: Tuning, assumed: list[str] | None = None) -> Method:
    """Return the method of a row; one that is not known is taken for LoRA."""
    words = vocabulary(Methods)
    noted = next((each for each in words.noted if tuning.method in each.methods and each.said(row)), None)
    found = words.known.get(noted.method if noted else tuning.method)
    if found is None and assumed is not None:
        assumed.append(f"method {tuning.method!r} not known: LoRA with the trained parameters that the row states")
    return found or words.known[_LORA]


def adapter_dtype(row: Row, runtime: Runtime, tuning: Tuning) -> AdapterDType:
    """Return how the adapters of a row are stored: in fp32, or in the precision of the model.

    The PEFT library stores them in fp32; beside 16-bit weights, some of its releases stored them in 16 bits. DeepSpeed
    converts all parameters to the precision of the model when it shards their states. Trained copies of 16-bit modules,
    which outweigh the adapters, have 16 bits.
    """
    words = vocabulary(Adapters)
    if words.converts_all(row) and (figure(row, "zero") or 0.0) >= 1.0:
        return "model"
    first, last = words.narrow_dates
    if not tuning.quantize and (first <= text(row, "date") < last or words.embeddings(row)):
        return "model"
    return runtime.defaults.adapter_dtype


def extra_tokens(row: Row, tuning: Tuning) -> int:
    """Return the tokens that a method puts in front of each sequence."""
    words = vocabulary(Methods)
    method = words.known.get(tuning.method)
    if method is None or not method.lengthens:
        return 0
    hidden = figure(row, "hidden")
    if method.lengthens == "by its parameters" and tuning.trainable and hidden:
        return max(1, round(tuning.trainable / hidden))
    found = words.prompt_tokens.find(row)
    return int(found[1] or found[2]) if found else words.prompt


def tuned_graph(row: Row, graph: OperatorGraph, runtime: Runtime, tuning: Tuning, assumed: list[str]) -> OperatorGraph:
    """Return ``graph`` as a run of ``tuning`` computes it; ``assumed`` gets what the row does not state."""
    if tuning.method == "full":
        return graph
    method, words = method_of(row, tuning, assumed), vocabulary(Adapters)
    habit = words.habit_of(runtime.name)
    wide = habit.wide and runtime.kernels.written_out and not words.narrow(row)
    if method.base in ("norms", "prompt"):
        tuned = _frozen(graph, FineTuning(freeze=_layers_of(graph), quantize=tuning.quantize))
        more = tuning.trainable - tuned.num_trainable_parameters if method.base == "prompt" else 0.0
        return _with_parameters(tuned, more) if more > 0 else tuned
    if method.base == "layers":
        last = vocabulary(Methods).last_layers
        assumed.append(unstated("trained layers", f"the last {last}"))
        return _frozen(graph, FineTuning(freeze=_before_last(graph, last), quantize=tuning.quantize))
    targets = _targets(tuning, habit, assumed)
    if habit.joint:
        targets = _joined(graph, targets)
    sees = any(op.scope.partition(".")[0] == words.frozen_part for op in graph.operators)
    if sees:
        assumed.append(unstated("adapted parts", "those that read text, not images"))
    frozen = (words.frozen_part,) if sees else ()
    rank = _rank(graph, tuning, FineTuning(adapter="lora", rank=1, targets=targets, freeze=frozen), assumed)
    tuned = _frozen(
        graph,
        FineTuning(
            adapter="lora",
            rank=rank,
            targets=targets,
            freeze=frozen,
            train=words.embedding_parts if words.embeddings(row) else (),
            quantize=tuning.quantize,
            dropout=habit.dropout,
            dtype=adapter_dtype(row, runtime, tuning),
            compute="fused" if words.fused(row) or method.base == "scale" else "fp32" if wide else "model",
        ),
    )
    storage = vocabulary(Quantized)
    if tuning.quantize.startswith("nf4") and storage.keeps_inputs(row):
        assumed.append(f"4-bit layers keep their inputs, as {storage.keeps_inputs_as}")
        tuned = _keeping_inputs(tuned)
    return _with_kernels(tuned, method) if method != vocabulary(Methods).known[_LORA] else tuned


@lru_cache(maxsize=64)
def _keeping_inputs(graph: OperatorGraph) -> OperatorGraph:
    """Return ``graph`` with the inputs of quantised layers kept for backward, each tensor once."""
    sources: dict[int, set[int]] = {}
    for source, target in graph.edges:
        sources.setdefault(target, set()).add(source)
    operators = list(graph.operators)
    for block in graph.blocks:
        inside = set(block.forward)
        for i in block.forward:
            op = operators[i]
            if op.kind is not OpKind.GEMM or "bits" not in op.attributes:
                continue
            made_by = sources.get(i, set()) & inside
            near = [j for j in block.forward if sources.get(j, set()) & made_by and operators[j].kind is OpKind.GEMM]
            near += [j for j in made_by if operators[j].kind is OpKind.ATTENTION]  # which keeps its result
            size = op.inputs[0].numel
            if not any(t.numel == size for j in near for t in operators[j].saved):
                operators[i] = replace(op, saved=(*op.saved, op.inputs[0]))
    return replace(graph, operators=tuple(operators))


@lru_cache(maxsize=256)
def _frozen(graph: OperatorGraph, tuning: FineTuning) -> OperatorGraph:
    return fine_tuned(graph, tuning)


def packed_graph(graph: OperatorGraph, runtime: Runtime, tokens: int) -> OperatorGraph:
    """Return ``graph`` with sequences packed from texts of ``tokens`` tokens each; 0 means that nothing is packed.

    Megatron's attention sees where texts end and computes only the scores within each. A token then sees half of its
    text on average, and the tile of scores that its text ends in is computed whole. Other trainers join texts into one.
    """
    if not tokens or not vocabulary(Adapters).habit_of(runtime.name).joint:
        return graph
    return _within(graph, tokens // 2 + _TILE)


@lru_cache(maxsize=64)
def _within(graph: OperatorGraph, window: int) -> OperatorGraph:
    operators = tuple(
        replace(op, attributes={**op.attributes, "window": window}) if op.kind is OpKind.ATTENTION else op
        for op in graph.operators
    )
    return replace(graph, operators=operators)


def _targets(tuning: Tuning, habit: AdapterHabit, assumed: list[str]) -> tuple[str, ...]:
    if not tuning.targets:
        assumed.append(unstated("adapted layers", "+".join(habit.targets)))
    return tuning.targets or habit.targets


def _joined(graph: OperatorGraph, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``targets`` with the joint projection of q, k and v as one layer, which Megatron gives one adapter."""
    joined = vocabulary(Adapters).joined
    if not any(op.scope.endswith(".qkv") for op, _ in graph if op.phase is Phase.FORWARD):
        return targets
    return tuple(dict.fromkeys(name for target in targets for name in joined.get(target, (target,))))


def _rank(graph: OperatorGraph, tuning: Tuning, least: FineTuning, assumed: list[str]) -> int:
    """Return the stated rank of LoRA, or the one that has the stated number of trained parameters; ``least`` has 1."""
    if tuning.rank and (tuning.method in ("lora", "dora") or not tuning.trainable):
        return tuning.rank
    if tuning.trainable:
        one = _frozen(graph, least).num_trainable_parameters
        return max(1, round(tuning.trainable / one))
    usual = vocabulary(Adapters).rank
    assumed.append(unstated("rank of the adapters", usual))
    return usual


def _layers_of(graph: OperatorGraph) -> tuple[str, ...]:
    """Return the paths of all modules with weights of two dims: linear layers and embeddings, but not norms."""
    scopes = [
        op.scope for op, _ in graph if op.phase is Phase.OPTIMIZER and op.parameters and len(op.parameters[0].shape) > 1
    ]
    return tuple(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", scope) for scope in scopes))


def _before_last(graph: OperatorGraph, last: int) -> tuple[str, ...]:
    """Return the paths of all modules but the ``last`` layers."""
    layers: list[str] = []
    for block in graph.blocks:
        path, _, number = block.scope.rpartition(".")
        if block.repeated and number.isdigit():
            layers += [f"{path}.{int(number) + n}" for n in range(block.count)]
    if len(layers) <= last:
        raise RowError(f"{graph.name} has {len(layers)} layers: expected more than {last}")
    stacks = {layer.partition(".")[0] for layer in layers}
    others = {op.scope.partition(".")[0] for op, _ in graph if op.phase is Phase.OPTIMIZER} - stacks
    return (*sorted(others), *layers[:-last])


def _with_parameters(graph: OperatorGraph, count: float) -> OperatorGraph:
    """Return ``graph`` with ``count`` more trained parameters, which belong to no layer."""
    known = next((op for op, _ in graph if op.phase is Phase.OPTIMIZER), None)
    if known is None:
        raise RowError(f"{graph.name} has no optimizer")
    weight = TensorSpec((math.ceil(count),))
    update = replace(
        known,
        scope="prompt",
        inputs=(weight,) * len(known.inputs),
        outputs=(weight,) * len(known.outputs),
        parameters=(weight,),
    )
    number = len(graph.operators)
    first = replace(graph.blocks[0], optimizer=(*graph.blocks[0].optimizer, number))
    return replace(
        graph,
        operators=(*graph.operators, update),
        forward_of=(*graph.forward_of, -1),
        blocks=(first, *graph.blocks[1:]),
    )


@lru_cache(maxsize=64)
def _with_kernels(graph: OperatorGraph, method: Method) -> OperatorGraph:
    """Return ``graph`` with the extra kernels of ``method`` beside each adapter."""
    operators, forward_of, edges = list(graph.operators), list(graph.forward_of), list(graph.edges)
    blocks = []
    for block in graph.blocks:
        inputs = {_adapter(operators[i]): operators[i].inputs[0] for i in block.forward if _is(operators[i], "lora_A")}
        after: dict[int, list[int]] = {}
        for i in block.forward:
            if not _is(operators[i], "lora_B"):
                continue
            x, y = inputs[_adapter(operators[i])], operators[i].outputs[0]
            last = next((b for b in reversed(block.backward) if forward_of[b] == i), None)
            for at, phase in ((i, Phase.FORWARD), (last, Phase.BACKWARD)):
                if at is None:
                    continue
                for kernel in _kernels(method, x, y, phase, operators[i].scope):
                    number = len(operators)
                    operators.append(kernel)
                    forward_of.append(i if phase is Phase.BACKWARD else -1)
                    edges.append((at, number))
                    after.setdefault(at, []).append(number)
        forward, backward = (
            tuple(n for i in part for n in (i, *after.get(i, ()))) for part in (block.forward, block.backward)
        )
        blocks.append(replace(block, forward=forward, backward=backward))
    return replace(
        graph,
        name=f"{graph.name} ({method.says})",
        operators=tuple(operators),
        forward_of=tuple(forward_of),
        edges=tuple(sorted(edges)),
        blocks=tuple(blocks),
    )


def _is(op: Operator, name: str) -> bool:
    return op.phase is Phase.FORWARD and op.kind is OpKind.GEMM and op.scope.endswith(f".{name}")


def _adapter(op: Operator) -> str:
    return op.scope.rpartition(".")[0]


def _kernels(method: Method, x: TensorSpec, y: TensorSpec, phase: Phase, scope: str) -> Iterator[Operator]:
    """The extra kernels of one adapted layer with input ``x`` and result ``y``, in one phase."""
    weight = TensorSpec((x.shape[-1], y.shape[-1]))
    small = TensorSpec((x.shape[-1],))
    forward = phase is Phase.FORWARD

    def kernel(name: str, kind: OpKind, reads: tuple[TensorSpec, ...], makes: TensorSpec, keeps: bool) -> Operator:
        return Operator(
            name=name,
            kind=kind,
            phase=phase,
            scope=scope,
            inputs=reads,
            outputs=(makes,),
            saved=(makes,) if keeps and forward else (),
            attributes=_FP32,
        )

    for n in range(method.weight):
        yield kernel("mul", OpKind.ELEMENTWISE, (weight,), weight, n < method.kept_weights)
    for n in range(method.tokens):
        yield kernel("mul", OpKind.ELEMENTWISE, (y,), y, n < method.kept_tokens)
    for _ in range(method.small):
        yield kernel("mul", OpKind.ELEMENTWISE, (small,), small, keeps=False)
    for _ in range(method.products * (1 if forward else 2)):
        yield kernel("mm", OpKind.GEMM, (x, weight), y, keeps=False)
