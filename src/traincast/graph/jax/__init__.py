"""JAX training steps as models: forward and backward as JAX traces them."""

from __future__ import annotations

from traincast.graph.jax.load import is_jax_step, load_jax

__all__ = ["is_jax_step", "load_jax"]
