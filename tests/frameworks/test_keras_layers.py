"""dlkern.keras beside Keras' own layers: the same results, gradients, weights, configurations."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, losses, ops

import dlkern.keras as dkk
from dlkern.keras import _layers, _losses

IMAGE, IMAGE_FIRST, SIGNAL, VOLUME = (9, 8, 4), (4, 9, 8), (11, 4), (5, 6, 5, 4)
FIRST = {"data_format": "channels_first"}

LAYERS = [
    ("Dense", {"units": 5}, (7,)),
    ("Dense", {"units": 5, "activation": "gelu", "use_bias": False}, (3, 7)),
    ("Dense", {"units": 5, "activation": "softmax"}, (7,)),
    ("Embedding", {"input_dim": 9, "output_dim": 5}, "ids"),
    ("Conv1D", {"filters": 3, "kernel_size": 3, "padding": "causal", "dilation_rate": 2}, SIGNAL),
    ("Conv2D", {"filters": 6, "kernel_size": 3, "activation": "relu"}, IMAGE),
    ("Conv2D", {"filters": 6, "kernel_size": (3, 2), "strides": 2, "padding": "same"}, IMAGE),
    ("Conv2D", {"filters": 6, "kernel_size": 3, "groups": 2, "use_bias": False}, IMAGE),
    ("Conv2D", {"filters": 6, "kernel_size": 3, "padding": "same", **FIRST}, IMAGE_FIRST),
    ("Conv3D", {"filters": 3, "kernel_size": 2}, VOLUME),
    ("Conv1DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2}, SIGNAL),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": 2, "strides": 3}, IMAGE),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": 4, "strides": 2, "padding": "same"}, IMAGE),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": 3, **FIRST}, IMAGE_FIRST),
    ("Conv3DTranspose", {"filters": 3, "kernel_size": 2}, VOLUME),
    ("DepthwiseConv1D", {"kernel_size": 3, "depth_multiplier": 2}, SIGNAL),
    ("DepthwiseConv2D", {"kernel_size": 3, "padding": "same", "activation": "silu"}, IMAGE),
    ("DepthwiseConv2D", {"kernel_size": 3, "depth_multiplier": 2, **FIRST}, IMAGE_FIRST),
    ("MaxPooling1D", {}, SIGNAL),
    ("MaxPooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    ("MaxPooling2D", {**FIRST}, IMAGE_FIRST),
    ("MaxPooling3D", {}, VOLUME),
    ("AveragePooling1D", {"pool_size": 2}, SIGNAL),
    ("AveragePooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    ("AveragePooling3D", {"pool_size": 2}, VOLUME),
    ("GlobalMaxPooling1D", {}, SIGNAL),
    ("GlobalMaxPooling2D", {"keepdims": True}, IMAGE),
    ("GlobalMaxPooling3D", {}, VOLUME),
    ("GlobalAveragePooling1D", {}, SIGNAL),
    ("GlobalAveragePooling2D", {**FIRST}, IMAGE_FIRST),
    ("GlobalAveragePooling3D", {}, VOLUME),
    ("LayerNormalization", {}, (3, 7)),
    ("LayerNormalization", {"axis": [1, 2], "center": False}, (3, 7)),
    ("LayerNormalization", {"axis": 1}, (3, 7)),
    ("RMSNormalization", {}, (3, 7)),
    ("GroupNormalization", {"groups": 2}, IMAGE),
    ("GroupNormalization", {"groups": 2, "axis": 1}, IMAGE_FIRST),
    ("BatchNormalization", {}, IMAGE),
    ("BatchNormalization", {"momentum": 0.8, "epsilon": 1e-5, "axis": 1}, IMAGE_FIRST),
    ("BatchNormalization", {"scale": False, "center": False}, (7,)),
    ("Activation", {"activation": "gelu"}, (7,)),
    ("Activation", {"activation": "exponential"}, (7,)),
    *(
        ("Activation", {"activation": name}, (7,))
        for name in ("elu", "hard_sigmoid", "hard_silu", "leaky_relu", "log_softmax", "mish",
                     "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "tanh")
    ),
    ("ReLU", {}, (7,)),
    ("ReLU", {"max_value": 6.0}, (7,)),
    ("ReLU", {"negative_slope": 0.1}, (7,)),
    ("ReLU", {"threshold": 0.5}, (7,)),
    ("LeakyReLU", {}, (7,)),
    ("ELU", {"alpha": 0.5}, (7,)),
    ("Softmax", {}, (3, 7)),
    ("Softmax", {"axis": 1}, (3, 7)),
    ("Dropout", {"rate": 0.0}, (7,)),
]  # fmt: skip


# Where Keras' own layer is nothing to compare with: layer -> backend, and why. dlkern's is the
# same on all.
BUT_NOT_ON = {
    "Conv2D-filters=6-kernel_size=3-padding=same-data_format=channels_first": (
        "tensorflow", "TensorFlow has no convolution of channels first on a CPU"),
    "Conv2DTranspose-filters=3-kernel_size=3-data_format=channels_first": (
        "tensorflow", "TensorFlow has no convolution of channels first on a CPU"),
    "AveragePooling2D-pool_size=3-strides=2-padding=same": (
        "torch", "Keras pads by repeated elements there, and counts them"),
    "LayerNormalization-axis=1": ("torch", "Keras' own layer raises there for this axis"),
}  # fmt: skip


def ids(case):
    name, options, _ = case
    return "-".join([name, *(f"{k}={v}" for k, v in options.items())])


class Scale(layers.Layer):
    """A factor for each input, whose gradient shows that of the next layer's input."""

    def build(self, shape):
        self.factor = self.add_weight(shape=shape[1:], initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


def model_of(module, case, dtype=None):
    name, options, shape = case
    layer = getattr(module, name)(**options, dtype=dtype)
    if shape == "ids":
        return keras.Sequential([layers.Input((6,), dtype="int32"), layer])
    return keras.Sequential([layers.Input(shape), Scale(), layer])


def batch_of(case):
    rng = np.random.default_rng(0)
    shape = case[2]
    return rng.integers(0, 9, (4, 6)) if shape == "ids" else rng.standard_normal((4, *shape))


def pair(case, dtype=None):
    """Of Keras and of dlkern, with the same weights, none of which are 0 or 1."""
    original, twin = (model_of(module, case, dtype) for module in (layers, dkk))
    rng = np.random.default_rng(1)
    weights = [w + rng.uniform(0, 0.5, w.shape).astype(w.dtype) for w in original.get_weights()]
    for model in (original, twin):
        model.set_weights(weights)
    return original, twin


def in_training(model, case):
    """What it gives, and its weights after a step."""
    x = batch_of(case).astype("int32" if case[2] == "ids" else "float32")
    result = ops.convert_to_numpy(model(x))
    target = np.random.default_rng(2).standard_normal(result.shape).astype("float32")
    model.compile(keras.optimizers.SGD(1.0), "mse")
    loss = model.train_on_batch(x, target)
    return [result, loss, *model.get_weights(), ops.convert_to_numpy(model(x))]


@pytest.mark.parametrize("case", LAYERS, ids=ids)
def test_results_and_gradients(case):
    backend, why = BUT_NOT_ON.get(ids(case), ("", ""))
    if backend == keras.backend.backend():
        pytest.skip(why)
    original, twin = pair(case)
    assert [(w.name, w.shape) for w in twin.weights] == [
        (w.name, w.shape) for w in original.weights
    ]
    assert twin.layers[-1].get_config() == original.layers[-1].get_config() | {
        "name": twin.layers[-1].name
    }
    expected, got = (in_training(model, case) for model in (original, twin))
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64"])
@pytest.mark.parametrize(
    "case",
    [
        next(c for c in LAYERS if c[0] == name)
        for name in ("Dense", "Conv2D", "BatchNormalization", "LayerNormalization",
                     "RMSNormalization", "GroupNormalization", "Embedding", "MaxPooling2D")
    ],
    ids=ids,
)  # fmt: skip
def test_dtypes(case, dtype):
    original, twin = pair(case, dtype)
    x = batch_of(case)
    for training in (False, True):
        expected, got = (m(x, training=training) for m in (original, twin))
        assert got.dtype == expected.dtype
        expected, got = (ops.convert_to_numpy(ops.cast(y, "float64")) for y in (expected, got))
        np.testing.assert_allclose(got, expected, rtol=2e-2, atol=2e-2)


def test_every_layer_is_tested():
    assert {cls.__name__ for cls in _layers.TWINS.values()} == {name for name, _, _ in LAYERS}
    assert all(twin.__name__ == original.__name__ for original, twin in _layers.TWINS.items())


def test_masks():
    x, mask = np.random.default_rng(0).standard_normal((2, 5, 3)).astype("float32"), np.ones((2, 5))
    mask[:, 3:] = 0
    for name, given in (
        ("Softmax", mask[..., None] * np.ones(3)),
        ("GlobalAveragePooling1D", mask),
    ):
        expected, got = (getattr(m, name)()(x, mask=given > 0) for m in (layers, dkk))
        np.testing.assert_allclose(
            ops.convert_to_numpy(got), ops.convert_to_numpy(expected), rtol=1e-5, atol=1e-6
        )
    assert (
        dkk.Embedding(4, 2, mask_zero=True).compute_mask(ops.convert_to_tensor([[0, 1]]))
        is not None
    )


def test_dropout_drops_anew_in_each_call_and_repeats_by_its_seed():
    x = np.ones((64, 64), "float32")
    layer = dkk.Dropout(0.25, seed=3)
    first, second = (ops.convert_to_numpy(layer(x, training=True)) for _ in range(2))
    assert set(np.unique(first)) == {0, np.float32(4 / 3)}
    assert abs((first == 0).mean() - 0.25) < 0.05
    assert (first != second).any()
    again = dkk.Dropout(0.25, seed=3)
    np.testing.assert_array_equal(ops.convert_to_numpy(again(x, training=True)), first)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x)), x)


