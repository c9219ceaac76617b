"""Adapt a network to a device with a handful of measurements: a small change of its last layer.

The other layers have learned from many devices which features matter. How strongly each matters on this device is a
linear problem with a closed form. A ridge penalty keeps the change small; leave-one-out errors choose the penalty.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traincast.estimate.operators.network import Network
from traincast.fitting.train import Examples

Floats = npt.NDArray[np.float64]

PENALTIES = tuple(10.0**exponent for exponent in np.arange(-3.0, 4.01, 0.5))


def adapt(network: Network, examples: Examples, said: Floats) -> tuple[Network, Floats]:
    """Return the network adapted to the device of ``examples``, and the leave-one-out error of each example.

    ``said`` is what other cells predict for the examples; the network's output is added to it.
    """
    if not len(examples.target):
        return network, np.zeros(0)
    hidden = network.hidden(*examples[:3]).astype(np.float64)
    seen = np.concatenate([hidden, np.ones((len(hidden), 1))], axis=1)
    left = examples.target - said
    # Devices differ from the network first by a common factor: the constant is penalised least.
    scale = np.concatenate([1.0 / (hidden.std(axis=0) + 0.1), [10.0]])
    scaled = seen * scale / np.sqrt(seen.shape[1])
    best: tuple[float, Floats, Floats] | None = None
    gram = scaled @ scaled.T
    for penalty in PENALTIES:
        inverse = np.linalg.inv(gram + penalty * np.eye(len(gram)))
        weight = inverse @ left
        leave_one_out = weight / np.diag(inverse)
        error = float(np.abs(leave_one_out).mean())
        if best is None or error < best[0]:
            best = (error, scaled.T @ weight * scale / np.sqrt(seen.shape[1]), leave_one_out)
    assert best is not None
    _, move, missed = best
    return replace(network, adapted=move.astype(np.float32)), missed


def learning_curve(
    network: Network,
    examples: Examples,
    said: Floats,
    *,
    counts: tuple[int, ...] = (0, 10, 30, 100),
    seeds: int = 5,
) -> dict[int, float]:
    """Mean absolute percentage error on the remaining operators, by the number adapted to; averaged over draws."""
    curve = {}
    total = len(examples.target)
    for count in counts:
        if total - count < max(5, total // 5):
            break
        errors = []
        for seed in range(seeds if count else 1):
            order = np.random.default_rng(seed).permutation(total)
            few, rest = order[:count], examples.take(order[count:])
            now = said[order[count:]]
            if count:
                moved, _ = adapt(network, examples.take(few), said[few])
                now = now + moved(*rest[:3], share=0.0)
            errors.append(float(np.abs(np.exp(now - rest.target) - 1.0).mean()) * 100)
        curve[count] = float(np.mean(errors))
    return curve
