"""Builds the operator graph of a traced JAX step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincast.graph.jax.flat import Flattened, JaxArray
from traincast.graph.jax.kernels import Kernel
from traincast.graph.jax.operators import convolution, operators_of, spec
from traincast.graph.operator import Block, Operator, OperatorGraph
from traincast.graph.optimizers import optimizer_with
from traincast.graph.tensor import TensorSpec
from traincast.graph.vocabulary import OpKind, Phase


@dataclass(slots=True)
class _DraftOfStep:
    scope: str
    count: int
    loop: int
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    optimizer: list[int] = field(default_factory=list)


class Builder:
    """Turns kernels into operators with their edges, and groups them into blocks."""

    def __init__(self, flat: Flattened, kernels: Sequence[Kernel], trained: Sequence[JaxArray]) -> None:
        self._flat, self._kernels = flat, kernels
        self._trained = {id(cell): cell for cell in trained}
        self._operators: list[Operator] = []
        self._forward_of: list[int] = []
        self._edges: set[tuple[int, int]] = set()
        self._makers: dict[int, int] = {}
        self._forward: dict[tuple[object, ...], list[tuple[int, Kernel]]] = {}
        self._partner: dict[int, int] = {}
        self._blocks: list[_DraftOfStep] = []
        self._first: dict[int, int] = {}
        self._summed: dict[int, Kernel] = {}
        self._pair_loops()

    def _pair_loops(self) -> None:
        """A backward loop over layers belongs to the forward loop of the same length that came last."""
        waiting: list[int] = []
        for number, loop in enumerate(self._flat.loops):
            if not loop.backward:
                waiting.append(number)
                continue
            match = next((w for w in reversed(waiting) if self._flat.loops[w].length == loop.length), None)
            if match is not None:
                self._partner[number] = match
                waiting.remove(match)

    def graph(self, name: str, tokens: int, updates: Sequence[tuple[TensorSpec, str, int, JaxArray]]) -> OperatorGraph:
        """The graph; ``updates`` are the weights with the optimizer, its states and their arrays."""
        backward = [k for k in self._kernels if k.phase is Phase.BACKWARD]
        for kernel in self._kernels:
            if kernel.phase is Phase.FORWARD:
                self._add_forward(kernel)
        self._cut()
        merged = self._merged_convolutions(backward)
        for kernel in backward:
            if id(kernel) not in merged or merged[id(kernel)] is not None:
                self._add_backward(kernel, merged.get(id(kernel)))
        self._close_loops()
        self._keep(backward)
        for weight, optimizer, states, cell in updates:
            self._update(weight, optimizer, states, cell)
        return OperatorGraph(
            name=name,
            operators=tuple(self._operators),
            edges=tuple(sorted(self._edges)),
            forward_of=tuple(self._forward_of),
            blocks=tuple(self._block(d) for d in self._blocks),
            tokens_per_sample=tokens,
        )

    def _belongs_to_loss(self, kernel: Kernel) -> bool:
        """Whether a kernel only averages the losses of the samples, which the loss does itself."""
        makers = {self._makers.get(id(c)) for c in kernel.reads}
        if kernel.single or len(makers) != 1 or any(c.shape for c in kernel.writes):
            return False
        (maker,) = makers
        if maker is None or self._operators[maker].kind is not OpKind.LOSS:
            return False
        operator = self._operators[maker]
        self._operators[maker] = replace(operator, outputs=tuple(spec(c) for c in kernel.writes))
        self._makers |= {id(c): maker for c in kernel.writes}
        return True

    def _add_forward(self, kernel: Kernel) -> None:
        if self._belongs_to_loss(kernel):
            return
        if not self._blocks or self._blocks[-1].loop != kernel.loop:
            count = self._flat.loops[kernel.loop].length if kernel.loop >= 0 else 1
            scope = f"layers{kernel.loop}.0" if kernel.loop >= 0 else ""
            self._blocks.append(_DraftOfStep(scope, count, kernel.loop))
        if kernel.single == "conv_general_dilated":
            data, weight, out, attributes = convolution(kernel)
            depthwise = attributes["groups"] == weight.shape[0] and weight.shape[1] == 1 and weight.shape[0] > 1
            made = operators_of(kernel, self._trained, None)[0]
            bias = (spec(kernel.bias),) if kernel.bias else ()
            operator = Operator(
                name="convolution",
                kind=OpKind.DEPTHWISE_CONV if depthwise else OpKind.CONV,
                phase=Phase.FORWARD,
                scope=made.scope,
                inputs=(data, weight, *bias),
                outputs=(out,),
                parameters=made.parameters,
                attributes={**made.attributes, **attributes},
            )
            operators = [operator]
        else:
            operators = operators_of(kernel, self._trained, None)
        self._first[id(kernel)] = len(self._operators)
        for operator in operators:
            index = self._append(operator, kernel, -1)
            self._blocks[-1].forward.append(index)
            self._forward.setdefault(self._key(kernel), []).append((index, kernel))

    def _cut(self) -> None:
        """Cut the forward pass, outside of loops over layers, wherever a single tensor crosses."""
        last_use: dict[int, int] = {}
        for source, target in self._edges:
            last_use[source] = max(target, last_use.get(source, -1))
        blocks: list[_DraftOfStep] = []
        alive: set[int] = set()
        for draft in self._blocks:
            blocks.append(_DraftOfStep(draft.scope, draft.count, draft.loop))
            for n, index in enumerate(draft.forward):
                blocks[-1].forward.append(index)
                alive.add(index)
                alive = {i for i in alive if last_use.get(i, -1) > index}
                if draft.loop < 0 and len(alive) <= 1 and n + 1 < len(draft.forward):
                    blocks.append(_DraftOfStep(draft.scope, 1, -1))
        self._blocks = blocks

    def _key(self, kernel: Kernel) -> tuple[object, ...]:
        equation = kernel.equations[0]
        loop = self._partner.get(kernel.loop, kernel.loop)
        return kernel.single, loop, equation.place, equation.call

    def _source(self, kernel: Kernel) -> tuple[int, Kernel] | None:
        """The forward operator that a backward kernel differentiates: of the same line, with the same arrays."""
        biased = self._biased(kernel)
        if biased is not None:
            return biased
        found = self._forward.get(self._key(kernel), [])
        if not found:
            place = self._key(kernel)[1:3]
            found = [f for key, made in self._forward.items() if key[1:3] == place for f in made]
        if not found:
            function = kernel.equations[0].place[:2]
            same = [f for made in self._forward.values() for f in made if f[1].equations[0].place[:2] == function]
            found = [f for f in same if not f[1].single and not kernel.single]
        reads = {id(c.root()) for c in kernel.reads}
        shared = [f for f in found if any(id(c.root()) in reads for c in (*f[1].reads, *f[1].writes))]
        shared = [f for f in shared if not f[1].single and not kernel.single] or shared
        return (shared or found)[-1] if found else None

    def _biased(self, kernel: Kernel) -> tuple[int, Kernel] | None:
        """The product whose bias gets its gradient from the sum ``kernel``: the last of the same line without one."""
        if len(kernel.equations) != 1 or kernel.equations[0].name != "reduce_sum":
            return None
        place, size = kernel.equations[0].place, spec(kernel.writes[0]).numel
        for index, forward in (f for made in reversed(self._forward.values()) for f in reversed(made)):
            if (
                forward.bias is None
                or forward.equations[0].place != place
                or self._summed.get(index, kernel) is not kernel
            ):
                continue
            if spec(forward.bias).numel == size:
                self._summed[index] = kernel
                return index, forward
        return None

    def _merged_convolutions(self, backward: Sequence[Kernel]) -> dict[int, Operator | None]:
        """Both gradients of a convolution as one operator, at the place of the second one."""
        by_source: dict[int, list[Kernel]] = {}
        for kernel in backward:
            source = self._source(kernel) if kernel.single == "conv_general_dilated" else None
            if source is not None:
                by_source.setdefault(source[0], []).append(kernel)
        merged: dict[int, Operator | None] = {}
        for index, kernels in by_source.items():
            forward = self._operators[index]
            (data, weight), out = forward.inputs[:2], forward.outputs[0]
            gradients = (data, weight) if len(kernels) > 1 else (weight,)
            operator = Operator(
                name="convolution_backward",
                kind=forward.kind,
                phase=Phase.BACKWARD,
                scope=forward.scope,
                inputs=(out, data, weight),
                outputs=gradients,
                parameters=forward.parameters,
                attributes={**forward.attributes, "products": len(gradients)},
            )
            merged |= {id(k): None for k in kernels} | {id(kernels[-1]): operator}
        return merged

    def _add_backward(self, kernel: Kernel, made: Operator | None) -> None:
        source = self._source(kernel)
        kind = self._operators[source[0]].kind if source else None
        operators = [made] if made else operators_of(kernel, self._trained, kind)
        loop = self._partner.get(kernel.loop, kernel.loop)
        block = next((b for b in reversed(self._blocks) if source and source[0] in b.forward), None)
        if block is None:  # it follows its neighbour
            near = [b for b in self._blocks if b.backward and len(self._operators) - 1 in b.backward and b.loop == loop]
            block = near[0] if near else next((b for b in reversed(self._blocks) if b.loop == loop), self._blocks[-1])
        for operator in operators:
            scope = self._operators[source[0]].scope if source else operator.scope
            index = self._append(replace(operator, scope=scope), kernel, source[0] if source else -1)
            block.backward.append(index)

    def _append(self, operator: Operator, kernel: Kernel, forward: int) -> int:
        index = len(self._operators)
        self._operators.append(operator)
        self._forward_of.append(forward)
        for cell in kernel.reads:
            here: JaxArray | None = cell
            while here is not None:
                if id(here) in self._makers:
                    if self._makers[id(here)] != index:
                        self._edges.add((self._makers[id(here)], index))
                    break
                here = here.source
        for cell in kernel.writes:
            self._makers[id(cell)] = index
        return index

    def _keep(self, backward: Sequence[Kernel]) -> None:
        """Forward operators keep what backward kernels read."""
        kept: set[int] = set()
        for kernel in backward:
            for cell in kernel.reads:
                made: JaxArray | None = cell
                while made is not None and id(made) not in self._makers:
                    made = made.source
                if made is None or id(made) in kept:
                    continue
                kept.add(id(made))
                index = self._makers[id(made)]
                operator = self._operators[index]
                if operator.phase is Phase.FORWARD:
                    self._operators[index] = replace(operator, saved=(*operator.saved, spec(made)))

    def _close_loops(self) -> None:
        """Adds edges from the end of a repeated layer to its beginning: each reads the output of the one before."""
        for loop in self._flat.loops:
            for before, after in loop.carried:
                maker = self._makers.get(id(after.root())) or self._makers.get(id(after))
                first = self._makers.get(id(before.root())) or self._makers.get(id(before))
                if maker is None or first is None:
                    continue
                inside = {
                    i for b in self._blocks if maker in (*b.forward, *b.backward) for i in (*b.forward, *b.backward)
                }
                self._edges |= {(maker, t) for s, t in list(self._edges) if s == first and t in inside and t != maker}

    def _update(self, weight: TensorSpec, optimizer: str, states: int, cell: JaxArray) -> None:
        """One update per weight, in the block of the first operator that reads it."""
        home = self._blocks[0]
        shape = weight
        for kernel in self._kernels:
            cells = [*kernel.reads, *([kernel.bias] if kernel.bias else [])]
            if kernel.phase is Phase.FORWARD and any(c.root() is cell for c in cells):
                home = next(b for b in self._blocks if self._first[id(kernel)] in b.forward)
                if kernel.loop >= 0 and weight.shape and weight.shape[0] == home.count:
                    shape = TensorSpec(weight.shape[1:], weight.dtype)
                break
        index = len(self._operators)
        self._operators.append(
            Operator(
                name=optimizer,
                kind=OpKind.OPTIMIZER,
                phase=Phase.OPTIMIZER,
                scope=home.scope,
                inputs=(shape,) * (2 + states),
                outputs=(shape,) * (1 + states),
                parameters=(shape,),
            )
        )
        self._forward_of.append(-1)
        home.optimizer.append(index)

    def _block(self, draft: _DraftOfStep) -> Block:
        inside = set(draft.forward)
        crossing = sorted({s for s, t in self._edges if s in inside and t not in inside and self._is_forward(t)})
        last = crossing or draft.forward[-1:]
        boundary = [next((t for t in self._operators[i].outputs if t.batch_dim is not None), None) for i in last[-1:]]
        return Block(
            scope=draft.scope,
            count=draft.count,
            forward=tuple(draft.forward),
            backward=tuple(draft.backward),
            optimizer=tuple(draft.optimizer),
            boundary=tuple(t for t in boundary if t is not None),
        )

    def _is_forward(self, index: int) -> bool:
        return self._operators[index].phase is Phase.FORWARD


def updates_of(
    weights: Mapping[int, JaxArray], state: Sequence[JaxArray]
) -> list[tuple[TensorSpec, str, int, JaxArray]]:
    """The optimizer of each weight: it keeps as many states as the step has other arrays of the same shape."""
    result = []
    for cell in weights.values():
        same = [c for c in state if c.shape == cell.shape]
        trained = [c for c in same if id(c) in weights]
        states = min(2, round((len(same) - len(trained)) / len(trained)))
        result.append((spec(cell), optimizer_with(states), states, cell))
    return result
