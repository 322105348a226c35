"""The closed form's numerics: pure array functions, no network types.

With Q = [W1ᵀ; W2] (n × hidden, n = inputs + outputs) and λ-balanced weights,
dQ/dt = FQ − ½QQᵀQ, F = [[−λ/2 I, Σᵀ], [Σ, λ/2 I]], and S = QQᵀ is
e^{Ft}Q0 M⁻¹ Q0ᵀe^{Ft} with M = I + Q0ᵀ(∫₀ᵗ e^{2Fs}ds)Q0. As written that overflows.
Here every exponent is a difference that is ≤ 0, so that no time, and no λ, is too
large. `prepare` does what does not depend on time; `evaluate` gives Q(t), up to a
rotation of the hidden basis that is fixed by continuity and Q(0) = Q0.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from .._arrays import matmul
from ._blocks import Rows, in_blocks
from ._columns import SMALL, orthonormal_columns
from ._spectrum import Factors, Spectrum, spectrum

_RANK_ULPS = 50
"""A row oᵀQ0 whose part outside the rows above it is below this many ε‖|o|ᵀ|Q0|‖ is
taken to depend on them. A rotated exact zero is about 1 ε, and would otherwise let a
start at a saddle escape from it; a mode of its own, however small, is not one."""

_ELEMENTS = {4: 4_000, 8: 10_000}
"""Numbers (of 4 and of 8 bytes) in the largest array of a block: it stays in a
second-level cache. Larger reductions XLA would split among threads, which for so few
numbers, and most of all in float32, takes much longer."""


class Form(eqx.Module):
    """The closed form of one start, at all times: see `prepare`. All arrays floating.

    With m columns of the eigenbasis, of which k are upper ones of pairs:
    """

    lower: Float[Array, "*cell m hidden"]  # OᵀQ0H, lower-trapezoidal
    sizes: Float[Array, "*cell kinds"]  # |eigenvalues|: the pairs', the middle's
    falls: Float[Array, "*cell m"]  # 1 if a row's eigenvalue is not positive
    gaps: Float[Array, "*cell m hidden"]  # Λ⁺ of a column's pivot less a row's
    places: Float[Array, "*cell both kinds"]  # one-hot: rows', pivots' `sizes`
    grows: Float[Array, "*cell hidden"]  # 1 if the pivot's eigenvalue is positive
    filled: Float[Array, "*cell hidden"]  # 1 if the column has a pivot
    rotation: Float[Array, "*cell hidden hidden"]  # H
    basis: Float[Array, "*cell n m"]  # from the rows of `shown_rows` to those of Q
    unseen: Float[Array, "*cell hidden hidden"]  # 0; see `_outside_part`
    start: Float[Array, "*cell n hidden"]  # Q0


def _pivots(
    rows: Float[Array, "m hidden"], sizes: Float[Array, "m hidden"]
) -> tuple[Int[Array, " hidden"], Int[Array, " m"], Bool[Array, " m"], Array]:
    """Which rows are independent of the rows above them, from the top down.

    `sizes` are those of the terms that `rows` were summed from.
    Returns the pivot rows' indices (0 where there is none), for each row the number of
    pivots at or above it, whether it is a pivot, and an orthonormal basis: the pivot
    rows orthogonalized in order, then its completion.
    """
    n, hidden = rows.shape
    cut = _RANK_ULPS * jnp.finfo(rows.dtype).eps * jnp.sqrt(jnp.sum(sizes**2, axis=1))
    # Completing with unit vectors always succeeds: if no remaining one were longer
    # than ½/√hidden outside of the basis, the basis would be complete.
    candidates = jnp.concatenate([rows, jnp.eye(hidden, dtype=rows.dtype)])
    cuts = jnp.concatenate([cut, jnp.full(hidden, 0.5 / hidden**0.5, rows.dtype)])

    def step(carry, item):
        basis, count = carry
        row, cut = item
        rest = row
        for _ in range(2):  # the second pass restores orthogonality to rounding
            rest = rest - matmul(matmul(basis, rest), basis)
        norm = jnp.sqrt(jnp.sum(rest**2))
        new = (norm > cut) & (count < hidden)
        unit = rest / jnp.where(new, norm, 1.0)
        slot = jnp.where(new, count, hidden)  # an index out of range is dropped
        basis = basis.at[slot].set(unit, mode="drop")
        count = count + new.astype(int)
        return (basis, count), (new, count)

    start = (jnp.zeros((hidden, hidden), rows.dtype), jnp.zeros((), int))
    (basis, _), (new, level) = jax.lax.scan(step, start, (candidates, cuts))
    slots = jnp.where(new[:n], level[:n] - 1, hidden)
    pivots = jnp.zeros(hidden, int).at[slots].set(jnp.arange(n), mode="drop")
    return pivots, level[:n], new[:n], basis


@jax.custom_jvp
def _rotation(
    basis: Float[Array, "hidden hidden"],
    pivots: Float[Array, "hidden hidden"],
    filled: Float[Array, " hidden"],
) -> Float[Array, "hidden hidden"]:
    """H, the transposed `basis`, with the derivative that keeps `pivots` · H
    lower-triangular; rows of `pivots` count where `filled`.
    """
    return basis.T


@_rotation.defjvp
def _rotation_jvp(primals, tangents):
    basis, pivots, filled = primals
    h = _rotation(basis, pivots, filled)
    return h, matmul(h, keeping_lower(pivots, h, filled, tangents[1]))


def keeping_lower(pivots, h, filled, moved) -> Float[Array, "hidden hidden"]:
    """The antisymmetric W for which (pivots + ε · moved) H(I + εW) stays lower."""
    low = jnp.tril(matmul(pivots, h))
    low = jnp.where(filled[:, None] > 0, low, jnp.eye(h.shape[0], dtype=h.dtype))
    inner = jnp.where(filled[:, None] > 0, matmul(moved, h), 0.0)
    upper = jnp.triu(solve_triangular(low, inner, lower=True), 1)
    return upper.T - upper


class Prepared(eqx.Module):
    """The closed form of one start with what it was made from."""

    form: Form
    spectrum: Spectrum
    pivot_rows: Float[Array, "hidden hidden"]
    pivots: Int[Array, " hidden"]
    allowed: Bool[Array, "m hidden"]
    trapped: Int[Array, ""]


def prepare(
    factors: Factors,
    q0: Float[Array, "n hidden"],
    lam: Float[Array, ""],
    target: Float[Array, " k"] | None = None,
) -> Prepared:
    """Everything that does not depend on time.

    The start is written in the eigenbasis of F, and the hidden basis is rotated so
    that its rows are lower-trapezoidal along the pivots. A row that depends on faster
    rows can then not grow on their account: behind a saddle (λ = 0, sign det W2W1 ≠
    sign det Σ) its entries are zero by structure. Derivatives are taken with this
    structure fixed: along the saddle, not off it.

    `target`: singular values for the eigenvalues alone (default: those of `factors`).
    """
    target = factors.s if target is None else target
    spec = spectrum(factors, q0, lam, target)
    k, hidden = target.shape[0], q0.shape[1]
    middle = spec.target.shape[0] - 2 * k
    rows = matmul(spec.basis.T, q0)
    absolute = jax.lax.stop_gradient(matmul(jnp.abs(spec.basis).T, jnp.abs(q0)))
    pivots, level, is_pivot, basis = _pivots(jax.lax.stop_gradient(rows), absolute)
    slots = jnp.arange(hidden)
    filled = (slots < level[-1]).astype(q0.dtype)
    pivot_rows = jnp.where(filled[:, None] > 0, rows[pivots], 0.0)
    rotation = _rotation(basis, pivot_rows, filled)
    allowed = slots[None] < level[:, None]
    lower = jnp.where(allowed, matmul(rows, rotation), 0.0)

    # From row to row Λ⁺ = max(Λ, 0) drops by what is never a difference of rounded
    # square roots; from a column's pivot to a row, by the sum of the drops in between.
    mu, half = spec.size[:k], jnp.where(lam >= 0, lam, -lam) / 2
    zero = jnp.zeros_like(mu)
    total = mu[:-1] + mu[1:]
    between = (target[:-1] - target[1:]) * (target[:-1] + target[1:])
    drops = [zero[:1], between / jnp.where(total == 0, 1.0, total)]
    if middle:
        rises, total = spec.growing[k], mu[-1] + half
        above = target[-1] ** 2 / jnp.where(total == 0, 1.0, total)
        drops += [jnp.where(rises, above, mu[-1])[None]]
        drops += [jnp.zeros(middle - 1, mu.dtype), jnp.where(rises, half, 0.0)[None]]
    else:
        drops += [mu[-1:]]
    drops = jnp.concatenate([*drops, zero[1:]])
    below = jnp.arange(2 * k + middle)[:, None] > pivots[None]
    gaps = jnp.cumsum(jnp.where(below, drops[:, None], 0.0), axis=0)
    # The place in (μ_1 … μ_k, |λ|/2) of every row's eigenvalue.
    rows_place = jnp.concatenate(
        [jnp.arange(k), jnp.full(middle, k), jnp.arange(k)[::-1]]
    )
    places = jnp.concatenate([rows_place, rows_place[pivots]])
    wanted = spec.growing & (spec.target > 0)
    turn = jnp.where(allowed[k + middle - 1][None], rotation, 0.0)
    seen, unseen = _outside_part(spec.basis, q0, turn, factors, middle)
    form = Form(
        lower=lower,
        sizes=jnp.concatenate([mu, half[None]]),
        falls=(~spec.growing).astype(q0.dtype),
        gaps=gaps,
        places=jax.nn.one_hot(places, k + 1, dtype=q0.dtype),
        grows=spec.growing[pivots].astype(q0.dtype),
        filled=filled,
        rotation=rotation,
        basis=seen,
        unseen=unseen,
        start=q0,
    )
    return Prepared(
        form=jax.tree.map(jnp.asarray, form),
        spectrum=spec,
        pivot_rows=pivot_rows,
        pivots=pivots,
        allowed=allowed,
        trapped=jnp.sum(~is_pivot & wanted & (level < hidden)),
    )


def _outside_part(
    basis, q0, turn, factors, middle
) -> tuple[Float[Array, "n m"], Float[Array, "hidden hidden"]]:
    """The eigenbasis with the start's own part outside of Σ in place of the middle.

    If the middle lacks directions a change of the start along them then shows in the
    weights. Its square acts on M: that is returned too; it is 0, and so are its first
    derivatives, but not the second.
    """
    hidden = turn.shape[0]
    if basis.shape[0] == basis.shape[1]:
        return basis, jnp.zeros((hidden, hidden), q0.dtype)
    k, inputs = factors.s.shape[0], factors.v.shape[0]
    wide = inputs > factors.u.shape[0]
    side, part = (factors.v, q0[:inputs]) if wide else (factors.u, q0[inputs:])
    kept = basis[:, k : k + middle]
    kept = kept[:inputs] if wide else kept[inputs:]
    part = part - matmul(side, matmul(side.T, part))
    lacking = part - matmul(kept, matmul(kept.T, part))
    lacking = matmul(lacking - jax.lax.stop_gradient(lacking), turn)
    part = matmul(part, turn)
    blank = jnp.zeros((q0.shape[0] - part.shape[0], hidden), q0.dtype)
    part = jnp.concatenate([part, blank] if wide else [blank, part])
    seen = jnp.concatenate([basis[:, :k], part, basis[:, k + middle :]], axis=1)
    return seen, matmul(lacking.T, lacking)


@jax.custom_jvp
def _with_unseen(y, t, change):
    """(xT, T) where M has changed by `change`, which is 0."""
    return y, t


@_with_unseen.defjvp
def _with_unseen_jvp(primals, tangents):
    dy, dt, dm = tangents
    y, t = _with_unseen(*primals)
    inner = jnp.einsum("iact,ijct,jbct->abct", t, dm, t, precision=Precision.HIGHEST)
    eye = jnp.eye(t.shape[0], dtype=t.dtype)[:, :, None, None]
    ones = jnp.triu(jnp.ones_like(eye[:, :, 0, 0]))[:, :, None, None]
    triangle = inner * (ones - 0.5 * eye)

    def less(d, x):
        move = jnp.einsum("iact,abct->ibct", x, triangle, precision=Precision.HIGHEST)
        return d - move

    return (y, t), (less(dy, y), less(dt, t))


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
    t = jnp.where(finite, t, 0.0)
    z = 2 * rate * t
    near = z < 0.1
    far = jnp.where(near, 1.0, z)
    series = jnp.ones_like(z)
    for k in range(12, 1, -1):  # (1 − e^{−z})/z by its series: exact derivatives at 0
        series = 1 - jnp.where(near, z, 0.0) / k * series
    value = t * jnp.where(near, series, -jnp.expm1(-far) / far)
    # A rate of 0 never saturates; any large number gives the limit.
    huge = jnp.finfo(rate.dtype).max ** 0.5
    limit = jnp.where(rate == 0, huge, 1 / (2 * jnp.where(rate == 0, 1.0, rate)))
    return jnp.where(finite, value, limit)


class Moment(eqx.Module):
    """The closed form at some times, in the eigenbasis and the rotated hidden basis.

    Axes: rows or columns, then the lanes (cells, times). S = N M⁻¹ Nᵀ with
    N = diag(shown) x and M = diag(squares) + xᵀ diag(weights) x; T M Tᵀ = I.
    """

    grown: Float[Array, "m hidden cell times"]  # x over `lower`
    x: Float[Array, "m hidden cell times"]
    weights: Float[Array, "m cell times"]
    squares: Float[Array, "hidden cell times"]
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
    if m < form.start.shape[1]:
        k = form.sizes.shape[1] - 1
        sides = grown[k][:, None] * grown[k][None]
        y, t = _with_unseen(y, t, area[k][None, None] * sides * lanes(form.unseen))
    return Moment(grown, x, area[:m], squares, shown, y, t)


def to_weights(
    rows: Float[Array, "r hidden cell times"], basis: Array, rotation: Array
) -> Float[Array, "cell times n hidden"]:
    """From the eigenbasis and the rotated hidden basis back to Q's own."""
    if rows.shape[1] > SMALL:
        columns = jnp.moveaxis(apply(basis, rows), 1, 0)
    else:  # column by column no operand needs a transposition
        columns = jnp.stack([apply(basis, rows[:, j]) for j in range(rows.shape[1])])
    return jnp.transpose(apply(rotation, columns), (2, 3, 1, 0))


