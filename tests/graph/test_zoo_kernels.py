"""The zoo's own operators: values and gradients on real numbers, shapes on fake ones."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck
from torch.nn import functional

from traincast.graph.zoo.parts.kernels import attention, grouped_mm, rms_norm, rotary


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_rms_norm_agrees_with_pytorch_and_its_gradient_with_differences() -> None:
    x, weight = real(2, 3, 8), real(8)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), functional.rms_norm(x, (8,), weight, 1e-5))
    assert gradcheck(lambda a, b: rms_norm(a, b, 1e-5), (x, weight))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_agrees_with_pytorch_where_heads_have_two_widths(causal: bool) -> None:
    q, k, v = real(2, 3, 5, 6), real(2, 3, 5, 6), real(2, 3, 5, 4)
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(attention(q, k, v, causal), expected)
    assert gradcheck(lambda a, b, c: attention(a, b, c, causal), (q, k, v))


def test_rotary_turns_pairs_and_leaves_the_rest() -> None:
    x, angles = real(2, 5, 3, 8), torch.randn(5, 1, 2, dtype=torch.float64)
    turned = rotary(x, angles.cos(), angles.sin())
    torch.testing.assert_close(turned[..., 4:], x[..., 4:])
    pairs = torch.complex(x[..., :2], x[..., 2:4]) * torch.exp(1j * angles)
    torch.testing.assert_close(turned[..., :4], torch.cat((pairs.real, pairs.imag), dim=-1))
    assert gradcheck(lambda a: rotary(a, angles.cos(), angles.sin()), (x,))


def test_grouped_mm_multiplies_each_row_with_its_expert() -> None:
    rows, weights, ends = real(7, 4), real(3, 4, 5), torch.tensor([2, 2, 7])
    expected = torch.cat((rows[:2] @ weights[0], rows[2:] @ weights[2]))
    torch.testing.assert_close(grouped_mm(rows, weights, ends), expected)
    assert gradcheck(lambda a, b: grouped_mm(a, b, ends), (rows, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fake_tensors_have_the_shapes_and_types_of_real_ones(dtype: torch.dtype) -> None:
    def run() -> list[tuple[torch.Size, torch.dtype]]:
        x = torch.zeros(2, 3, 4, 8, dtype=dtype, requires_grad=True)
        out = rotary(rms_norm(x, torch.ones(8, dtype=dtype), 1e-5), *torch.zeros(2, 3, 1, 4, dtype=dtype))
        mixed = attention(out, out, out[..., :5], True)
        weights = torch.zeros(3, 5, 6, dtype=dtype, requires_grad=True)
        product = grouped_mm(mixed.reshape(-1, 5), weights, torch.tensor([8, 16, 24]))
        product.sum().backward()
        assert x.grad is not None and weights.grad is not None
        return [(t.shape, t.dtype) for t in (out, mixed, product, x.grad, weights.grad)]

    with FakeTensorMode():
        fake = run()
    assert fake == run()
