"""Layers for Hugging Face's ``kernels``, whose ``kernelize`` puts them into models of transformers.

::

    from kernels import Mode, kernelize, register_kernel_mapping

    register_kernel_mapping(dlkern.torch.kernels.mapping())
    model = kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cuda")

It reaches the norms and activations that a model marks by ``use_kernel_forward_from_hub``;
:func:`dlkern.torch.convert` reaches torch's own modules (linear layers, embeddings, ...) in the
same model, before or after. There is nothing for transformers' ``AttentionInterface``, since dlkern
has no attention yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from dlkern.torch._functions import functions as ops

__all__ = ["Layer", "mapping"]


@dataclass(frozen=True)
class Layer:
    """What ``kernels`` takes for a repository with one layer.

    Parameters
    ----------
    layer_name : str
        As models are marked by it.
    forward : callable
        Of the module and its input.
    """

    layer_name: str
    forward: Callable[[Any, Any], Any]

    def load(self) -> type[nn.Module]:
        """A module class that adds nothing to nn.Module but the forward method."""
        members = {"forward": self.forward, "can_torch_compile": True, "has_backward": True}
        return type(self.layer_name, (nn.Module,), members)


def _rms_norm(self: Any, hidden_states: Any) -> Any:
    return ops["rms_norm"](hidden_states, self.weight, eps=self.variance_epsilon)


def _rms_norm_zero_centered(self: Any, x: Any) -> Any:
    return ops["rms_norm"](x, self.weight, eps=self.eps, weight_offset=1.0)


def _gelu(self: Any, input: Any) -> Any:
    return ops["gelu"](input)


def _gelu_tanh(self: Any, input: Any) -> Any:
    return ops["gelu"](input, "tanh")


def _silu(self: Any, input: Any) -> Any:
    return ops["silu"](input)


_FORWARDS = {
    "RMSNorm": _rms_norm, "RMSNormZeroCentered": _rms_norm_zero_centered, "GeLU": _gelu,
    "GeluTanh": _gelu_tanh, "NewGELU": _gelu_tanh, "FastGELU": _gelu_tanh, "SiLU": _silu,
}  # fmt: skip


def mapping() -> dict[str, dict[str, Layer]]:
    """Layer name -> device -> layer, for ``kernels.register_kernel_mapping`` and its kin."""
    layers = (Layer(name, forward) for name, forward in _FORWARDS.items())
    return {layer.layer_name: dict.fromkeys(("cpu", "cuda"), layer) for layer in layers}
