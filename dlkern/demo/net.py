"""The network: three blocks of convolution, one linear layer, and adamw. All of it is dlkern.

Each result goes into a buffer that is allocated once (``out=``), so a training step allocates
nothing. Parameters, gradients and both moments are each one flat array with a view per tensor: the
optimizer is one call.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import dlkern
from dlkern.demo.arrays import Arrays, Shape

CLASSES = 10
SIDE = 8  # pixels
# Channels in and out, and whether a 2x2 max_pool follows.
BLOCKS = ((1, 32, False), (32, 32, True), (32, 64, True))
FEATURES = BLOCKS[-1][1] * (SIDE // 4) ** 2

WEIGHT_DECAY = 1e-2


def parameter_shapes() -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for i, (c_in, c_out, _) in enumerate(BLOCKS):
        shapes[f"block{i}.conv.weight"] = (c_out, c_in, 3, 3)
        shapes[f"block{i}.norm.weight"] = (c_out,)
        shapes[f"block{i}.norm.bias"] = (c_out,)
    shapes["linear.weight"] = (CLASSES, FEATURES)
    shapes["linear.bias"] = (CLASSES,)
    return shapes


def initial(name: str, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Uniform within 1 / sqrt(fan_in) for products; the norms begin as the identity."""
    if "norm" in name or name.endswith("bias"):
        return np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


