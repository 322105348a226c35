"""The derivative of the closed form in Σ, whatever the spectrum.

The derivative of the SVD has poles where singular values meet, the closed form has
none. With F → F + dF and A = OᵀdF O, turn the eigenbasis by Z_ij = A_ij/(Λ_j − Λ_i)
for the pairs far apart (|Λ_i − Λ_j|t ≥ 1): the rest of A then enters e^{Ft} and
∫e^{2Fs}ds by divided differences, [f(Λ_i) − f(Λ_j)]/(Λ_i − Λ_j), for which no pair
is too close, and no exponential grows by more than e. The diagonal of A moves the
singular values and is left to `_riccati`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .._arrays import matmul
from .._arrays import transpose as _t
from ._prepare import Form, Prepared
from ._riccati import by_lanes, moment

_SATURATED = 60.0
"""In units of 1/Λ: by this time a pair of equal eigenvalues has done all it does."""


def response(
    prepared: Prepared,
    sigma_dot: Float[Array, "outputs inputs"],
    times: Float[Array, " times"],
) -> Float[Array, "times n hidden"]:
    """The derivative of Q at `times` along `sigma_dot`, at fixed singular values."""
    form, spec = prepared.form, prepared.spectrum
    inputs = sigma_dot.shape[1]
    top, bottom = spec.basis[:inputs], spec.basis[inputs:]
    cross = matmul(bottom.T, matmul(sigma_dot, top))
    a = cross + cross.T
    moved = jnp.concatenate([matmul(sigma_dot.T, bottom), matmul(sigma_dot, top)])
    beyond = moved - matmul(spec.basis, a)  # what the basis lacks

    sign = jnp.where(spec.growing, 1.0, -1.0)
    size, target = spec.size, spec.target
    total = size[:, None] + size[None]
    squares = (target[:, None] - target[None]) * (target[:, None] + target[None])
    apart = jnp.where(
        sign[:, None] == sign[None],
        sign[:, None] * squares / jnp.where(total == 0, 1.0, total),
        sign[:, None] * total,
    )
    # The diagonal is that of the singular values where they are not 0.
    own = jnp.diag(target > 0)
    cut = _is_cut(prepared)
    picks = jax.nn.one_hot(prepared.pivots, size.shape[0], dtype=a.dtype)
    arrays = (
        spec.basis,
        apart,
        sign * size,
        picks * form.filled[:, None],
        prepared.allowed.astype(a.dtype),
        cut.astype(a.dtype),
        own.astype(a.dtype),
        jnp.where(own, 0.0, a),
        beyond,
    )
    return by_lanes(_response, times, *jax.tree.leaves(form), *arrays, linear=2)[0]


def _is_cut(prepared: Prepared) -> Array:
    """Whether the hidden width leaves out a growing mode."""
    spec = prepared.spectrum
    pivots = jnp.zeros(spec.size.shape[0], bool).at[prepared.pivots].set(True)
    return jnp.any(spec.growing & (spec.target > 0) & ~pivots)


def _response(times, *arrays):
    count = len(dataclasses.fields(Form))
    form = Form(*arrays[:count])
    basis, apart, rate, picks, allowed, cut, own, a, beyond = (
        x[:, None] for x in arrays[count:]
    )
    now = moment(times, form)
    grown, y, x_t = (jnp.transpose(z, (2, 3, 0, 1)) for z in (now.grown, now.y, now.t))
    weights, shown = (
        jnp.transpose(z, (1, 2, 0))[..., None] for z in (now.weights, now.shown)
    )
    lower, h = form.lower[:, None], form.rotation[:, None]
    g = shown * y
    t = times[..., None, None]

    # Pairs near each other, and the time up to which they act.
    finite = jnp.isfinite(t)
    span = jnp.abs(apart) * jnp.where(finite, t, 0.0)
    near = jnp.where(finite, span < 1, apart == 0) & (own == 0)
    size = jnp.abs(rate)[..., None]
    grows = rate[..., None] > 0
    ends = (size > 0) & ~(grows & (cut[..., None, None] > 0))
    last = jnp.where(ends, _SATURATED / jnp.where(ends, size, 1.0), jnp.nan)
    t = jnp.where(finite, t, last)
    z = -jnp.where(near, 0.0, a) / jnp.where(near | (own > 0), 1.0, apart)
    b = jnp.where(near, a, 0.0)
    t = jnp.where(near, t, 1.0)

    # The turned eigenbasis, and the turn of the hidden basis that keeps it lower.
    turned = -matmul(z, lower)
    eye = jnp.eye(h.shape[-1], dtype=h.dtype)[None, None]
    filled = form.filled[:, None, :, None]
    low = jnp.tril(matmul(picks, lower)) + (1 - filled) * eye
    inner = matmul(picks, turned)
    low = jnp.broadcast_to(low, inner.shape)
    upper = jnp.triu(solve_triangular(low, inner, lower=True), 1)
    w = _t(upper) - upper
    dlower = allowed * (turned + matmul(lower, w))

    # e^{Ft} and ∫e^{2Fs}ds by divided differences.
    dx = matmul(grown * dlower, x_t)
    dm = matmul(_t(weights * y), dx)
    kernel = _divided(rate[..., :, None], rate[..., None, :], t)
    dm = dm + _t(dm) + matmul(_t(y), matmul(kernel * b, y))
    triangle = jnp.triu(dm) - 0.5 * dm * eye
    step = jnp.where(near, apart * t, 0.0)
    rows = shown * dx + matmul(t * _phi(step) * b, g) - matmul(g, triangle)
    rows = rows + matmul(z, g) - matmul(g, w)
    out = matmul(basis, matmul(rows, _t(h)))

    if basis.shape[-2] > basis.shape[-1]:
        # Directions that the basis lacks hold nothing at the start: no feedback.
        k = form.sizes.shape[1] - 1
        to, close = apart[..., k, :], near[..., k, :]
        until = jnp.where(
            jnp.isfinite(times)[..., None], times[..., None], last[..., 0]
        )
        until = jnp.where(close, until, 1.0)
        step = jnp.where(close, to * until, 0.0)
        free = shown[..., k : k + 1, :] * matmul(grown[..., k : k + 1, :] * lower, x_t)
        by_far = (free - g) / jnp.where(close, 1.0, to)[..., None]
        by_near = (until * _phi(step))[..., None] * g
        rows = jnp.where(close[..., None], by_near, by_far)
        out = out + matmul(beyond, matmul(rows, _t(h)))
    return [out]


def _phi(y: Array) -> Array:
    """(e^y − 1)/y."""
    small = jnp.abs(y) < 1e-3
    safe = jnp.where(small, 1.0, y)
    series = 1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5)))
    return jnp.where(small, series, jnp.expm1(safe) / safe)


def _divided(a: Array, b: Array, t: Array) -> Array:
    """e^{−(a⁺ + b⁺)t} [D(a) − D(b)]/(a − b), D(Λ) = ∫₀ᵗ e^{2Λs}ds, for |a − b|t ≤ 1.

    It is 2t² times the second divided difference of e^z at 0, 2at and 2bt.
    """
    za, zb = 2 * a * t, 2 * b * t
    scale = (jnp.maximum(a, 0.0) + jnp.maximum(b, 0.0)) * t
    near = jnp.abs(za) + jnp.abs(zb) < 4
    # Σ h_n/(n + 2)!, h_n the complete homogeneous polynomials in za and zb.
    u, v = jnp.where(near, za, 0.0), jnp.where(near, zb, 0.0)
    term, power, total = 0.5, jnp.ones_like(u), 0.0
    h = jnp.ones_like(u)
    for n in range(28):
        total = total + term * h
        power = power * v
        h = u * h + power
        term = term / (n + 3)
    # Else both have one sign, and the recurrence from 0 does not cancel.
    far_a, far_b = jnp.where(near, 1.0, za), jnp.where(near, 1.0, zb)
    gap = jnp.where(near, 0.0, za - zb)
    lead = jnp.exp(jnp.where(near, 0.0, zb - scale))
    one = jnp.exp(jnp.where(near, 0.0, -scale))
    far = (lead * _phi(gap) - (lead - one) / far_b) / far_a
    return (
        2 * t**2 * jnp.where(near, jnp.exp(-jnp.where(near, scale, 0.0)) * total, far)
    )
