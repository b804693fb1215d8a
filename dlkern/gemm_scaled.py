"""Matrix products of 8-bit operands with factors that undo their quantisation."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


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
        float8, int8 beside int8. Leading dimensions broadcast as in :func:`~dlkern.matmul`.
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
        As in :func:`~dlkern.linear`.
    out_dtype : str or dtype, optional
        Of a new result: bfloat16 (default), float16, float32, float8_e4m3fn or float8_e5m2. int8
        products can give int8 and, without scales, bias, activation, `scale_out` and `amax`, int32,
        which is then the default: exact sums.
    scale_out : array, optional
        One float32 on the device; multiplies the result before it is rounded. Results of 8 bits are
        rounded to nearest even, and saturate: what is beyond the largest finite number, infinity
        too, becomes that number. NaN stays NaN, or of int8 becomes 0.
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
        a, b, scale_a, scale_b, bias, activation, alpha, dtype_name(out_dtype), scale_out,
        amax, batch_invariant, out, out_amax, stream,
    )  # fmt: skip


def dtype_name(dtype: Any) -> str | None:
    """Of a name, a NumPy or JAX dtype, a scalar type or a torch.dtype."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")