# ---- Losses --------------------------------------------------------------------------------------

RNG = np.random.default_rng(3)
LOGITS, LABELS = RNG.standard_normal((6, 5)).astype("float32"), RNG.integers(0, 5, 6)
YES = (LOGITS > 0).astype("float32")
CHANCES = RNG.dirichlet(np.ones(5), 6).astype("float32")

LOSSES = [
    ("CategoricalCrossentropy", {"from_logits": True, "label_smoothing": 0.1}, CHANCES, LOGITS),
    ("CategoricalCrossentropy", {}, CHANCES, CHANCES[::-1].copy()),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, LABELS, LOGITS),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, LABELS[:, None], LOGITS),
    ("SparseCategoricalCrossentropy", {"from_logits": True, "reduction": "none"},
     LABELS.reshape(2, 3), LOGITS.reshape(2, 3, 5)),
    ("SparseCategoricalCrossentropy", {"from_logits": True, "ignore_class": 2}, LABELS, LOGITS),
    ("BinaryCrossentropy", {"from_logits": True}, YES, LOGITS[::-1].copy()),
    ("BinaryCrossentropy", {}, YES, CHANCES),
    ("MeanSquaredError", {}, CHANCES, LOGITS),
    ("MeanAbsoluteError", {"reduction": "sum"}, CHANCES, LOGITS),
    ("Huber", {"delta": 0.7}, CHANCES, LOGITS),
]  # fmt: skip


