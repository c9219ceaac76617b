"""The network in NumPy computes what was trained in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from traincast.estimate.operators.network import FARTHEST, Floats32, Network, fourier_matrices
from traincast.fitting.operators.fi_net import FINet, FNOInception, NetConfig, SpectralMix
from traincast.fitting.train import Examples, TrainConfig, train_network

SIZES: dict[str, dict[str, Any]] = {
    "fourier": {"body": "fourier", "modes": (2, 3, 5), "width": 12},
    "fourier, all modes of an even length": {"body": "fourier", "modes": (6,), "width": 8},
    "none": {"body": "none"},
    "smooth": {"body": "fourier", "modes": (2, 4), "width": 8, "smooth": 2},
}


def examples(rows: int = 300, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    flat = rng.normal(size=(rows, 6)).astype(np.float32)
    flat[:, 4] = 1.0  # a feature that never varies
    tiles = rng.normal(size=(rows, 10, 3)).astype(np.float32)
    categories = np.eye(2, dtype=np.float32)[rng.integers(0, 2, rows)]
    return Examples(flat=flat, tiles=tiles, categories=categories, target=flat[:, 0] + tiles[:, 3, 1].astype(float))


def trained(**size: Any) -> Network:
    return train_network(examples(), size={"hidden": 16, **size}, config=TrainConfig(epochs=2, batch=64))


def in_torch(network: Network, given: Examples) -> Floats32:
    model = FINet(NetConfig(**{**network.config, "modes": tuple(network.config["modes"])}))
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in network.weights.items()})
    scale = network.scale
    flat = (given.flat[:, scale["kept"]] - scale["flat_mean"]) / scale["flat_std"]
    tiles = np.clip((given.tiles - scale["tile_mean"]) / scale["tile_std"], -5, 5)
    with torch.no_grad():
        result: Floats32 = model(*(torch.from_numpy(x) for x in (flat, tiles, given.categories))).numpy()
    return result


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_numpy_says_what_pytorch_says(size: dict[str, Any]) -> None:
    network, given = trained(**size), examples(seed=1)
    said = network(given.flat, given.tiles, given.categories)
    np.testing.assert_allclose(said, in_torch(network, given), rtol=1e-5, atol=1e-5)


def test_rows_do_not_see_each_other() -> None:
    network, many = trained(**SIZES["fourier"]), examples(rows=5000, seed=2)
    whole = network(*many[:3])
    some = np.array([0, 2047, 2048, 4999])
    np.testing.assert_allclose(network(*many.take(some)[:3]), whole[some], atol=1e-5)
    assert network(*many.take(some[:0])[:3]).shape == (0,)


def test_what_a_further_device_adds_is_added_to_the_last_layer() -> None:
    network, given = trained(**SIZES["none"]), examples(seed=1)
    hidden = network.hidden(*given[:3])
    adapted = np.full(hidden.shape[1] + 1, 0.01, dtype=np.float32)
    said = replace(network, adapted=adapted)(*given[:3])
    moved = np.clip(0.01 * hidden.sum(axis=1) + 0.01, -FARTHEST, FARTHEST)
    np.testing.assert_allclose(said, network(*given[:3]) + moved, rtol=1e-4, atol=1e-4)
    far = replace(network, adapted=np.float32(1e4) * adapted)(*given[:3])
    assert np.abs(far - network(*given[:3])).max() == pytest.approx(FARTHEST, rel=1e-4)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 20, 64])
def test_all_modes_bring_a_sequence_back(length: int) -> None:
    analysis, synthesis = fourier_matrices(length, length // 2 + 1)
    np.testing.assert_allclose(synthesis @ analysis, np.eye(length), atol=1e-5)


def test_few_modes_keep_what_varies_slowly() -> None:
    analysis, synthesis = fourier_matrices(32, 3)
    at = np.arange(32) * (2 * np.pi / 32)
    slow, fast = 1 + np.cos(at) + np.sin(2 * at), np.cos(5 * at)
    np.testing.assert_allclose(synthesis @ analysis @ (slow + fast), slow, atol=1e-5)


def test_modes_are_those_of_the_fast_fourier_transform() -> None:
    x = np.random.default_rng(0).normal(size=12)
    expected = np.fft.rfft(x, norm="ortho")[:4]
    analysis, _ = fourier_matrices(12, 4)
    found = analysis @ x
    np.testing.assert_allclose(found[:4] + 1j * found[4:], expected, atol=1e-5)


@pytest.mark.parametrize("length", [9, 10])
def test_mixing_by_the_identity_in_all_modes_changes_nothing(length: int) -> None:
    modes = length // 2 + 1
    mix = SpectralMix(length, ((2, modes), (3, modes)))
    with torch.no_grad():
        for weight, width in zip(mix.weights, (2, 3), strict=True):
            weight.zero_()
            weight[:, 0] = torch.eye(width)
    x = torch.randn(length, 4, 5, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(mix(x).detach().numpy(), x.numpy(), atol=1e-5)


def test_branches_mix_channels_of_their_own_alone() -> None:
    mix = SpectralMix(8, ((2, 3), (2, 5)))
    x = torch.randn(8, 1, 4, generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[:, :, 2:] += 1.0
    before, after = mix(x).detach(), mix(y).detach()
    assert torch.equal(before[:, :, :2], after[:, :, :2])
    assert not torch.allclose(before[:, :, 2:], after[:, :, 2:])


def test_more_modes_than_a_sequence_has_are_refused() -> None:
    SpectralMix(10, ((2, 6),))
    with pytest.raises(ValueError, match="7 modes: a sequence of 10 has at most 6"):
        SpectralMix(10, ((2, 7),))
    with pytest.raises(ValueError, match="10 channels do not divide among 3 branches"):
        FNOInception(10, 8, (1, 2, 3))
