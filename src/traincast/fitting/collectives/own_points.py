"""Choose the few points of a system that the rest is to be estimated from: evenly over its curves and sizes.

The choice depends on what was measured, never on the times. It is the same for every order of the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt


def choose_points(
    curves: Sequence[Hashable], log2_bytes: npt.NDArray[np.float64], count: int, *, names: Sequence[str] = ()
) -> list[int]:
    """The positions of ``count`` points, or of all if there are fewer.

    ``curves`` says which points lie on one curve (the same collective, links, software and number of ranks). Curves
    take turns, those with the most sizes first. On a curve, sizes are chosen evenly between the smallest and the
    largest. Among points of equal size, ``names`` decides, and then the position.

    >>> choose_points(["a"] * 5, np.arange(5.0), 3)
    [0, 2, 4]
    >>> choose_points(["a", "a", "a", "b", "b"], np.array([1.0, 2.0, 3.0, 1.0, 2.0]), 3)
    [0, 2, 4]
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, curve in enumerate(curves):
        members[curve].append(i)
    ordered = [
        _by_size(sorted(rows, key=lambda i: (log2_bytes[i], names[i] if names else "", i)), log2_bytes)
        for _, rows in sorted(members.items(), key=lambda item: repr(item[0]))
    ]
    ordered.sort(key=lambda sizes: -len(sizes))
    shares = [0] * len(ordered)
    left = min(count, len(curves))
    while left:
        for i, sizes in enumerate(ordered):
            if left and shares[i] < sum(map(len, sizes)):
                shares[i] += 1
                left -= 1
    return sorted(i for sizes, share in zip(ordered, shares, strict=True) for i in _evenly(sizes, share))


def _by_size(rows: Sequence[int], log2_bytes: npt.NDArray[np.float64]) -> list[list[int]]:
    """The rows of each size of a curve, smallest size first."""
    sizes: dict[float, list[int]] = defaultdict(list)
    for i in rows:
        sizes[round(float(log2_bytes[i]), 6)].append(i)
    return list(sizes.values())


def _evenly(sizes: Sequence[Sequence[int]], count: int) -> list[int]:
    """``count`` rows of a curve: one of each of evenly spaced sizes; of all sizes again if there are too few."""
    if count > len(sizes):
        rest = [list(rows[1:]) for rows in sizes if len(rows) > 1]
        return [rows[0] for rows in sizes] + _evenly(rest, count - len(sizes))
    if count == 1:
        return [sizes[-1 - (len(sizes) - 1) // 2][0]] if len(sizes) > 1 else [sizes[0][0]]
    return [sizes[round(float(i))][0] for i in np.linspace(0, len(sizes) - 1, count)]
