"""Matrix products and fully-connected layers, and their gradients.

Products of 16-bit types are summed in float32 and rounded once. An output that the caller passes
may be of any of the four dtypes, e.g. float32 for 16-bit inputs. A transposed operand is a view:
nothing is copied. With ``precision="tf32"`` float32 operands may be rounded to tf32 where there are
tensor cores for it; elsewhere products are computed in full float32 all the same. With
``batch_invariant=True`` a row of the result has the same bits however many rows there are and
wherever among them it lies, which may cost speed: otherwise long sums may be cut into parts, in a
way that depends on the number of rows and of batch items.
"""

from __future__ import annotations

from typing import Any, Literal

from dlkern import _dlkern

Precision = Literal["ieee", "tf32"]


def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    precision: Precision = "ieee",
    batch_invariant: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Matrix product, :math:`y = \alpha \, a b + \beta \, c`.

    Parameters
    ----------
    a : array
        [..., M, K], or [K], which is a row. float64, float32, float16 or bfloat16; any strides.
    b : array
        [..., K, N], or [K], which is a column; dtype of `a`. Batch dimensions broadcast as in
        :func:`numpy.matmul`.
    c : array, optional
        Added; broadcasts to the shape of y; dtype of y or of `a`.
    alpha, beta : float
        Factors. ``beta=0``: `c` is not read; ``alpha=0``: `a` and `b` are not read, so that NaN
        there does not matter.
    precision : {"ieee", "tf32"}
        Of float32 products.
    batch_invariant : bool
        A row's bits depend neither on the number of rows nor on its place among them.
    out : array, optional
        Written instead of a new array: the shape of y, any of the four dtypes; may be `c` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of a's framework.

    Returns
    -------
    array
        [..., M, N], without M where `a` is a vector and without N where `b` is one. A sum over
        nothing (K = 0) is 0.

    Raises
    ------
    ValueError
        Shapes that do not fit, or an `out` that cannot be written or overlaps an input.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.matmul(a, b, c, alpha, beta, precision, batch_invariant, out, stream)


def matmul_backward(
    dy: Any,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    precision: Precision = "ieee",
    out: Any = None,
    out_b: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    r"""Gradients of :func:`matmul` with respect to `a` and `b`.

    .. math:: da = \alpha \, dy \, b^T, \quad db = \alpha \, a^T dy

    each summed over the batch dimensions along which its operand was broadcast. (That with respect
    to c is :math:`\beta \, dy`.)

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to y: the shape of ``a @ b``, dtype of `a`.
    a, b, alpha, precision
        As in the forward call.
    out, out_b : array, optional
        Receive da and db: the shapes of `a` and `b`, any of the four dtypes.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`matmul`.

    Returns
    -------
    da, db : array
        Like `a` and `b`.
    """
    return _dlkern.matmul_backward(dy, a, b, alpha, precision, out, out_b, stream)


def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    alpha: float | None = None,
    residual: Any = None,
    preactivation: bool = False,
    precision: Precision = "ieee",
    batch_invariant: bool = False,
    out: Any = None,
    out_preactivation: Any = None,
    stream: Any = None,
) -> Any:
    r"""Fully-connected layer in one pass: :math:`y = f(x W^T + \mathrm{bias}) + \mathrm{residual}`.

    Parameters
    ----------
    x : array
        [..., K]. float64, float32, float16 or bfloat16; any strides.
    weight : array
        [N, K]; dtype of `x`.
    bias : array, optional
        [N]; dtype of `x`.
    activation : str, optional
        "relu", "leaky_relu", "elu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh" or "softplus".
    alpha : float, optional
        Slope of leaky_relu (default 0.01), scale of elu, sharpness of softplus (default 1).
    residual : array, optional
        Added after the activation; broadcasts to y; dtype of y or of `x`. May be `out` itself.
    preactivation : bool
        Return the argument of the activation too, for its gradient.
    precision : {"ieee", "tf32"}
        Of float32 products.
    batch_invariant : bool
        A row's bits depend neither on the number of rows nor on its place among them.
    out, out_preactivation : array, optional
        Written instead of new arrays; any of the four dtypes, but both the same.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    y : array
        [..., N], dtype of `x`.
    preactivation : array
        Like y; only where asked for.

    Raises
    ------
    ValueError
        Shapes that do not fit, or an `out` that cannot be written or overlaps an input.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.linear(
        x, weight, bias, activation, alpha, residual, preactivation, precision, batch_invariant,
        out, out_preactivation, stream,
    )  # fmt: skip


def linear_backward_input(
    dy: Any,
    weight: Any,
    *,
    activation: str | None = None,
    alpha: float | None = None,
    preactivation: Any = None,
    precision: Precision = "ieee",
    batch_invariant: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`linear` with respect to `x`, :math:`dx = dy \, W`.

    With `activation` and `preactivation` the gradient goes on through the activation of the layer
    *below*, the one that made this layer's x, in the same pass:

    .. math:: dx = (dy \, W) \odot f'(\mathrm{preactivation})

    is then the gradient with respect to that layer's preactivation, and the `dy` of its own
    gradient functions.

    Parameters
    ----------
    dy : array
        [..., N], gradient of the loss with respect to this layer's preactivation,
        :math:`x W^T + \mathrm{bias}`.
    weight : array
        As in the forward call.
    activation : str, optional
        Of the layer below, as its :func:`linear` was called; needs `preactivation`.
    alpha : float, optional
        Of `activation`, as in :func:`linear`.
    preactivation : array, optional
        [..., K], what the layer below returned as its preactivation: x is its activation. dtype of
        `dy` or of dx.
    precision : {"ieee", "tf32"}
        Of float32 products.
    batch_invariant : bool
        A row's bits depend neither on the number of rows nor on its place among them.
    out : array, optional
        Receives dx, [..., K]; any of the four dtypes.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`linear`.

    Returns
    -------
    array
        dx, [..., K], dtype of `dy`.
    """
    return _dlkern.linear_backward_input(
        dy, weight, activation, alpha, preactivation, precision, batch_invariant, out, stream
    )


def linear_backward_weight(
    dy: Any,
    x: Any,
    *,
    bias: bool = False,
    accumulate: bool = False,
    precision: Precision = "ieee",
    out: Any = None,
    out_bias: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    r"""Gradients of :func:`linear` with respect to weight and bias.

    .. math:: dW = dy^T x, \quad d\mathrm{bias} = \sum dy

    both summed over all dimensions but the last.

    Parameters
    ----------
    dy : array
        [..., N], as for :func:`linear_backward_input`.
    x, precision
        As in the forward call.
    bias : bool
        Compute the gradient of bias too; so does passing `out_bias`.
    accumulate : bool
        Add to `out` and `out_bias` instead of overwriting them.
    out, out_bias : array, optional
        Receive dweight and dbias: [N, K] and [N], any of the four dtypes, but both the same.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`linear`.

    Returns
    -------
    dweight : array
    dbias : array or None
        None without `bias`.
    """
    bias = bias or out_bias is not None
    gradients = _dlkern.linear_backward_weight(
        dy, x, bias, accumulate, precision, out, out_bias, stream
    )
    return gradients if bias else (gradients, None)
