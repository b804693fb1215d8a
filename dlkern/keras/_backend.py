"""The functions of dlkern for the backend that Keras runs on, and Keras' names in terms of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras

NAME = keras.backend.backend()
if NAME not in ("jax", "tensorflow", "torch"):
    raise ImportError(f"dlkern.keras runs on JAX, TensorFlow and PyTorch; Keras' backend is {NAME}")

#: dlkern.jax, dlkern.tensorflow or dlkern.torch: the same functions, with gradients.
dk: Any = importlib.import_module(f"dlkern.{NAME}")

#: XLA cannot compile the calls of dlkern.tensorflow.
COMPILES = NAME != "tensorflow"

_ACTIVATIONS = {
    "elu": dk.elu,
    "gelu": dk.gelu,
    "hard_sigmoid": dk.hardsigmoid,
    "hard_silu": dk.hardswish,
    "leaky_relu": lambda x: dk.leaky_relu(x, 0.2),
    "log_softmax": dk.log_softmax,
    "mish": dk.mish,
    "relu": dk.relu,
    "relu6": dk.relu6,
    "selu": dk.selu,
    "sigmoid": dk.sigmoid,
    "silu": dk.silu,
    "softmax": dk.softmax,
    "softplus": dk.softplus,
    "tanh": dk.tanh,
}
_BY_FUNCTION: dict[Any, Callable[[Any], Any]] = {
    keras.activations.get(name): function for name, function in _ACTIVATIONS.items()
}


def activated(activation: Any, x: Any) -> Any:
    """An activation of Keras by dlkern, where it has that one."""
    if activation is None:
        return x
    return _BY_FUNCTION.get(activation, activation)(x)


def value(variable: Any) -> Any:
    """A variable's tensor, in the dtype that the layer computes in; None stays None."""
    return None if variable is None else keras.ops.convert_to_tensor(variable)


def parameter(variable: Any, x: Any) -> Any:
    """A variable of a norm, which may be float32 beside 16-bit `x`."""
    if variable is None:
        return None
    tensor = keras.ops.convert_to_tensor(variable)
    dtypes = [keras.backend.standardize_dtype(t.dtype) for t in (tensor, x)]
    if dtypes[0] == "float32" and dtypes[1] in ("float16", "bfloat16"):
        return tensor
    return keras.ops.cast(tensor, dtypes[1])


def layout(data_format: str) -> str:
    return "NHWC" if data_format == "channels_last" else "NCHW"


def spatial_axes(rank: int, data_format: str) -> tuple[int, ...]:
    first = 1 if data_format == "channels_last" else 2
    return tuple(range(first, first + rank))
