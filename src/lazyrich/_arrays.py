"""What every room asks of its arrays: one dtype, full precision, concrete or not."""

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


def as_floating(*values: ArrayLike) -> tuple[Float[Array, "..."], ...]:
    """Arrays of one floating dtype: that of the array inputs, else JAX's default.

    Python scalars and integers adapt to the floating arrays they meet.
    """
    dtypes = {
        jnp.asarray(v).dtype
        for v in values
        if hasattr(v, "dtype") and jnp.issubdtype(jnp.asarray(v).dtype, jnp.floating)
    }
    dtype = max(dtypes, key=lambda d: jnp.finfo(d).bits) if dtypes else float
    return tuple(jnp.asarray(v, dtype) for v in values)


def matmul(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """a @ b in full precision: accelerators round float32 products by default."""
    return jnp.matmul(a, b, precision=Precision.HIGHEST)


def transpose(a: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    """The last two axes exchanged."""
    return jnp.swapaxes(a, -1, -2)
