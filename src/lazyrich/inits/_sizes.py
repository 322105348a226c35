"""What every init checks: sizes and the random key."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_sizes(inputs: int, hidden: int, outputs: int) -> None:
    sizes = (inputs, hidden, outputs)
    if not all(isinstance(n, int | np.integer) and n >= 1 for n in sizes):
        raise ValueError(
            "`inputs`, `hidden` and `outputs` must be integers ≥ 1, but they are "
            f"{inputs}, {hidden} and {outputs}."
        )


def check_key(key: Any) -> None:
    """`ValueError` for anything but one JAX key, such as a bare seed."""
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = getattr(key, "dtype", None) == np.uint32 and key.shape == (2,)
    if not raw and not (typed and key.shape == ()):
        raise ValueError(
            f"`key` must be one JAX random key, such as jax.random.key(0), but it is "
            f"{key!r}."
        )
