"""Joins the equations of a step into kernels, as XLA runs them and as a capture of the same network has them.

A product, convolution, gather or pool is a kernel of its own. Point-wise equations and reductions are joined if they
come from the same function or line of the user's code. A forward value that only backward kernels need is not
written: they compute it again from what the forward kernel read.

XLA and PyTorch both transpose by changing strides. A copy runs where dims that are not neighbours in memory must become
one: in a reshape, or for a batched product, whose kernel knows one stride per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from traincast.graph.capture.recorder import BATCH
from traincast.graph.jax.flat import Equation, Flattened, JaxArray
from traincast.graph.vocabulary import JAX_VIEWS, OpKind, Phase, kind_of


def transposed(cell: JaxArray, permutation: Sequence[int]) -> tuple[int, ...]:
    """The layout of ``cell`` after its dims were permuted."""
    places = {old: new for new, old in enumerate(permutation)}
    return tuple(places[dim] for dim in cell.layout())


def reshaped(cell: JaxArray, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The layout of ``cell`` in another shape, or ``None`` if that needs a copy."""
    layout = [d for d in cell.layout() if cell.shape[d] > 1]
    groups = _groups(cell.shape, shape)
    order: list[int] = []
    for dim in layout:
        old, new = next((g for g in groups if dim in g[0]), ((), ()))
        wide = [d for d in old if cell.shape[d] > 1]
        at = layout.index(wide[0]) if wide else 0
        if layout[at : at + len(wide)] != wide:
            return None
        order += [d for d in new if d not in order]
    rest = [d for d in range(len(shape)) if d not in order]
    return tuple(sorted(rest)) + tuple(order) if rest else tuple(order)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dims of two shapes that hold the same elements, as small groups as possible."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = [i] if i < len(old) else [], [j] if j < len(new) else []
        left, right = old[i] if a else 1, new[j] if b else 1
        i, j = i + len(a), j + len(b)
        while left != right:
            if left < right and i < len(old):
                left, i = left * old[i], i + 1
                a.append(i - 1)
            elif j < len(new):
                right, j = right * new[j], j + 1
                b.append(j - 1)
            else:
                return [(list(range(len(old))), list(range(len(new))))]
        groups.append((a, b))
    return groups


def uncollapsible(equation: Equation, side: int) -> bool:
    """Whether an operand of a product must be copied: its dims of one role are no neighbours in memory."""
    contracted, batched = equation.params["dimension_numbers"]
    cell = equation.inputs[side]
    layout = [d for d in cell.layout() if cell.shape[d] > 1]
    free = [d for d in range(len(cell.shape)) if d not in (*contracted[side], *batched[side])]
    for dims in (contracted[side], batched[side], free):
        places = sorted(layout.index(d) for d in dims if cell.shape[d] > 1)
        if places and places != list(range(places[0], places[0] + len(places))):
            return True
    return False


_RANDOM: Final = ("random", "threefry", "iota", "rng")
_BY_RESULT: Final = frozenset({"max", "tanh", "logistic", "exp"})
"""Functions that are differentiated by their result."""
_COMPARISONS: Final = frozenset({"gt", "ge", "lt", "le", "eq", "select_n", "max"})
_CURVES: Final = frozenset({"tanh", "erf", "erfc", "logistic", "exp", "max", "log1p", "expm1"})


@dataclass(slots=True, eq=False)
class Kernel:
    """Equations that run as one kernel; ``added`` are gradients of other branches that are added to its result.

    ``upstream`` has the bit of every kernel whose result this one needs.
    """

    key: tuple[object, ...]
    phase: Phase
    loop: int
    number: int
    upstream: int = 0
    equations: list[Equation] = field(default_factory=list)
    reads: list[JaxArray] = field(default_factory=list)
    writes: list[JaxArray] = field(default_factory=list)
    added: list[JaxArray] = field(default_factory=list)
    bias: JaxArray | None = None

    @property
    def single(self) -> str:
        """The primitive, if it is a kernel by itself, else nothing."""
        name = self.equations[0].name
        return name if kind_of(name, source="jax") else ""


