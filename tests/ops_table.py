"""Every public op once, with arguments that are small, valid and not trivial.

An op's row is all that the cross-cutting tests (test_contract.py, test_runtime_gpu.py) know of it::

    Op("softmax", {"x": normal(5, 37)}, {"out": (5, 37)})

gives ``dlkern.softmax(x=..., out=...)`` with a float array of the dtype under test. Arrays named
"arrays[0]", "arrays[1]" make one argument, the list ``arrays``; so do outputs "out[0]", "out[1]". A
new op gets a row here, and with it the tests of argument errors, bit-equality between frameworks,
``out=``, determinism, streams and graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle import rounded

import dlkern

# Public, but no ops.
NOT_OPS = {
    "DeviceError", "Event", "Plan", "Stream", "Tuning", "autotune", "build_info", "device_empty",
    "devices", "elementwise", "explain", "get_include", "get_library", "get_num_threads",
    "pinned_empty", "set_num_threads", "workspace",
}  # fmt: skip

Shape = tuple[int, ...]
Make = Callable[[np.random.Generator, str], NDArray[Any]]


def normal(*shape: int) -> Make:
    """Floats of the dtype under test."""
    return lambda rng, dtype: rounded(rng.standard_normal(shape), dtype)


def positive(*shape: int) -> Make:
    return lambda rng, dtype: rounded(rng.uniform(0.5, 2, shape), dtype)


def statistic(make: Make) -> Make:
    """In the type that the dtype under test is summed in."""
    return lambda rng, dtype: make(rng, "float64" if dtype == "float64" else "float32")


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Make:
    return lambda rng, _: rng.integers(low, high, shape).astype(dtype)


def booleans(*shape: int) -> Make:
    return lambda rng, _: rng.random(shape) > 0.3


def small(dtype: str, *shape: int) -> Make:
    """Small integers of that dtype, whose products and sums are exact."""
    return lambda rng, _: rounded(rng.integers(-4, 5, shape), dtype)


def powers_of_two(*shape: int) -> Make:
    """Factors in float32 whose products are exact."""
    return lambda rng, _: rng.choice([0.5, 1, 2], shape).astype("float32")


def lists_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """With the arguments "a[0]", "a[1]", ... as one list ``a``."""
    result: dict[str, Any] = {}
    for name, value in arguments.items():
        stem, bracket, _ = name.partition("[")
        if bracket:
            result.setdefault(stem, []).append(value)
        else:
            result[name] = value
    return result


def ends(*values: int, dtype: str) -> Make:
    return lambda rng, _: np.array(values, dtype)


def window_indices(rng: np.random.Generator, _: str) -> NDArray[Any]:
    """A position in each window of 2 x 2 of a plane of 5 x 7."""
    rows = 2 * np.arange(2)[:, None] + rng.integers(0, 2, (2, 3, 2, 3))
    columns = 2 * np.arange(3) + rng.integers(0, 2, (2, 3, 2, 3))
    return rows * 7 + columns


def some_places(rng: np.random.Generator, _: str) -> NDArray[Any]:
    """Three distinct positions in each of five rows of 37."""
    return np.argsort(rng.random((5, 37)))[:, :3].copy()


@dataclass(frozen=True)
class Op:
    """How one op is called.

    Parameters
    ----------
    name : str
        In ``dlkern``.
    arrays : mapping
        Parameter name -> maker of its array.
    outputs : mapping
        Keyword of each output array -> its shape, or (shape, dtype) where the dtype is not the one
        under test; "statistic" is the type that is summed in.
    options : mapping
        Further keyword arguments.
    needed_without_out : mapping
        Arguments that take the place of ``out=`` (the shape of a gradient).
    inout : tuple of str
        Arrays that are updated in place.
    any_rank : tuple of str
        Arrays that may have a further leading axis, whatever the others look like.
    any_dtype : tuple of str
        Arrays that may be of any dtype, whatever the others are.
    free_axes : mapping
        Array -> its axes whose extent nothing else decides.
    """

    name: str
    arrays: Mapping[str, Make]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    needed_without_out: Mapping[str, Any] = field(default_factory=dict)
    inout: tuple[str, ...] = ()
    any_rank: tuple[str, ...] = ()
    any_dtype: tuple[str, ...] = ()
    free_axes: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(dlkern, self.name)

    def make(self, dtype: str = "float32", seed: int = 1) -> dict[str, NDArray[Any]]:
        """NumPy arrays, the same in every call."""
        rng = np.random.default_rng(seed)
        return {name: make(rng, dtype) for name, make in self.arrays.items()}

    def output_specs(self, dtype: str = "float32") -> dict[str, tuple[Shape, str]]:
        """Keyword -> shape and dtype."""
        specs = {}
        for keyword, spec in self.outputs.items():
            shape, kind = spec if len(spec) == 2 and isinstance(spec[1], str) else (spec, dtype)
            if kind == "statistic":
                kind = "float64" if dtype == "float64" else "float32"
            specs[keyword] = (shape, kind)
        return specs

    def arguments(
        self, arrays: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """All keyword arguments of a call, with outputs given or made."""
        if outputs is None:
            return lists_of({**arrays, **self.options, **self.needed_without_out})
        without = dict.fromkeys(self.needed_without_out)
        return lists_of({**arrays, **self.options, **without, **outputs})

    def call(
        self, arrays: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Run it; all results as a tuple, the arrays that were updated in place last."""
        return self.results(self.function(**self.arguments(arrays, outputs)), arrays)

    def results(self, result: Any, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        """What a call returned as `call` gives it."""
        results = result if isinstance(result, tuple) else (result,)
        updated = tuple(arrays[name] for name in self.inout)
        fresh = (r for r in results if r is not None and not any(r is u for u in updated))
        return (*fresh, *updated)


def _activation(name: str, **options: float | str) -> list[Op]:
    return [
        Op(name, {"x": normal(5, 37)}, {"out": (5, 37)}, options),
        Op(
            f"{name}_backward", {"dy": normal(5, 37), "x": normal(5, 37)}, {"out": (5, 37)}, options
        ),
    ]


def _gated(name: str, **options: str) -> list[Op]:
    split = {"gate": normal(5, 37), "up": normal(5, 37)}
    packed = {"gate": normal(5, 48)}
    return [
        Op(name, split, {"out": (5, 37)}, options),
        Op(name, packed, {"out": (5, 24)}, options, variant="packed"),
        Op(
            f"{name}_backward",
            {"dy": normal(5, 37), **split},
            {"out": (5, 37), "out_up": (5, 37)},
            options,
        ),
        Op(
            f"{name}_backward",
            {"dy": normal(5, 24), **packed},
            {"out": (5, 48)},
            {**options, "gate_last": True},
            variant="packed",
        ),
    ]


STEP_SHAPES = ((5, 37), (), (3, 1000))

OPS = [
    # activation
    *_activation("relu"),
    *_activation("leaky_relu", negative_slope=0.2),
    *_activation("elu", alpha=0.7),
    *_activation("gelu"),
    *_activation("silu"),
    *_activation("sigmoid"),
    *_activation("tanh"),
    *_activation("softplus", beta=1.5, threshold=2.0),
    Op("gelu", {"x": normal(5, 37)}, {"out": (5, 37)}, {"approximate": "tanh"}, variant="tanh"),
    *_activation("relu6"),
    *_activation("hardswish"),
    *_activation("hardsigmoid"),
    *_activation("mish"),
    *_activation("selu"),
    *_gated("swiglu"),
    *_gated("geglu", approximate="tanh"),
    *_gated("reglu"),
    *_gated("glu"),
    # softmax
    Op("softmax", {"x": normal(5, 37)}, {"out": (5, 37)}),
    Op("softmax", {"x": normal(4, 9, 6)}, {"out": (4, 9, 6)}, {"axis": 1}, variant="axis"),
    Op("log_softmax", {"x": normal(5, 37)}, {"out": (5, 37)}),
    Op(
        "softmax",
        {"x": normal(3, 5, 37), "mask": booleans(5, 37)},
        {"out": (3, 5, 37)},
        {"scale": 0.5, "causal": True},
        any_rank=("mask",),
        any_dtype=("mask",),
        variant="masked",
    ),
    Op(
        "log_softmax",
        {"x": normal(5, 37), "mask": normal(37)},
        {"out": (5, 37)},
        any_dtype=("mask",),
        variant="masked",
    ),
    Op("softmax_backward", {"dy": normal(5, 37), "y": positive(5, 37)}, {"out": (5, 37)}),
    Op("log_softmax_backward", {"dy": normal(5, 37), "y": normal(5, 37)}, {"out": (5, 37)}),
    # elementwise, dropout
    Op("add", {"a": normal(5, 37), "b": normal(37)}, {"out": (5, 37)}, {"alpha": 0.5}),
    Op(
        "add_backward",
        {"dy": normal(5, 3, 7)},
        {"out_a": (5, 3, 7), "out_b": (3, 1)},
        {"beta": 2.0},
        {"a_shape": (5, 3, 7), "b_shape": (3, 1)},
    ),
    Op("dropout", {"x": normal(5, 37), "rng": integers(0, 99, 2)}, {"out": (5, 37)}, {"p": 0.3}),
    Op(
        "dropout",
        {"x": normal(5, 37), "rng": integers(0, 99, 2), "residual": normal(5, 37)},
        {"out": (5, 37)},
        {"p": 0.3},
        variant="residual",
    ),
    Op("dropout_backward", {"dy": normal(5, 37), "rng": integers(0, 99, 2)}, {"out": (5, 37)}),
    # embedding
    Op(
        "embedding",
        {"ids": integers(0, 9, 5, 3), "weight": normal(9, 8)},
        {"out": (5, 3, 8)},
        free_axes={"weight": (0,)},
    ),
    Op(
        "embedding_backward",
        {"dy": normal(400, 8), "ids": integers(0, 3, 400, dtype="int32")},
        {"out": (9, 8)},
        {"padding_idx": 1},
        {"num_embeddings": 9},
        free_axes={"out": (0,)},
    ),
    Op(
        "one_hot",
        {"ids": integers(0, 9, 5, 3)},
        {"out": ((5, 3, 9), "int64")},
        {"num_classes": 9},
    ),
    Op(
        "one_hot",
        {"ids": integers(0, 9, 5, 3, dtype="int32")},
        {"out": ((5, 3, 9), "float32")},
        {"num_classes": 9, "dtype": "float32"},
        variant="int32",
    ),
    # rope
    Op(
        "rope",
        {
            "x": normal(2, 5, 3, 8),
            "cos": normal(9, 3),
            "sin": normal(9, 3),
            "positions": integers(0, 9, 2, 5),
        },
        {"out": (2, 5, 3, 8)},
        {"rotary_dim": 6},
        free_axes={"x": (2, 3), "cos": (0,), "sin": (0,)},
    ),
    Op(
        "rope",
        {"x[0]": normal(2, 4, 7, 16), "x[1]": normal(2, 1, 7, 16)},
        {"out[0]": (2, 4, 7, 16), "out[1]": (2, 1, 7, 16)},
        {"layout": "BHSD", "interleaved": True, "offset": 3},
        variant="list",
    ),
    Op("rope_backward", {"dy": normal(2, 5, 3, 8)}, {"out": (2, 5, 3, 8)}, {"base": 100.0}),
    # optim
    Op(
        "sgd_step",
        {"param": normal(5, 37), "grad": normal(5, 37), "momentum_buffer": normal(5, 37)},
        options={"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        inout=("param", "momentum_buffer"),
    ),
    Op(
        "sgd_step",
        {
            **{f"param[{i}]": normal(*shape) for i, shape in enumerate(STEP_SHAPES)},
            **{f"grad[{i}]": normal(*shape) for i, shape in enumerate(STEP_SHAPES)},
            "lr": statistic(positive()),
            "grad_scale": statistic(positive()),
        },
        inout=tuple(f"param[{i}]" for i in range(len(STEP_SHAPES))),
        variant="list",
    ),
    *(
        Op(
            "adamw_step",
            {
                "param": normal(5, 37),
                "grad": normal(5, 37),
                "exp_avg": normal(5, 37),
                "exp_avg_sq": positive(5, 37),
                **step,
            },
            options=options,
            inout=("param", "exp_avg", "exp_avg_sq"),
            variant=variant,
        )
        for variant, step, options in (
            ("", {}, {"step": 3}),
            ("counted on the device", {"step": integers(3, 4)}, {"lr": 1e-2}),
        )
    ),
    Op(
        "adamw_step",
        {
            "param": normal(5, 37),
            "grad": normal(5, 37),
            "exp_avg": normal(5, 37),
            "exp_avg_sq": positive(5, 37),
            "max_exp_avg_sq": positive(5, 37),
            "found_inf": lambda rng, dtype: np.zeros((), "float32"),
        },
        options={"step": 3, "l2": True},
        inout=("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
        variant="amsgrad",
    ),
    Op(
        "lion_step",
        {"param": normal(5, 37), "grad": normal(5, 37), "exp_avg": normal(5, 37)},
        options={"lr": 0.1, "weight_decay": 0.01},
        inout=("param", "exp_avg"),
    ),
    Op(
        "grad_norm",
        {"grad[0]": normal(5, 37), "grad[1]": normal(3000), "loss_scale": statistic(positive())},
        {
            "out": ((), "statistic"),
            "out_grad_scale": ((), "statistic"),
            "out_found_inf": ((), "statistic"),
        },
        {"max_norm": 2.0},
        any_rank=("grad[0]", "grad[1]"),
        free_axes={"grad[0]": (0, 1), "grad[1]": (0,)},
    ),
    Op(
        "grad_norm",
        {"grad[0]": normal(5, 37), "grad[1]": normal(3000)},
        {
            "out": ((), "statistic"),
            "out_grad_scale": ((), "statistic"),
            "out_found_inf": ((), "statistic"),
        },
        {"max_norm": 2.0, "ord": np.inf},
        any_rank=("grad[0]", "grad[1]"),
        free_axes={"grad[0]": (0, 1), "grad[1]": (0,)},
        variant="largest",
    ),
    Op(
        "scale_grads",
        {"grad": normal(5, 37), "scale": statistic(positive())},
        inout=("grad",),
        any_rank=("grad",),
        free_axes={"grad": (0, 1)},
    ),
    Op(
        "update_loss_scale",
        {
            "loss_scale": powers_of_two(),
            "growth_tracker": integers(3, 4, dtype="int32"),
            "found_inf": lambda rng, dtype: np.zeros((), "float32"),
            "step": integers(3, 4),
        },
        options={"growth_interval": 4},
        inout=("loss_scale", "growth_tracker", "step"),
    ),
    # norm
    Op(
        "batch_norm",
        {
            "x": normal(3, 4, 5),
            "weight": normal(4),
            "bias": normal(4),
            "running_mean": normal(4),
            "running_var": positive(4),
        },
        {"out": (3, 4, 5)},
    ),
    Op(
        "batch_norm_training",
        {
            "x": normal(3, 4, 5),
            "weight": normal(4),
            "bias": normal(4),
            "running_mean": normal(4),
            "running_var": positive(4),
        },
        {"out": (3, 4, 5), "out_mean": ((4,), "statistic"), "out_rstd": ((4,), "statistic")},
        inout=("running_mean", "running_var"),
    ),
    Op(
        "batch_norm_training",
        {"x": normal(3, 5, 2, 9)},
        {"out": (3, 5, 2, 9), "out_mean": ((9,), "statistic"), "out_rstd": ((9,), "statistic")},
        {"layout": "NHWC"},
        variant="nhwc",
    ),
    Op(
        "batch_norm_training",
        {
            "x": normal(3, 5, 9),
            "stats[0]": statistic(normal(9)),
            "stats[1]": statistic(positive(9)),
            "running_mean": normal(9),
            "running_var": positive(9),
        },
        {"out": (3, 5, 9), "out_rstd": ((9,), "statistic")},
        {"layout": "NHWC", "activation": "silu"},
        inout=("running_mean", "running_var"),
        variant="stats",
    ),
    Op(
        "batch_norm_backward",
        {
            "dy": normal(3, 4, 5),
            "x": normal(3, 4, 5),
            "weight": normal(4),
            "mean": statistic(normal(4)),
            "rstd": statistic(positive(4)),
        },
        {"out": (3, 4, 5), "out_weight": (4,), "out_bias": (4,)},
    ),
    Op(
        "batch_norm_backward",
        {
            "dy": normal(3, 5, 2, 9),
            "x": normal(3, 5, 2, 9),
            "weight": normal(9),
            "mean": statistic(normal(9)),
            "rstd": statistic(positive(9)),
        },
        {"out": (3, 5, 2, 9), "out_weight": (9,), "out_bias": (9,)},
        {"layout": "NHWC"},
        variant="nhwc",
    ),
    Op(
        "batch_norm_inference_backward",
        {
            "dy": normal(3, 4, 5),
            "x": normal(3, 4, 5),
            "weight": normal(4),
            "running_mean": normal(4),
            "running_var": positive(4),
        },
        {"out": (3, 4, 5), "out_weight": (4,), "out_bias": (4,)},
    ),
    Op(
        "batch_norm",
        {
            "x": normal(3, 4, 5),
            "weight": normal(4),
            "bias": normal(4),
            "running_mean": normal(4),
            "running_var": positive(4),
            "residual": normal(3, 4, 5),
        },
        {"out": (3, 4, 5)},
        {"activation": "relu"},
        variant="residual",
    ),
    Op(
        "batch_norm_training",
        {
            "x": normal(3, 4, 24),
            "residual": normal(3, 4, 24),
            "running_mean": normal(4),
            "running_var": positive(4),
            "num_batches_tracked": integers(0, 9),
        },
        {"out": (3, 4, 24), "out_mean": ((4,), "statistic"), "out_rstd": ((4,), "statistic")},
        {"activation": "relu", "momentum": None},
        inout=("running_mean", "running_var", "num_batches_tracked"),
        variant="residual",
    ),
    Op(
        "batch_norm_backward",
        {
            "dy": normal(3, 4, 24),
            "x": normal(3, 4, 24),
            "y": normal(3, 4, 24),
            "weight": normal(4),
            "mean": statistic(normal(4)),
            "rstd": statistic(positive(4)),
        },
        {"out": (3, 4, 24), "out_weight": (4,), "out_bias": (4,), "out_residual": (3, 4, 24)},
        {"activation": "relu"},
        variant="residual",
    ),
    *(
        Op(
            "group_norm",
            {"x": normal(*shape), "weight": normal(6), "bias": normal(6)},
            {"out": shape, "out_mean": ((3, 2), "statistic"), "out_rstd": ((3, 2), "statistic")},
            {"num_groups": 2, "layout": layout, "activation": "silu", "return_stats": True},
            variant=layout,
        )
        for layout, shape in (("NCHW", (3, 6, 20)), ("NHWC", (3, 5, 6)))
    ),
    *(
        Op(
            "group_norm_backward",
            {
                "dy": normal(*shape),
                "x": normal(*shape),
                "weight": normal(6),
                "bias": normal(6),
                "mean": statistic(normal(3, 2)),
                "rstd": statistic(positive(3, 2)),
            },
            {"out": shape, "out_weight": (6,), "out_bias": (6,)},
            {"num_groups": 2, "layout": layout, "activation": "silu"},
            variant=layout,
        )
        for layout, shape in (("NCHW", (3, 6, 20)), ("NHWC", (3, 5, 6)))
    ),
    Op(
        "instance_norm",
        {
            "x": normal(3, 4, 20),
            "weight": normal(4),
            "bias": normal(4),
            "running_mean": normal(4),
            "running_var": positive(4),
        },
        {
            "out": (3, 4, 20),
            "out_mean": ((3, 4), "statistic"),
            "out_rstd": ((3, 4), "statistic"),
        },
        {"return_stats": True},
        inout=("running_mean", "running_var"),
    ),
    Op(
        "instance_norm_backward",
        {
            "dy": normal(3, 4, 20),
            "x": normal(3, 4, 20),
            "weight": normal(4),
            "mean": statistic(normal(3, 4)),
            "rstd": statistic(positive(3, 4)),
        },
        {"out": (3, 4, 20), "out_weight": (4,), "out_bias": (4,)},
    ),
    Op(
        "layer_norm",
        {"x": normal(5, 37), "weight": normal(37), "bias": normal(37)},
        {"out": (5, 37), "out_mean": ((5,), "statistic"), "out_rstd": ((5,), "statistic")},
        {"return_stats": True},
    ),
    Op(
        "layer_norm",
        {"x": normal(5, 37), "residual": normal(5, 37), "weight": normal(37), "bias": normal(37)},
        {"out": (5, 37), "out_residual": (5, 37)},
        variant="residual",
    ),
    Op(
        "layer_norm_backward",
        {
            "dy": normal(5, 37),
            "x": normal(5, 37),
            "weight": normal(37),
            "mean": statistic(normal(5)),
            "rstd": statistic(positive(5)),
        },
        {"out": (5, 37), "out_weight": (37,), "out_bias": (37,)},
    ),
    Op(
        "rms_norm",
        {"x": normal(5, 37), "weight": normal(37)},
        {"out": (5, 37), "out_rstd": ((5,), "statistic")},
        {"return_stats": True},
    ),
    Op(
        "rms_norm",
        {"x": normal(5, 40), "residual": normal(5, 40), "weight": normal(40)},
        {"out": (5, 40), "out_residual": (5, 40)},
        {"weight_offset": 1.0},
        variant="residual",
    ),
    Op(
        "rms_norm_backward",
        {
            "dy": normal(5, 40),
            "x": normal(5, 40),
            "weight": normal(40),
            "rstd": statistic(positive(5)),
            "dresidual": normal(5, 40),
        },
        {"out": (5, 40), "out_weight": (40,)},
        variant="residual",
    ),
    Op(
        "rms_norm_backward",
        {
            "dy": normal(3, 4, 9),
            "x": normal(3, 4, 9),
            "weight": normal(4, 9),
            "rstd": statistic(positive(3)),
        },
        {"out": (3, 4, 9), "out_weight": (4, 9)},
        {"normalized_ndim": 2},
    ),
    # loss
    Op(
        "cross_entropy",
        {"logits": normal(7, 5), "labels": integers(0, 5, 7), "weight": positive(5)},
        {"out": ()},
    ),
    Op(
        "cross_entropy",
        {"logits": normal(4, 5, 3), "labels": integers(0, 5, 4, 3), "weight": positive(5)},
        {"out": (4, 3)},
        {"reduction": "none", "label_smoothing": 0.1, "ignore_index": 2},
        variant="none",
    ),
    Op(
        "cross_entropy_backward",
        {
            "dloss": normal(),
            "logits": normal(7, 5),
            "labels": integers(0, 5, 7),
            "weight": positive(5),
        },
        {"out": (7, 5)},
    ),
    Op(
        "cross_entropy_backward",
        {
            "dloss": normal(4, 3),
            "logits": normal(4, 5, 3),
            "weight": positive(5),
            "labels": integers(0, 5, 4, 3, dtype="int32"),
        },
        {"out": (4, 5, 3)},
        {"reduction": "none", "label_smoothing": 0.1, "ignore_index": 2},
        variant="none",
    ),
    Op(
        "cross_entropy_with_grad",
        {
            "logits": normal(7, 5),
            "labels": integers(0, 5, 7),
            "weight": positive(5),
            "dloss": normal(),
        },
        {"out": (), "grad_out": (7, 5)},
        {"z_loss": 1e-2},
    ),
    Op(
        "cross_entropy",
        {"logits": normal(7, 5), "labels": positive(7, 5), "weight": positive(5)},
        {"out": ()},
        {"label_smoothing": 0.1},
        variant="probabilities",
    ),
    Op(
        "cross_entropy_backward",
        {"dloss": normal(4, 3), "logits": normal(4, 5, 3), "labels": positive(4, 5, 3)},
        {"out": (4, 5, 3)},
        {"reduction": "none"},
        variant="probabilities",
    ),
    Op(
        "cross_entropy_with_grad",
        {"logits": normal(4, 37), "labels": positive(4, 37), "weight": positive(37)},
        {"out": (), "grad_out": (4, 37)},
        {"z_loss": 1e-2, "label_smoothing": 0.1},
        variant="probabilities",
    ),
    Op(
        "nll_loss",
        {"log_p": normal(7, 5), "labels": integers(0, 5, 7), "weight": positive(5)},
        {"out": ()},
    ),
    Op(
        "nll_loss_backward",
        {
            "dloss": normal(7),
            "log_p": normal(7, 5),
            "labels": integers(0, 5, 7),
            "weight": positive(5),
        },
        {"out": (7, 5)},
        {"reduction": "none"},
    ),
    *(
        op
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")
        for op in (
            Op(name, {"x": normal(5, 37), "target": positive(5, 37)}, {"out": ()}),
            Op(
                f"{name}_backward",
                {"dloss": normal(5, 37), "x": normal(5, 37), "target": positive(5, 37)},
                {"out": (5, 37)},
                {"reduction": "none"},
            ),
        )
    ),
    Op(
        "binary_cross_entropy_with_logits",
        {
            "x": normal(5, 37),
            "target": positive(5, 37),
            "weight": positive(5, 1),
            "pos_weight": positive(37),
        },
        {"out": ()},
    ),
    Op(
        "binary_cross_entropy_with_logits_backward",
        {
            "dloss": normal(),
            "x": normal(5, 37),
            "target": positive(5, 37),
            "weight": positive(5, 1),
            "pos_weight": positive(37),
        },
        {"out": (5, 37)},
    ),
    Op(
        "conv",
        {"x": normal(2, 4, 8, 6), "weight": normal(6, 4, 3, 3), "bias": normal(6)},
        {"out": (2, 6, 8, 4)},
        {"padding": 1, "dilation": (1, 2)},
    ),
    Op(
        "conv",
        {"x": normal(2, 9, 7, 4), "weight": normal(6, 3, 3, 2), "bias": normal(6)},
        {"out": (2, 9, 7, 6)},
        {"padding": 1, "groups": 2, "layout": "NHWC"},
        variant="NHWC",
    ),
    Op(
        "conv",
        {"x": normal(2, 6, 21), "weight": normal(6, 1, 5)},
        {"out": (2, 6, 17)},
        {"groups": 6},
        variant="depthwise",
    ),
    Op(
        "conv",
        {"x": normal(2, 13, 4), "weight": normal(6, 3, 2), "bias": normal(6)},
        {"out": (2, 13, 6)},
        {"padding": ((4, 0),), "dilation": 2, "groups": 2, "layout": "NWC"},
        variant="causal",
    ),
    Op(
        "conv_bias_act",
        {
            "x": normal(2, 4, 8, 6),
            "weight": normal(6, 4, 3, 3),
            "bias": normal(6),
            "scale": positive(6),
            "residual": normal(2, 6, 8, 4),
        },
        {
            "out": (2, 6, 8, 4),
            "out_preactivation": (2, 6, 8, 4),
            "out_mean": ((6,), "statistic"),
            "out_var": ((6,), "statistic"),
        },
        {
            "activation": "silu",
            "preactivation": True,
            "return_stats": True,
            "padding": 1,
            "dilation": (1, 2),
        },
    ),
    Op(
        "conv_bias_act",
        {"x": normal(2, 9, 7, 4), "weight": normal(6, 3, 3, 2), "bias": statistic(normal(6))},
        {"out": (2, 9, 7, 6)},
        {"activation": "leaky_relu", "padding": 1, "groups": 2, "layout": "NHWC"},
        variant="NHWC",
    ),
    Op(
        "conv_backward_input",
        {"dy": normal(2, 6, 8, 4), "weight": normal(6, 4, 3, 3)},
        {"out": (2, 4, 8, 6)},
        {"padding": 1, "dilation": (1, 2)},
        {"input_shape": (2, 4, 8, 6)},
    ),
    Op(
        "conv_backward_weight",
        {"dy": normal(2, 6, 8, 4), "x": normal(2, 4, 8, 6)},
        {"out": (6, 4, 3, 3), "out_bias": (6,)},
        {"padding": 1, "dilation": (1, 2), "bias": True},
        {"weight_shape": (6, 4, 3, 3)},
    ),
    Op(
        "scaled_conv",
        {
            "x": small("float8_e4m3fn", 2, 4, 8, 6),
            "weight": small("float8_e5m2", 6, 4, 3, 3),
            "scale_x": powers_of_two(),
            "scale_weight": powers_of_two(6),
            "bias": small("float32", 6),
            "scale_out": powers_of_two(),
        },
        {"out": ((2, 6, 8, 4), "float32"), "out_amax": ((), "float32")},
        {
            "padding": 1,
            "dilation": (1, 2),
            "out_dtype": "float32",
            "amax": True,
            "activation": "relu",
        },
        variant="float8",
    ),
    Op(
        "scaled_conv",
        {"x": small("int8", 2, 9, 7, 4), "weight": small("int8", 6, 3, 3, 2)},
        {"out": ((2, 9, 7, 6), "int32")},
        {"padding": 1, "groups": 2, "layout": "NHWC"},
        variant="int8",
    ),
    Op(
        "conv_transpose",
        {"x": normal(2, 6, 4, 6), "weight": normal(6, 4, 3, 3), "bias": normal(4)},
        {"out": (2, 4, 8, 6)},
        {"stride": (2, 1), "padding": 1, "output_padding": (1, 0)},
    ),
    Op(
        "conv_transpose_bias_act",
        {
            "x": normal(2, 6, 4, 6),
            "weight": normal(6, 4, 3, 3),
            "bias": normal(4),
            "scale": positive(4),
            "residual": normal(2, 4, 8, 6),
        },
        {
            "out": (2, 4, 8, 6),
            "out_mean": ((4,), "statistic"),
            "out_var": ((4,), "statistic"),
        },
        {
            "activation": "relu",
            "return_stats": True,
            "stride": (2, 1),
            "padding": 1,
            "output_padding": (1, 0),
        },
    ),
    Op(
        "conv_transpose_backward_input",
        {"dy": normal(2, 4, 8, 6), "weight": normal(6, 4, 3, 3)},
        {"out": (2, 6, 4, 6)},
        {"stride": (2, 1), "padding": 1, "output_padding": (1, 0)},
        {"input_shape": (2, 6, 4, 6)},
    ),
    Op(
        "conv_transpose_backward_weight",
        {"dy": normal(2, 4, 8, 6), "x": normal(2, 6, 4, 6)},
        {"out": (6, 4, 3, 3), "out_bias": (4,)},
        {"stride": (2, 1), "padding": 1, "output_padding": (1, 0), "bias": True},
        {"weight_shape": (6, 4, 3, 3)},
    ),
    Op("permute", {"x": normal(3, 4, 5)}, {"out": (5, 3, 4)}, {"axes": (2, 0, 1)}),
    Op("permute", {"x": normal(40, 70)}, {"out": (70, 40)}, {"axes": (-1, 0)}, variant="tiles"),
    Op("nchw_to_nhwc", {"x": normal(2, 3, 4, 5)}, {"out": (2, 4, 5, 3)}),
    Op("nhwc_to_nchw", {"x": normal(2, 4, 5, 9)}, {"out": (2, 9, 4, 5)}),
    Op(
        "permute",
        {"x": normal(2, 700, 3)},
        {"out": (2, 3, 700)},
        {"axes": (0, 2, 1)},
        variant="planes",
    ),
    Op("contiguous", {"x": normal(3, 4, 5)}, {"out": (3, 4, 5)}),
    Op(
        "concat",
        {"arrays[0]": normal(3, 4, 5), "arrays[1]": normal(3, 1, 5), "arrays[2]": normal(3, 3, 5)},
        {"out": (3, 8, 5)},
        {"axis": 1},
    ),
    Op(
        "split",
        {"x": normal(3, 8, 5)},
        {"out[0]": (3, 4, 5), "out[1]": (3, 1, 5), "out[2]": (3, 3, 5)},
        {"sections": (4, 1, 3), "axis": -2},
    ),
    Op(
        "cast",
        {"x": normal(5, 37)},
        {"out": ((5, 37), "bfloat16")},
        {"dtype": "bfloat16"},
        any_dtype=("x",),
    ),
    Op(
        "max_pool",
        {"x": normal(2, 3, 8, 6)},
        {"out": (2, 3, 4, 3), "out_indices": ((2, 3, 4, 3), "int64")},
        {"kernel": 3, "stride": 2, "padding": 1, "return_indices": True},
    ),
    Op(
        "max_pool",
        {"x": normal(2, 9, 20)},
        {"out": (2, 4, 20)},
        {"kernel": 2, "stride": 2, "layout": "NWC"},
        variant="NWC",
    ),
    Op(
        "max_pool",
        {"x": normal(2, 3, 5, 6)},
        {"out": (2, 3, 1, 1)},
        {"kernel": None},
        free_axes={"x": (2, 3)},
        variant="global",
    ),
    Op(
        "max_pool_backward",
        {"dy": normal(2, 3, 2, 3), "indices": window_indices},
        {"out": (2, 3, 5, 7)},
        {"kernel": 2},
        {"input_shape": (2, 3, 5, 7)},
    ),
    Op(
        "avg_pool",
        {"x": normal(2, 3, 8, 6)},
        {"out": (2, 3, 4, 3)},
        {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    ),
    Op(
        "avg_pool",
        {"x": normal(2, 3, 4, 5, 9)},
        {"out": (2, 2, 3, 4, 9)},
        {"kernel": 2, "stride": 1, "layout": "NDHWC"},
        variant="NDHWC",
    ),
    Op(
        "avg_pool",
        {"x": normal(2, 3, 5, 6)},
        {"out": (2, 3, 1, 1)},
        {"kernel": None},
        free_axes={"x": (2, 3)},
        variant="global",
    ),
    Op(
        "avg_pool_backward",
        {"dy": normal(2, 3, 4, 3)},
        {"out": (2, 3, 8, 6)},
        {"kernel": 3, "stride": 2, "padding": 1},
        {"input_shape": (2, 3, 8, 6)},
    ),
    Op(
        "lp_pool",
        {"x": normal(2, 3, 8, 6)},
        {"out": (2, 3, 4, 3)},
        {"norm_type": 3.0, "kernel": 3, "stride": 2, "padding": 1},
    ),
    Op(
        "lp_pool_backward",
        {"dy": normal(2, 3, 4, 3), "x": normal(2, 3, 8, 6), "y": positive(2, 3, 4, 3)},
        {"out": (2, 3, 8, 6)},
        {"norm_type": 2.0, "kernel": 2},
    ),
    Op(
        "adaptive_max_pool",
        {"x": normal(2, 3, 7, 5)},
        {"out": (2, 3, 4, 2), "out_indices": ((2, 3, 4, 2), "int64")},
        {"output_size": (4, 2), "return_indices": True},
        free_axes={"x": (2, 3)},
    ),
    Op(
        "adaptive_max_pool_backward",
        {"dy": normal(2, 3, 2, 3), "indices": window_indices},
        {"out": (2, 3, 5, 7)},
        {},
        {"input_shape": (2, 3, 5, 7)},
        free_axes={"out": (2, 3)},
    ),
    Op(
        "adaptive_avg_pool",
        {"x": normal(2, 7, 5, 16)},
        {"out": (2, 4, 2, 16)},
        {"output_size": (4, 2), "layout": "NHWC"},
        free_axes={"x": (1, 2)},
    ),
    Op(
        "adaptive_avg_pool_backward",
        {"dy": normal(2, 3, 4, 2)},
        {"out": (2, 3, 7, 5)},
        {},
        {"input_shape": (2, 3, 7, 5)},
        free_axes={"dy": (2, 3), "out": (2, 3)},
    ),
    Op("sum", {"x": normal(5, 37)}, {"out": ()}, any_rank=("x",), free_axes={"x": (0, 1)}),
    Op(
        "sum",
        {"x": normal(4, 9, 60)},
        {"out": (4, 60)},
        {"axis": 1},
        free_axes={"x": (1,)},
        variant="columns",
    ),
    Op(
        "mean",
        {"x": normal(4, 9, 6)},
        {"out": (9,)},
        {"axis": (0, -1)},
        free_axes={"x": (0, 2)},
    ),
    Op("max", {"x": normal(5, 37)}, {"out": (5,)}, {"axis": 1}, free_axes={"x": (1,)}),
    Op(
        "min",
        {"x": normal(5, 37)},
        {"out": (1, 37)},
        {"axis": 0, "keepdims": True},
        free_axes={"x": (0,)},
    ),
    Op(
        "argmax",
        {"x": normal(5, 37)},
        {"out": ((5,), "int64")},
        {"axis": -1},
        free_axes={"x": (1,)},
    ),
    Op(
        "argmin",
        {"x": normal(5, 37)},
        {"out": ((), "int64")},
        any_rank=("x",),
        free_axes={"x": (0, 1)},
    ),
    Op(
        "any",
        {"x": booleans(5, 9, 60)},
        {"out": ((5, 60), "bool")},
        {"axis": 1},
        free_axes={"x": (1,)},
    ),
    Op(
        "all",
        {"x": booleans(5, 37)},
        {"out": ((), "bool")},
        any_rank=("x",),
        free_axes={"x": (0, 1)},
    ),
    Op(
        "prod",
        {"x": normal(4, 9, 60)},
        {"out": (4, 60)},
        {"axis": 1},
        free_axes={"x": (1,)},
    ),
    Op(
        "vector_norm",
        {"x": normal(4, 9, 6)},
        {"out": (9,)},
        {"axis": (0, -1)},
        free_axes={"x": (0, 2)},
    ),
    Op(
        "vector_norm",
        {"x": normal(5, 37)},
        {"out": (5,)},
        {"axis": 1, "ord": 3},
        free_axes={"x": (1,)},
        variant="cubes",
    ),
    Op("var", {"x": normal(5, 37)}, {"out": ()}, any_rank=("x",), free_axes={"x": (0, 1)}),
    Op(
        "std",
        {"x": normal(5, 37)},
        {"out": (1, 37)},
        {"axis": 0, "correction": 1, "keepdims": True},
        free_axes={"x": (0,)},
    ),
    Op(
        "sum_backward",
        {"dy": normal(5)},
        {"out": (5, 37)},
        {"axis": 1},
        {"shape": (5, 37)},
        free_axes={"out": (1,)},
    ),
    Op(
        "mean_backward",
        {"dy": normal(1, 37)},
        {"out": (5, 37)},
        {"axis": 0},
        {"shape": (5, 37)},
        free_axes={"out": (0,)},
    ),
    Op(
        "max_backward",
        {"dy": normal(5), "x": normal(5, 37), "y": normal(5)},
        {"out": (5, 37)},
        {"axis": 1},
    ),
    Op(
        "min_backward",
        {"dy": normal(1, 37), "x": normal(5, 37), "y": normal(1, 37)},
        {"out": (5, 37)},
        {"axis": 0},
    ),
    Op("prod_backward", {"dy": normal(5), "x": normal(5, 37)}, {"out": (5, 37)}, {"axis": 1}),
    Op(
        "vector_norm_backward",
        {"dy": normal(1, 37), "x": normal(5, 37), "y": positive(1, 37)},
        {"out": (5, 37)},
        {"axis": 0},
    ),
    Op(
        "logsumexp",
        {"x": normal(3, 5, 37)},
        {"out": (5,)},
        {"axis": (0, 2)},
        free_axes={"x": (0, 2)},
    ),
    Op(
        "logsumexp_backward",
        {"dy": normal(5), "x": normal(5, 37), "y": positive(5)},
        {"out": (5, 37)},
        {"axis": 1},
    ),
    Op("var_backward", {"dy": normal(37), "x": normal(5, 37)}, {"out": (5, 37)}, {"axis": 0}),
    Op(
        "std_backward",
        {"dy": normal(5), "x": normal(5, 37), "y": positive(5)},
        {"out": (5, 37)},
        {"axis": 1},
    ),
    # topk
    Op(
        "top_k",
        {"x": normal(5, 37)},
        {"out": (5, 3), "out_indices": ((5, 3), "int64")},
        {"k": 3},
        free_axes={"x": (1,)},
    ),
    Op(
        "top_k",
        {"x": normal(2, 700, 3)},
        {"out": (2, 300, 3), "out_indices": ((2, 300, 3), "int64")},
        {"k": 300, "axis": 1, "largest": False},
        free_axes={"x": (1,)},
        variant="many",
    ),
    Op(
        "top_k_backward",
        {"dy": normal(5, 3), "indices": some_places},
        {"out": (5, 37)},
        {},
        {"input_shape": (5, 37)},
        free_axes={"out": (1,)},
    ),
    # gemm
    Op(
        "matmul",
        {"a": normal(3, 9, 20), "b": normal(20, 17), "c": normal(17)},
        {"out": (3, 9, 17)},
        {"alpha": 0.5, "beta": 2.0},
        any_rank=("b",),
    ),
    Op("matmul", {"a": normal(20), "b": normal(4, 20, 1)}, {"out": (4, 1)}, variant="vector"),
    Op(
        "matmul_backward",
        {"dy": normal(3, 9, 17), "a": normal(3, 9, 20), "b": normal(20, 17)},
        {"out": (3, 9, 20), "out_b": (20, 17)},
    ),
    Op(
        "linear",
        {"x": normal(5, 3, 20), "weight": normal(17, 20), "bias": normal(17)},
        {"out": (5, 3, 17)},
        {"activation": "gelu"},
    ),
    Op(
        "linear",
        {"x": normal(15, 20), "weight": normal(17, 20), "residual": normal(15, 17)},
        {"out": (15, 17)},
        {"activation": "relu", "batch_invariant": True},
        variant="residual",
    ),
    Op(
        "linear",
        {"x": normal(15, 20), "weight": normal(17, 20)},
        {"out": (15, 17), "out_preactivation": (15, 17)},
        {"activation": "relu", "preactivation": True},
        variant="preactivation",
    ),
    Op(
        "linear_backward_input",
        {"dy": normal(5, 3, 17), "weight": normal(17, 20)},
        {"out": (5, 3, 20)},
    ),
    Op(
        "linear_backward_input",
        {"dy": normal(5, 17), "weight": normal(17, 20), "preactivation": normal(5, 20)},
        {"out": (5, 20)},
        {"activation": "silu"},
        variant="activation",
    ),
    Op(
        "linear_backward_weight",
        {"dy": normal(5, 3, 17), "x": normal(5, 3, 20)},
        {"out": (17, 20), "out_bias": (17,)},
        {"bias": True},
    ),
    Op(
        "scaled_matmul",
        {
            "a": small("float8_e4m3fn", 5, 140),
            "b": small("float8_e5m2", 140, 17),
            "scale_a": powers_of_two(5, 2),
            "scale_b": powers_of_two(17),
            "bias": small("float32", 17),
            "scale_out": powers_of_two(),
        },
        {"out": ((5, 17), "float32"), "out_amax": ((), "float32")},
        {"out_dtype": "float32", "amax": True, "activation": "relu"},
        variant="float8",
    ),
    Op(
        "scaled_matmul",
        {"a": small("int8", 5, 40), "b": small("int8", 40, 17)},
        {"out": ((5, 17), "int32")},
        variant="int8",
    ),
    Op(
        "grouped_matmul",
        {
            "a": normal(9, 20),
            "b": normal(4, 20, 17),
            "offsets": ends(2, 2, 8, 9, dtype="int32"),
            "bias": normal(4, 17),
        },
        {"out": (9, 17)},
    ),
    Op(
        "grouped_matmul",
        {"a": normal(5, 9), "b": normal(9, 17), "offsets": ends(2, 2, 9, dtype="int64")},
        {"out": (3, 5, 17)},
        variant="depth",
    ),
    Op(
        "grouped_matmul",
        {
            "a": small("float8_e4m3fn", 9, 140),
            "b": small("float8_e5m2", 4, 140, 17),
            "offsets": ends(2, 2, 8, 9, dtype="int32"),
            "bias": small("float32", 4, 17),
            "scale_a": powers_of_two(9, 2),
            "scale_b": powers_of_two(4, 2, 17),
        },
        {"out": ((9, 17), "float32")},
        {"out_dtype": "float32"},
        variant="float8",
    ),
    Op(
        "grouped_matmul",
        {
            "a": small("int8", 5, 9),
            "b": small("int8", 9, 17),
            "offsets": ends(2, 2, 9, dtype="int64"),
        },
        {"out": ((3, 5, 17), "int32")},
        variant="int8-depth",
    ),
    Op(
        "grouped_matmul_backward",
        {
            "dy": normal(9, 17),
            "a": normal(9, 20),
            "b": normal(4, 20, 17),
            "offsets": ends(0, 3, 7, 9, dtype="int64"),
        },
        {"out": (9, 20), "out_b": (4, 20, 17)},
    ),
]
