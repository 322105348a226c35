"""The eigenvectors of F = [[−λ/2 I, Σᵀ], [Σ, λ/2 I]], in the subspace that moves.

Σ = U diag(s) Vᵀ gives the pairs ±μ, μ = √(s² + λ²/4), with eigenvectors in the planes
of (v, 0) and (0, u). The directions outside of Σ on the longer side have eigenvalue
−λ/2 (surplus inputs) or +λ/2 (surplus outputs); where they are many, all that matters
of them is the span of the start's part there, of dimension hidden at most.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from .._arrays import matmul


class Factors(eqx.Module):
    """The thin SVD of Σ: Σ = u diag(s) vᵀ, s descending."""

    u: Float[Array, "outputs k"]
    s: Float[Array, " k"]
    v: Float[Array, "inputs k"]


class Spectrum(eqx.Module):
    """Eigenvectors of F (columns of `basis`), with eigenvalues in descending order.

    The columns are k pairs' upper ones, `middle` directions outside of Σ, and the
    pairs' lower ones in reverse order. The eigenvalue of column i is ±`size`, + where
    `growing`; `target` is the singular value of Σ it comes from, 0 for the middle.
    """

    basis: Float[Array, "n m"]
    target: Float[Array, " m"]
    size: Float[Array, " m"]
    growing: Bool[Array, " m"]


def factorize(sigma: Float[Array, "outputs inputs"]) -> Factors:
    """The thin SVD; singular values that are rounding are 0."""
    u, s, vt = jnp.linalg.svd(sigma, full_matrices=False)
    # A rounded zero (1e-17) would turn the eigenbasis of F by 45° for nothing.
    cut = max(sigma.shape) * jnp.finfo(s.dtype).eps * s[0]
    return Factors(u, jnp.where(s > cut, s, 0.0), vt.T)


def _outside(
    side: Float[Array, "long k"], start: Float[Array, "long hidden"]
) -> Float[Array, "long middle"]:
    """Orthonormal directions outside of `side`, which span those of the start there.

    They are made to follow `side` to any order of differentiation.
    """
    length, k = side.shape
    frozen = jax.lax.stop_gradient(side)
    if length - k > start.shape[1]:
        both = jnp.concatenate([frozen, jax.lax.stop_gradient(start)], axis=1)
        outside = jnp.linalg.qr(both)[0][:, k:]
    else:
        outside = jnp.linalg.qr(frozen, mode="complete")[0][:, k:]
    outside = outside - matmul(side, matmul(side.T, outside))
    gram = matmul(outside.T, outside)
    return solve_triangular(jnp.linalg.cholesky(gram), outside.T, lower=True).T


def spectrum(
    factors: Factors,
    q0: Float[Array, "n hidden"],
    lam: Float[Array, ""],
    target: Float[Array, " k"],
) -> Spectrum:
    """Eigenvalues and eigenvectors of F; eigenvalues are those for singular values
    `target`, eigenvectors those of `factors` (they differ only in derivatives).
    """
    u, s, v = factors.u, factors.s, factors.v
    inputs, outputs, k = v.shape[0], u.shape[0], s.shape[0]
    half = jnp.where(lam >= 0, lam, -lam) / 2
    zero = s == 0

    def size(s):
        return jnp.where(zero, half, jnp.sqrt(jnp.where(zero, 1.0, s) ** 2 + half**2))

    # At s = 0 the eigenvectors do not depend on λ; as a quotient their derivative
    # would be rounding noise divided by λ.
    mu = size(s)
    safe = jnp.where(mu == 0, 1.0, mu)
    large = jnp.where(zero, 1.0, jnp.sqrt((safe + half) / (2 * safe)))
    small = s / (2 * safe * large)
    cos, sin = jnp.where(lam >= 0, small, large), jnp.where(lam >= 0, large, small)
    plus = jnp.concatenate([v * cos[None], u * sin[None]])
    minus = jnp.concatenate([-v * sin[None], u * cos[None]])
    if inputs > outputs:
        outside = _outside(v, q0[:inputs])
        blank = jnp.zeros((outputs, outside.shape[1]), s.dtype)
        middle, rises = jnp.concatenate([outside, blank]), lam < 0
    elif outputs > inputs:
        outside = _outside(u, q0[inputs:])
        blank = jnp.zeros((inputs, outside.shape[1]), s.dtype)
        middle, rises = jnp.concatenate([blank, outside]), lam >= 0
    else:
        middle, rises = jnp.zeros((inputs + outputs, 0), s.dtype), lam >= 0
    extra = middle.shape[1]
    yes, mu = jnp.ones(k, bool), size(target)
    return Spectrum(
        basis=jnp.concatenate([plus, middle, minus[:, ::-1]], axis=1),
        target=jnp.concatenate([target, jnp.zeros(extra, s.dtype), target[::-1]]),
        size=jnp.concatenate([mu, jnp.broadcast_to(half, (extra,)), mu[::-1]]),
        growing=jnp.concatenate([yes, jnp.broadcast_to(rises, (extra,)), ~yes]),
    )
