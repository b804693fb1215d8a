"""A small GPT in JAX, trained by dlkern's ops beside the same one by jax.nn's.

    pip install 'dlkern[jax]'
    python examples/jax_gpt.py --steps 100

Both begin with the same weights and read the same pieces of Python's own documentation, character
by character; what they print is the loss of each from time to time, and how far apart the weights
are at the end.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dlkern.jax as dkj

Array = Any
Params = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    vocabulary: int
    layers: int = 4
    heads: int = 4
    width: int = 128


class Dlkern:
    """The pieces that a GPT is made of, by dlkern."""

    embedding = staticmethod(dkj.embedding)
    norm = staticmethod(dkj.layer_norm)
    rope = staticmethod(dkj.rope)
    cross_entropy = staticmethod(dkj.cross_entropy)

    @staticmethod
    def linear(x: Array, weight: Array, bias: Array, residual: Array = None) -> Array:
        return dkj.linear(x, weight, bias, residual=residual)

    @staticmethod
    def linear_gelu(x: Array, weight: Array, bias: Array) -> Array:
        return dkj.linear(x, weight, bias, activation="gelu")

    @staticmethod
    def attention(q: Array, k: Array, v: Array) -> Array:
        """All [B, H, S, D]; each position sees itself and those before it."""
        scores = dkj.matmul(q, k.mT)
        return dkj.matmul(dkj.softmax(scores, scale=q.shape[-1] ** -0.5, causal=True), v)

    @staticmethod
    def adamw(params: Params, grads: Params, state: Params, lr: float) -> tuple[Params, Params]:
        leaves, tree = jax.tree.flatten(params)
        m, v, step = *map(jax.tree.leaves, (state["m"], state["v"])), state["step"] + 1
        new = dkj.adamw_step(leaves, jax.tree.leaves(grads), m, v, lr=lr, step=step)
        params, m, v = (jax.tree.unflatten(tree, x) for x in new)
        return params, {"m": m, "v": v, "step": step}


class JaxNN:
    """The same by jax.nn and jax.numpy."""

    @staticmethod
    def embedding(ids: Array, table: Array) -> Array:
        return table[ids]

    @staticmethod
    def norm(x: Array, weight: Array, bias: Array) -> Array:
        return jax.nn.standardize(x, epsilon=1e-5) * weight + bias

    @staticmethod
    def rope(x: Array) -> Array:
        half = x.shape[-1] // 2
        angles = jnp.outer(jnp.arange(x.shape[1]), 10000.0 ** (-jnp.arange(half) / half))
        cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    @staticmethod
    def linear(x: Array, weight: Array, bias: Array, residual: Array = None) -> Array:
        y = x @ weight.T + bias
        return y if residual is None else y + residual

    @staticmethod
    def linear_gelu(x: Array, weight: Array, bias: Array) -> Array:
        return jax.nn.gelu(x @ weight.T + bias, approximate=False)

    @staticmethod
    def attention(q: Array, k: Array, v: Array) -> Array:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v

    @staticmethod
    def cross_entropy(logits: Array, labels: Array) -> Array:
        log_p = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(log_p, labels[:, None], 1).mean()

    @staticmethod
    def adamw(params: Params, grads: Params, state: Params, lr: float) -> tuple[Params, Params]:
        step = state["step"] + 1
        t = step.astype(float)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)

        def updated(p: Array, m: Array, v: Array) -> Array:
            change = m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
            return (p * (1 - lr * 0.01) - lr * change).astype(p.dtype)

        return jax.tree.map(updated, params, m, v), {"m": m, "v": v, "step": step}


def initial(key: Array, shape: Shape, dtype: str) -> Params:
    """Weights of a model: [outputs, inputs], as linear takes them."""
    keys = iter(jax.random.split(key, 1 + 4 * shape.layers))
    width = shape.width

    def dense(outputs: int, inputs: int, scale: float = 1.0) -> Params:
        weight = jax.random.normal(next(keys), (outputs, inputs), dtype) * 0.02 * scale
        return {"weight": weight, "bias": jnp.zeros(outputs, dtype)}

    def norm() -> Params:
        return {"weight": jnp.ones(width, dtype), "bias": jnp.zeros(width, dtype)}

    depth = (2 * shape.layers) ** -0.5  # what is added up over the layers begins smaller
    blocks = [
        {
            "norm1": norm(), "qkv": dense(3 * width, width), "out": dense(width, width, depth),
            "norm2": norm(), "up": dense(4 * width, width), "down": dense(width, 4 * width, depth),
        }
        for _ in range(shape.layers)
    ]  # fmt: skip
    table = jax.random.normal(next(keys), (shape.vocabulary, width), dtype) * 0.02
    return {"table": table, "blocks": blocks, "norm": norm()}


def logits(ops: Any, params: Params, ids: Array, heads: int) -> Array:
    """[B, S] characters -> [B, S, V]; the output shares its weights with the embedding."""
    x = ops.embedding(ids, params["table"])
    split = (*ids.shape, heads, -1)
    for block in params["blocks"]:
        qkv = ops.linear(ops.norm(x, **block["norm1"]), **block["qkv"])
        q, k, v = (part.reshape(split) for part in jnp.split(qkv, 3, -1))
        q, k, v = (a.swapaxes(1, 2) for a in (ops.rope(q), ops.rope(k), v))
        y = ops.attention(q, k, v).swapaxes(1, 2).reshape(x.shape)
        x = ops.linear(y, **block["out"], residual=x)
        y = ops.linear_gelu(ops.norm(x, **block["norm2"]), **block["up"])
        x = ops.linear(y, **block["down"], residual=x)
    table = params["table"]
    return ops.linear(ops.norm(x, **params["norm"]), table, jnp.zeros(len(table), table.dtype))


def loss(params: Params, text: Array, ops: Any, heads: int) -> Array:
    """Of each next character of [B, S + 1], the mean."""
    y = logits(ops, params, text[:, :-1], heads)
    return ops.cross_entropy(y.reshape(-1, y.shape[-1]), text[:, 1:].reshape(-1))


@partial(jax.jit, static_argnames=("ops", "heads", "lr"), donate_argnums=(0, 1))
def step(
    params: Params, state: Params, text: Array, ops: Any, heads: int, lr: float
) -> tuple[Params, Params, Array]:
    """One step of AdamW in the memory of what it is given."""
    value, grads = jax.value_and_grad(loss)(params, text, ops, heads)
    params, state = ops.adamw(params, grads, state, lr)
    return params, state, value


def corpus() -> tuple[np.ndarray, int]:
    """Python's documentation as numbers of characters, and how many different ones there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    characters, ids = np.unique(np.frombuffer(text.encode(), np.uint8), return_inverse=True)
    return ids.astype(np.int32), len(characters)


