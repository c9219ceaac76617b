"""Stride, padding and dilation from sizes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from traincast.profiling.operators.windows import conv_window, pool_window


@pytest.mark.parametrize(
    ("data", "out", "kernel", "stride", "padding"),
    [(224, 112, 7, 2, 3), (224, 55, 11, 4, 2), (56, 56, 3, 1, 1), (56, 28, 1, 2, 0), (32, 28, 5, 1, 0)],
)
def test_convolutions_of_known_networks(data: int, out: int, kernel: int, stride: int, padding: int) -> None:
    found = conv_window(data=(data,), out=(out,), kernel=(kernel,), stride=stride, transposed=False)
    assert found is not None
    room = data + 2 * found.padding[0] - found.dilation[0] * (kernel - 1) - 1
    assert (found.stride[0], room // stride + 1) == (stride, out)
    assert found.padding[0] in (padding, padding + 1)


@given(st.integers(1, 64), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3), st.booleans())
def test_the_window_found_gives_the_size_asked_for(
    data: int, kernel: int, stride: int, padding: int, transposed: bool
) -> None:
    assume(padding <= kernel // 2)
    out = (data - 1) * stride - 2 * padding + kernel if transposed else (data + 2 * padding - kernel) // stride + 1
    assume(out >= 1)
    found = conv_window(data=(data,), out=(out,), kernel=(kernel,), stride=stride, transposed=transposed)
    assert found is not None
    s, p, d, extra = found.stride[0], found.padding[0], found.dilation[0], found.output_padding[0]
    if transposed:
        assert (data - 1) * s - 2 * p + d * (kernel - 1) + 1 + extra == out
    else:
        assert (data + 2 * p - d * (kernel - 1) - 1) // s + 1 == out


@pytest.mark.parametrize(
    ("data", "out", "window"),
    [(55, 27, (3, 2, 0)), (224, 112, (2, 2, 0)), (28, 28, (3, 1, 1)), (7, 1, (3, 7, 0))],
)
def test_pools_of_known_networks(data: int, out: int, window: tuple[int, int, int]) -> None:
    found = pool_window(data=(data, data), out=(out, out))
    assert found is not None
    assert (found.kernel[0], found.stride[0], found.padding[0]) == window


def test_a_stated_kernel_is_kept_and_padding_follows() -> None:
    found = pool_window(data=(112, 112), out=(56, 56), kernel=3, stride=2)
    assert found is not None
    assert (found.kernel, found.stride, found.padding) == ((3, 3), (2, 2), (1, 1))


def test_sizes_that_no_window_joins_are_refused() -> None:
    assert conv_window(data=(4,), out=(40,), kernel=(3,), stride=1, transposed=False) is None
    assert pool_window(data=(4, 4), out=(9, 9)) is None
