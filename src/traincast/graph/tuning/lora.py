"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): y = W·x + s·B·(A·x), with A of ``rank`` rows.

The operators are those that the PEFT library runs: an optional dropout of the input, two products of small rank, the
scaling and the sum; and in backward the gradients of both matrices, of the input, and the sum of the input's two
gradients.

The matrices may be stored in fp32 beside a model in half precision. PEFT then converts the input to fp32, drops parts
of it, and multiplies in fp32; results are converted back. Under automatic mixed precision, the input in fp32 and both
matrices are converted to half precision before each product, and their gradients to fp32 after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traincast.graph.operator import Operator
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.tuning.edit import Draft, DraftBlock
from traincast.graph.tuning.targets import Linear, Part
from traincast.graph.vocabulary import OpKind, Phase, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The properties of all adapters: their rank, dropout of their input, and their dtypes.

    ``wide``: products are in fp32. ``cast``: matrices are in fp32, and products in the precision of the model.
    """

    rank: int
    dropout: bool = False
    wide: bool = False
    cast: bool = False


def insert_adapters(
    draft: Draft, block: DraftBlock, targets: Sequence[tuple[Linear, tuple[Part, ...]]], how: LowRank
) -> None:
    """Add the adapters of all parts of ``targets``, which are linear layers of ``block``."""
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for linear, parts in targets:
        adapter = _Adapter(draft, block, linear, how)
        for word, width in parts:
            adapter.insert(word, width)
        after |= {linear.index: adapter.forward, adapter.last_gradient: adapter.sums}
        before[adapter.first_gradient] = adapter.backward
        block.optimizer += adapter.updates
    block.forward = [n for i in block.forward for n in (i, *after.get(i, ()))]
    block.backward = [n for i in block.backward for n in (*before.get(i, ()), i, *after.get(i, ()))]


class _Adapter:
    """Adds the adapters of one linear layer; its lists are the operators that it added, in the order they run.

    Gradients of adapters run before those of their layer, because the adapters run after it. The ``sums`` of the
    gradients of their common input come last.
    """

    def __init__(self, draft: Draft, block: DraftBlock, linear: Linear, how: LowRank) -> None:
        self.draft, self.linear, self.how = draft, linear, how
        self.forward: list[int] = []
        self.backward: list[int] = []
        self.sums: list[int] = []
        self.updates: list[int] = []
        self.base = draft.operators[linear.index]
        self.grouped = self.base.kind is OpKind.GROUPED_GEMM
        gradients = draft.gradients_of(linear.index, block.backward)
        products = [b for b in gradients if draft.operators[b].kind is self.base.kind]
        self.of_input = next((b for b in products if draft.operators[b].parameters), -1)
        self.products = products
        self.first_gradient = products[0] if products else -1
        self.last_gradient = gradients[-1] if products else -1
        self.arriving = {p for b in products[:1] for p in draft.producers[b] if draft.phase_of(p) is Phase.BACKWARD}
        self.before = {p for p in draft.producers[linear.index] if draft.phase_of(p) is Phase.FORWARD}
        self.optimizer = next(draft.operators[i] for b in draft.blocks for i in b.optimizer)
        self.result = linear.index

    def insert(self, word: str, width: int) -> None:
        """Add the adapter of the part called ``word`` with ``width`` outputs."""
        x = self.base.inputs[0]
        rank, inputs = self.how.rank, x.shape[-1]
        whole = width == self.base.outputs[0].shape[-1]
        scope = self.linear.scope if whole or self.grouped else f"{self.linear.scope}.{word}"
        scopes = (scope, scope) if self.grouped else (f"{scope}.lora_A", f"{scope}.lora_B")
        narrow, wide = _wide(x, rank), _wide(x, width)
        given, origin = self._read(x, scopes[0])
        saved = () if given == self.before and self._kept(x) else (x,)
        down = self._product(x, rank, scopes[0], given | self._halved(inputs, rank, scopes[0]), part="A", saved=saved)
        up = self._product(
            narrow, width, scopes[1], {down} | self._halved(rank, width, scopes[1]), part="B", saved=(narrow,)
        )
        scaled = self._pointwise("mul", (wide,), wide, scopes[1], {up})
        added = self._pointwise("add", (wide, wide), wide, self.linear.scope, {self.result, scaled})
        self._replace_result(added)
        if self.how.wide:
            back = self._cast(wide, self.linear.scope, {added}, reads=True)
            self._replace_result(back)
        for shape, at in ((inputs, rank), scopes[0]), ((rank, width), scopes[1]):
            self._update(shape, at)
        if self.last_gradient >= 0:
            self._gradients(width, x, (down, up, scaled, origin), scopes, given)

    def _gradients(
        self, width: int, x: TensorSpec, made: tuple[int, int, int, int], scopes: tuple[str, str], given: set[int]
    ) -> None:
        down, up, scaled, origin = made
        narrow, wide = _wide(x, self.how.rank), _wide(x, width)
        arriving = self.arriving
        if self.how.wide:
            arriving = {self._cast(wide, self.linear.scope, arriving, of=scaled, writes=True)}
            own = self._cast(wide, self.linear.scope, arriving, of=scaled, reads=True)
            for product in self.products:
                self.draft.connect(own, product)
        grown = self._pointwise("mul", (wide,), wide, scopes[1], arriving, of=scaled)
        self._weight_gradient(narrow, wide, scopes[1], {grown, down}, of=up)
        inner = self._input_gradient(wide, narrow, scopes[1], {grown}, of=up)
        self._weight_gradient(x, narrow, scopes[0], {inner, *given}, of=down)
        if self.of_input < 0:
            return
        outer = self._input_gradient(narrow, x, scopes[0], {inner}, of=down)
        if self.how.cast:
            outer = self._cast(x, scopes[0], {outer}, of=down, writes=True)
        if self.how.dropout:
            mask = TensorSpec(x.shape, DType.BOOL, x.batch_dim)
            marks = self._marks(dropout=True)
            outer = self._add(
                _operator("native_dropout_backward", OpKind.DROPOUT, (x, mask), (x,), scopes[0], marks=marks),
                {outer, origin},
                of=origin,
            )
        if self.how.wide or self.how.cast:
            outer = self._cast(x, scopes[0], {outer}, of=down, reads=True)
        self._add_to_gradient(x, scopes[0], outer, of=down)

    def _add_to_gradient(self, x: TensorSpec, scope: str, other: int, *, of: int) -> None:
        """Sum the two gradients of the layer's input; readers of the layer's own gradient read the sum."""
        draft, own = self.draft, self.of_input
        readers = [c for c in draft.consumers[own] if draft.phase_of(c) is Phase.BACKWARD]
        added = self._add(
            _operator("add", OpKind.ELEMENTWISE, (x, x), (x,), scope, marks={"adapts": self.linear.scope}),
            {own, other},
            of=of,
        )
        for reader in readers:
            draft.disconnect(own, reader)
            draft.connect(added, reader)
        self.backward.remove(added)
        self.sums.append(added)
        self.of_input = added

    def _read(self, x: TensorSpec, scope: str) -> tuple[set[int], int]:
        """The operators whose result A reads (those before the layer, a conversion or a dropout), and the dropout."""
        given, dropout = set(self.before), -1
        if self.how.wide or self.how.cast:
            given = {self._cast(x, scope, given, writes=True)}
        if self.how.dropout:
            mask = TensorSpec(x.shape, DType.BOOL, x.batch_dim)
            marks = self._marks(dropout=True)
            dropout = self._add(
                _operator("native_dropout", OpKind.DROPOUT, (x,), (x, mask), scope, saved=(mask,), marks=marks),
                given,
            )
            given = {dropout}
        if self.how.cast:
            given = {self._cast(x, scope, given, reads=True)}
        return given, dropout

    def _halved(self, inputs: int, outputs: int, scope: str) -> set[int]:
        """The conversion of a matrix for its product, if there is one."""
        return {self._cast(self._weight(inputs, outputs), scope, set(), reads=True)} if self.how.cast else set()

    def _kept(self, x: TensorSpec) -> bool:
        """Whether an operator of the captured graph keeps the layer's input for backward."""
        draft = self.draft
        users = {c for p in self.before for c in draft.consumers[p]} | self.before
        return any(t.numel == x.numel for user in users for t in draft.operators[user].saved)

    def _product(
        self, x: TensorSpec, outputs: int, scope: str, given: set[int], *, part: str, saved: tuple[TensorSpec, ...]
    ) -> int:
        weight = self._weight(x.shape[-1], outputs)
        rest = self.base.inputs[2:3] if self.grouped else ()
        op = _operator(
            "grouped_mm" if self.grouped else "mm",
            self.base.kind,
            (x, weight, *rest),
            (_wide(x, outputs),),
            scope,
            parameters=(weight,),
            saved=saved,
            marks={**self._marks(), "part": part},
        )
        return self._add(op, given)

    def _input_gradient(self, dy: TensorSpec, x: TensorSpec, scope: str, given: set[int], *, of: int) -> int:
        weight = self._weight(dy.shape[-1], x.shape[-1])
        rest = self.base.inputs[2:3] if self.grouped else ()
        op = _operator(
            "grouped_mm" if self.grouped else "mm",
            self.base.kind,
            (dy, weight, *rest),
            (x,),
            scope,
            parameters=(weight,),
            marks=self._marks(),
        )
        return self._add(op, given, of=of)

    def _weight_gradient(self, x: TensorSpec, dy: TensorSpec, scope: str, given: set[int], *, of: int) -> int:
        if self.grouped:
            made = self._weight(x.shape[-1], dy.shape[-1])
            op = _operator(
                "grouped_mm_backward",
                self.base.kind,
                (x, dy, *self.base.inputs[2:3]),
                (made,),
                scope,
                marks=self._marks(),
            )
        else:
            rows = x.numel // x.shape[-1]
            turned = TensorSpec((dy.shape[-1], rows), dy.dtype, 1)
            flat = TensorSpec((rows, x.shape[-1]), x.dtype, 0)
            made = TensorSpec((dy.shape[-1], x.shape[-1]))
            op = _operator("mm", OpKind.GEMM, (turned, flat), (made,), scope, marks=self._marks())
        found = self._add(op, given, of=of)
        return self._cast(made, scope, {found}, of=of, writes=True) if self.how.cast else found

    def _pointwise(
        self, name: str, reads: tuple[TensorSpec, ...], made: TensorSpec, scope: str, given: set[int], *, of: int = -1
    ) -> int:
        """A scaling, or the sum of the layer's own result in the precision of the model and that of the adapter."""
        marks = self._marks()
        if name == "add":
            marks.pop("reads", None)
        return self._add(_operator(name, OpKind.ELEMENTWISE, reads, (made,), scope, marks=marks), given, of=of)

    def _cast(
        self, spec: TensorSpec, scope: str, given: set[int], *, of: int = -1, reads: bool = False, writes: bool = False
    ) -> int:
        """A conversion: from fp32 if it ``reads`` fp32, to fp32 if it ``writes`` fp32."""
        marks: dict[str, Scalar] = {"adapts": self.linear.scope}
        marks |= {"reads": "fp32"} if reads else {}
        marks |= {"writes": "fp32"} if writes else {}
        return self._add(_operator("_to_copy", OpKind.COPY, (spec,), (spec,), scope, marks=marks), given, of=of)

    def _add(self, op: Operator, given: set[int], *, of: int | None = None) -> int:
        backward = of is not None and of >= 0
        if backward:
            op = _in_backward(op)
        number = self.draft.add(op, given, forward_of=of if of is not None else -1)
        (self.backward if backward else self.forward).append(number)
        return number

    def _replace_result(self, added: int) -> None:
        """Let readers of the layer's result read ``added`` instead."""
        draft, old = self.draft, self.result
        for reader in list(draft.consumers[old]):
            if reader != added and draft.operators[reader].attributes.get("adapts") != self.linear.scope:
                draft.disconnect(old, reader)
                draft.connect(added, reader)
        self.result = added

    def _update(self, shape: tuple[int, int], scope: str) -> None:
        weight = self._weight(*reversed(shape)) if not self.grouped else self._weight(*shape)
        states = len(self.optimizer.inputs) - 2
        op = Operator(
            name=self.optimizer.name,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            scope=scope,
            inputs=(weight,) * (2 + states),
            outputs=(weight,) * (1 + states),
            parameters=(weight,),
            attributes={"adapter": "lora"},
        )
        self.updates.append(self.draft.add(op))

    def _weight(self, inputs: int, outputs: int) -> TensorSpec:
        experts = self.base.inputs[1].shape[:1] if self.grouped else ()
        return TensorSpec((*experts, inputs, outputs))

    def _marks(self, *, dropout: bool = False) -> dict[str, Scalar]:
        marks: dict[str, Scalar] = {"adapts": self.linear.scope}
        in_fp32 = self.how.wide or (dropout and self.how.cast)
        return marks | {"reads": "fp32", "writes": "fp32"} if in_fp32 else marks


def _wide(spec: TensorSpec, width: int) -> TensorSpec:
    """``spec`` with another number of features."""
    return TensorSpec((*spec.shape[:-1], width), spec.dtype, spec.batch_dim)


def _operator(
    name: str,
    kind: OpKind,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    scope: str,
    *,
    parameters: tuple[TensorSpec, ...] = (),
    saved: tuple[TensorSpec, ...] = (),
    marks: Mapping[str, Scalar],
) -> Operator:
    return Operator(
        name=name,
        kind=kind,
        phase=Phase.FORWARD,
        scope=scope,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
        saved=saved,
        attributes=marks,
    )


def _in_backward(op: Operator) -> Operator:
    return replace(op, phase=Phase.BACKWARD)
