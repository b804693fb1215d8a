"""Element-wise arithmetic with broadcasting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlkern import _dlkern

if TYPE_CHECKING:
    from dlkern.elementwise_kernel import ElementwiseKernel


def add(
    a: Any, b: Any, *, alpha: float = 1.0, beta: float = 1.0, out: Any = None, stream: Any = None
) -> Any:
    """Weighted sum ``alpha * a + beta * b``, with the broadcasting rules of NumPy.

    A summand whose factor is 0 does not count, NaN neither.

    Parameters
    ----------
    a, b : array
        Arrays of one dtype, of any strides: float64, float32, float16, bfloat16 (16-bit types are
        added in float32), int32 or int64. Shapes are aligned at the last axis; an axis that is
        missing or has length 1 is repeated.
    alpha, beta : float
        Whole numbers where the arrays are integers.
    out : array, optional
        Written instead of a new array: the broadcast shape, dtype of `a`; may be `a` or `b` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of a's framework.

    Returns
    -------
    array
        The broadcast shape; dtype, framework and device of `a`.

    Raises
    ------
    ValueError
        Shapes that do not broadcast, wrong device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.add(a, b, alpha, beta, out, stream)


def add_backward(
    dy: Any,
    a_shape: tuple[int, ...] | None = None,
    b_shape: tuple[int, ...] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_a: Any = None,
    out_b: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Gradients of :func:`add` with respect to `a` and `b`.

    ``alpha * dy`` and ``beta * dy``, each summed over the axes in which the array was repeated.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the result: float64, float32, float16 or bfloat16
        (16-bit types are summed in float32).
    a_shape, b_shape : tuple of int, optional
        Shapes of `a` and `b`. None, and no array to write to, leaves that gradient out.
    alpha, beta : float
        As in the forward call.
    out_a, out_b : array, optional
        Receive da and db; they have the shape of `a` and of `b`.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`add`, as are the errors.

    Returns
    -------
    (array, array)
        da and db, of the dtype, framework and device of `dy`; None for one that was left out.
    """
    da, db = _dlkern.add_backward(dy, a_shape, b_shape, out_a, out_b, stream)
    if da is not None and alpha != 1:
        da = _dlkern.add(da, da, alpha, 0.0, out_a, stream)
    if db is not None and beta != 1:
        db = _dlkern.add(db, db, beta, 0.0, out_b, stream)
    return da, db


def elementwise(
    code: str, *, inputs: Sequence[str] | None = None, dtypes: Mapping[str, str] | None = None
) -> ElementwiseKernel:
    """A kernel that computes `code` for every element of its arrays.

    ::

        leaky = dlkern.elementwise("y = x > 0 ? x : a * x")
        y = leaky(x, 0.1)  # or leaky(x=x, a=0.1, out=y)

    Names that are read before they are assigned are inputs: arrays, or scalars where a Python
    number is given. Names that are assigned without a type are outputs; one that is both is updated
    in place. ``float t = ...;`` declares a local. A program may have several statements, separated
    by ``;``.

    Expressions are those of C++: arithmetic, comparisons, ``?:``, bits, casts, the functions of
    ``<math.h>``, and ``min`` ``max`` ``clamp`` ``where`` ``abs`` ``rsqrt``. Arrays may be of any
    floating, float8 (e4m3fn and e5m2), integer dtype or bool. Floating types of 8 and 16 bits are
    computed in float, integers of fewer than 32 bits in int; a result beyond the range of a float8
    becomes its largest number. A floating number without suffix and a Python float have the type
    ``real``: double where an array is float64, else float. Nothing is contracted to a multiply-add
    unless ``fma`` says so, so that ``+ - * /`` and ``sqrt`` give the same bits on every device.

    Parameters
    ----------
    code : str
        The statements.
    inputs : sequence of str, optional
        The order of the inputs as positional arguments; default: in which the code names them.
    dtypes : mapping, optional
        Output -> dtype. Default: of a floating value the dtype that the floating input arrays
        promote to (two different ones of 8 or 16 bits: float32), else the type of the expression.

    Returns
    -------
    ElementwiseKernel
        A function of the inputs with ``out=`` and ``stream=``.

    Raises
    ------
    ValueError
        Code that cannot be compiled: the message has line and column and shows the place.

    Notes
    -----
    On a GPU the first call for given dtypes and a kind of layout compiles by NVRTC (which needs
    cuda-core), the result is kept in ``$DLKERN_CACHE`` (default ``~/.cache/dlkern``); later calls
    can be captured in a CUDA graph. The CPU computes blocks by NumPy.
    """
    from dlkern.elementwise_kernel import ElementwiseKernel  # and NumPy, only where it is needed

    return ElementwiseKernel(code, inputs, dtypes)
