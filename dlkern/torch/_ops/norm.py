"""Layer and RMS normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute
from dlkern.torch._vmap import leading


def _given(dy: Tensor | None, dresidual_out: Tensor | None, x: Tensor) -> Any:
    """The gradients of y and of the sum with the residual, of which one may be absent."""
    return torch.zeros_like(x) if dy is None else dy, dresidual_out


def _with_sum(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return shapes.like(x), None if residual is None else shapes.like(x)


def _rows_norm(name: str, parameters: str, eps: str, stats: tuple[str, ...]) -> list[Op]:
    has_bias = "bias" in parameters
    saved = "".join(f", Tensor {n}" for n in stats)
    arguments = (
        f"(Tensor x, {parameters}, Tensor? residual=None, int normalized_ndim=1, float eps={eps},"
        " float weight_offset=0.0)"
    )

    def with_stats(x: Tensor, residual: Tensor | None, normalized_ndim: int) -> Any:
        rows = x.shape[: x.dim() - normalized_ndim]
        return *_with_sum(x, residual), *(shapes.statistic(x, rows) for _ in stats)

    def gradients(x: Tensor, weight: Tensor | None, normalized_ndim: int, bias: Any = None) -> Any:
        like = x if weight is None else weight
        normalized = x.shape[x.dim() - normalized_ndim :]
        wanted = [weight is not None]
        if has_bias:
            wanted.append(weight is not None if bias is None else bias)
        return shapes.like(x), *(like.new_empty(normalized) if w else None for w in wanted)

    def gradients_without_bias(x: Tensor, weight: Tensor | None, normalized_ndim: int) -> Any:
        return gradients(x, weight, normalized_ndim)

    float8 = (
        f"{name}_float8(Tensor x, ScalarType out_dtype{arguments.removeprefix('(Tensor x')[:-1]},"
        " Tensor? scale_out=None, bool amax=False, bool return_stats=False)"
        f" -> (Tensor y, Tensor? residual_out{saved.replace('Tensor', 'Tensor?')}, Tensor? amax)"
    )

    def as_float8(x: Tensor, out_dtype: torch.dtype, residual: Tensor | None, normalized_ndim: int,
                  amax: bool, return_stats: bool) -> Any:  # fmt: skip
        y, *others = with_stats(x, residual, normalized_ndim)
        return (
            y.to(out_dtype), others[0], *(t if return_stats else None for t in others[1:]),
            x.new_empty((), dtype=torch.float32) if amax else None,
        )  # fmt: skip

    return [
        Op(
            f"{name}{arguments} -> (Tensor y, Tensor? residual_out)",
            _with_sum,
            _rows_forward(name, has_bias, stats=False),
            backward=[compute("dy dresidual", _given), f"{name}_backward"],
            gradients={"residual": "dx"},
            # What was normalised.
            derived={"x": lambda x, residual_out: x if residual_out is None else residual_out},
            saving=f"{name}_with_stats",
            autocast="float32",
            vmap=leading("x", "residual"),
        ),
        Op(
            f"{name}_with_stats{arguments} -> (Tensor y, Tensor? residual_out{saved})",
            with_stats,
            _rows_forward(name, has_bias, stats=True),
            vmap=leading("x", "residual"),
        ),
        Op(float8, as_float8, _float8_forward(name, len(stats), has_bias)),
        Op(
            f"{name}_backward(Tensor dy, Tensor x, Tensor? weight{saved}, Tensor? dresidual=None,"
            " int normalized_ndim=1, float weight_offset=0.0"
            + (", bool? bias=None) -> (Tensor dx, Tensor? dweight, Tensor? dbias)" if has_bias
               else ") -> (Tensor dx, Tensor? dweight)"),
            gradients if has_bias else gradients_without_bias,
        ),
    ]  # fmt: skip


def _rows_forward(name: str, has_bias: bool, stats: bool) -> Callable[..., Any]:
    """The plain function with None in the place of residual_out where there is no residual."""
    plain = getattr(dlkern, name)
    count = 3 if has_bias else 2  # positional arguments
    names = ("residual", "normalized_ndim", "eps", "weight_offset")

    def forward(*args: Any) -> tuple[Any, ...]:
        options = dict(zip(names, args[count:], strict=False))
        results = plain(*args[:count], **options, return_stats=stats)
        results = results if isinstance(results, tuple) else (results,)
        return results if options.get("residual") is not None else (results[0], None, *results[1:])

    return forward


def _float8_forward(name: str, stats: int, has_bias: bool) -> Callable[..., Any]:
    """The plain function's results, with None in the place of those that are not wanted."""
    plain = getattr(dlkern, name)
    count = 2 if has_bias else 1  # positional arguments behind x
    names = ("residual", "normalized_ndim", "eps", "weight_offset", "scale_out", "amax",
             "return_stats")  # fmt: skip

    def forward(x: Tensor, out_dtype: torch.dtype, *args: Any) -> tuple[Any, ...]:
        options = dict(zip(names, args[count:], strict=False))
        results = plain(x, *args[:count], out_dtype=out_dtype, **options)
        wanted = [True, options.get("residual") is not None]
        wanted += [options.get("return_stats", False)] * stats + [options.get("amax", False)]
        rest = iter(results if isinstance(results, tuple) else (results,))
        return tuple(next(rest) if w else None for w in wanted)

    return forward


ROWS = [
    *_rows_norm("layer_norm", "Tensor? weight=None, Tensor? bias=None", "1e-05", ("mean", "rstd")),
    *_rows_norm("rms_norm", "Tensor? weight=None", "1e-06", ("rstd",)),
]