def shown_rows(now: Moment, form: Form) -> Float[Array, "m hidden cell times"]:
    """The rows of N T that `form.basis` takes to Q."""
    rows = now.shown[:, None] * now.y
    m, n, k = form.lower.shape[1], form.start.shape[1], form.sizes.shape[1] - 1
    if m == n:
        return rows
    middle = now.shown[k][None, None] * now.grown[k][:, None] * now.t
    return jnp.concatenate([rows[:k], middle, rows[m - k :]])


def _values(times, *leaves):
    form = Form(*leaves)
    now = moment(times, form)
    q = to_weights(shown_rows(now, form), form.basis, form.rotation)
    # The start itself at t = 0, with the formula's derivatives.
    start = jax.lax.stop_gradient(form.start)[:, None]
    exact = start + (q - jax.lax.stop_gradient(q))
    return [jnp.where((times == 0)[..., None, None], exact, q)]


def by_lanes(
    f: Rows, times: Float[Array, " times"], *arrays: Array, linear: int = 0
) -> list[Array]:
    """f(times, *arrays) of one cell, computed in blocks that fit in cache.

    f takes times (cells, times) and arrays with a leading axis of cells, and returns
    arrays (cells, times, ...); here times are (times,), the arrays lack that axis. The
    first array is `Form.lower`; in the last `linear` ones f is linear.
    """
    most = max(64, _ELEMENTS[times.dtype.itemsize] // arrays[0].size)
    count = math.ceil(times.shape[0] / most)
    length = math.ceil(times.shape[0] / count)
    pad = jnp.broadcast_to(times[-1:], (count * length - times.shape[0],))
    rows = jnp.concatenate([times, pad]).reshape(count, length)
    wide = [jnp.broadcast_to(a, (count, *a.shape)) for a in arrays]
    out = in_blocks(f, max(1, most // length), rows, *wide, linear=linear)
    return [x.reshape(count * length, *x.shape[2:])[: times.shape[0]] for x in out]


def evaluate(
    prepared: Prepared, times: Float[Array, " times"]
) -> Float[Array, "times n hidden"]:
    """Q at each of the times, 0 ≤ t ≤ ∞; exactly Q0 at t = 0.

    S = QQᵀ is the closed form itself. Q is it in a hidden basis that is continuous in
    t; gradient flow's own weights differ from it by a rotation of the hidden basis.
    """
    return by_lanes(_values, times, *jax.tree.leaves(prepared.form))[0]
