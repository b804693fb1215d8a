"""dlkern in TensorFlow.

Each op of :mod:`dlkern` is here under its own name, with the same arguments but for ``out``,
``stream`` and ``accumulate``, and the same results, bit for bit::

    import dlkern.tensorflow as dktf

    with tf.GradientTape() as tape:
        loss = dktf.cross_entropy(dktf.linear(dktf.rms_norm(x), weight), labels)
    gradient = tape.gradient(loss, weight)

Tensors, variables and NumPy arrays are arrays; all other arguments are constants of the call.

- **Updates in place.** Tensors are never written. Where the plain function updates an argument
  (optimizer steps, running statistics), the new values are further results, in the order of the
  arguments: ``variable.assign(dktf.sgd_step(variable, gradient, lr=0.1))``.
- **Random numbers.** ``rng`` of `dropout` may be left out: it is drawn from TensorFlow's generator
  then, which ``tf.random.set_seed`` sets.
- **Derivatives** are those of ``tf.GradientTape`` (and ``tf.gradients`` in a graph), by the
  ``_backward`` ops. Statistics, indices and the new values of updated arguments count as constants.
- **Graphs.** In a ``tf.function`` a call becomes a node that calls back into Python when the graph
  runs (``tf.py_function``), with the shapes of its results known where those of its arguments are;
  an extent that is not known (a batch) may be so, a rank may not. The node has a gradient, in loops
  too. It costs about 100 microseconds more than an eager call, holds Python's lock but for the
  kernel itself, and computes the gradients of all arguments, since a graph does not say early
  enough which ones are wanted. Threads of TensorFlow that run graphs take subnormal numbers for
  zero, in dlkern's kernels too.

Not supported:

- ``tf.function(jit_compile=True)`` and TPUs: TensorFlow's XLA calls no Python, so it is refused
  with an error when the graph is traced. Graphs with calls of dlkern run in the process that made
  them: a SavedModel that has some can be written but not run elsewhere, nor be converted to TFLite.
- Second derivatives but for those of ops that have one: products, convolutions, sums, means,
  averages, rotations, dropout. Elsewhere `NotImplementedError`. Forward mode.
- Gradients with respect to what counts as constant: class weights and probabilities of losses,
  rotary tables, running statistics, and of optimizer steps, `scaled_matmul` and
  `scaled_conv`: refused under a tape. (A tape outside of a ``tf.function`` finds no gradient there,
  and gives None.)
- float8, which TensorFlow does not export by DLPack.
- GPUs are untested with TensorFlow. A call waits for its kernel there, since TensorFlow has no
  public way to its streams.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from dlkern._glue.op import functions_of
from dlkern._glue.table import ROWS
from dlkern.tensorflow._ops import TensorFlowFunction

_functions = functions_of(TensorFlowFunction, ROWS)
_dropout = _functions["dropout"]


def dropout(x: Any, p: float = 0.5, *, rng: Any = None, residual: Any = None) -> Any:
    """:func:`dlkern.dropout` of TensorFlow tensors; `rng` is drawn where it is left out."""
    if rng is None:
        rng = tf.random.uniform((2,), tf.int64.min, tf.int64.max, tf.int64)
    return _dropout(x, p, rng=rng, residual=residual)


TensorFlowFunction.ops = SimpleNamespace(
    **_functions,
    broadcast_to=tf.broadcast_to,
    matrix_transpose=tf.linalg.matrix_transpose,
    ones=tf.ones,
    zeros=tf.zeros,
)
globals().update({**_functions, "dropout": dropout})
__all__ = list(_functions)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