def find_kernels(flat: Flattened, phases: Sequence[Phase], trained: Iterable[JaxArray]) -> list[Kernel]:
    """The kernels of a step, in order; ``phases`` has the phase of each equation, the optimizer's are left out."""
    joiner = _Joiner(flat, trained)
    results = list(flat.outputs)
    for equation, phase in zip(flat.equations, phases, strict=True):
        if phase is Phase.OPTIMIZER:
            results += equation.inputs
        else:
            joiner.add(equation, phase)
    return joiner.finish(results)


class _Joiner:
    def __init__(self, flat: Flattened, trained: Iterable[JaxArray]) -> None:
        self._kernels: list[Kernel] = []
        self._open: dict[tuple[object, ...], Kernel] = {}
        self._makers: dict[int, Kernel] = {}
        self._trained = {id(cell) for cell in trained}
        self._mixed = {e.place[:2] for e in flat.equations if kind_of(e.name, source="jax")}
        self._copies: dict[tuple[object, ...], JaxArray] = {}
        self._clipped: dict[int, JaxArray] = {}

    def maker(self, cell: JaxArray) -> Kernel | None:
        """The kernel that makes a cell, or what it is a view of."""
        here: JaxArray | None = cell
        while here is not None:
            if id(here) in self._makers:
                return self._makers[id(here)]
            here = here.source
        return None

    def add(self, equation: Equation, phase: Phase) -> None:
        if all(c.known for c in equation.inputs) or equation.name.startswith(_RANDOM):
            for cell in equation.outputs:
                cell.known = True
            return
        if _is_view(equation):
            self._view(equation, phase)
            return
        if equation.name == "add_any" and any(c.known for c in equation.inputs):  # the first term of a sum
            equation.outputs[0].source = next(c for c in equation.inputs if not c.known)
            return
        if kind_of(equation.name, source="jax"):
            if equation.name == "dot_general":
                for side in (0, 1):
                    if uncollapsible(equation, side):
                        equation.inputs[side] = self._copied(equation.inputs[side], equation, phase)
            self._put(equation, self._new((), phase, equation.loop))
            return
        if phase is Phase.FORWARD and self._is_bias(equation):
            return
        self._join(equation, phase)

    def _view(self, equation: Equation, phase: Phase) -> None:
        source = max((c for c in equation.inputs if not c.known), key=_size)
        for cell in equation.outputs:
            cell.source = source
            cell.broadcast = _size(cell) > _size(source)
            cell.part = _size(cell) < _size(source)
            if equation.name == "transpose":
                cell.order = transposed(source, equation.params["permutation"])
            elif equation.name == "reshape":
                cell.order = reshaped(source, cell.shape)
                if cell.order is None and _computes(equation):
                    cell.source = self._copied(source, equation, phase)
                cell.order = cell.order or tuple(range(len(cell.shape)))

    def _copied(self, cell: JaxArray, equation: Equation, phase: Phase) -> JaxArray:
        """Return a copy of ``cell`` with its dims in the order that ``equation`` needs; each copy is made once."""
        whole = cell
        while not whole.part and whole.source is not None and id(whole) not in self._makers:
            whole = whole.source
        key = (id(whole), cell.shape, cell.layout(), equation.name)
        if key not in self._copies:
            copy = JaxArray(cell.shape, cell.dtype)
            made = Equation("clone", [cell], [copy], {}, equation.stack, equation.place, equation.call, equation.loop)
            self._put(made, self._new((), phase, equation.loop))
            self._copies[key] = copy
        return self._copies[key]

    def _is_bias(self, equation: Equation) -> bool:
        """A vector of weights that is added to a product runs with it."""
        if equation.name != "add":
            return False
        for data, vector in (equation.inputs, equation.inputs[::-1]):
            kernel, stored = self.maker(data), vector.stored()
            vectors = sum(size > 1 for size in stored.shape) <= 1
            if (
                kernel is None
                or kernel.single not in ("dot_general", "conv_general_dilated")
                or kernel.bias is not None
            ):
                continue
            if vectors and _size(stored) < _size(data) and id(stored.root()) in self._trained:
                kernel.bias = stored
                equation.outputs[0].source = data
                return True
        return False

    def _join(self, equation: Equation, phase: Phase) -> None:
        function = equation.place[:2]
        line = equation.place[2] if function in self._mixed or not function[1] else 0
        key: tuple[object, ...] = (phase, equation.loop, function, line, equation.call)
        kernel = self._open.get(key)
        if equation.name == "add_any":
            inside = [c for c in equation.inputs if kernel is not None and self.maker(c) is kernel]
            if not inside:
                self._put(equation, self._new((*key, id(equation)), phase, equation.loop))
                return
            (other,) = [c for c in equation.inputs if c is not inside[0]][:1] or inside[:1]
            assert kernel is not None, "what is inside has a kernel"
            if len(inside) == 1 and id(other.stored().root()) not in self._seen(kernel):
                kernel.added.append(other)
                equation.outputs[0].source = inside[0]
                return
        if self._is_sum_of_bias(equation, phase, line):
            self._put(equation, self._new((*key, id(equation)), phase, equation.loop))
            return
        if kernel is None or not self._touches(kernel, equation) or self._waits_for(kernel, equation):
            kernel = self._open[key] = self._new(key, phase, equation.loop)
        self._put(equation, kernel)

    def _is_sum_of_bias(self, equation: Equation, phase: Phase, line: int) -> bool:
        """The gradient of a bias: a sum over the batch, outside a function that only normalises."""
        if phase is not Phase.BACKWARD or equation.name != "reduce_sum" or not line:
            return False
        return any(equation.inputs[0].shape[axis] % BATCH == 0 for axis in equation.params["axes"])

    def _new(self, key: tuple[object, ...], phase: Phase, loop: int) -> Kernel:
        kernel = Kernel(key, phase, loop, len(self._kernels))
        self._kernels.append(kernel)
        return kernel

    def _put(self, equation: Equation, kernel: Kernel) -> None:
        kernel.equations.append(equation)
        for cell in equation.inputs:
            maker = self.maker(cell)
            if maker is not None and maker is not kernel:
                kernel.upstream |= maker.upstream | 1 << maker.number
        if equation.name == "max" and any(c.known for c in equation.inputs):  # ReLU
            data = next(c for c in equation.inputs if not c.known)
            self._clipped[id(self._made(data))] = equation.outputs[0]
        for cell in equation.outputs:
            self._makers[id(cell)] = kernel

    def _waits_for(self, kernel: Kernel, equation: Equation) -> bool:
        """Whether an equation needs another kernel that in turn needs ``kernel``: the two cannot be one."""
        makers = (self.maker(c) for c in equation.inputs)
        return any(m.upstream >> kernel.number & 1 for m in makers if m is not None and m is not kernel)

    def _touches(self, kernel: Kernel, equation: Equation) -> bool:
        """Whether an equation reads what a kernel makes or reads."""
        seen = self._seen(kernel)
        return any(self.maker(c) is kernel or id(c.stored().root()) in seen for c in equation.inputs if not c.known)

    def _seen(self, kernel: Kernel) -> set[int]:
        return {id(c.stored().root()) for e in kernel.equations for c in e.inputs if not c.known}

    def finish(self, outputs: Sequence[JaxArray]) -> list[Kernel]:
        """Find what each kernel reads and writes."""
        needed: dict[int, JaxArray] = {}
        for kernel in self._kernels:
            for cell in self._outside(kernel):
                maker = self.maker(cell)
                recomputed = maker is not None and not maker.single and not kernel.single
                if maker and not (recomputed and maker.phase is Phase.FORWARD and kernel.phase is Phase.BACKWARD):
                    needed[id(self._made(cell))] = self._made(cell)
        for cell in outputs:
            if self.maker(cell) is not None:
                needed[id(self._made(cell))] = self._made(cell)
        for kernel in self._kernels:
            made = [c for e in kernel.equations for c in e.outputs]
            kernel.writes = made if kernel.single else [c for c in made if id(c) in needed]
            reads: dict[int, JaxArray] = {}
            for cell in self._outside(kernel):
                for source in self._written(cell, needed):
                    reads.setdefault(id(source), source)
            kernel.reads = list(reads.values())
        return [k for k in self._kernels if k.writes]

    def _outside(self, kernel: Kernel) -> list[JaxArray]:
        inside = [c for e in kernel.equations for c in e.inputs] + kernel.added
        return [c.stored() for c in inside if not c.known and not c.stored().known and self.maker(c) is not kernel]

    def _made(self, cell: JaxArray) -> JaxArray:
        """The array of a kernel that a cell is a view of."""
        here: JaxArray | None = cell
        while here is not None:
            if id(here) in self._makers:
                return here
            here = here.source
        return cell

    def _written(self, cell: JaxArray, needed: dict[int, JaxArray], depth: int = 0) -> list[JaxArray]:
        """Returns the arrays in memory from which ``cell`` is read, or computed again."""
        made, maker = self._made(cell), self.maker(cell)
        if maker is None or maker.single or id(made) in needed or depth > 8:
            return [_nearest(cell, made)]
        for equation in maker.equations:
            result = equation.outputs[0]
            if equation.name in _BY_RESULT and id(result) in needed and result.shape == made.shape:
                return [result]
        if all(e.name in _COMPARISONS for e in maker.equations):
            clipped = [self._clipped.get(id(self._made(c))) for c in self._outside(maker)]
            if clipped and all(c is not None and id(c) in needed for c in clipped):
                return [c for c in clipped if c is not None]
        return [s for c in self._outside(maker) for s in self._written(c, needed, depth + 1)]


