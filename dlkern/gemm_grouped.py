"""Matrix products of many groups: packed with offsets on the device, or lists of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlkern import _dlkern
from dlkern.gemm import Precision, matmul, matmul_backward


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
    if out is not None:
        _dlkern.require_disjoint_lists("grouped_matmul", (("out", out),), (("a", a), ("b", b)))
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
    """Beside a list `a`: lists of the same length, or None for outputs."""
    for name, other in others.items():
        if other is None and name.startswith("out"):
            continue
        if not isinstance(other, (list, tuple)):
            raise TypeError(f"{op}: {name} is {type(other).__name__}, expected a list as a is")
        if len(other) != len(a):
            raise ValueError(f"{op}: {name} has {len(other)} arrays, expected {len(a)}")
