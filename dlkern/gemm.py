"""Matrix products and fully-connected layers, and their gradients.

Products of 16-bit types are summed in float32 and rounded once. An output that the caller passes
may be of any of the four dtypes, e.g. float32 for 16-bit inputs. A transposed operand is a view:
nothing is copied. With ``precision="tf32"`` float32 operands may be rounded to tf32 where there are
tensor cores for it; elsewhere products are computed in full float32 all the same. With
``batch_invariant=True`` a row of the result has the same bits however many rows there are and
wherever among them it lies, which may cost speed.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def scaled_matmul(
    a: Any,
    b: Any,
    scale_a: Any = None,
    scale_b: Any = None,
    bias: Any = None,
    *,
    activation: str | None = None,
    alpha: float | None = None,
    out_dtype: Any = None,
    scale_out: Any = None,
    amax: bool = False,
    batch_invariant: bool = False,
    out: Any = None,
    out_amax: Any = None,
    stream: Any = None,
) -> Any:
    r"""Product of float8 or int8 matrices with factors that undo their quantisation.

    .. math::

        z_{mn} = f\Big(\sum_k (a_{mk} s^a_{mk}) (b_{kn} s^b_{kn}) + \mathrm{bias}_n\Big), \quad
        y = z \cdot \mathrm{scale\_out}, \quad \mathrm{amax} = \max |z|

    Parameters
    ----------
    a : array
        [..., M, K]: float8_e4m3fn, float8_e5m2 or int8; any strides.
    b : array
        [..., K, N], usually the view ``w.T`` of a weight [N, K]: float8 of either kind beside
        float8, int8 beside int8. Leading dimensions broadcast as in :func:`matmul`.
    scale_a, scale_b : array, optional
        float32 factors on the device of `a`, any strides, in one of the shapes

        ==================  ==================  ==============================================
        of `a`              of `b`              factor
        ==================  ==================  ==============================================
        [], [1]             [], [1]             of the whole array
        [M], [M, 1]         [N], [1, N]         of each row of `a`, column of `b`
        [M, D]              [D, N]              of 128 neighbours along K, D = ceil(K / 128)
        [ceil(M/128), D]    [D, ceil(N/128)]    of blocks of 128 x 128
        ==================  ==================  ==============================================

        Two lines that give the same shape mean the earlier one: M rows are always one for each row.
        An `a` with leading dimensions counts all its rows as M. Where `b` has leading dimensions,
        or the strides of `a` or y do not let its own be merged with the rows, only a factor of the
        whole array is supported. int8 has no factors along K.
    bias : array, optional
        [N]; float32, float16 or bfloat16.
    activation, alpha
        As in :func:`linear`.
    out_dtype : str or dtype, optional
        Of a new result: bfloat16 (default), float16, float32, float8_e4m3fn or float8_e5m2. int8
        products without scales, bias, activation, `scale_out` and `amax` can give int32, which is
        then the default: exact sums.
    scale_out : array, optional
        One float32 on the device; multiplies the result before it is rounded. float8 results are
        rounded to nearest even, and saturate: what is beyond the largest finite number, infinity
        too, becomes that number. NaN stays NaN.
    amax : bool
        Return max |z| too, before `scale_out` (NaN where any z is); so does passing `out_amax`.
    batch_invariant : bool
        A row's bits depend neither on the number of rows nor on its place among them.
    out, out_amax : array, optional
        Written instead of new arrays; `out` of any of the dtypes above, `out_amax` one float32.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of a's framework.

    Returns
    -------
    y : array
        [..., M, N].
    amax : array
        float32, rank 0; only where asked for.

    Raises
    ------
    ValueError
        Shapes that do not fit, or an `out` that cannot be written or overlaps an input.
    TypeError
        Wrong dtype, or not an array.
    NotImplementedError
        Factors of a kind that the operands cannot have.
    """
    return _dlkern.scaled_matmul(
        a, b, scale_a, scale_b, bias, activation, alpha, _dtype_name(out_dtype), scale_out,
        amax, batch_invariant, out, out_amax, stream,
    )  # fmt: skip


def _dtype_name(dtype: Any) -> str | None:
    """Of a name, a NumPy or JAX dtype, a scalar type or a torch.dtype."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any = None,
    bias: Any = None,
    *,
    precision: Precision = "ieee",
    batch_invariant: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""One product for each group of rows, or of terms, of packed matrices (mixtures of experts).

    Group g is what lies between ``offsets[g - 1]`` (0 for the first) and ``offsets[g]``.

    - Packed rows, `b` of three dimensions: row t of `a` in group g gives
      :math:`y_t = a_t \, b_g + \mathrm{bias}_g`.
    - Packed depth, `b` of two dimensions: :math:`y_g = a_{:, g} \, b_{g, :}`, each group's share of
      the sum. (The gradient of a weight is of this kind, and that of a bias: the product of a row
      of ones and dy.)
    - Lists of `a` and of `b`, without offsets: ``[matmul(x, y) for x, y in zip(a, b)]``.

    Parameters
    ----------
    a : array or sequence of arrays
        [T, K], or [M, T] for a packed depth. float64, float32, float16 or bfloat16; any strides.
        For float8 call :func:`scaled_matmul` for each group.
    b : array or sequence of arrays
        [G, K, N], or [T, N] for a packed depth; dtype of `a`.
    offsets : array
        [G], int32 or int64, on the device of `a`: where each group ends. Must not fall; values are
        clamped to [0, T] where they are used, so that nothing out of bounds is ever touched, and
        checked in debug mode.
    bias : array, optional
        [G, N], of packed rows; dtype of `a`.
    precision : {"ieee", "tf32"}
        Of float32 products.
    batch_invariant : bool
        A row's bits depend neither on the number of rows nor on its place among them.
    out : array, optional
        Written instead of a new array; any of the four dtypes. For lists a list.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of a's framework.

    Returns
    -------
    array or list of arrays
        [T, N], of which rows beyond the last offset are not written; or [G, M, N], zeros for an
        empty group; or the list of the products.

    Raises
    ------
    ValueError
        Shapes that do not fit, or an `out` that cannot be written or overlaps an input.
    TypeError
        Wrong dtype, or not an array.
    """
    if not isinstance(a, (list, tuple)):
        return _dlkern.grouped_matmul(a, b, offsets, bias, precision, batch_invariant, out, stream)
    if offsets is not None or bias is not None:
        name = "offsets" if offsets is not None else "bias"
        raise ValueError(f"grouped_matmul: {name} is given, expected None beside lists")
    _require_lists("grouped_matmul", a, b=b, out=out)
    return [
        matmul(x, y, precision=precision, batch_invariant=batch_invariant, out=z, stream=stream)
        for x, y, z in zip(a, b, out or [None] * len(a), strict=True)
    ]


def grouped_matmul_backward(
    dy: Any,
    a: Any,
    b: Any,
    offsets: Any = None,
    *,
    precision: Precision = "ieee",
    batch_invariant: bool = False,
    out: Any = None,
    out_b: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    r"""Gradients of :func:`grouped_matmul` of packed rows, or of lists, by `a` and `b`.

    .. math:: da_t = dy_t \, b_g^T, \quad db_g = a_{g, :}^T \, dy_{g, :}

    Parameters
    ----------
    dy : array or sequence of arrays
        [T, N], gradient of the loss with respect to y; dtype of `a`.
    a, b, offsets, precision
        As in the forward call.
    batch_invariant : bool
        For da.
    out, out_b : array, optional
        Receive da and db: the shapes of `a` and `b`, any of the four dtypes. For lists lists.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`grouped_matmul`.

    Returns
    -------
    da, db : array
        Like `a` and `b`. Rows of da beyond the last offset are not written.
    """
    if not isinstance(a, (list, tuple)):
        return _dlkern.grouped_matmul_backward(
            dy, a, b, offsets, precision, batch_invariant, out, out_b, stream
        )
    if offsets is not None:
        raise ValueError("grouped_matmul_backward: offsets is given, expected None beside lists")
    _require_lists("grouped_matmul_backward", a, b=b, dy=dy, out=out, out_b=out_b)
    none = [None] * len(a)
    gradients = [
        matmul_backward(g, x, y, precision=precision, out=da, out_b=db, stream=stream)
        for g, x, y, da, db in zip(dy, a, b, out or none, out_b or none, strict=True)
    ]
    return [da for da, _ in gradients], [db for _, db in gradients]


def _require_lists(op: str, a: Sequence[Any], **others: Any) -> None:
    """Beside a list `a`: lists of the same length, or None for outputs."""
    for name, other in others.items():
        if other is None and name.startswith("out"):
            continue
        if not isinstance(other, (list, tuple)):
            raise TypeError(f"{op}: {name} is {type(other).__name__}, expected a list as a is")
        if len(other) != len(a):
            raise ValueError(f"{op}: {name} has {len(other)} arrays, expected {len(a)}")
