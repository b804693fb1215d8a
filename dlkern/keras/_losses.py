"""Losses: Keras' own with another computation of each sample's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import losses, ops

from dlkern.keras._backend import dk

#: Class of Keras -> class of dlkern.
TWINS: dict[type, type] = {}


def _twin(cls: type) -> Any:
    cls.__module__ = "dlkern.keras"
    TWINS[cls.__bases__[0]] = cls
    return keras.saving.register_keras_serializable("dlkern", cls.__name__)(cls)


def _cross_entropy(labels: Any, logits: Any, **options: Any) -> Any:
    """Of rows of labels, and of classes in the last axis."""
    logits_by_row = ops.reshape(logits, (-1, logits.shape[-1]))
    loss = dk.cross_entropy(logits_by_row, labels, reduction="none", **options)
    return ops.reshape(loss, ops.shape(logits)[:-1])


def _is_last(axis: int, logits: Any) -> bool:
    return axis in (-1, len(logits.shape) - 1)


@_twin
class CategoricalCrossentropy(losses.CategoricalCrossentropy):
    """:class:`keras.losses.CategoricalCrossentropy` by :func:`dlkern.cross_entropy`, of logits.

    Keras computes that of probabilities (``from_logits=False``), and of other axes than the last.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_pred = ops.convert_to_tensor(y_pred)
        if not self.from_logits or not _is_last(self.axis, y_pred):
            return super().call(y_true, y_pred)
        labels = ops.reshape(ops.cast(y_true, y_pred.dtype), (-1, y_pred.shape[-1]))
        return _cross_entropy(labels, y_pred, label_smoothing=float(self.label_smoothing))


@_twin
class SparseCategoricalCrossentropy(losses.SparseCategoricalCrossentropy):
    """:class:`keras.losses.SparseCategoricalCrossentropy` by :func:`dlkern.cross_entropy`.

    Of logits: Keras computes that of probabilities (``from_logits=False``), and `ignore_class`.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_pred = ops.convert_to_tensor(y_pred)
        if not self.from_logits or self.ignore_class is not None:
            return super().call(y_true, y_pred)
        return _cross_entropy(ops.reshape(ops.cast(y_true, "int32"), (-1,)), y_pred)


@_twin
class BinaryCrossentropy(losses.BinaryCrossentropy):
    """:class:`keras.losses.BinaryCrossentropy` by dlkern, of logits without smoothing."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if not self.from_logits or self.label_smoothing or not _is_last(self.axis, y_pred):
            return super().call(y_true, y_pred)
        return _mean_of(dk.binary_cross_entropy_with_logits, y_true, y_pred, super().call)


@_twin
class MeanSquaredError(losses.MeanSquaredError):
    """:class:`keras.losses.MeanSquaredError` by :func:`dlkern.mse_loss`."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return _mean_of(dk.mse_loss, y_true, y_pred, super().call)


@_twin
class MeanAbsoluteError(losses.MeanAbsoluteError):
    """:class:`keras.losses.MeanAbsoluteError` by :func:`dlkern.l1_loss`."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return _mean_of(dk.l1_loss, y_true, y_pred, super().call)


@_twin
class Huber(losses.Huber):
    """:class:`keras.losses.Huber` by :func:`dlkern.huber_loss`."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        delta = float(self._fn_kwargs["delta"])
        return _mean_of(dk.huber_loss, y_true, y_pred, super().call, delta=delta)


def _mean_of(
    loss: Callable[..., Any], y_true: Any, y_pred: Any, by_keras: Callable[..., Any], **options: Any
) -> Any:
    """The elements' losses, averaged over the last axis; Keras fits shapes that differ."""
    y_pred = ops.convert_to_tensor(y_pred)
    if tuple(y_true.shape) != tuple(y_pred.shape):
        return by_keras(y_true, y_pred)
    each = loss(y_pred, ops.cast(y_true, y_pred.dtype), reduction="none", **options)
    return dk.mean(each, -1)