class Network:
    """Parameters, running statistics and moments on one device.

    Parameters
    ----------
    arrays : Arrays
        Where the memory comes from.
    seed : int
        Of the initial parameters.
    """

    def __init__(self, arrays: Arrays, seed: int) -> None:
        self.arrays = arrays
        rng = np.random.default_rng(seed)
        shapes = parameter_shapes()
        values = {name: initial(name, shape, rng) for name, shape in shapes.items()}
        flat = np.concatenate([v.ravel() for v in values.values()])
        zeros = np.zeros_like(flat)
        # What is saved: every tensor that a step reads and writes.
        self.state = {
            "parameters": arrays.fill("parameters", flat),
            "adamw.exp_avg": arrays.fill("exp_avg", zeros),
            "adamw.exp_avg_sq": arrays.fill("exp_avg_sq", zeros),
        }
        for i, (_, c_out, _) in enumerate(BLOCKS):
            for name, value in (("mean", np.zeros), ("var", np.ones)):
                key = f"block{i}.norm.running_{name}"
                self.state[key] = arrays.fill(key, value(c_out, np.float32))
        self.gradients = arrays.fill("gradients", zeros)
        self.w: dict[str, Any] = {}
        self.dw: dict[str, Any] = {}
        start = 0
        for name, shape in shapes.items():
            self.w[name] = arrays.part(self.state["parameters"], start, shape)
            self.dw[name] = arrays.part(self.gradients, start, shape)
            start += math.prod(shape)
        self.one = arrays.fill("one", np.ones((), np.float32))

    # ---- One step ------------------------------------------------------------------------

    def logits(self, x: Any, training: bool) -> Any:
        """Scores [N, 10] of images [N, 1, 8, 8]."""
        for i in range(len(BLOCKS)):
            x = self._block(i, x, training)
        n = x.shape[0]
        self.features = self.arrays.part(x, 0, (n, FEATURES))
        out = self.arrays.buffer("logits", (n, CLASSES))
        return dlkern.linear(self.features, self.w["linear.weight"], self.w["linear.bias"], out=out)

    def step(self, x: Any, labels: Any, loss: Any, number: int, lr: float) -> None:
        """Learn from one batch; its mean loss goes to ``loss``. Steps are numbered from 1."""
        logits = self.logits(x, training=True)
        dlkern.cross_entropy(logits, labels, out=loss)
        dlogits = self.arrays.buffer("dlogits", logits.shape)
        dlkern.cross_entropy_backward(self.one, logits, labels, out=dlogits)
        self._backward(dlogits)
        dlkern.adamw_step(
            self.state["parameters"], self.gradients, self.state["adamw.exp_avg"],
            self.state["adamw.exp_avg_sq"], step=number, lr=lr, weight_decay=WEIGHT_DECAY,
        )  # fmt: skip

    def classify(self, x: Any) -> Any:
        """The likeliest digit of each image."""
        logits = self.logits(x, training=False)
        out = self.arrays.buffer("digits", (logits.shape[0],), "int64")
        return dlkern.argmax(logits, axis=1, out=out)

    # ---- Blocks --------------------------------------------------------------------------

    def _buffer(self, i: int, name: str, like: Any, channels: int) -> Any:
        n, _, height, width = like.shape
        return self.arrays.buffer(f"block{i}.{name}", (n, channels, height, width))

    def _block(self, i: int, x: Any, training: bool) -> Any:
        _, c_out, pooled = BLOCKS[i]
        mode = "training" if training else "inference"
        self.saved: dict[str, Any] = {} if i == 0 else self.saved
        weight, bias = self.w[f"block{i}.norm.weight"], self.w[f"block{i}.norm.bias"]
        running = [self.state[f"block{i}.norm.running_{s}"] for s in ("mean", "var")]

        conv = self._buffer(i, f"conv.{mode}", x, c_out)
        dlkern.conv(x, self.w[f"block{i}.conv.weight"], padding="same", out=conv)
        y = self._buffer(i, f"relu.{mode}", x, c_out)
        if training:
            mean, rstd = (self.arrays.buffer(f"block{i}.{s}", (c_out,)) for s in ("mean", "rstd"))
            dlkern.batch_norm_training(
                conv, weight, bias, *running, out=y, out_mean=mean, out_rstd=rstd
            )
            self.saved |= {f"{i}.x": x, f"{i}.conv": conv, f"{i}.mean": mean, f"{i}.rstd": rstd}
        else:
            dlkern.batch_norm(conv, weight, bias, *running, out=y)
        dlkern.relu(y, out=y)
        self.saved[f"{i}.y"] = y
        if not pooled:
            return y
        shape = (x.shape[0], c_out, x.shape[2] // 2, x.shape[3] // 2)
        pool = self.arrays.buffer(f"block{i}.pool.{mode}", shape)
        indices = self.arrays.buffer(f"block{i}.indices", shape, "int32")
        dlkern.max_pool(y, 2, return_indices=True, out=pool, out_indices=indices)
        self.saved[f"{i}.indices"] = indices
        return pool

    def _backward(self, dlogits: Any) -> None:
        """Fill the gradients of all parameters."""
        dlkern.linear_backward_weight(
            dlogits, self.features, out=self.dw["linear.weight"], out_bias=self.dw["linear.bias"]
        )
        n = self.features.shape[0]
        dfeatures = self.arrays.buffer("dfeatures", (n, FEATURES))
        dlkern.linear_backward_input(dlogits, self.w["linear.weight"], out=dfeatures)
        dy = self.arrays.part(dfeatures, 0, (n, BLOCKS[-1][1], SIDE // 4, SIDE // 4))
        for i in reversed(range(len(BLOCKS))):
            dy = self._block_backward(i, dy)

    def _block_backward(self, i: int, dy: Any) -> Any:
        c_in, c_out, pooled = BLOCKS[i]
        x, conv, y, mean, rstd = (
            self.saved[f"{i}.{name}"] for name in ("x", "conv", "y", "mean", "rstd")
        )
        if pooled:
            unpooled = self._buffer(i, "dy", y, c_out)
            dlkern.max_pool_backward(dy, self.saved[f"{i}.indices"], None, 2, out=unpooled)
            dy = unpooled
        dlkern.relu_backward(dy, y, out=dy)
        dlkern.batch_norm_backward(
            dy, conv, self.w[f"block{i}.norm.weight"], mean, rstd, out=dy,
            out_weight=self.dw[f"block{i}.norm.weight"], out_bias=self.dw[f"block{i}.norm.bias"],
        )  # fmt: skip
        weight, name = self.w[f"block{i}.conv.weight"], f"block{i}.conv.weight"
        dlkern.conv_backward_weight(dy, x, None, padding="same", out=self.dw[name])
        if i == 0:
            return None  # nobody needs the gradient of the images
        dx = self._buffer(i, "dx", x, c_in)
        dlkern.conv_backward_input(dy, weight, None, padding="same", out=dx)
        return dx
