"""dlkern in JAX."""

from typing import TYPE_CHECKING, Any

from dlkern.jax._ops import FUNCTIONS, register
from dlkern.jax._table import ROWS

register(ROWS)
globals().update(FUNCTIONS)
__all__ = list(FUNCTIONS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
