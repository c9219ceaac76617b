"""The order of an array's dims in memory, and the copies that a change of order needs.

XLA and PyTorch both transpose by changing strides. A copy runs where dims that are not neighbours in memory must become
one: in a reshape, or for a batched product, whose kernel knows one stride per batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincast.graph.jax.flat import Equation, JaxArray


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
