"""Layers: Keras' own with another computation, so that configurations and weights are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import keras
from keras import layers, ops

from dlkern.keras._backend import (
    COMPILES,
    NAME,
    activated,
    dk,
    layout,
    parameter,
    spatial_axes,
    value,
)

#: Class of Keras -> class of dlkern.
TWINS: dict[type, type] = {}

_Class = TypeVar("_Class", bound=type)


class _Computed:
    """Of all layers here: what Keras' compilation has to know."""

    if TYPE_CHECKING:
        call: Callable[..., Any]  # Keras' own

    @property
    def supports_jit(self) -> bool:
        return COMPILES

    @supports_jit.setter
    def supports_jit(self, given: bool) -> None:
        """Keras sets it when a layer is made."""


def _twin(cls: _Class) -> _Class:
    """Registers the class, under the name of the one that it takes the place of."""
    original = next(c for c in cls.__mro__[1:] if c.__module__.startswith("keras."))
    cls.__module__ = "dlkern.keras"
    TWINS[original] = cls
    return keras.saving.register_keras_serializable("dlkern", cls.__name__)(cls)


def _twins(call: type, *names: str) -> None:
    """Classes of Keras with the methods of another."""
    for name in names:
        original = getattr(layers, name)
        doc = f":class:`keras.layers.{name}` by dlkern. {call.__doc__}"
        _twin(type(name, (call, original), {"__doc__": doc}))


# ---- Fully connected, embedding ------------------------------------------------------------------


@_twin
class Dense(_Computed, layers.Dense):
    """:class:`keras.layers.Dense` by :func:`dlkern.matmul`."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        kernel = value(self.kernel)
        shape = ops.shape(inputs)
        y = dk.matmul(ops.reshape(inputs, (-1, kernel.shape[0])), kernel, value(self.bias))
        return activated(self.activation, ops.reshape(y, (*shape[:-1], self.units)))


@_twin
class Embedding(_Computed, layers.Embedding):
    """:class:`keras.layers.Embedding` by :func:`dlkern.embedding`."""

    def call(self, inputs: Any) -> Any:
        if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
            inputs = ops.cast(inputs, "int32")
        return ops.cast(dk.embedding(inputs, value(self.embeddings)), self.compute_dtype)


# ---- Convolutions --------------------------------------------------------------------------------


class _Filters(_Computed):
    def _filters(self: Any) -> Any:
        """[taps..., in, out] of Keras with `out` in front; channels where the layout has them."""
        taps, last = range(self.rank), (self.rank,)
        axes = (*taps, *last) if self.data_format == "channels_last" else (*last, *taps)
        return dk.permute(value(self.kernel), (self.rank + 1, *axes))


class _Conv(_Filters):
    """Padding "same" is TensorFlow's on every backend."""

    def call(self: Any, inputs: Any) -> Any:
        padding: Any = self.padding
        if padding == "causal":
            padding = [(self.dilation_rate[0] * (self.kernel_size[0] - 1), 0)]
        y = dk.conv(
            inputs, self._filters(), value(self.bias), stride=self.strides, padding=padding,
            dilation=self.dilation_rate, groups=self._groups(), layout=layout(self.data_format),
        )  # fmt: skip
        return activated(self.activation, y)

    def _groups(self: Any) -> int:
        return self.groups


class _ConvTranspose(_Filters):
    """Padding "same" is TensorFlow's on every backend; Keras computes `output_padding`."""

    def call(self: Any, inputs: Any) -> Any:
        if self.output_padding is not None:
            return super().call(inputs)
        spans = [d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation_rate, strict=True)]
        more = [max(s - n, 0) for s, n in zip(self.strides, spans, strict=True)]
        y = dk.conv_transpose(
            inputs, self._filters(), value(self.bias), stride=self.strides, padding=self.padding,
            output_padding=more if self.padding == "valid" else 0,
            dilation=self.dilation_rate, layout=layout(self.data_format),
        )  # fmt: skip
        return activated(self.activation, y)