def _nearest(cell: JaxArray, made: JaxArray) -> JaxArray:
    """One cell for all views of the same array: the array itself, or a slice of stacked weights."""
    return made if _size(made) <= _size(cell) or cell.source is None else cell


def _size(cell: JaxArray) -> int:
    size = 1
    for dim in cell.shape:
        size *= dim
    return size


def _is_view(equation: Equation) -> bool:
    """Whether an equation runs no kernel: a view, a cast, arithmetic on indices, a sum over dims of size one."""
    if equation.name in JAX_VIEWS or equation.name == "convert_element_type" or not _computes(equation):
        return True
    return equation.name.startswith("reduce_") and _size(equation.outputs[0]) == _size(equation.inputs[0])


def _computes(equation: Equation) -> bool:
    """Whether an equation handles floating-point numbers; arithmetic on indices costs nothing."""
    if kind_of(equation.name, source="jax"):
        return True
    return any(c.dtype.startswith(("float", "bfloat")) for c in (*equation.inputs, *equation.outputs))


def kind_of_kernel(kernel: Kernel) -> OpKind:
    """Returns the kind of a kernel that joins point-wise equations and reductions."""
    names = {e.name for e in kernel.equations}
    reduces = any(n.startswith("reduce_") for n in names)
    if reduces and ("rsqrt" in names or "sqrt" in names):
        return OpKind.LAYER_NORM
    if reduces and "exp" in names:
        return OpKind.SOFTMAX
    if reduces and len(names) <= 2:
        return OpKind.REDUCTION
    if names & _CURVES and len([c for c in kernel.reads if _size(c) > 1]) == 1:
        return OpKind.ACTIVATION
    return OpKind.ELEMENTWISE
