"""Orthonormal columns, for many small matrices at once and for large ones."""

import jax
import jax.numpy as jnp
from jax.lax import Precision
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .._lanes import lane_product, turned

SMALL = 10
"""Up to this many columns Gram–Schmidt over the batch beats LAPACK."""


@jax.custom_jvp
def orthonormal_columns(
    x: Float[Array, "rows cols *lanes"],
    weights: Float[Array, "rows *lanes"],
    squares: Float[Array, "cols *lanes"],
) -> tuple[Float[Array, "rows cols *lanes"], Float[Array, "cols cols *lanes"]]:
    """(xT, T) with T upper-triangular, diagonal > 0, and TᵀMT = I for
    M = diag(squares) + xᵀ diag(weights) x, for every lane.

    M itself is not formed: its sum would lose half of the digits. Smooth in all
    arguments, also where weights or squares are 0.
    """
    if x.shape[1] <= SMALL:
        return _gram_schmidt(x, weights, squares)
    return _by_qr(x, weights, squares)


@orthonormal_columns.defjvp
def _orthonormal_columns_jvp(primals, tangents):
    x, weights, squares = primals
    dx, dweights, dsquares = tangents
    y, t = orthonormal_columns(x, weights, squares)
    # Half of TᵀdM T, by y = xT, so that every term is polynomial in what is known.
    dy = lane_product(dx, t)
    moved = weights[:, None] * dy + 0.5 * dweights[:, None] * y
    half = lane_product(turned(y), moved)
    half += lane_product(turned(t), 0.5 * dsquares[:, None] * t)
    change = half + turned(half)
    followed, dt = _follow(y, t, change)
    return (y, t), (dy + followed, dt)


@jax.custom_jvp
def with_change(
    y: Float[Array, "rows cols *lanes"],
    t: Float[Array, "cols cols *lanes"],
    change: Float[Array, "cols cols *lanes"],
) -> tuple[Float[Array, "rows cols *lanes"], Float[Array, "cols cols *lanes"]]:
    """(xT, T) where M has changed by `change`, which is 0 and only moves."""
    del change
    return y, t


@with_change.defjvp
def _with_change_jvp(primals, tangents):
    dy, dt, change = tangents
    y, t = with_change(*primals)
    followed = _follow(y, t, lane_product(turned(t), lane_product(change, t)))
    return (y, t), (dy + followed[0], dt + followed[1])


def _follow(y, t, change):
    """How xT and T move with M alone, from TᵀdM T."""
    cols = t.shape[0]
    upper = jnp.triu(jnp.ones((cols, cols), t.dtype)) - 0.5 * jnp.eye(cols)
    triangle = upper.astype(t.dtype).reshape(cols, cols, *(1,) * (t.ndim - 2)) * change
    return -lane_product(y, triangle), -lane_product(t, triangle)


def _gram_schmidt(x, weights, squares):
    # Column operations that make [diag(squares)^½; weights^½ x] orthonormal turn
    # [x; I] into [xT; T]. Lanes are the last axes, so that every operation is a vector
    # operation; the loop is written out because the matrix shrinks in it. Of the
    # columns of I only the rows that differ from I's own are kept.
    cols = x.shape[1]
    zero = jnp.zeros_like(squares[:1])
    t = jnp.zeros((0, *x.shape[1:]), x.dtype)
    xs, ts = [], []
    x = _stored(x, squares)
    for j in range(cols):
        x0, t0 = x[:, 0], t[:, 0]
        inner = _sum_rows((weights * x0)[:, None] * x)
        if j:
            inner = inner + jnp.sum((squares[:j] * t0)[:, None] * t, axis=0)
        square = inner[:1] + squares[j : j + 1]
        scale = 1 / jnp.sqrt(square)
        xs.append(x0 * scale)
        ts.append(jnp.concatenate([t0 * scale, scale] + [zero] * (cols - 1 - j)))
        ratios = inner[1:] / square
        x = _stored(x[:, 1:] - x0[:, None] * ratios[None], squares)
        t = jnp.concatenate([t[:, 1:] - t0[:, None] * ratios[None], -ratios[None]])
    return jnp.stack(xs, axis=1), jnp.stack(ts, axis=1)


def _sum_rows(x: Array) -> Array:
    # As a product: sums of this size XLA for CPU gives to a library that is slower.
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return jax.lax.dot_general(
        ones, x, (((1,), (0,)), ((), ())), precision=Precision.HIGHEST
    )[0]


def _stored(x: Array, squares: Array) -> Array:
    """x, which XLA then computes once and not anew in every use.

    A loop that is never entered, but only running it can tell. (XLA for CPU drops
    optimization barriers before it decides what to compute where.)
    """
    never = jnp.min(squares) < -1

    def condition(carry):
        return carry[0]

    def body(carry):
        return ~carry[0], carry[1] + carry[1]

    return jax.lax.while_loop(condition, body, (never, x))[1]


def _by_qr(x, weights, squares):
    front = tuple(range(2, x.ndim))
    r = _factor(
        jnp.moveaxis(squares, 0, -1),
        jnp.moveaxis(weights, 0, -1),
        jnp.transpose(x, (*front, 0, 1)),
    )
    eye = jnp.broadcast_to(jnp.eye(x.shape[1], dtype=x.dtype), r.shape)
    t = solve_triangular(r, eye)
    y = solve_triangular(r, jnp.transpose(x, (*front, 1, 0)), trans="T")
    back = tuple(range(x.ndim - 2))
    last = x.ndim - 2
    return jnp.transpose(y, (last + 1, last, *back)), jnp.transpose(
        t, (last, last + 1, *back)
    )


def _factor(
    squares: Float[Array, "*lanes cols"],
    weights: Float[Array, "*lanes rows"],
    x: Float[Array, "*lanes rows cols"],
) -> Float[Array, "*lanes cols cols"]:
    """Upper R, diagonal > 0, with RᵀR = diag(squares) + xᵀ diag(weights) x."""
    diagonal = jnp.sqrt(squares)[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)
    stack = jnp.concatenate([diagonal, jnp.sqrt(weights)[..., None] * x], axis=-2)
    r = jnp.linalg.qr(stack, mode="r")
    sign = jnp.where(jnp.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return sign[..., None] * r
