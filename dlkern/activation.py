"""Activations and gated linear units, element by element, and their gradients.

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


def relu6(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Rectified linear unit with a ceiling, :math:`\min(\max(x, 0), 6)`.

    Parameters and errors are those of :func:`relu`.
    """
    return _dlkern.activation("relu6", x, (), out, stream)


def relu6_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`relu6`: `dy` where ``0 < x < 6``, else 0.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("relu6", dy, x, (), out, stream)


def hardsigmoid(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Piecewise linear stand-in for :func:`sigmoid`, :math:`relu6(x + 3) / 6`.

    Parameters and errors are those of :func:`relu`.
    """
    return _dlkern.activation("hardsigmoid", x, (), out, stream)


def hardsigmoid_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`hardsigmoid`: ``dy / 6`` where ``-3 < x < 3``, else 0.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("hardsigmoid", dy, x, (), out, stream)


def hardswish(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Stand-in for :func:`silu` without exponential, :math:`x \, relu6(x + 3) / 6`.

    Parameters and errors are those of :func:`relu`.

    References
    ----------
    Howard et al., "Searching for MobileNetV3", 2019.
    """
    return _dlkern.activation("hardswish", x, (), out, stream)


def hardswish_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`hardswish`: ``dy * (x / 3 + 1 / 2)`` where ``-3 < x < 3``.

    0 below, `dy` above.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("hardswish", dy, x, (), out, stream)


def mish(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Smooth self-gated unit, :math:`x \tanh(\log(1 + e^x))`.

    Parameters and errors are those of :func:`relu`.

    References
    ----------
    Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019.
    """
    return _dlkern.activation("mish", x, (), out, stream)


def mish_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`mish`.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("mish", dy, x, (), out, stream)


def selu(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Self-normalising exponential unit: ``s * x`` where ``x > 0``, else :math:`s a (e^x - 1)`.

    Parameters and errors are those of :func:`relu`.

    ``s = 1.0507009873554805``, ``a = 1.6732632423543772``: mean 0 and variance 1 are a fixed point.

    References
    ----------
    Klambauer et al., "Self-Normalizing Neural Networks", 2017.
    """
    return _dlkern.activation("selu", x, (), out, stream)


def selu_backward(dy: Any, x: Any, *, out: Any = None, stream: Any = None) -> Any:
    r"""Gradient of :func:`selu`: ``s * dy`` where ``x > 0``, else :math:`s a e^x dy`.

    Parameters are those of :func:`relu_backward`.
    """
    return _dlkern.activation_backward("selu", dy, x, (), out, stream)


# ---- Gated linear units --------------------------------------------------------------------------


def swiglu(
    gate: Any, up: Any = None, *, gate_last: bool = False, out: Any = None, stream: Any = None
) -> Any:
    r"""Gated linear unit :math:`silu(gate) \cdot up`.

    Parameters
    ----------
    gate : array
        float64, float32, float16 or bfloat16 (computed in float32), of any shape and strides.
        Without `up` it is packed: ``[..., 2 n]``, gate and up side by side in the last axis.
    up : array, optional
        Shape and dtype of `gate`.
    gate_last : bool
        Of a packed array: the gate is the second half, as in ``torch.nn.functional.glu``; by
        default the first, as where Llama's gate and up projections are one matrix.
    out : array, optional
        Written instead of a new array: the result's shape and dtype. May be `gate` or `up` itself,
        or that half of a packed array.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`relu`, as are the errors.

    Returns
    -------
    array
        Shape of `gate`, of a packed one ``[..., n]``; dtype, framework and device of `gate`.

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    return _dlkern.gated("swiglu", gate, up, False, gate_last, out, stream)


def swiglu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    *,
    gate_last: bool = False,
    out: Any = None,
    out_up: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`swiglu`.

    .. math:: dgate = dy \, up \, f'(gate), \quad dup = dy \, f(gate), \quad f = silu

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the output.
    gate, up, gate_last
        As in the forward call.
    out, out_up : array, optional
        Receive dgate and dup. Each may be any one of the inputs. For a packed array `out` receives
        both, packed in the same way.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`relu`.

    Returns
    -------
    (array, array) or array
        dgate and dup; for a packed array one array of its shape.
    """
    return _dlkern.gated_backward("swiglu", dy, gate, up, False, gate_last, out, out_up, stream)


def geglu(
    gate: Any,
    up: Any = None,
    approximate: str = "none",
    *,
    gate_last: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gated linear unit :math:`gelu(gate) \cdot up`; `approximate` is that of :func:`gelu`.

    The other parameters and the errors are those of :func:`swiglu`.
    """
    tanh = _gelu_form("geglu", approximate) == "gelu_tanh"
    return _dlkern.gated("geglu", gate, up, tanh, gate_last, out, stream)


def geglu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    approximate: str = "none",
    *,
    gate_last: bool = False,
    out: Any = None,
    out_up: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`geglu`.

    The other parameters and the result are those of :func:`swiglu_backward`.
    """
    tanh = _gelu_form("geglu_backward", approximate) == "gelu_tanh"
    return _dlkern.gated_backward("geglu", dy, gate, up, tanh, gate_last, out, out_up, stream)


def reglu(
    gate: Any, up: Any = None, *, gate_last: bool = False, out: Any = None, stream: Any = None
) -> Any:
    r"""Gated linear unit :math:`relu(gate) \cdot up`.

    Parameters and errors are those of :func:`swiglu`.
    """
    return _dlkern.gated("reglu", gate, up, False, gate_last, out, stream)


def reglu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    *,
    gate_last: bool = False,
    out: Any = None,
    out_up: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`reglu`.

    Parameters and result are those of :func:`swiglu_backward`.
    """
    return _dlkern.gated_backward("reglu", dy, gate, up, False, gate_last, out, out_up, stream)


def glu(
    gate: Any, up: Any = None, *, gate_last: bool = False, out: Any = None, stream: Any = None
) -> Any:
    r"""Gated linear unit :math:`sigmoid(gate) \cdot up`.

    Parameters and errors are those of :func:`swiglu`.
    """
    return _dlkern.gated("glu", gate, up, False, gate_last, out, stream)


def glu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    *,
    gate_last: bool = False,
    out: Any = None,
    out_up: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`glu`.

    Parameters and result are those of :func:`swiglu_backward`.
    """
    return _dlkern.gated_backward("glu", dy, gate, up, False, gate_last, out, out_up, stream)