class _DepthwiseConv(_Conv):
    """Each channel is a group."""

    def _groups(self: Any) -> int:
        return self.kernel.shape[-2]

    def _filters(self: Any) -> Any:
        """[taps..., in, multiplier] of Keras as a filter for each channel and multiple."""
        taps = range(self.rank)
        kernel = dk.permute(value(self.kernel), (self.rank, self.rank + 1, *taps))
        channel = ((), (1,)) if self.data_format == "channels_last" else ((1,), ())
        filters = kernel.shape[0] * kernel.shape[1]
        return ops.reshape(kernel, (filters, *channel[0], *kernel.shape[2:], *channel[1]))


_twins(_Conv, "Conv1D", "Conv2D", "Conv3D")
_twins(_ConvTranspose, "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
_twins(_DepthwiseConv, "DepthwiseConv1D", "DepthwiseConv2D")


# ---- Pooling -------------------------------------------------------------------------------------


class _MaxPool(_Computed):
    def call(self: Any, inputs: Any) -> Any:
        return dk.max_pool(
            inputs, self.pool_size, stride=self.strides, padding=self.padding,
            layout=layout(self.data_format),
        )  # fmt: skip


class _AveragePool(_Computed):
    def call(self: Any, inputs: Any) -> Any:
        return dk.avg_pool(
            inputs, self.pool_size, stride=self.strides, padding=self.padding,
            count_include_pad=False, layout=layout(self.data_format),
        )  # fmt: skip


def _global(reduce: Callable[..., Any]) -> type:
    class Global(_Computed):
        def call(self: Any, inputs: Any, mask: Any = None) -> Any:
            if mask is not None:
                return super().call(inputs, mask)
            axes = spatial_axes(len(inputs.shape) - 2, self.data_format)
            return reduce(inputs, axes, keepdims=self.keepdims)

    Global.__doc__ = ""
    return Global


_twins(_MaxPool, *(f"MaxPooling{n}D" for n in (1, 2, 3)))
_twins(_AveragePool, *(f"AveragePooling{n}D" for n in (1, 2, 3)))
_twins(_global(dk.max), *(f"GlobalMaxPooling{n}D" for n in (1, 2, 3)))
_twins(_global(dk.mean), *(f"GlobalAveragePooling{n}D" for n in (1, 2, 3)))


# ---- Normalisation -------------------------------------------------------------------------------


def _trailing(axis: Any, ndim: int) -> int | None:
    """How many last dimensions those axes are; None if they are others."""
    axes = sorted(a % ndim for a in (axis if isinstance(axis, (list, tuple)) else [axis]))
    return len(axes) if axes == list(range(ndim - len(axes), ndim)) else None


def _channel_layout(axis: int, ndim: int) -> str | None:
    if not 2 <= ndim <= 5:
        return None
    return {ndim - 1: "NHWC", 1: "NCHW"}.get(axis % ndim)


@_twin
class LayerNormalization(_Computed, layers.LayerNormalization):
    """:class:`keras.layers.LayerNormalization` by :func:`dlkern.layer_norm`, over last axes."""

    def call(self, inputs: Any) -> Any:
        count = _trailing(self.axis, len(inputs.shape))
        if count is None or getattr(self, "rms_scaling", False):
            return super().call(inputs)
        gamma, beta = parameter(self.gamma, inputs), parameter(self.beta, inputs)
        y = dk.layer_norm(inputs, gamma, beta, normalized_ndim=count, eps=self.epsilon)
        return ops.cast(y, self.compute_dtype)


@_twin
class RMSNormalization(_Computed, layers.RMSNormalization):
    """:class:`keras.layers.RMSNormalization` by :func:`dlkern.rms_norm`, over last axes."""

    def call(self, x: Any) -> Any:
        count = _trailing(self.axis, len(x.shape))
        if count is None:
            return super().call(x)
        return dk.rms_norm(x, parameter(self.scale, x), normalized_ndim=count, eps=self.epsilon)


@_twin
class GroupNormalization(_Computed, layers.GroupNormalization):
    """:class:`keras.layers.GroupNormalization` by :func:`dlkern.group_norm`."""

    def call(self, inputs: Any) -> Any:
        channels = _channel_layout(self.axis, len(inputs.shape))
        if channels is None:
            return super().call(inputs)
        gamma, beta = parameter(self.gamma, inputs), parameter(self.beta, inputs)
        y = dk.group_norm(inputs, self.groups, gamma, beta, eps=self.epsilon, layout=channels)
        return ops.cast(y, self.compute_dtype)


@_twin
class BatchNormalization(_Computed, layers.BatchNormalization):
    """:class:`keras.layers.BatchNormalization` by :func:`dlkern.batch_norm`.

    In training each channel needs at least two values. Masks, `renorm`, `synchronized` and axes in
    the middle are computed by Keras.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        channels = _channel_layout(self.axis, len(inputs.shape))
        by_keras = mask is not None or self.synchronized or getattr(self, "renorm", False)
        if channels is None or by_keras:
            return super().call(inputs, training=training, mask=mask)
        options = {"eps": self.epsilon, "layout": channels}
        gamma = parameter(self.gamma if self.scale else None, inputs)
        beta = parameter(self.beta if self.center else None, inputs)
        if training and self.trainable:
            y, mean, variance = self._in_training(inputs, gamma, beta, options)
            self._move(self.moving_mean, mean)
            self._move(self.moving_variance, variance)
        else:
            moving = (parameter(v, inputs) for v in (self.moving_mean, self.moving_variance))
            y = dk.batch_norm(inputs, gamma, beta, *moving, **options)
        return ops.cast(y, self.compute_dtype)

    def _in_training(self, x: Any, gamma: Any, beta: Any, options: Any) -> tuple[Any, Any, Any]:
        """y, and mean and variance of the batch: a running average that forgets all else."""
        empty = [ops.zeros_like(parameter(self.moving_mean, x)) for _ in range(2)]
        y, _, _, *new = dk.batch_norm_training(x, gamma, beta, *empty, momentum=1.0, **options)
        mean, variance = new or empty  # PyTorch's are written in place
        count = ops.cast(ops.size(x), variance.dtype) / x.shape[self.axis]
        return y, mean, variance * ((count - 1) / count)  # dlkern's is unbiased, Keras' is not

    def _move(self, average: Any, new: Any) -> None:
        old, new = value(average), ops.cast(new, average.dtype)
        average.assign(old * self.momentum + new * (1.0 - self.momentum))


# ---- Activations, dropout ------------------------------------------------------------------------


@_twin
class Activation(_Computed, layers.Activation):
    """:class:`keras.layers.Activation` by dlkern, of the functions that it has."""

    def call(self, inputs: Any) -> Any:
        return activated(self.activation, inputs)


@_twin
class ReLU(_Computed, layers.ReLU):
    """:class:`keras.layers.ReLU` by dlkern; Keras computes thresholds and other limits than 6."""

    def call(self, inputs: Any) -> Any:
        limit = None if self.max_value is None else float(self.max_value)
        if not self.threshold and not self.negative_slope and limit in (None, 6.0):
            return (dk.relu if limit is None else dk.relu6)(inputs)
        if not self.threshold and limit is None:
            return dk.leaky_relu(inputs, float(self.negative_slope))
        return super().call(inputs)


@_twin
class LeakyReLU(_Computed, layers.LeakyReLU):
    """:class:`keras.layers.LeakyReLU` by :func:`dlkern.leaky_relu`."""

    def call(self, inputs: Any) -> Any:
        return dk.leaky_relu(inputs, float(self.negative_slope))


@_twin
class ELU(_Computed, layers.ELU):
    """:class:`keras.layers.ELU` by :func:`dlkern.elu`."""

    def call(self, inputs: Any) -> Any:
        return dk.elu(inputs, float(self.alpha))


@_twin
class Softmax(_Computed, layers.Softmax):
    """:class:`keras.layers.Softmax` by :func:`dlkern.softmax`, with masks, over one axis."""

    def call(self, inputs: Any, mask: Any = None) -> Any:
        if not isinstance(self.axis, int):
            return super().call(inputs, mask)
        if mask is not None and keras.backend.standardize_dtype(mask.dtype) != "bool":
            mask = ops.greater(mask, 0.5)
        return dk.softmax(inputs, self.axis, mask=mask)


@_twin
class Dropout(_Computed, layers.Dropout):
    """:class:`keras.layers.Dropout` by :func:`dlkern.dropout`, whose mask is never stored.

    The masks are other ones than Keras'. It computes `noise_shape`.
    """

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return inputs
        if self.noise_shape is not None:
            return super().call(inputs, training)
        rng = self.seed_generator.next()
        return dk.dropout(inputs, self.rate, rng=rng if NAME == "jax" else ops.cast(rng, "int64"))
