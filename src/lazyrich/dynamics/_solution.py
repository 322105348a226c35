"""The closed form as one function of the start, Σ, λ and the times."""

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from .._arrays import matmul, transpose
from . import _riccati
from ._prepare import prepare
from ._response import response
from ._spectrum import Factors

_SIMPLE = 1e-4
"""Singular values closer than this (relative to the largest; the least to 0) have no
second derivatives in Σ: those are taken through the SVD's."""


def solution(
    q0: Float[Array, "n hidden"],
    sigma: Float[Array, "outputs inputs"],
    lam: Float[Array, ""],
    factors: Factors,
    times: Float[Array, " times"],
) -> tuple[Float[Array, "times hidden inputs"], Float[Array, "times outputs hidden"]]:
    """W1 and W2 at `times` from Q0 = [W1ᵀ; W2], with `factors` those of `sigma`.

    First derivatives hold for every spectrum of Σ. Second ones in Σ need singular
    values apart from each other and from 0, and are NaN otherwise.
    """
    return _solution(q0, sigma, lam, _where_simple(factors), times)


@jax.custom_jvp
def _solution(q0, sigma, lam, factors, times):
    return _riccati.evaluate(prepare(factors, q0, lam), times)


def _solution_jvp(primals, tangents):
    q0, _, lam, factors, times = primals
    # The factors' own tangents repeat Σ's, less well; at second order, where they
    # meet the expressions below, they are what there is.
    q0_dot, sigma_dot, lam_dot, _, times_dot = tangents
    still = isinstance(sigma_dot, SymbolicZero)

    def of(q0, lam, times, target):
        prepared = prepare(factors, q0, lam, target)
        return _riccati.evaluate(prepared, times)

    if still:
        target_dot = jnp.zeros_like(factors.s)
    else:
        moved = jnp.sum(factors.u * matmul(sigma_dot, factors.v), axis=0)
        target_dot = jnp.where(factors.s > 0, moved, 0.0)
    moving = (q0, lam, times)
    dots = [
        jnp.zeros_like(x) if isinstance(d, SymbolicZero) else d
        for x, d in zip(moving, (q0_dot, lam_dot, times_dot), strict=True)
    ]
    out, out_dot = jax.jvp(of, (*moving, factors.s), (*dots, target_dot))
    if not still:
        prepared = prepare(factors, q0, lam)
        more = response(prepared, sigma_dot, times)
        inputs = sigma_dot.shape[1]
        by_layer = (transpose(more[:, :inputs]), more[:, inputs:])
        out_dot = tuple(a + b for a, b in zip(out_dot, by_layer, strict=True))
    # The value itself and not `_solution` again: in a second derivative both parts must
    # be in one hidden basis, that of `factors`.
    return out, out_dot


_solution.defjvp(_solution_jvp, symbolic_zeros=True)


@jax.custom_jvp
def _where_simple(factors: Factors) -> Factors:
    """The factors, with NaN for derivatives where the spectrum is not simple."""
    return factors


@_where_simple.defjvp
def _where_simple_jvp(primals, tangents):
    (factors,), (dots,) = primals, tangents
    ends = jnp.concatenate([factors.s, jnp.zeros_like(factors.s[:1])])
    apart = jnp.all(ends[:-1] - ends[1:] > _SIMPLE * factors.s[0])
    # A product, whose transpose is NaN too.
    mark = jnp.where(apart, 1.0, jnp.nan)
    return _where_simple(factors), jax.tree.map(lambda x: mark * x, dots)
