"""Measures of the weights: balance, norms, modes."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import matmul, transpose
from ..networks import TwoLayerLinear
from ..tasks import LinearTask


def balance(net: TwoLayerLinear) -> Float[Array, "*batch hidden hidden"]:
    """B = W2ᵀW2 − W1W1ᵀ, which gradient flow conserves for every loss."""
    return matmul(transpose(net.w2), net.w2) - matmul(net.w1, transpose(net.w1))


def lam(net: TwoLayerLinear) -> Float[Array, "*batch"]:
    """The best-fitting λ = tr B / hidden."""
    squares = jnp.sum(net.w2**2, axis=(-2, -1)) - jnp.sum(net.w1**2, axis=(-2, -1))
    return squares / net.hidden


def balance_defect(net: TwoLayerLinear) -> Float[Array, "*batch"]:
    """max|B − λI| over all entries, with λ = `lam(net)`; 0 if exactly λ-balanced."""
    b = balance(net)
    identity = jnp.eye(net.hidden, dtype=b.dtype)
    target = lam(net)[..., None, None] * jnp.broadcast_to(identity, b.shape)
    return jnp.max(jnp.abs(b - target), axis=(-2, -1))


class WeightNorms(NamedTuple):
    """Squared Frobenius norms of the layers, and their sum."""

    w1: Float[Array, "*batch"]
    w2: Float[Array, "*batch"]
    total: Float[Array, "*batch"]


def weight_norms(net: TwoLayerLinear) -> WeightNorms:
    """‖W1‖_F², ‖W2‖_F² and their sum, the `norm` of `inits.balanced`."""
    w1 = jnp.sum(net.w1**2, axis=(-2, -1))
    w2 = jnp.sum(net.w2**2, axis=(-2, -1))
    return WeightNorms(w1, w2, w1 + w2)


def mode_strengths(
    net: TwoLayerLinear, task: LinearTask
) -> Float[Array, "*batch modes"]:
    """How far each mode of the task is learned: u_kᵀ W2W1 v_k, largest mode first.

    u_k and v_k are the singular vectors of the task's `solution` (of Σ_yx for whitened
    inputs); a learned mode has the strength of its singular value. There are
    min(inputs, outputs) modes. Within a repeated singular value the basis is
    arbitrary, and with it the single strengths. In that case derivatives in the task
    are NaN; those in the network are fine.
    """
    task.check_fits(net)
    u, _, vt = jnp.linalg.svd(task.solution, full_matrices=False)
    projected = matmul(net.product, vt.T)
    return jnp.sum(jnp.broadcast_to(u, projected.shape) * projected, axis=-2)
