"""Training steps in JAX; ``tests.graph.test_jax_step`` has the same networks in PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

HIDDEN, HEADS, LAYERS, SEQ, VOCAB = 64, 4, 3, 16, 96
STEPS, WIDTH = 12, 4096


def array(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def updated(weights: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def mlp(weights: Any, x: Any) -> Any:
    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = weights[-1]
    return x @ w + b


def mlp_loss(weights: Any, x: Any, labels: Any) -> Any:
    return cross_entropy(mlp(weights, x), labels)


def mlp_step(weights: Any, x: Any, labels: Any) -> Any:
    loss, gradients = jax.value_and_grad(mlp_loss)(weights, x, labels)
    return updated(weights, gradients), loss


mlp_step.example_inputs = (  # type: ignore[attr-defined]
    [(array(64, WIDTH), array(WIDTH)), (array(WIDTH, WIDTH), array(WIDTH)), (array(WIDTH, 10), array(10))],
    array(4, 64),
    array(4, dtype=jnp.int32),
)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * w + b


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = scores * 0.25
    shares = jax.nn.softmax(scores)
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)


def layer(x: Any, p: Any) -> Any:
    batch, seq, hidden = x.shape
    y = layer_norm(x, p["norm1"], p["shift1"])
    q, k, v = ((y @ p[n]).reshape(batch, seq, HEADS, hidden // HEADS) for n in ("q", "k", "v"))
    x = x + attention(q, k, v).reshape(batch, seq, hidden) @ p["o"]
    y = layer_norm(x, p["norm2"], p["shift2"])
    y = jax.nn.gelu(y @ p["up"] + p["bias"])
    x = x + y @ p["down"]
    return x, None


def transformer(p: Any, tokens: Any) -> Any:
    x = p["embedding"][tokens]
    x, _ = jax.lax.scan(layer, x, p["layers"])
    return x @ p["head"]


def transformer_loss(p: Any, tokens: Any, labels: Any) -> Any:
    return cross_entropy(transformer(p, tokens), labels)


def transformer_step(p: Any, momentum: Any, tokens: Any, labels: Any) -> Any:
    loss, gradients = jax.value_and_grad(transformer_loss)(p, tokens, labels)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return updated(p, momentum), momentum, loss


def _transformer_weights() -> Any:
    square, wide = array(LAYERS, HIDDEN, HIDDEN), array(LAYERS, HIDDEN, 4 * HIDDEN)
    vectors = {name: array(LAYERS, HIDDEN) for name in ("norm1", "shift1", "norm2", "shift2")}
    layers = {
        **dict.fromkeys(("q", "k", "v", "o"), square),
        **vectors,
        "up": wide,
        "bias": array(LAYERS, 4 * HIDDEN),
        "down": array(LAYERS, 4 * HIDDEN, HIDDEN),
    }
    return {"embedding": array(VOCAB, HIDDEN), "layers": layers, "head": array(HIDDEN, VOCAB)}


def _transformer_inputs() -> Any:
    tokens = array(2, SEQ, dtype=jnp.int32)
    return _transformer_weights(), _transformer_weights(), tokens, tokens


transformer_step.example_inputs = _transformer_inputs  # type: ignore[attr-defined]


def conv(x: Any, w: Any, stride: int = 1) -> Any:
    pad = w.shape[-1] // 2
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW")
    )


def batch_norm(x: Any, w: Any, b: Any) -> Any:
    mean = x.mean((0, 2, 3), keepdims=True)
    var = jnp.square(x - mean).mean((0, 2, 3), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * w[:, None, None] + b[:, None, None]


def block(x: Any, p: Any) -> Any:
    y = jax.nn.relu(batch_norm(conv(x, p["w1"], p.get("stride", 1)), p["s1"], p["b1"]))
    y = batch_norm(conv(y, p["w2"]), p["s2"], p["b2"])
    y = y + x
    return jax.nn.relu(y)


def resnet(p: Any, x: Any) -> Any:
    x = jax.nn.relu(batch_norm(conv(x, p["stem"]), p["s"], p["b"]))
    for each in p["blocks"]:
        x = block(x, each)
    x = x.mean((2, 3))
    return x @ p["head"] + p["bias"]


def resnet_loss(p: Any, x: Any, labels: Any) -> Any:
    return cross_entropy(resnet(p, x), labels)


def resnet_step(p: Any, x: Any, labels: Any) -> Any:
    loss, gradients = jax.value_and_grad(resnet_loss)(p, x, labels)
    return updated(p, gradients), loss


def _resnet_inputs() -> Any:
    c = 16
    each = {
        "w1": array(c, c, 3, 3),
        "s1": array(c),
        "b1": array(c),
        "w2": array(c, c, 3, 3),
        "s2": array(c),
        "b2": array(c),
    }
    p = {
        "stem": array(c, 3, 3, 3),
        "s": array(c),
        "b": array(c),
        "blocks": [each] * 3,
        "head": array(c, 10),
        "bias": array(10),
    }
    return p, array(2, 3, 32, 32), array(2, dtype=jnp.int32)


resnet_step.example_inputs = _resnet_inputs  # type: ignore[attr-defined]


def cell(state: Any, x: Any, p: Any) -> Any:
    inner = x @ p["input"] + p["bias"]
    outer = state @ p["recurrent"]
    state = inner + outer
    return jnp.tanh(state)


def recurrent(p: Any, x: Any) -> Any:
    state = jnp.zeros((x.shape[0], HIDDEN)) + p["start"]

    def advance(state: Any, now: Any) -> Any:
        state = cell(state, now, p)
        return state, None

    state, _ = jax.lax.scan(advance, state, jnp.swapaxes(x, 0, 1))
    return state @ p["head"]


def recurrent_loss(p: Any, x: Any, labels: Any) -> Any:
    return cross_entropy(recurrent(p, x), labels)


def recurrent_step(p: Any, x: Any, labels: Any) -> Any:
    loss, gradients = jax.value_and_grad(recurrent_loss)(p, x, labels)
    return updated(p, gradients), loss


recurrent_step.example_inputs = (  # type: ignore[attr-defined]
    {
        "input": array(32, HIDDEN),
        "bias": array(HIDDEN),
        "recurrent": array(HIDDEN, HIDDEN),
        "start": array(HIDDEN),
        "head": array(HIDDEN, 10),
    },
    array(2, STEPS, 32),
    array(2, dtype=jnp.int32),
)


def looping_step(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        return jax.lax.fori_loop(0, x.astype(int).sum(), lambda _, y: y @ w, x).sum()

    return w - loss(w), loss(w)


looping_step.example_inputs = (array(4, 4), array(2, 4))  # type: ignore[attr-defined]


def forward_only(w: Any, x: Any) -> Any:
    return w + (x @ w).sum()


forward_only.example_inputs = (array(4, 4), array(2, 4))  # type: ignore[attr-defined]


def stateless(x: Any) -> Any:
    return x.sum()


stateless.example_inputs = (array(2, 4),)  # type: ignore[attr-defined]