def batches(ids: np.ndarray, batch: int, length: int) -> Iterator[np.ndarray]:
    """Pieces [batch, length + 1] of the text, in a fixed order, without end."""
    rng = np.random.default_rng(0)
    while True:
        starts = rng.integers(0, len(ids) - length, batch)
        yield ids[starts[:, None] + np.arange(length + 1)]


def train(
    ops: Any, steps: int, batch: int, length: int, shape: Shape, lr: float, dtype: str
) -> tuple[list[float], Params]:
    """The loss of each step, and the weights at the end."""
    ids, _ = corpus()
    params = initial(jax.random.key(0), shape, dtype)
    state = {"m": jax.tree.map(jnp.zeros_like, params), "v": jax.tree.map(jnp.zeros_like, params),
             "step": jnp.zeros((), jnp.int32)}  # fmt: skip
    losses = []
    for _, text in zip(range(steps), batches(ids, batch, length), strict=False):
        params, state, value = step(params, state, text, ops, shape.heads, lr)
        losses.append(value)
    return [float(value) for value in losses], params


def run(
    steps: int, batch: int, length: int, layers: int, width: int, lr: float, dtype: str
) -> tuple[list[float], list[float], float]:
    """Losses of the model by jax.nn and by dlkern, and the largest relative distance of weights."""
    shape = Shape(corpus()[1], layers=layers, width=width)
    losses, weights = [], []
    for ops in (JaxNN, Dlkern):
        start = time.perf_counter()
        values, params = train(ops, steps, batch, length, shape, lr, dtype)
        losses.append(values)
        weights.append(params)
        shown = values[:: max(1, steps // 10)]
        print(f"{ops.__name__:7s} {time.perf_counter() - start:6.1f} s ",
              *(f"{x:.4f}" for x in (*shown, values[-1])))  # fmt: skip

    def apart(p: Array, q: Array) -> float:
        return float(jnp.linalg.norm(p - q) / (jnp.linalg.norm(p) + 1e-30))

    distance = max(jax.tree.leaves(jax.tree.map(apart, *weights)))
    print(f"largest relative distance of weights: {distance:.1e}")
    return losses[0], losses[1], distance


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="characters of one piece")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", given.dtype == "float64")
    run(**vars(given))
