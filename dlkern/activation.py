"""Activations, element by element, and their gradients.

The gradients take the input `x` of the forward call, not its output. NaN gives NaN (gradients of
the piecewise linear ones: as in PyTorch), an infinity gives the limit. Small results in the
negative tails keep their digits.
"""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def relu(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Rectified linear unit, :math:`\max(x, 0)`.

    Parameters
    ----------
    x : array
        Any array with ``__dlpack__``, of any shape and strides. float64, float32, float16 or
        bfloat16; 16-bit types are computed in float32.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`; may be `x` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        Shape, dtype, framework and device of `x`.

    Raises
    ------
    ValueError
        Wrong shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.activation("relu", x, (), out, stream)


def relu_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Gradient of :func:`relu`: `dy` where ``x > 0``, else 0.

    Parameters
    ----------
    dy, x : array
        Gradient of the loss with respect to the output, and the input of the forward call: same
        shape and dtype.
    out : array, optional
        Receives dx; may be `dy` or `x` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`relu`.

    Returns
    -------
    array
        dx, of the shape and dtype of `dy`.
    """
    return _dlkern.activation_backward("relu", dy, x, (), out, stream)


def leaky_relu(x: Any, negative_slope: float = 0.01, *, out: Any = None, stream: Any = None) -> Any:
    """`x` where ``x > 0``, else ``negative_slope * x``.

    The other parameters and the errors are those of :func:`relu`.
    """
    return _dlkern.activation("leaky_relu", x, (("negative_slope", negative_slope),), out, stream)


def leaky_relu_backward(
    dy: Any, x: Any, negative_slope: float = 0.01, *, out: Any = None, stream: Any = None
) -> Any:
    """Gradient of :func:`leaky_relu`: `dy` where ``x > 0``, else ``negative_slope * dy``.

    The other parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward(
        "leaky_relu", dy, x, (("negative_slope", negative_slope),), out, stream
    )


def elu(x: Any, alpha: float = 1.0, *, out: Any = None, stream: Any = None) -> Any:
    r"""Exponential linear unit: `x` where ``x > 0``, else :math:`\alpha (e^x - 1)`.

    The other parameters and the errors are those of :func:`relu`.
    """
    return _dlkern.activation("elu", x, (("alpha", alpha),), out, stream)


def elu_backward(
    dy: Any, x: Any, alpha: float = 1.0, *, out: Any = None, stream: Any = None
) -> Any:
    r"""Gradient of :func:`elu`: `dy` where ``x > 0``, else :math:`\alpha e^x dy`.

    The other parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("elu", dy, x, (("alpha", alpha),), out, stream)


_GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def _gelu_form(op: str, approximate: str) -> str:
    if not isinstance(approximate, str) or approximate not in _GELU:
        raise ValueError(f"{op}: approximate is {approximate!r}, expected 'none' or 'tanh'")
    return _GELU[approximate]


def gelu(x: Any, approximate: str = "none", *, out: Any = None, stream: Any = None) -> Any:
    r"""Gaussian error linear unit.

    .. math::

        y &= x \, \Phi(x) = x \operatorname{erfc}(-x / \sqrt 2) / 2 \\
        y &= x (1 + \tanh u) / 2, \quad u = \sqrt{2 / \pi} \, (x + 0.044715 x^3)

    Parameters
    ----------
    x : array
        As for :func:`relu`.
    approximate : {"none", "tanh"}
        The first formula or the second.
    out, stream : optional
        As for :func:`relu`, as are the errors.

    Returns
    -------
    array
        Shape, dtype, framework and device of `x`.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    return _dlkern.activation(_gelu_form("gelu", approximate), x, (), out, stream)


def gelu_backward(
    dy: Any, x: Any, approximate: str = "none", *, out: Any = None, stream: Any = None
) -> Any:
    r"""Gradient of :func:`gelu`; of the first formula :math:`dy \, (\Phi(x) + x \varphi(x))`.

    The other parameters are those of :func:`relu_backward`.
    """
    form = _gelu_form("gelu_backward", approximate)
    return _dlkern.activation_backward(form, dy, x, (), out, stream)


def silu(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Sigmoid linear unit (swish), :math:`x / (1 + e^{-x})`.

    Parameters and errors are those of :func:`relu`.
    """
    return _dlkern.activation("silu", x, (), out, stream)


def silu_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`silu`, :math:`dy \, s (1 + x (1 - s))` with :math:`s = sigmoid(x)`.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("silu", dy, x, (), out, stream)


def sigmoid(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Logistic function, :math:`1 / (1 + e^{-x})`.

    Parameters and errors are those of :func:`relu`.
    """
    return _dlkern.activation("sigmoid", x, (), out, stream)


def sigmoid_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`sigmoid`, :math:`dy \, s (1 - s)` with :math:`s = sigmoid(x)`.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("sigmoid", dy, x, (), out, stream)


def tanh(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Hyperbolic tangent.

    Parameters and errors are those of :func:`relu`.
    """
    return _dlkern.activation("tanh", x, (), out, stream)


def tanh_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`tanh`, :math:`dy \, (1 - \tanh^2 x)`.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("tanh", dy, x, (), out, stream)


def softplus(
    x: Any, beta: float = 1.0, threshold: float = 20.0, *, out: Any = None, stream: Any = None
) -> Any:
    r"""Smooth rectifier, :math:`\log(1 + e^{\beta x}) / \beta`.

    Parameters
    ----------
    x : array
        As for :func:`relu`.
    beta : float
        Sharpness, not 0.
    threshold : float
        Where ``beta * x`` is above it the result is `x`.
    out, stream : optional
        As for :func:`relu`, as are the errors.

    Returns
    -------
    array
        Shape, dtype, framework and device of `x`.
    """
    numbers = (("beta", beta), ("threshold", threshold))
    return _dlkern.activation("softplus", x, numbers, out, stream)


def softplus_backward(
    dy: Any,
    x: Any,
    beta: float = 1.0,
    threshold: float = 20.0,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`softplus`: ``dy * sigmoid(beta * x)``, and `dy` above the threshold.

    The other parameters are those of :func:`relu_backward`.
    """
    numbers = (("beta", beta), ("threshold", threshold))
    return _dlkern.activation_backward("softplus", dy, x, numbers, out, stream)
