"""Losses and their gradients."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Cross entropy of logits against class labels, or against probabilities of the classes.

    For a row x of C logits with label t, class weights w, smoothing e and z-loss z:

    .. math:: \mathrm{loss} = -(1 - e) \, w_t \log p_t - \frac{e}{C} \sum_c w_c \log p_c
              + z \Big( \log \sum_c \exp x_c \Big)^2, \quad p = \mathrm{softmax}(x)

    Rows whose label is `ignore_index` have loss 0. With probabilities t for labels

    .. math:: \mathrm{loss} = -\sum_c q_c \log p_c + z \Big( \log \sum_c \exp x_c \Big)^2,
              \quad q_c = w_c \Big( (1 - e) \, t_c + \frac{e}{C} \Big)

    where a class with :math:`q_c = 0` adds nothing, even if its logit is -inf. Semantics are
    otherwise those of ``torch.nn.functional.cross_entropy``.

    Parameters
    ----------
    logits : array
        [C], [N, C] or [N, C, d1, ...], any strides. float64, float32, float16 or bfloat16; 16-bit
        logits are computed in float32.
    labels : array
        [], [N] or [N, d1, ...], int32 or int64, each in [0, C) or `ignore_index`. Or probabilities
        of the classes: of logits' shape, and of their dtype or, beside 16-bit logits, of float32.
        That a row's are not negative, and 1 together, is not checked.
    weight : array, optional
        [C], of logits' dtype or, beside 16-bit logits, of float32.
    ignore_index : int
        Label of rows that do not count. Probabilities know none.
    label_smoothing : float
        In [0, 1].
    z_loss : float
        Not negative. A small one, as 1e-4, keeps the logits from drifting (Chowdhery et al.,
        "PaLM", 2022).
    reduction : str
        "none": the rows' losses. "sum": their sum. "mean": their sum over the sum of
        :math:`w_t` of the rows that count, or with probabilities over the number of rows; NaN where
        that is 0.
    out : array, optional
        Written instead of a new array: [], [N] or [N, d1, ...] for "none", else (). Of logits'
        dtype or, beside 16-bit logits, of float32: a loss that is not rounded to 16 bits.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of logits' framework.

    Returns
    -------
    array
        The loss, in logits' dtype.

    Raises
    ------
    ValueError
        Wrong shape, reduction, smoothing or device, or a label out of range (nothing is written
        then). On a GPU labels are checked only with ``DLKERN_DEBUG=1``; otherwise such a row gives
        NaN and nothing out of bounds is read.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.cross_entropy(
        logits, labels, weight, reduction, ignore_index, label_smoothing, z_loss, out, stream
    )


def cross_entropy_backward(
    dloss: Any,
    logits: Any,
    labels: Any,
    *,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`cross_entropy` with respect to the logits.

    .. math:: dx_c = s \left[ (1 - e) \, w_t (p_c - [c = t])
              + \frac{e}{C} \Big( p_c \sum_k w_k - w_c \Big)
              + 2 z \log \Big( \sum_k \exp x_k \Big) p_c \right]

    where s is the row's dloss for "none", dloss for "sum", and for "mean" dloss over what the sum
    of the losses is divided by. Exactly 0 in rows that are ignored. With probabilities for labels

    .. math:: dx_c = s \left[ p_c \sum_k q_k - q_c
              + 2 z \log \Big( \sum_k \exp x_k \Big) p_c \right]

    (there is no gradient with respect to those).

    Parameters
    ----------
    dloss : array
        Gradient with respect to the loss, of its shape: one number per row for "none", else ().
        Of logits' dtype or, beside 16-bit logits, of float32.
    logits, labels, weight, ignore_index, label_smoothing, z_loss, reduction
        As in the forward call.
    out : array, optional
        Receives the gradient; may be `logits` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`cross_entropy`.

    Returns
    -------
    array
        The gradient, of the shape and dtype of `logits`.
    """
    return _dlkern.cross_entropy_backward(
        dloss,
        logits,
        labels,
        weight,
        reduction,
        ignore_index,
        label_smoothing,
        z_loss,
        out,
        stream,
    )


def cross_entropy_with_grad(
    logits: Any,
    labels: Any,
    *,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    dloss: Any = None,
    out: Any = None,
    grad_out: Any = None,
    stream: Any = None,
) -> Any:
    """Loss and gradient of :func:`cross_entropy` at once: the logits are read only once.

    Parameters
    ----------
    logits, labels, weight, ignore_index, label_smoothing, z_loss, reduction
        As for :func:`cross_entropy`.
    dloss : array, optional
        As for :func:`cross_entropy_backward`; 1 where left out.
    out : array, optional
        Receives the loss, as for :func:`cross_entropy`.
    grad_out : array, optional
        Receives the gradient; may be `logits` itself, which then costs no memory at all.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`cross_entropy`.

    Returns
    -------
    tuple of array
        The loss, and its gradient with respect to `logits`.
    """
    return _dlkern.cross_entropy_with_grad(
        logits,
        labels,
        weight,
        dloss,
        reduction,
        ignore_index,
        label_smoothing,
        z_loss,
        out,
        grad_out,
        stream,
    )


def nll_loss(
    log_p: Any,
    labels: Any,
    *,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Negative log-likelihood of class labels: :func:`cross_entropy` behind a log_softmax.

    .. math:: \mathrm{loss} = -w_t \, \mathrm{log\_p}_t

    Parameters
    ----------
    log_p : array
        Log-probabilities, [C], [N, C] or [N, C, d1, ...].
    labels, weight, ignore_index, reduction, out, stream
        As for :func:`cross_entropy`, and so are the errors.

    Returns
    -------
    array
        The loss, in the dtype of `log_p`.
    """
    return _dlkern.nll_loss(log_p, labels, weight, reduction, ignore_index, out, stream)


def nll_loss_backward(
    dloss: Any,
    log_p: Any,
    labels: Any,
    *,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`nll_loss` with respect to the log-probabilities.

    .. math:: d\mathrm{log\_p}_c = -s \, w_t \, [c = t]

    Parameters
    ----------
    dloss : array
        As for :func:`cross_entropy_backward`, and so is s.
    log_p : array
        As in the forward call; only its shape and dtype matter.
    labels, weight, ignore_index, reduction
        As in the forward call.
    out : array, optional
        Receives the gradient.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`cross_entropy`.

    Returns
    -------
    array
        The gradient, of the shape and dtype of `log_p`.
    """
    return _dlkern.nll_loss_backward(
        dloss, log_p, labels, weight, reduction, ignore_index, out, stream
    )
