"""A jaxpr as one list of equations: calls are written out, loops over time unrolled, loops over layers kept once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from traincast.errors import CaptureError

_CALLS: Final = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_LONGEST: Final = 4096


@dataclass(slots=True, eq=False)
class JaxArray:
    """One array of the step; ``source`` is the array that it is a view of, if any."""

    shape: tuple[int, ...]
    dtype: str
    known: bool = False
    source: JaxArray | None = None
    broadcast: bool = False
    part: bool = False
    order: tuple[int, ...] | None = None

    def layout(self) -> tuple[int, ...]:
        """The dims in the order of memory, the outermost first."""
        cell: JaxArray | None = self
        while cell is not None:
            if cell.order is not None and len(cell.order) == len(self.shape):
                return cell.order
            cell = cell.source
        return tuple(range(len(self.shape)))

    def stored(self) -> JaxArray:
        """The array before it was broadcast, which is what a kernel reads."""
        cell = self
        while cell.broadcast and cell.source is not None:
            cell = cell.source
        return cell

    def root(self) -> JaxArray:
        """The array that this one is a view of."""
        cell = self
        while cell.source is not None:
            cell = cell.source
        return cell


@dataclass(slots=True)
class Equation:
    """One primitive with its arrays; ``place`` is the line of the user's code, ``loop`` the layers that it runs in."""

    name: str
    inputs: list[JaxArray]
    outputs: list[JaxArray]
    params: Mapping[str, Any]
    stack: str
    place: tuple[str, str, int]
    call: str
    loop: int = -1


@dataclass(slots=True)
class Loop:
    """A ``scan`` over layers: the body runs ``length`` times; ``stacked`` are the arrays that it takes a slice of."""

    length: int
    backward: bool
    carried: list[tuple[JaxArray, JaxArray]] = field(default_factory=list)
    stacked: list[tuple[JaxArray, JaxArray]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Where:
    """The names that JAX gave, the line of the user's code, the function of JAX, and the loop over layers."""

    stack: str = ""
    place: tuple[str, str, int] = ("", "", 0)
    call: str = ""
    loop: int = -1


class Flattened:
    """The equations of a traced step, with the layers that they repeat in."""

    def __init__(self, closed: Any, inputs: Sequence[JaxArray], state: Sequence[JaxArray]) -> None:
        self.equations: list[Equation] = []
        self.loops: list[Loop] = []
        self._trained = {id(cell) for cell in state}
        constants = [self.cell(v.aval, known=True) for v in closed.jaxpr.constvars]
        self.outputs = self._run(closed.jaxpr, [*constants, *inputs], _Where())

    def cell(self, aval: Any, *, known: bool = False) -> JaxArray:
        """A new array."""
        shape = tuple(int(s) for s in getattr(aval, "shape", ()))
        return JaxArray(shape, str(getattr(aval, "dtype", "float32")), known)

    def _run(self, jaxpr: Any, given: Sequence[JaxArray], where: _Where) -> list[JaxArray]:
        """Add the equations of ``jaxpr`` and return its outputs."""
        cells: dict[Any, JaxArray] = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

        def read(atom: Any) -> JaxArray:
            return cells[atom] if atom in cells else self.cell(atom.aval, known=True)

        for equation in jaxpr.eqns:
            inputs = [self.cell(a.aval, known=True) if hasattr(a, "val") else read(a) for a in equation.invars]
            here = _Where(
                f"{where.stack}/{equation.source_info.name_stack}",
                _place(equation) or where.place,
                where.call,
                where.loop,
            )
            name = equation.primitive.name
            inner = next((equation.params[k] for k in _CALLS if k in equation.params), None)
            if name == "scan":
                outputs = self._scan(equation, inputs, here)
            elif name in ("while", "cond"):
                raise CaptureError(
                    f"the step has a {name} at {here.place[0]}:{here.place[2]}, whose length or branch depends on "
                    f"data; use jax.lax.scan, or Python's own loops and branches"
                )
            elif inner is not None:
                own = str(equation.params.get("name", ""))
                body = getattr(inner, "jaxpr", inner)
                consts = [self.cell(v.aval, known=True) for v in body.constvars]
                here = replace(here, call=where.call or (own if _is_of_jax(own) else ""))
                outputs = self._run(body, [*consts, *inputs], here)
            else:
                outputs = [self.cell(v.aval) for v in equation.outvars]
                made = Equation(name, inputs, outputs, equation.params, here.stack, here.place, here.call, here.loop)
                self.equations.append(made)
            cells |= dict(zip(equation.outvars, outputs, strict=True))
        return [self.cell(a.aval, known=True) if hasattr(a, "val") else read(a) for a in jaxpr.outvars]

    def _scan(self, equation: Any, inputs: list[JaxArray], where: _Where) -> list[JaxArray]:
        consts, carries = int(equation.params["num_consts"]), int(equation.params["num_carry"])
        length, body = int(equation.params["length"]), equation.params["jaxpr"].jaxpr
        given, stacked = inputs[: consts + carries], inputs[consts + carries :]
        backward = "transpose(" in where.stack
        outs = [self.cell(v.aval) for v in equation.outvars]
        layers = any(self._is_weight(cell) for cell in stacked) or (backward and self._matches(length))
        if not layers:
            return self._unrolled(equation, inputs, where)
        number = len(self.loops)
        self.loops.append(Loop(length, backward))
        slices = [JaxArray(c.shape[1:], c.dtype, c.known, c) for c in stacked]
        made = self._run(body, [*given, *slices], replace(where, loop=number))
        entry = self.loops[number]
        entry.carried = list(zip(inputs[consts : consts + carries], made[:carries], strict=True))
        for out, cell in zip(outs, made, strict=True):
            out.source = cell
        entry.stacked = list(zip(stacked, slices, strict=True))
        return outs

    def _unrolled(self, equation: Any, inputs: list[JaxArray], where: _Where) -> list[JaxArray]:
        """A loop over time, step by step."""
        consts, carries = int(equation.params["num_consts"]), int(equation.params["num_carry"])
        length, body = int(equation.params["length"]), equation.params["jaxpr"].jaxpr
        if length > _LONGEST:
            raise CaptureError(
                f"a scan of {length} steps at {where.place[0]}:{where.place[2]} is longer than {_LONGEST}"
            )
        carry = inputs[consts : consts + carries]
        made: list[JaxArray] = []
        for _ in range(length):
            slices = [JaxArray(c.shape[1:], c.dtype, c.known, c) for c in inputs[consts + carries :]]
            made = self._run(body, [*inputs[:consts], *carry, *slices], where)
            carry = made[:carries]
        outs = [self.cell(v.aval) for v in equation.outvars]
        for out, cell in zip(outs, made, strict=True):
            out.source = cell
        return outs

    def _is_weight(self, cell: JaxArray) -> bool:
        return id(cell.root()) in self._trained

    def _matches(self, length: int) -> bool:
        """Whether a backward loop of this length has a forward loop over layers."""
        return sum(1 if not entry.backward else -1 for entry in self.loops if entry.length == length) > 0


def _is_of_jax(name: str) -> bool:
    """Whether a compiled function is one of JAX's own, as ``log_softmax`` is, and not the user's."""
    import jax

    return hasattr(jax.nn, name) or hasattr(jax.numpy, name)


def _place(equation: Any) -> tuple[str, str, int] | None:
    """File, function and line of the user's code that an equation comes from."""
    from jax._src import source_info_util

    frame = source_info_util.user_frame(equation.source_info.traceback)
    return None if frame is None else (frame.file_name, frame.function_name, frame.start_line)
