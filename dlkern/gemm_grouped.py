"""Matrix products of many groups: packed with offsets on the device, or lists of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlkern import _dlkern
from dlkern.gemm import Precision, matmul_backward
from dlkern.gemm_scaled import dtype_name


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any = None,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    *,
    precision: Precision = "ieee",
    out_dtype: Any = None,
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
    - Lists of `a` and of `b`, without offsets: ``[matmul(x, y) for x, y in zip(a, b)]``, or
      :func:`scaled_matmul` of float8 and int8 arrays.

    Parameters
    ----------
    a : array or sequence of arrays
        [T, K], or [M, T] for a packed depth. float64, float32, float16, bfloat16, float8_e4m3fn,
        float8_e5m2 or int8; any strides.
    b : array or sequence of arrays
        [G, K, N], or [T, N] for a packed depth; dtype of `a`, or float8 of either kind beside
        float8.
    offsets : array
        [G], int32 or int64, on the device of `a`: where each group ends. Must not fall; values are
        clamped to [0, T] where they are used, so that nothing out of bounds is ever touched, and
        checked in debug mode.
    bias : array, optional
        [G, N], of packed rows; dtype of `a`. float32, float16 or bfloat16 beside float8 and int8.
    scale_a, scale_b : array, optional
        float32 factors of float8 and int8 arrays, on the device of `a`, any strides. Of packed
        rows, with D = ceil(K / 128), in one of the shapes

        ==================  ======================  ==========================================
        of `a`              of `b`                  factor
        ==================  ======================  ==========================================
        [], [1]             [], [1], [1, 1, 1]      of the whole array
        \                   [G], [G, 1, 1]          of each group
        [T], [T, 1]         [G, N], [G, 1, N]       of each row of `a`, column of `b`
        [T, D]              [G, D, N]               of 128 neighbours along K
        [ceil(T/128), D]    [G, D, ceil(N/128)]     of blocks of 128 x 128
        ==================  ======================  ==========================================

        Those of `a` are of the packed array: a block may have rows of several groups. Two lines
        that give the same shape mean the earlier one. Of a packed depth: [], [1], [M], [M, 1] and
        [], [1], [N], [1, N], the same for all groups; or [G, 1, 1], [G, M, 1] and [G, 1, N].
        int8 has no factors along K. For lists: lists of what :func:`scaled_matmul` takes, or None.
    precision : {"ieee", "tf32"}
        Of float32 products.
    out_dtype : str or dtype, optional
        Of a new result: one of the first four, default the dtype of `a`. Of float8 and int8 arrays
        as in :func:`scaled_matmul`: default bfloat16, and int32 for int8 without scales and bias.
    batch_invariant : bool
        A row's bits depend neither on the number of rows nor on its place among them.
    out : array, optional
        Written instead of a new array; of any dtype that `out_dtype` may name. For lists a list.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of a's framework.

    Returns
    -------
    array or list of arrays
        [T, N], of which rows beyond the last offset are not written; or [G, M, N], sums over
        nothing (0) for an empty group; or the list of the products.

    Raises
    ------
    ValueError
        Shapes that do not fit, scales beside other arrays than float8 and int8, or an `out` that
        cannot be written or overlaps an input.
    TypeError
        Wrong dtype, or not an array.
    NotImplementedError
        Factors along a packed depth, or along K of int8.
    """
    out_dtype = dtype_name(out_dtype)
    if not isinstance(a, (list, tuple)):
        return _dlkern.grouped_matmul(
            a, b, offsets, bias, scale_a, scale_b, precision, out_dtype, batch_invariant, out,
            stream,
        )  # fmt: skip
    if offsets is not None or bias is not None:
        name = "offsets" if offsets is not None else "bias"
        raise ValueError(f"grouped_matmul: {name} is given, expected None beside lists")
    _require_lists("grouped_matmul", a, b=b, scale_a=scale_a, scale_b=scale_b, out=out)
    if out is not None:
        used = (("a", a), ("b", b), ("scale_a", scale_a), ("scale_b", scale_b))
        _dlkern.require_disjoint_lists("grouped_matmul", (("out", out),), used)
    none = [None] * len(a)
    return [
        _dlkern.product_of_list(x, y, sx, sy, precision, out_dtype, batch_invariant, z, stream)
        for x, y, sx, sy, z in zip(a, b, scale_a or none, scale_b or none, out or none, strict=True)
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

    Of the four floating dtypes. With float8 these are products of :func:`grouped_matmul`, of rows
    for da (`b` transposed) and of a packed depth for db (`a` transposed), with scales of their own.

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
    if out is not None or out_b is not None:
        _dlkern.require_disjoint_lists(
            "grouped_matmul_backward", (("out", out), ("out_b", out_b)),
            (("dy", dy), ("a", a), ("b", b)),
        )  # fmt: skip
    none = [None] * len(a)
    gradients = [
        matmul_backward(g, x, y, precision=precision, out=da, out_b=db, stream=stream)
        for g, x, y, da, db in zip(dy, a, b, out or none, out_b or none, strict=True)
    ]
    return [da for da, _ in gradients], [db for _, db in gradients]


def _require_lists(op: str, a: Sequence[Any], **others: Any) -> None:
    """Beside a list `a`: lists of the same length, or None for outputs and scales."""
    for name, other in others.items():
        if other is None and name.startswith(("out", "scale")):
            continue
        if not isinstance(other, (list, tuple)):
            raise TypeError(f"{op}: {name} is {type(other).__name__}, expected a list as a is")
        if len(other) != len(a):
            raise ValueError(f"{op}: {name} has {len(other)} arrays, expected {len(a)}")
