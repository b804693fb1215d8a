"""Whole models."""

from __future__ import annotations

from typing import Any

import keras

from dlkern.keras._layers import TWINS


def convert(model: Any) -> Any:
    """The same model with layers of dlkern where there are such, and with the same weights.

    Parameters
    ----------
    model : keras.Model
        Functional or Sequential; models in it are converted too. Not changed.

    Returns
    -------
    keras.Model
        A new model, not compiled. Layers that have no twin, or whose class is not Keras' own, are
        cloned as they are.

    Raises
    ------
    ValueError
        A model of a class of its own, which Keras cannot clone.
    """
    twin = keras.models.clone_model(model, clone_function=_twin_of, recursive=True)
    if model.built:
        twin.set_weights(model.get_weights())
    return twin


def _twin_of(layer: Any) -> Any:
    if isinstance(layer, keras.Model):  # of a class of its own: Keras' are cloned layer by layer
        return keras.models.clone_model(layer)
    kind: Any = TWINS.get(type(layer), type(layer))
    return kind.from_config(layer.get_config())
