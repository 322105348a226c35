"""The exact closed form for λ-balanced linear networks."""

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
    of the weights. Those in the task need distinct singular values. Behind a saddle at
    λ = 0 they are derivatives along the saddle.
    """

    balance_tol: float | None = eqx.field(static=True, default=None)
    allows_infinity: ClassVar[bool] = True

    def check(self, question: Question) -> None:
        if question.task.sigma_xx is not None:
            raise ValueError(
                "Exact needs whitened inputs (a task whose `sigma_xx` is None): build "
                "the task with LinearTask.from_data(x, y, whiten=True), or use "
                "lr.GradientFlow()."
            )
        if self.balance_tol is not None and not self.balance_tol >= 0:
            raise ValueError(
                f"`balance_tol` must be ≥ 0, but it is {self.balance_tol}."
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
        prepared = _riccati.prepare(q0, task.sigma_yx, measures.lam(net))

        def at(t: Float[Array, ""]) -> TwoLayerLinear:
            q = _riccati.evaluate(prepared, t)
            return TwoLayerLinear(q[: net.inputs].T, q[net.inputs :])

        records = jax.vmap(lambda t: question.record(at(t)))(times)
        horizon = times[-1]
        if question.until is None:
            stop, status = jnp.asarray(jnp.nan, horizon.dtype), Status.ok
            final = at(horizon)
        else:
            stop = _stop_time(question, at)
            met = ~jnp.isnan(stop)
            status = jnp.where(met, Status.stopped, Status.not_reached)
            final = at(jnp.where(met, stop, horizon))
            final = select(stop == 0, net, final)
        return Answer(
            records=records,
            final=final,
            stop_time=stop,
            status=jnp.where(balanced, status, Status.not_balanced),
            counts={
                "balance_defect": defect,
                "balance_tol": allowed,
                "saddle_modes": prepared.trapped,
            },
        )


def _stop_time(question: Question, at: Any) -> Float[Array, ""]:
    """The time at which the loss meets the level; NaN if not by the horizon.

    The loss falls monotonically, so a bracket and bisection find it. Two Newton steps
    from there carry the derivatives, first and second order.
    """
    task, until, horizon = question.task, question.until, question.times[-1]
    assert until is not None

    def gap(t: Float[Array, ""]) -> Float[Array, ""]:
        return until.gap(at(t), task)

    reached = gap(horizon) <= 0
    at_start = until.gap(question.net, task) <= 0
    looking = reached & ~at_start
    eps = jnp.finfo(horizon.dtype).eps

    def grow(state):
        _, high = state
        return high, jnp.minimum(2 * high, horizon)

    def bisect(state):
        low, high = state
        middle = 0.5 * (low + high)
        above = gap(middle) > 0
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    # Doubling first: the horizon may be ∞, or far beyond the stop.
    first = jnp.minimum(jnp.asarray(2.0**-20, horizon.dtype), horizon)
    low, high = jax.lax.while_loop(
        lambda s: looking & (gap(s[1]) > 0) & (s[1] < horizon),
        grow,
        (jnp.zeros_like(first), first),
    )
    low, high = jax.lax.while_loop(
        lambda s: looking & (s[1] - s[0] > 4 * eps * s[1]),
        bisect,
        (low, high),
    )
    stop = jax.lax.stop_gradient(jnp.where(looking, high, 0.0))
    for _ in range(2):
        net = at(stop)
        fall = gradient(net, task.excess)
        slope = -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(fall))
        usable = looking & (slope < 0)
        step = jnp.where(
            usable, until.gap(net, task) / jnp.where(usable, slope, 1.0), 0
        )
        stop = stop - step
    return jnp.where(at_start, 0.0, jnp.where(reached, stop, jnp.nan))
