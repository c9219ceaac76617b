"""A training step in JAX: `traincast predict examples.jax_step:train_step --cluster dgx-a100:1 --global-batch 256`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from traincast import predict


def loss(weights: dict[str, Any], x: Any, labels: Any) -> Any:
    logits = jax.nn.relu(x @ weights["up"]) @ weights["down"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean()


def train_step(weights: dict[str, Any], x: Any, labels: Any) -> tuple[dict[str, Any], Any]:
    value, gradients = jax.value_and_grad(loss)(weights, x, labels)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def example_inputs() -> tuple[Any, ...]:
    weights = {"up": jnp.zeros((64, 256)), "down": jnp.zeros((256, 10))}
    return weights, jnp.zeros((8, 64)), jnp.zeros(8, dtype=int)


if __name__ == "__main__":
    forecast = predict("jax_step:train_step", cluster="dgx-a100:1", global_batch=256)
    print(f"{forecast.request.graph.num_parameters:,} parameters, step {forecast.report.step_s * 1e3:.3f} ms")
