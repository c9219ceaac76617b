"""The networks learn what is known, and the same from the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from traincast.fitting.operators.fi_net import ConvInception, FNOInception
from traincast.fitting.train import Examples, TrainConfig, train_network

LENGTH, WIDTH = 16, 8
BODIES: dict[str, dict[str, Any]] = {
    "FI-Net": {"modes": (2, 4, 7)},
    "one mode count": {"modes": (5,)},
    "convolutions": {"body": "convolution", "modes": (1, 3, 5)},
    "none": {"body": "none"},
}


def known(rows: int = 768) -> Examples:
    """A wave of a flat feature, a sum over the sequence, and a step between two texts."""
    rng = np.random.default_rng(0)
    flat = rng.uniform(-1, 1, size=(rows, 3)).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, size=(rows, 1))
    tiles = np.stack(
        [np.cos(np.arange(LENGTH) * (2 * np.pi / LENGTH) + phase), np.repeat(flat[:, :1], LENGTH, axis=1)], 2
    )
    text = rng.integers(0, 2, rows)
    target = np.sin(3 * flat[:, 0]) + 0.5 * flat[:, 1] + 0.3 * text
    return Examples(
        flat=flat,
        tiles=tiles.astype(np.float32),
        categories=np.eye(2, dtype=np.float32)[text],
        target=target.astype(float),
    )


def losses(size: dict[str, Any], *, seed: int = 0, epochs: int = 12) -> list[float]:
    seen: list[float] = []
    train_network(
        known(),
        size={"hidden": 48, "width": 12, **size},
        config=TrainConfig(epochs=epochs, batch=64),
        seed=seed,
        progress=lambda epoch, of, loss: seen.append(loss),
    )
    assert len(seen) == epochs
    return seen


@pytest.mark.long(but=1)
@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_known_function_is_learned(body: dict[str, Any]) -> None:
    seen = losses(body)
    assert seen[-1] < seen[0] / 10


@pytest.mark.long(guard="test_a_known_function_is_learned")
def test_the_running_average_predicts_what_was_learned() -> None:
    given = known()
    network = train_network(
        given, size={"hidden": 48, "width": 12, "modes": (2, 4, 7)}, config=TrainConfig(epochs=12, batch=64)
    )
    error = np.abs(network(*given[:3]) - given.target)
    assert error.mean() < 0.1 * np.abs(given.target - np.median(given.target)).mean()


def test_a_seed_decides_a_training() -> None:
    first, again, other = (
        train_network(
            known(256),
            size={"hidden": 16, **BODIES["one mode count"]},
            config=TrainConfig(epochs=2, batch=64),
            seed=seed,
        )
        for seed in (0, 0, 1)
    )
    for name, weight in first.weights.items():
        np.testing.assert_array_equal(weight, again.weights[name])
    assert any((weight != other.weights[name]).any() for name, weight in first.weights.items())


@pytest.mark.parametrize("rows", [5, 8, 33])
def test_few_rows_are_enough_to_train_on(rows: int) -> None:
    given = known().take(np.arange(rows))
    network = train_network(given, size={"hidden": 8, **BODIES["one mode count"]}, config=TrainConfig(epochs=2))
    assert np.isfinite(network(*given[:3])).all()


def fitted_loss(module: nn.Module, x: Tensor, y: Tensor, *, steps: int = 250) -> tuple[float, float]:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    first = last = 0.0
    for _ in range(steps):
        loss = nn.functional.mse_loss(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = float(loss.detach())
        first = first or last
    return first, last


def smoothed(x: Tensor) -> Tensor:
    """What three modes keep of a sequence."""
    spectrum = torch.fft.rfft(x, dim=0)
    spectrum[3:] = 0
    return torch.fft.irfft(spectrum, n=len(x), dim=0)


def neighbours(x: Tensor) -> Tensor:
    edge = torch.zeros_like(x[:1])
    return (torch.cat([edge, x[:-1]]) + torch.cat([x[1:], edge])) / 2


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("module", "seen"),
    [(FNOInception(WIDTH, LENGTH, (3, 9)), smoothed), (ConvInception(WIDTH, LENGTH, (3, 5)), neighbours)],
    ids=["FNO-Inception", "convolutions"],
)
def test_a_module_learns_what_stands_along_the_sequence(module: nn.Module, seen: Callable[[Tensor], Tensor]) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(LENGTH, 64, WIDTH, generator=generator)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    first, last = fitted_loss(module, x, x + torch.relu(seen(x)))
    assert last < first / 10


def test_a_module_begins_and_ends_with_the_same_shape() -> None:
    x = torch.randn(LENGTH, 3, WIDTH)
    assert FNOInception(WIDTH, LENGTH, (1, 9))(x).shape == x.shape
    assert ConvInception(WIDTH, LENGTH, (1, 3, 5, 7))(x).shape == x.shape
