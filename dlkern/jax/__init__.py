"""dlkern in JAX: the plain functions under ``jit``, ``grad``, ``vmap`` and ``shard_map``.

Each op of :mod:`dlkern` is here under its own name, with the same arguments but for ``out``,
``stream`` and ``accumulate``, and the same results, bit for bit::

    import dlkern.jax as dkj

    @jax.jit
    def loss(weights, x, labels):
        x = dkj.rms_norm(x, weights["scale"])
        return dkj.cross_entropy(dkj.linear(x, weights["out"]), labels)

    gradients = jax.grad(loss)(weights, x, labels)

Calls become custom calls of XLA (its FFI), on the CPU and on CUDA, on XLA's stream and in its
memory, scratch memory included; XLA may record them in command buffers. Arrays are JAX arrays,
tracers or NumPy arrays; all other arguments are static. Mistakes raise what the plain function
raises, when the call is traced.

- **Updates in place.** Where the plain function updates an argument (optimizer steps, running
  statistics), the new values are further results, in the order of the arguments: ``param, momentum
  = sgd_step(param, grad, momentum, lr=0.1)``. With ``donate_argnums`` that is done in the donated
  memory, else in a copy.
- **Random numbers.** ``rng`` of `dropout` is a key of ``jax.random`` (its seed is taken), or seed
  and offset as the plain function has them; use a fresh key for each call.
- **Derivatives** are reverse-mode (``jax.custom_vjp``), computed by the ``_backward`` ops; under
  ``jit`` those that nobody asks for are left out. Statistics, indices and the new values of updated
  arguments count as constants.
- **Batches.** ``vmap`` of element-wise ops, of ops along an axis or over rows, of products and of
  ops on images is one call on a larger array; others run item by item, and so do those where the
  batch is of weights.
- **Several devices.** Inside ``shard_map`` each device computes its part. Outside of it XLA cannot
  see into a call: sharded arguments are gathered first, and every device computes the whole.

Not supported:

- Forward mode (``jvp``, ``jacfwd``, ``linearize``), since the ops have no such derivatives. Second
  derivatives only where the first is made of ops that have one: products, convolutions, sums,
  means, averages, rotations, dropout. Elsewhere `NotImplementedError`.
- Gradients with respect to what counts as constant: class weights and probabilities of losses,
  rotary tables, running statistics; and of optimizer steps, `scaled_matmul` and
  `scaled_conv`.
- Arrays of symbolic shape (``jax.export`` with unknown extents): calls are planned for their
  shapes.
- Sums and products of integers without ``jax_enable_x64``: they are int64. Indices are int32 then.
- ``dlkern.elementwise`` kernels, which are compiled at run time; JAX has its own way for those.
- TPUs. A program lowered for CUDA on a machine without a GPU lacks the scratch memory that the
  GPU's kernels ask for.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from dlkern._glue.op import functions_of
from dlkern._glue.table import ROWS
from dlkern.jax._ops import BATCHES, FUNCTIONS, JaxFunction
from dlkern.jax._table import RULES

BATCHES.update(RULES)
FUNCTIONS.update(functions_of(JaxFunction, ROWS))
JaxFunction.ops = SimpleNamespace(
    **FUNCTIONS,
    broadcast_to=jnp.broadcast_to,
    matrix_transpose=jnp.matrix_transpose,
    ones=jnp.ones,
    zeros=jnp.zeros,
)
globals().update(FUNCTIONS)
__all__ = list(FUNCTIONS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
