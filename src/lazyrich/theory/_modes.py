"""Aligned modes (Theorem 5.1): each is a network with one unit per layer."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from .._arrays import Scalar, as_floating
from ..dynamics._solution import solution as closed_form
from ..dynamics._spectrum import factorize
from ..inits import aligned
from ..tasks import LinearTask


def aligned_modes(
    times: Real[ArrayLike, "*times"],
    start: Real[ArrayLike, "*#modes"],
    target: Real[ArrayLike, "*#modes"],
    lam: Scalar,
) -> Float[Array, "..."]:
    """Strengths s(t) of modes that start aligned with the task.

    Each mode follows ds/dt = √(λ² + 4s²)(s̃ − s), s(0) = `start`, with `target` s̃; the
    modes do not interact. `start` and `target` are scalars or of shape (modes,);
    `times`, in units of τ, is a scalar or (times,) and may hold ∞. Returns times' axes
    followed by modes' axes. s depends on |λ| only.

    Sigmoidal as λ → 0 (Saxe et al.), 1 − e^{−|λ|t} as |λ| → ∞. With λ = 0 a mode whose
    start has the wrong sign, or is 0, tends to 0.
    """
    times, start, target, lam = as_floating(times, start, target, lam)
    start, target = jnp.broadcast_arrays(start, target)

    def one(s0: Array, aim: Array) -> Array:
        net = aligned(LinearTask(aim[None, None]), lam, s0)
        q0 = jnp.concatenate([net.w1.T, net.w2])
        sigma = aim[None, None]
        w1, w2 = closed_form(q0, sigma, lam, factorize(sigma), times.reshape(-1))
        return (w1[:, 0, 0] * w2[:, 0, 0]).reshape(times.shape)

    flat = jax.vmap(one)(start.reshape(-1), target.reshape(-1))
    return jnp.moveaxis(flat, 0, -1).reshape(times.shape + start.shape)
