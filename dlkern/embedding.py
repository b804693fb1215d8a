"""Rows of a table chosen by number, their gradient, and one-hot vectors."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def embedding(ids: Any, weight: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Rows of a table: ``weight[ids]``.

    Parameters
    ----------
    ids : array of int32 or int64
        Any shape, any strides; numbers of rows of `weight`. One that is out of range fails on the
        CPU; on a GPU it gives a row of NaN, and fails in debug mode.
    weight : array, shape (V, D)
        float64, float32, float16 or bfloat16, on the device of `ids`.
    out : array, optional
        Written instead of a new array: shape of `ids` and D, dtype of `weight`, any strides.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of ids' framework.

    Returns
    -------
    array
        Shape of `ids` and D, dtype of `weight`, framework of `ids`.

    Raises
    ------
    ValueError
        Wrong shape or device, an id out of range (see above), or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.embedding(ids, weight, out, stream)


def embedding_backward(
    dy: Any,
    ids: Any,
    num_embeddings: int | None = None,
    *,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    accumulate: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`embedding` with respect to its table, deterministic, without atomics.

    .. math:: dweight_v = \sum_{i: ids_i = v} dy_i

    Sums are kept in float32 (float64 for float64). A row's bits depend on the gradients of its own
    ids alone.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the output: shape of `ids` and D.
    ids : array of int32 or int64
        As in the forward call. One out of range fails on the CPU, adds nothing on a GPU, and fails
        there in debug mode.
    num_embeddings : int, optional
        V; needed where `out` is not given.
    padding_idx : int, optional
        A row that gets no gradient, counted from the end where it is negative.
    scale_grad_by_freq : bool
        Divide the gradient of each row by the number of its ids.
    accumulate : bool
        Add to `out`, in place of writing it.
    out : array, shape (V, D), optional
        Receives dweight: dtype of `dy` or, beside 16-bit `dy`, float32.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`embedding`.

    Returns
    -------
    array
        dweight, of shape (V, D).
    """
    return _dlkern.embedding_backward(
        dy, ids, num_embeddings, padding_idx, scale_grad_by_freq, accumulate, out, stream
    )


def one_hot(
    ids: Any, num_classes: int, *, dtype: str = "int64", out: Any = None, stream: Any = None
) -> Any:
    """Vectors that are 1 at the place that an id names and 0 elsewhere.

    Parameters
    ----------
    ids : array of int32 or int64
        Any shape, any strides. One that is out of range fails on the CPU; on a GPU its vector is 0,
        and it fails in debug mode.
    num_classes : int
        The length of the vectors.
    dtype : str
        Name of the result's dtype, any that dlkern knows.
    out : array, optional
        Written instead of a new array: shape of `ids` and num_classes, that dtype, any strides.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`embedding`.

    Returns
    -------
    array
        Shape of `ids` and num_classes, framework and device of `ids`.

    Raises
    ------
    ValueError
        A wrong shape or device, an id out of range (see above), or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.one_hot(ids, num_classes, dtype, out, stream)
