"""The closed form before any time: everything in it that does not depend on t.

In the eigenbasis of F, with a hidden basis in which the start is lower-trapezoidal.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from .._arrays import matmul
from ._spectrum import Factors, Spectrum, spectrum

_RANK_ULPS = 50
"""A row oᵀQ0 whose part outside the rows above it is below this many ε‖|o|ᵀ|Q0|‖ is
taken to depend on them. A rotated exact zero is about 1 ε, and would otherwise let a
start at a saddle escape from it; a mode of its own, however small, is not one."""


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
    start1: Float[Array, "*cell hidden inputs"]  # W1 at t = 0
    start2: Float[Array, "*cell outputs hidden"]  # W2 at t = 0


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
        start1=q0[: factors.v.shape[0]].T,
        start2=q0[factors.v.shape[0] :],
    )
    return Prepared(
        form=jax.tree.map(jnp.asarray, form),
        spectrum=spec,
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
