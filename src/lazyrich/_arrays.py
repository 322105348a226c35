"""What every room asks of its arrays: one dtype, full precision, concrete or not."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, ArrayLike, Float, Real

Scalar = Real[ArrayLike, ""]
"""A real number: Python, NumPy or JAX, concrete or traced."""


def is_concrete(*values: Any) -> bool:
    """Whether no leaf of `values` is a tracer, so that values can be checked now."""
    leaves = jax.tree.leaves(values)
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def as_floating(
    *values: ArrayLike | Sequence[float], dtype: Any = None
) -> tuple[Array, ...]:
    """Arrays of one floating dtype: the widest of the arrays', else JAX's default.

    Python scalars and integers adapt to the floating arrays they meet. What is concrete
    stays so inside jit, where it can still be checked.
    """
    if any(hasattr(v, "dtype") and jnp.iscomplexobj(v) for v in values):
        raise ValueError("Arrays must be real, but one is complex.")
    if dtype is None:
        given = [jnp.result_type(v) for v in values if hasattr(v, "dtype")]
        floats = [d for d in given if jnp.issubdtype(d, jnp.floating)]
        dtype = max(floats, key=lambda d: jnp.finfo(d).bits) if floats else float

    def convert(value: ArrayLike | Sequence[float]) -> Array:
        if not is_concrete(value):
            return jnp.asarray(value, dtype)
        with jax.ensure_compile_time_eval():
            return jnp.asarray(value, dtype)

    return tuple(convert(v) for v in values)


def matmul(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """a @ b in full precision: accelerators round float32 products by default."""
    return jnp.matmul(a, b, precision=Precision.HIGHEST)


def transpose(a: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    """The last two axes exchanged."""
    return jnp.swapaxes(a, -1, -2)
