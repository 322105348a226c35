"""The closed form's numerics: pure array functions, no network types.

With Q = [W1ᵀ; W2] (n × hidden, n = inputs + outputs) and λ-balanced weights,
dQ/dt = FQ − ½QQᵀQ, F = [[−λ/2 I, Σᵀ], [Σ, λ/2 I]], and S = QQᵀ is
e^{Ft}Q0 M⁻¹ Q0ᵀe^{Ft} with M = I + Q0ᵀ(∫₀ᵗ e^{2Fs}ds)Q0. As written that overflows.
Here every exponent is a difference that is ≤ 0, so that no time, and no λ, is too
large. `prepare` does what does not depend on time; `evaluate` gives the layers, up to a
rotation of the hidden basis that is fixed by continuity and Q(0) = Q0.
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float

from ._blocks import Rows, in_blocks
from ._columns import SMALL, orthonormal_columns, with_change
from ._prepare import Form, Prepared

_ELEMENTS = {4: 4_000, 8: 15_000}
"""Numbers (of 4 and of 8 bytes) in the largest array of a block: it stays in a
second-level cache. Larger reductions XLA would split among threads, which for so few
numbers, and most of all in float32, takes much longer."""

_LARGE = 8_000_000
"""The same where LAPACK does the work, which wants many matrices at once."""


def decay(rate: Array, t: Array) -> Array:
    """e^{−rate·t} for rates ≥ 0; at t = ∞ it is 0, or 1 at rate 0.

    0 where its square is below the least normal number: S would hold nothing of it,
    and arithmetic with subnormal numbers is a hundred times slower.
    """
    finite = jnp.isfinite(t)
    z = rate * jnp.where(finite, t, 0.0)
    cut = -0.5 * math.log(float(jnp.finfo(rate.dtype).tiny))
    value = jnp.where(z < cut, jnp.exp(-z), 0.0)
    return jnp.where(finite, value, jnp.where(rate == 0, 1.0, 0.0))


def integral(rate: Array, t: Array) -> Array:
    """∫₀ᵗ e^{−2·rate·s} ds for rates ≥ 0, at t = ∞ too, smooth at rate 0."""
    finite = jnp.isfinite(t)
    value = _moments(0, rate, jnp.where(finite, t, 0.0))
    # A rate of 0 never saturates; any large number gives the limit.
    huge = jnp.finfo(rate.dtype).max ** 0.5
    limit = jnp.where(rate == 0, huge, 1 / (2 * jnp.where(rate == 0, 1.0, rate)))
    return jnp.where(finite, value, limit)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moments(n: int, rate: Array, t: Array) -> Array:
    """∫₀ᵗ sⁿ e^{−2·rate·s} ds for finite t."""
    z = 2 * rate * t
    # Below `edge` by its series; above, the recursion in n loses less than n digits.
    edge, terms = (0.1, 12) if n == 0 else (1.0, 20)
    near = z < edge
    small, large = jnp.where(near, z, 0.0), jnp.where(near, 1.0, z)
    series, far = jnp.zeros_like(z), -jnp.expm1(-large) / large
    for k in range(terms, 0, -1):
        series = (1 / (n + k)) - small / k * series
    for k in range(1, n + 1):
        far = (k * far - jnp.exp(-large)) / large
    return t ** (n + 1) * jnp.where(near, series, far)


@_moments.defjvp
def _moments_jvp(n, primals, tangents):
    rate, t = primals
    by_rate = -2 * _moments(n + 1, rate, t) * tangents[0]
    by_time = t**n * jnp.exp(-2 * rate * t) * tangents[1]
    return _moments(n, rate, t), by_rate + by_time


class Moment(eqx.Module):
    """The closed form at some times, in the eigenbasis and the rotated hidden basis.

    Axes: rows or columns, then the lanes (cells, times). S = N M⁻¹ Nᵀ with
    N = diag(shown) x, M = diag(squares) + xᵀ diag(weights) x and TᵀMT = I; x is
    `grown` times `Form.lower`.
    """

    grown: Float[Array, "m hidden cell times"]  # x over `lower`
    weights: Float[Array, "m cell times"]
    shown: Float[Array, "m cell times"]
    y: Float[Array, "m hidden cell times"]  # xT
    t: Float[Array, "hidden hidden cell times"]


def lanes(x: Float[Array, "cell ..."]) -> Float[Array, "... cell 1"]:
    """A quantity of each cell, to meet arrays over cells and times."""
    return jnp.moveaxis(x, 0, -1)[..., None]


def apply(
    matrix: Float[Array, "cell n r"], rows: Float[Array, "r ... cell times"]
) -> Float[Array, "n ... cell times"]:
    """Every cell's matrix times its rows."""
    # Not by einsum, whose order of the operands costs a transposition of `rows`.
    axes = (((2,), (0,)), ((0,), (rows.ndim - 2,)))
    out = jax.lax.dot_general(matrix, rows, axes, precision=Precision.HIGHEST)
    return jnp.moveaxis(out, 0, -2)