@pytest.mark.parametrize("case", LOSSES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_losses(case):
    name, options, y_true, y_pred = case
    original, twin = (getattr(module, name)(**options) for module in (losses, dkk))
    assert twin.get_config() == original.get_config()
    weights = np.linspace(0, 1, len(y_true)).astype("float32")
    if y_pred.ndim > 2:
        weights = None
    expected, got = (
        ops.convert_to_numpy(loss(y_true, y_pred, sample_weight=weights))
        for loss in (original, twin)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_every_loss_is_tested():
    assert {cls.__name__ for cls in _losses.TWINS.values()} == {name for name, *_ in LOSSES}


# ---- Models --------------------------------------------------------------------------------------


def classifier(module):
    images = layers.Input((8, 8, 3))
    x = module.Conv2D(8, 3, padding="same")(images)
    x = module.BatchNormalization()(x)
    shortcut = x = module.ReLU()(x)
    x = layers.add([module.DepthwiseConv2D(3, padding="same", activation="gelu")(x), shortcut])
    x = module.MaxPooling2D()(x)
    x = keras.Sequential([module.Conv2D(6, 3), module.LayerNormalization()])(x)
    x = module.Dropout(0.0)(module.GlobalAveragePooling2D()(x))
    return keras.Model(images, module.Dense(5)(x))


def images():
    rng = np.random.default_rng(0)
    return rng.standard_normal((32, 8, 8, 3)).astype("float32"), rng.integers(0, 5, 32)


def test_training_beside_the_original():
    """A model converted with its weights: the same losses for some steps, and the same results."""
    original = classifier(layers)
    twin = dkk.convert(original)
    x, labels = images()
    histories = []
    for model, module in ((original, losses), (twin, dkk)):
        loss = module.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
        fitted = model.fit(x, labels, batch_size=8, epochs=3, shuffle=False, verbose=0)
        histories.append(fitted.history["loss"])
    np.testing.assert_allclose(*histories, rtol=1e-3)
    assert histories[0][-1] < histories[0][0]
    np.testing.assert_allclose(
        twin.predict(x, verbose=0), original.predict(x, verbose=0), rtol=1e-2, atol=1e-3
    )


def test_a_converted_model():
    original = classifier(layers)
    twin = dkk.convert(original)
    kinds = [type(layer) for layer in twin._flatten_layers(include_self=False)]
    assert not set(kinds) & set(_layers.TWINS)
    assert dkk.Conv2D in kinds
    x, _ = images()
    np.testing.assert_allclose(
        ops.convert_to_numpy(twin(x)), ops.convert_to_numpy(original(x)), rtol=1e-4, atol=1e-5
    )
    again = dkk.convert(dkk.convert(original))  # of one that is converted already
    np.testing.assert_array_equal(ops.convert_to_numpy(again(x)), ops.convert_to_numpy(twin(x)))


def test_weights_and_models_are_saved_and_loaded(tmp_path):
    original, twin = classifier(layers), classifier(dkk)
    x, _ = images()
    original.save_weights(tmp_path / "original.weights.h5")
    twin.load_weights(tmp_path / "original.weights.h5")
    expected = ops.convert_to_numpy(twin(x))
    np.testing.assert_allclose(ops.convert_to_numpy(original(x)), expected, rtol=1e-4, atol=1e-5)
    twin.save_weights(tmp_path / "twin.weights.h5")
    classifier(layers).load_weights(tmp_path / "twin.weights.h5")
    twin.save(tmp_path / "twin.keras")
    loaded = keras.saving.load_model(tmp_path / "twin.keras")
    assert type(loaded.layers[-1]) is dkk.Dense
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(x)), expected)
