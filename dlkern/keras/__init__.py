"""dlkern in Keras 3, on whichever backend it runs: PyTorch, JAX or TensorFlow.

Layers and losses with the names, arguments, configurations and weights of Keras' own, computed by
:mod:`dlkern.torch`, :mod:`dlkern.jax` or :mod:`dlkern.tensorflow`::

    import dlkern.keras as dkk

    model = keras.Sequential([dkk.Conv2D(16, 3, activation="relu"), dkk.GlobalAveragePooling2D(),
                              dkk.Dense(10)])
    model.compile("adam", dkk.SparseCategoricalCrossentropy(from_logits=True))

    model = dkk.convert(trained)  # the same model by dlkern, with the same weights

Weights are saved and loaded in either direction between a model and its twin, and a saved model
comes back by :func:`keras.saving.load_model` where :mod:`dlkern.keras` is imported. What an option
asks for that dlkern does not compute, Keras does: the classes' docstrings say which.

Notes
-----
- On TensorFlow, models with these layers are not compiled by XLA (``jit_compile="auto"`` sees that,
  ``True`` is an error); their calls are nodes that call back into Python. See
  :mod:`dlkern.tensorflow`. A loss of dlkern on other layers needs ``jit_compile=False``.
- On JAX, a model trained on several devices by ``keras.distribution`` gathers what is sharded.
- Quantised and LoRA layers stay Keras' computation as far as Keras makes them so.
"""

from typing import TYPE_CHECKING, Any

from dlkern.keras import _layers, _losses
from dlkern.keras._convert import convert

_classes = {cls.__name__: cls for cls in (*_layers.TWINS.values(), *_losses.TWINS.values())}
globals().update(_classes)
__all__ = ["convert", *_classes]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