def moment(times: Float[Array, "cell times"], form: Form) -> Moment:
    """The closed form at `times`, for a block of cells."""
    m = form.lower.shape[1]
    # For every row and every column's pivot. As products with one-hot matrices, since
    # XLA would otherwise compute the exponentials anew wherever they are used.
    sizes, at = lanes(form.sizes), times[None]
    fade = apply(form.places, decay(sizes, at))
    area = apply(form.places, integral(sizes, at))
    shown = jnp.where(lanes(form.falls) > 0, fade[:m], 1.0)
    # Column j is scaled by (1 + D_j)^−½, D_j = ∫ e^{2Λ_j s} = e^{c}·integral, where
    # c = 2 max(Λ_j, 0)t; e^{−c/2} is kept apart and joins the exponent of row i.
    filled = lanes(form.filled) > 0
    shrink = jnp.where(lanes(form.grows) > 0, fade[m:] ** 2, 1.0)
    unit = jnp.where(filled, shrink + area[m:], 1.0)
    squares = jnp.where(filled, shrink / unit, 1.0)
    # e^{(Λ⁺_i − Λ⁺_j)t}, j the column's pivot.
    grown = decay(lanes(form.gaps), at[None]) / jnp.sqrt(unit)[None]
    x = grown * lanes(form.lower)
    y, t = orthonormal_columns(x, area[:m], squares)
    if m < form.basis.shape[1]:
        k = form.sizes.shape[1] - 1
        sides = grown[k][:, None] * grown[k][None]
        y, t = with_change(y, t, area[k][None, None] * sides * lanes(form.unseen))
    return Moment(grown, area[:m], shown, y, t)


def to_layers(
    rows: Float[Array, "r hidden cell times"], basis: Array, rotation: Array, split: int
) -> tuple[
    Float[Array, "cell times hidden inputs"], Float[Array, "cell times outputs hidden"]
]:
    """From the eigenbasis and the rotated hidden basis to W1 and W2."""
    # The hidden basis first, on the fewer rows; then one product whose result has the
    # layers' own order: transpositions would cost more than it.
    turned = apply(rotation, jnp.swapaxes(rows, 0, 1))
    axes = (((1,), (2,)), ((2,), (0,)))
    q = jax.lax.dot_general(turned, basis, axes, precision=Precision.HIGHEST)
    q = jnp.swapaxes(q, 1, 2)
    return q[..., :split], jnp.swapaxes(q[..., split:], -1, -2)


def shown_rows(now: Moment, form: Form) -> Float[Array, "m hidden cell times"]:
    """The rows of N T that `form.basis` takes to Q."""
    rows = now.shown[:, None] * now.y
    m, n, k = form.lower.shape[1], form.basis.shape[1], form.sizes.shape[1] - 1
    if m == n:
        return rows
    middle = now.shown[k][None, None] * now.grown[k][:, None] * now.t
    return jnp.concatenate([rows[:k], middle, rows[m - k :]])


def _values(times, *leaves):
    form = Form(*leaves)
    if form.rotation.shape[1] <= SMALL:
        return _layers(times, form)

    def one(t, form):  # lanes first, as LAPACK wants them
        out = _layers(t[None, None], jax.tree.map(lambda x: x[None], form))
        return [x[0, 0] for x in out]

    return jax.vmap(jax.vmap(one, (0, None)))(times, form)


def _layers(times, form: Form) -> list[Array]:
    now = moment(times, form)
    split = form.start1.shape[2]
    found = to_layers(shown_rows(now, form), form.basis, form.rotation, split)
    out = []
    for start, w in zip((form.start1, form.start2), found, strict=True):
        # The start itself at t = 0, with the formula's derivatives.
        exact = jax.lax.stop_gradient(start)[:, None] + (w - jax.lax.stop_gradient(w))
        out.append(jnp.where((times == 0)[..., None, None], exact, w))
    return out


def by_lanes(
    f: Rows, times: Float[Array, " times"], *arrays: Array, linear: int = 0
) -> list[Array]:
    """f(times, *arrays) of one cell, computed in blocks that fit in cache.

    f takes times (cells, times) and arrays with a leading axis of cells, and returns
    arrays (cells, times, ...); here times are (times,), the arrays lack that axis. The
    first array is `Form.lower`; in the last `linear` ones f is linear.
    """
    form = arrays[0]
    small = form.shape[1] <= SMALL
    most = max(64, (_ELEMENTS[times.dtype.itemsize] if small else _LARGE) // form.size)
    count = math.ceil(times.shape[0] / most)
    length = math.ceil(times.shape[0] / count)
    pad = jnp.broadcast_to(times[-1:], (count * length - times.shape[0],))
    rows = jnp.concatenate([times, pad]).reshape(count, length)
    wide = [jnp.broadcast_to(a, (count, *a.shape)) for a in arrays]
    out = in_blocks(f, max(1, most // length), rows, *wide, linear=linear)
    return [x.reshape(count * length, *x.shape[2:])[: times.shape[0]] for x in out]


def evaluate(
    prepared: Prepared, times: Float[Array, " times"]
) -> tuple[Float[Array, "times hidden inputs"], Float[Array, "times outputs hidden"]]:
    """W1 and W2 at each of the times, 0 ≤ t ≤ ∞; exactly the start at t = 0.

    S = QQᵀ is the closed form itself. Q is it in a hidden basis that is continuous in
    t; gradient flow's own weights differ from it by a rotation of the hidden basis.
    """
    w1, w2 = by_lanes(_values, times, *jax.tree.leaves(prepared.form))
    return w1, w2
