"""The exact closed form for λ-balanced linear networks."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import measures
from ..networks import TwoLayerLinear
from ..trajectory import Status
from . import _riccati
from ._gradient import gradient
from ._method import AbstractMethod, Answer, Question, select
from ._prepare import prepare
from ._solution import solution
from ._spectrum import factorize


class Exact(AbstractMethod):
    """Gradient flow of a λ-balanced linear network on whitened inputs, in closed form.

    `Exact(balance_tol=None)`. Source: From Lazy to Rich, Theorem 4.3, in a form that
    holds for every λ (0 too), every admissible shape and every time up to ∞, and does
    not overflow.

    Needs a task with `sigma_xx` None (whitened) and a start with W2ᵀW2 − W1W1ᵀ = λI: it
    accepts max|B − λI| ≤ `balance_tol`, by default √ε(‖W1‖² + ‖W2‖²), with λ = tr
    B/hidden; beyond that the status is `not_balanced`.

    The closed form determines S = QQᵀ, Q = [W1ᵀ; W2], hence W2W1, both layers'
    similarities, the loss and the NTK. The weights themselves are returned in a hidden
    basis that equals the start's at t = 0 and moves continuously; gradient flow's own
    differ from them by a rotation of the hidden basis.

    Derivatives are those of the formula with λ = tr B/hidden. They equal the flow's
    along balanced directions (λ, singular values, rotations, times), not entry by entry
    of the weights. Those in the task hold for repeated and zero singular values too;
    second ones in the task need singular values apart from each other and from 0 (by
    1e-4 of the largest), and are NaN otherwise. Behind a saddle at λ = 0 they are
    derivatives along the saddle.
    """

    balance_tol: float | None = eqx.field(static=True, default=None)
    allows_infinity: ClassVar[bool] = True

    def __check_init__(self):
        if self.balance_tol is not None and not self.balance_tol >= 0:
            raise ValueError(
                f"`balance_tol` must be ≥ 0, but it is {self.balance_tol}."
            )

    def check(self, question: Question) -> None:
        if question.task.sigma_xx is not None:
            raise ValueError(
                "Exact needs whitened inputs (a task whose `sigma_xx` is None): build "
                "the task with LinearTask.from_data(x, y, whiten=True), or use "
                "lr.GradientFlow()."
            )

    def facts(self, question: Question) -> dict[str, Any]:
        return {"method": "Exact", "solver": "closed form"}

    def solve(self, question: Question) -> Answer:
        net, task, times = question.net, question.task, question.times
        defect = measures.balance_defect(net)
        if self.balance_tol is None:
            eps = jnp.finfo(defect.dtype).eps
            allowed = eps**0.5 * measures.weight_norms(net).total
        else:
            allowed = jnp.asarray(self.balance_tol, defect.dtype)
        balanced = defect <= allowed
        q0 = jnp.concatenate([net.w1.T, net.w2])
        sigma, lam = task.sigma_yx, measures.lam(net)
        factors = factorize(sigma)
        prepared = jax.lax.stop_gradient(prepare(factors, q0, lam))

        def at(t: Float[Array, ""]) -> TwoLayerLinear:
            w1, w2 = solution(q0, sigma, lam, factors, t[None])
            return TwoLayerLinear(w1[0], w2[0])

        def value_at(t: Float[Array, ""]) -> TwoLayerLinear:
            w1, w2 = _riccati.evaluate(prepared, t[None])
            return TwoLayerLinear(w1[0], w2[0])

        networks = TwoLayerLinear(*solution(q0, sigma, lam, factors, times))
        final = jax.tree.map(lambda leaf: leaf[-1], networks)
        if question.until is None:
            stop, status = jnp.asarray(jnp.nan, times.dtype), Status.ok
        else:
            stop = _stop_time(question, value_at, at, final)
            met = ~jnp.isnan(stop)
            status = jnp.where(met, Status.stopped, Status.not_reached)
            final = select(met, at(jnp.where(met, stop, 0.0)), final)
        return Answer(
            records=jax.vmap(question.record)(networks),
            final=final,
            stop_time=stop,
            status=jnp.where(balanced, status, Status.not_balanced),
            counts={
                "balance_defect": defect,
                "balance_tol": allowed,
                "saddle_modes": prepared.trapped,
            },
        )


def _stop_time(
    question: Question,
    value_at: Callable[[Array], TwoLayerLinear],
    at: Callable[[Array], TwoLayerLinear],
    final: TwoLayerLinear,
) -> Float[Array, ""]:
    """The time at which the loss meets the level; NaN if not by the horizon.

    The loss falls monotonically, so a bracket and bisection find it. Two Newton steps
    from there carry the derivatives, first and second order. `value_at` and `at` give
    the network at a time, the former without derivatives.
    """
    task, until, horizon = question.task, question.until, question.times[-1]
    assert until is not None
    at_start = until.gap(question.net, task) <= 0
    reached = until.gap(final, task) <= 0
    looking = reached & ~at_start
    eps = jnp.finfo(horizon.dtype).eps

    def narrow(state):
        # Doubling until it is bracketed: the horizon may be ∞, or far beyond the stop.
        low, high, bracketed = state
        middle = jnp.where(bracketed, 0.5 * (low + high), jnp.minimum(high, horizon))
        above = until.gap(value_at(middle), task) > 0
        low = jnp.where(above, middle, low)
        high = jnp.where(above, jnp.where(bracketed, high, 2 * high), middle)
        return low, high, bracketed | ~above

    def wide(state):
        low, high, bracketed = state
        return looking & (~bracketed | (high - low > 4 * eps * high))

    first = jnp.asarray(2.0**-20, horizon.dtype)
    start = (jnp.zeros_like(first), first, jnp.zeros((), bool))
    _, stop, _ = jax.lax.while_loop(wide, narrow, jax.lax.stop_gradient(start))

    def newton(stop, _):
        net = at(stop)
        fall = gradient(net, task.excess)
        slope = -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(fall))
        usable = looking & (slope < 0)
        step = until.gap(net, task) / jnp.where(usable, slope, 1.0)
        return stop - jnp.where(usable, step, 0.0), None

    stop = jax.lax.stop_gradient(jnp.where(looking, stop, 0.0))
    stop, _ = jax.lax.scan(newton, stop, length=2)
    return jnp.where(at_start, 0.0, jnp.where(reached, stop, jnp.nan))
