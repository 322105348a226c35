"""The closed form's numerics: pure array functions, no network types.

With Q = [W1ᵀ; W2] (n × hidden, n = inputs + outputs) and λ-balanced weights,
dQ/dt = FQ − ½QQᵀQ, F = [[−λ/2 I, Σᵀ], [Σ, λ/2 I]], and S = QQᵀ is
e^{Ft}Q0 M⁻¹ Q0ᵀe^{Ft} with M = I + Q0ᵀ(∫₀ᵗ e^{2Fs}ds)Q0. As written that overflows.
Here every exponent is a difference that is ≤ 0, so that no time, and no λ, is too
large. `prepare` does what does not depend on time; `evaluate` gives Q(t), up to a
rotation of the hidden basis that is fixed by continuity and Q(0) = Q0.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from .._arrays import matmul

_RANK_ULPS = 50
"""A row of OᵀQ0 whose part outside the rows above it is below this many ε‖Q0‖ is
taken to depend on them. A rotated exact zero is about 1 ε, and would otherwise let a
start at a saddle escape from it."""


class Spectrum(eqx.Module):
    """Eigenvectors of F (columns of `basis`) with eigenvalues in descending order.

    The eigenvalue of column i is ±`size`, + where `growing`. `target` is the singular
    value of Σ it comes from (0 for the |Ni − No| directions outside of Σ).
    """

    basis: Float[Array, "n n"]
    target: Float[Array, " n"]
    size: Float[Array, " n"]
    growing: Bool[Array, " n"]


class Prepared(eqx.Module):
    """The closed form at all times, for one start: see `prepare`."""

    spectrum: Spectrum
    q0: Float[Array, "n hidden"]
    rotation: Float[Array, "hidden hidden"]
    lower: Float[Array, "n hidden"]
    gaps: Float[Array, "n hidden"]
    pivots: Int[Array, " hidden"]
    filled: Bool[Array, " hidden"]
    trapped: Int[Array, ""]


def _singular_vectors(
    sigma: Float[Array, "outputs inputs"],
) -> tuple[Array, Array, Array, Array]:
    """U, s, V of the thin SVD and the directions outside, on the longer side.

    Only the projector on the directions outside matters. They are made to follow U
    and V to any order of differentiation, which the full SVD does not offer.
    """
    outputs, inputs = sigma.shape
    u, s, vt = jnp.linalg.svd(sigma, full_matrices=False)
    v = vt.T
    # A rounded zero (1e-17) would turn the eigenbasis of F by 45° for nothing.
    cut = max(sigma.shape) * jnp.finfo(s.dtype).eps * s[0]
    # Its derivative in Σ is not a singular value's: √ at 0 makes it NaN, not wrong.
    s = jnp.where(s > cut, s, jnp.sqrt(jnp.where(s > cut, 1.0, 0.0 * s)))
    if inputs == outputs:
        return u, s, v, jnp.zeros((inputs, 0), s.dtype)
    side = v if inputs > outputs else u
    frozen = jax.lax.stop_gradient(side)
    outside = jnp.linalg.qr(frozen, mode="complete")[0][:, s.shape[0] :]
    outside = outside - matmul(side, matmul(side.T, outside))
    gram = matmul(outside.T, outside)
    return u, s, v, solve_triangular(jnp.linalg.cholesky(gram), outside.T, lower=True).T


def spectrum(sigma: Float[Array, "outputs inputs"], lam: Float[Array, ""]) -> Spectrum:
    """Eigenvalues and eigenvectors of F from the SVD of Σ.

    Pairs ±μ with μ = √(s² + λ²/4), then the directions outside of Σ with −λ/2 (surplus
    inputs) or +λ/2 (surplus outputs), which lie between. Derivatives in λ need none of
    the SVD; those in Σ need distinct singular values, none 0, and are NaN otherwise.
    """
    u, s, v, outside = _singular_vectors(sigma)
    half = jnp.where(lam >= 0, lam, -lam) / 2
    zero = s == 0
    mu = jnp.where(zero, half, jnp.sqrt(jnp.where(zero, 1.0, s) ** 2 + half**2))
    # At s = 0 the eigenvectors do not depend on λ; as a quotient their derivative
    # would be rounding noise divided by λ.
    safe = jnp.where(mu == 0, 1.0, mu)
    large = jnp.where(zero, 1.0, jnp.sqrt((safe + half) / (2 * safe)))
    small = s / (2 * safe * large)
    cos, sin = jnp.where(lam >= 0, small, large), jnp.where(lam >= 0, large, small)

    inputs, outputs, extra = v.shape[0], u.shape[0], outside.shape[1]
    if inputs > outputs:
        middle = jnp.concatenate([outside, jnp.zeros((outputs, extra), s.dtype)])
        rises = lam < 0
    else:
        middle = jnp.concatenate([jnp.zeros((inputs, extra), s.dtype), outside])
        rises = lam >= 0
    plus = jnp.concatenate([v * cos[None], u * sin[None]])
    minus = jnp.concatenate([-v * sin[None], u * cos[None]])
    yes = jnp.ones(s.shape, bool)
    return Spectrum(
        basis=jnp.concatenate([plus, middle, minus[:, ::-1]], axis=1),
        target=jnp.concatenate([s, jnp.zeros(extra, s.dtype), s[::-1]]),
        size=jnp.concatenate([mu, jnp.broadcast_to(half, (extra,)), mu[::-1]]),
        growing=jnp.concatenate([yes, jnp.broadcast_to(rises, (extra,)), ~yes]),
    )


def _pivots(
    rows: Float[Array, "n hidden"],
) -> tuple[Int[Array, " hidden"], Int[Array, " n"], Bool[Array, " n"], Array]:
    """Which rows are independent of the rows above them, from the top down.

    Returns the pivot rows' indices (0 where there is none), for each row the number of
    pivots at or above it, whether it is a pivot, and an orthonormal basis: the pivot
    rows orthogonalized in order, then its completion.
    """
    n, hidden = rows.shape
    cut = _RANK_ULPS * jnp.finfo(rows.dtype).eps * jnp.sqrt(jnp.sum(rows**2))
    # Completing with unit vectors always succeeds: if no remaining one were longer
    # than ½/√hidden outside of the basis, the basis would be complete.
    candidates = jnp.concatenate([rows, jnp.eye(hidden, dtype=rows.dtype)])
    cuts = jnp.concatenate(
        [jnp.broadcast_to(cut, (n,)), jnp.full(hidden, 0.5 / hidden**0.5, rows.dtype)]
    )

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


def prepare(
    q0: Float[Array, "n hidden"],
    sigma: Float[Array, "outputs inputs"],
    lam: Float[Array, ""],
) -> Prepared:
    """Everything that does not depend on time.

    The start is written in the eigenbasis of F, and the hidden basis is rotated so
    that its rows are lower-trapezoidal along the pivots. A row that depends on faster
    rows can then not grow on their account: behind a saddle (λ = 0, sign det W2W1 ≠
    sign det Σ) its entries are zero by structure. Derivatives are taken with this
    structure fixed: along the saddle, not off it.
    """
    spec = spectrum(sigma, lam)
    rows = matmul(spec.basis.T, q0)
    pivots, level, is_pivot, basis = _pivots(jax.lax.stop_gradient(rows))
    hidden = q0.shape[1]
    count = level[-1]
    slots = jnp.arange(hidden)
    filled = slots < count
    square = jnp.where(filled[:, None], rows[pivots], basis)
    rotation = jnp.linalg.qr(square.T)[0]
    allowed = slots[None] < level[:, None]
    lower = jnp.where(allowed, matmul(rows, rotation), 0.0)

    # max(Λ_i, 0) − max(Λ_j, 0), never as a difference of rounded square roots.
    size, up = spec.size, spec.growing
    size_j, up_j = size[pivots], up[pivots]
    total = size[:, None] + size_j[None]
    squares = (spec.target[:, None] - spec.target[pivots][None]) * (
        spec.target[:, None] + spec.target[pivots][None]
    )
    both = squares / jnp.where(total == 0, 1.0, total)
    gaps = jnp.where(
        up[:, None],
        jnp.where(up_j[None], both, jnp.broadcast_to(size[:, None], total.shape)),
        jnp.where(up_j[None], jnp.broadcast_to(-size_j[None], total.shape), 0.0),
    )
    gaps = jnp.where(allowed & filled[None], gaps, 0.0)
    trapped = jnp.sum(~is_pivot & up & (spec.target > 0) & (level < hidden))
    return Prepared(spec, q0, rotation, lower, gaps, pivots, filled, trapped)


def _decay(rate: Array, t: Float[Array, ""]) -> Array:
    """e^{−rate·t} for rates ≥ 0; at t = ∞ it is 0, or 1 at rate 0."""
    finite = jnp.isfinite(t)
    value = jnp.exp(-rate * jnp.where(finite, t, 0.0))
    return jnp.where(finite, value, jnp.where(rate == 0, 1.0, 0.0))


def _integral(rate: Array, t: Float[Array, ""]) -> Array:
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


@jax.custom_jvp
def _factor(
    squares: Float[Array, " hidden"],
    weights: Float[Array, " n"],
    x: Float[Array, "n hidden"],
) -> Float[Array, "hidden hidden"]:
    """Upper-triangular R, diagonal > 0, with RᵀR = diag(squares) + xᵀ diag(weights) x.

    By QR of the square roots, which keeps the digits that the sum would lose.
    """
    stack = jnp.concatenate(
        [jnp.diag(jnp.sqrt(squares)), jnp.sqrt(weights)[:, None] * x]
    )
    r = jnp.linalg.qr(stack, mode="r")
    sign = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)
    return sign[:, None] * r


@_factor.defjvp
def _factor_jvp(primals, tangents):
    # The derivative of the Cholesky factor of the sum: unlike that of the QR it is
    # polynomial in the arguments, hence finite at weights = 0 (t = 0).
    squares, weights, x = primals
    dsquares, dweights, dx = tangents
    r = _factor(squares, weights, x)
    half = matmul((weights[:, None] * x).T, dx)
    dsum = jnp.diag(dsquares) + half + half.T + matmul((dweights[:, None] * x).T, x)
    inner = solve_triangular(r, dsum, trans="T")
    inner = solve_triangular(r, inner.T, trans="T")
    upper = jnp.triu(inner) - 0.5 * jnp.diag(jnp.diagonal(inner))
    return r, matmul(upper, r)


def evaluate(prepared: Prepared, t: Float[Array, ""]) -> Float[Array, "n hidden"]:
    """Q(t) for 0 ≤ t ≤ ∞; exactly Q0 at t = 0.

    S = QQᵀ is the closed form itself. Q is it in a hidden basis that is continuous in
    t; gradient flow's own weights differ from it by a rotation of the hidden basis.
    """
    spec, pivots = prepared.spectrum, prepared.pivots
    decay, integral = _decay(spec.size, t), _integral(spec.size, t)
    # Column j is scaled by (1 + D_j)^−½, D_j = ∫ e^{2Λ_j s} = e^{c}·integral, where
    # c = 2 max(Λ_j, 0)t; e^{−c/2} is kept apart and joins the exponent of row i.
    shrink = jnp.where(spec.growing, decay, 1.0)[pivots] ** 2
    unit = jnp.where(prepared.filled, shrink + integral[pivots], 1.0)
    x = _decay(-prepared.gaps, t) / jnp.sqrt(unit)[None] * prepared.lower
    squares = jnp.where(prepared.filled, shrink / unit, 1.0)
    r = _factor(squares, integral, x)
    numerator = jnp.where(spec.growing, 1.0, decay)[:, None] * x
    solved = solve_triangular(r, numerator.T, trans="T").T
    q = matmul(spec.basis, matmul(solved, prepared.rotation.T))
    # The start itself at t = 0, with the formula's derivatives.
    exact = jax.lax.stop_gradient(prepared.q0) + (q - jax.lax.stop_gradient(q))
    return jnp.where(t == 0, exact, q)
