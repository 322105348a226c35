"""When something is learned."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from .._arrays import as_floating, is_concrete


def half_time(
    times: Real[ArrayLike, " times"], excess: Float[ArrayLike, " times"]
) -> Float[Array, ""]:
    """The first time at which `excess` ≤ ½ excess[0], linearly interpolated.

    `times` and `excess` have shape (times,); times are in units of τ. NaN if that
    never happens, or if the excess starts at 0 (nothing to learn), is negative or not
    finite before the crossing. Differentiable in both.
    """
    times, excess = as_floating(times, excess)
    if times.ndim != 1 or times.shape != excess.shape:
        raise ValueError(
            "`times` and `excess` must have one shape (times,), but they are "
            f"{times.shape} and {excess.shape}: use jax.vmap for several curves."
        )
    if is_concrete(times) and np.any(np.asarray(times)[1:] < np.asarray(times)[:-1]):
        raise ValueError(f"`times` must be non-decreasing, but they are {times}.")
    level = 0.5 * excess[0]
    below = excess <= level
    hit = jnp.argmax(below)
    before = jnp.maximum(hit - 1, 0)
    known = jnp.isfinite(excess) | (jnp.arange(excess.shape[0]) > hit)
    found = below.any() & (excess[0] > 0) & known.all()
    # Interpolate only where there is a crossing, so that gradients stay finite.
    drop = jnp.where(found, excess[before] - excess[hit], 1.0)
    share = jnp.where(found, (excess[before] - level) / drop, 0.0)
    time = times[before] + share * (times[hit] - times[before])
    return jnp.where(found & jnp.isfinite(share), time, jnp.nan)
