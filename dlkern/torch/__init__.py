"""dlkern in PyTorch.

Registered operators with autograd, ``torch.compile``, ``torch.export``, ``torch.func``, autocast::

    import dlkern.torch as dkt

    y = dkt.softmax(dkt.linear(x, weight, bias, activation="gelu"))  # gradients are recorded
    print(dkt.convert(model))  # nn.Modules of a whole model, in place; dkt.revert(model)

Every op of dlkern is there as a function of the same name and arguments (less ``out`` and
``stream``) and as ``torch.ops.dlkern.<op>``. :mod:`dlkern.torch.functional` has those of
``torch.nn.functional`` by its names, :mod:`dlkern.torch.nn` modules, :mod:`dlkern.torch.optim`
optimizers.

Notes
-----
What is not supported, and why:

- Second derivatives where they need a kernel of their own (softmax, norms, losses, smooth
  activations): refused with an error. Products, convolutions, sums, piecewise linear activations,
  average pooling and layout ops have them. Forward-mode derivatives: refused.
- Gradients of class weights, of the target of `kl_div` and `binary_cross_entropy_with_logits`, of
  tables of cosines and scales: refused when they are asked for.
- Gradients through results in float8 (of products, `layer_norm` and `rms_norm`): refused.
- Sparse, quantised, complex and nested tensors, and other devices than the CPU and CUDA.
- Attention, which dlkern does not have yet, and with it a hook for that of transformers.
  :mod:`dlkern.torch.kernels` has layers for the norms and activations of its models.
- ``torch.func.vmap`` of ops that have no form for a batch computes item by item; operators called
  as ``torch.ops.dlkern.<op>`` have no gradient under ``torch.func.grad``: call the functions.
"""

from dlkern.torch import functional, kernels, nn, optim
from dlkern.torch._convert import Entry, Report, convert, revert
from dlkern.torch._functions import functions

globals().update(functions)
__all__ = [
    "Entry", "Report", "convert", "functional", "kernels", "nn", "optim", "revert", *functions,
]  # fmt: skip
