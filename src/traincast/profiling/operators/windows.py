"""Infer sliding windows from shapes: the stride, padding and dilation that turn one size into another.

A captured convolution has its stride and kernel, a captured pool has neither. The rest follows from the sizes; if
several choices fit, the most usual one is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How a kernel moves over an input, per spatial dim."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    ceil: bool = False


_DILATIONS: Final = (1, 2, 3, 4, 6, 8, 12)
_STRIDES: Final = (1, 2, 3, 4, 5, 8, 16)


def conv_window(
    *, data: Sequence[int], out: Sequence[int], kernel: Sequence[int], stride: int, transposed: bool
) -> Window | None:
    """The window of a convolution from ``data`` to ``out`` (spatial sizes), or ``None`` if none fits."""
    found = []
    for size, result, width in zip(data, out, kernel, strict=True):
        choices = _transposed(size, result, width, stride) if transposed else _forward(size, result, width, stride)
        first = next(choices, None)
        if first is None:
            return None
        found.append(first)
    strides, paddings, dilations, extra = zip(*found, strict=True)
    return Window(kernel=tuple(kernel), stride=strides, padding=paddings, dilation=dilations, output_padding=extra)


def _paddings(width: int, dilation: int) -> list[int]:
    """Paddings to try: half the kernel, then none, then all others."""
    half = dilation * (width - 1) // 2
    return list(dict.fromkeys((half, 0, *range(dilation * (width - 1) + 1))))


def _forward(size: int, result: int, width: int, stride: int) -> Iterator[tuple[int, int, int, int]]:
    for step in dict.fromkeys((stride, *_STRIDES)):
        for dilation in _DILATIONS if width > 1 else (1,):
            for padding in _paddings(width, dilation):
                room = size + 2 * padding - dilation * (width - 1) - 1
                if room >= 0 and room // step + 1 == result:
                    yield step, padding, dilation, 0


def _transposed(size: int, result: int, width: int, stride: int) -> Iterator[tuple[int, int, int, int]]:
    for step in dict.fromkeys((stride, *_STRIDES)):
        for padding in dict.fromkeys((0, (width - 1) // 2, *range(width))):
            extra = result - ((size - 1) * step - 2 * padding + width)
            if 0 <= extra < step:
                yield step, padding, 1, extra


def pool_window(*, data: Sequence[int], out: Sequence[int], kernel: int = 0, stride: int = 0) -> Window | None:
    """The window of a pool from ``data`` to ``out`` (spatial sizes); a kernel or stride of 0 means unknown."""
    widths = (kernel,) if kernel else _usual_kernels(data, out)
    for width in widths:
        for step in (stride,) if stride else _usual_strides(data, out, width):
            for ceil in (False, True):
                for padding in range(width // 2 + 1):
                    if all(_pooled(d, width, step, padding, ceil=ceil) == o for d, o in zip(data, out, strict=True)):
                        n = len(data)
                        return Window(
                            kernel=(width,) * n,
                            stride=(step,) * n,
                            padding=(padding,) * n,
                            dilation=(1,) * n,
                            output_padding=(0,) * n,
                            ceil=ceil,
                        )
    return None


def _usual_kernels(data: Sequence[int], out: Sequence[int]) -> tuple[int, ...]:
    """Kernels to try: 3 if the size stays or is odd, 2 if it is halved."""
    if tuple(data) != tuple(out) and all(d == 2 * o for d, o in zip(data, out, strict=True)):
        return (2, 3, 4, 5)
    return tuple(dict.fromkeys((3, 2, 5, 4, 7, 1, *range(8, max(data) + 1))))


def _usual_strides(data: Sequence[int], out: Sequence[int], width: int) -> tuple[int, ...]:
    if tuple(data) == tuple(out):
        return (1,)
    return tuple(dict.fromkeys((max(2, round(data[0] / out[0])), 2, 1, 3, width)))


def _pooled(size: int, width: int, step: int, padding: int, *, ceil: bool) -> int:
    room = size + 2 * padding - width
    if room < 0:
        return 0
    if not ceil:
        return room // step + 1
    count = -(-room // step) + 1
    return count - 1 if (count - 1) * step >= size + padding else count
