"""Gradient flow, integrated numerically."""

import warnings
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float

from .._arrays import Scalar, as_floating, is_concrete
from ..networks import TwoLayerLinear
from ..trajectory import Status
from ._gradient import gradient
from ._method import AbstractMethod, Answer, Question, select


def default_rtol(dtype: Any) -> float:
    """The relative tolerance of `GradientFlow` in this dtype: 1e-6, or 1e-4 below 64
    bits."""
    return 1e-4 if jnp.finfo(dtype).bits < 64 else 1e-6


class GradientFlow(AbstractMethod):
    """dθ/dt = −∇L(θ), integrated by diffrax; for any task.

    **Arguments**

    - `solver`: a diffrax solver. None: `diffrax.Tsit5()` for linear networks. For
      stiff problems (|λ|·times[-1] beyond about 10⁵) use an implicit one,
      `diffrax.Kvaerno5()`.
    - `rtol`: relative tolerance of a step. None: 1e-6 in float64, 1e-4 in float32. A
      tolerance below 10 ε of the dtype cannot be reached, and warns.
    - `atol`: absolute tolerance in the weights. None: `rtol` relative to each layer's
      initial root mean square, so that small starts are resolved.
    - Both tolerances may be traced.
    - `max_steps`: limit on steps, accepted and rejected; beyond it the status is
      `step_limit`.
    - `adjoint`: a diffrax adjoint. None: `RecursiveCheckpointAdjoint`, which has
      reverse mode; for forward mode use `diffrax.ForwardMode()`, for both and for
      second derivatives `diffrax.DirectAdjoint()`.
    """

    forward_mode: ClassVar[str] = (
        "Forward-mode derivatives (jvp, jacfwd, hessian) of GradientFlow need another "
        "adjoint: GradientFlow(adjoint=diffrax.ForwardMode()) for forward mode alone, "
        "diffrax.DirectAdjoint() for both modes and second derivatives."
    )
    solver: diffrax.AbstractSolver | None
    rtol: Float[Array, ""] | None
    atol: Float[Array, ""] | None
    max_steps: int = eqx.field(static=True)
    adjoint: diffrax.AbstractAdjoint | None

    def __init__(
        self,
        solver: diffrax.AbstractSolver | None = None,
        rtol: Scalar | None = None,
        atol: Scalar | None = None,
        max_steps: int = 100_000,
        adjoint: diffrax.AbstractAdjoint | None = None,
    ):
        self.solver, self.max_steps, self.adjoint = solver, max_steps, adjoint
        self.rtol = None if rtol is None else as_floating(rtol)[0]
        self.atol = None if atol is None else as_floating(atol)[0]

    def __check_init__(self):
        for name, value, kind in (
            ("solver", self.solver, diffrax.AbstractSolver),
            ("adjoint", self.adjoint, diffrax.AbstractAdjoint),
        ):
            if value is not None and not isinstance(value, kind):
                raise ValueError(
                    f"`{name}` must be a diffrax {name}, but it is {value!r}."
                )
        rtol, atol = _known(self.rtol), _known(self.atol)
        if rtol is not None and not rtol > 0:
            raise ValueError(f"`rtol` must be > 0, but it is {rtol}.")
        if atol is not None and not atol >= 0:
            raise ValueError(f"`atol` must be ≥ 0, but it is {atol}.")
        if self.max_steps < 1:
            raise ValueError(f"`max_steps` must be ≥ 1, but it is {self.max_steps}.")

    def check(self, question: Question) -> None:
        dtype = question.net.w1.dtype
        eps = float(jnp.finfo(dtype).eps)
        rtol = _known(self.rtol)
        if rtol is not None and rtol < 10 * eps:
            warnings.warn(
                f"rtol = {rtol:g} cannot be reached in {dtype} (ε = {eps:.2g}): use "
                f"float64 weights, or rtol ≥ {10 * eps:.1g}.",
                stacklevel=3,
            )

    def _rtol(self, question: Question) -> Float[Array, ""]:
        dtype = question.net.w1.dtype
        if self.rtol is not None:
            return self.rtol.astype(dtype)
        return jnp.asarray(default_rtol(dtype), dtype)

    def _solver(self) -> diffrax.AbstractSolver:
        return diffrax.Tsit5() if self.solver is None else self.solver

    def _adjoint(self) -> diffrax.AbstractAdjoint:
        default = diffrax.RecursiveCheckpointAdjoint
        return default() if self.adjoint is None else self.adjoint

    def facts(self, question: Question) -> dict[str, Any]:
        return {
            "method": "GradientFlow",
            "solver": type(self._solver()).__name__,
            "adjoint": type(self._adjoint()).__name__,
            "max_steps": self.max_steps,
        }

    def solve(self, question: Question) -> Answer:
        rtol = self._rtol(question)
        net, task, times, until, _ = question
        units = self._units(net)
        horizon = times[-1]
        # diffrax wants an interval; a run of length 0 is masked below.
        span = jnp.where(horizon > 0, horizon, 1.0)

        def network(y: TwoLayerLinear, units: TwoLayerLinear) -> TwoLayerLinear:
            return jax.tree.map(jnp.multiply, y, units)

        def velocity(t, y, args):
            task, units = args
            slope = gradient(network(y, units), task.excess)
            return jax.tree.map(lambda g, unit: -g / unit, slope, units)

        def record(t, y, args):
            return question.record(network(y, args[1]))

        def final(t, y, args):
            return network(y, args[1])

        at_start = jnp.zeros((), bool)
        event = None
        if until is not None:
            # An event needs a change of sign: what is met at the start is ours to see.
            start_gap = until.gap(net, task)
            at_start = start_gap <= 0
            # In units of the losses at hand, so that one tolerance fits any.
            unit = jnp.maximum(jnp.abs(start_gap), jnp.abs(until.level))
            unit = jax.lax.stop_gradient(jnp.where(unit > 0, unit, 1.0))

            def gap(t, y, args, **_):
                value = until.gap(network(y, args[1]), args[0]) / unit
                return jnp.where(at_start, 1.0, value)

            # The loss falls along the flow: bisection within a step cannot miss.
            tol = 100 * float(jnp.finfo(times.dtype).eps)
            event = diffrax.Event(gap, optx.Bisection(tol, tol, flip=True))

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            self._solver(),
            t0=0.0,
            t1=jnp.where(at_start, 0.0, span).astype(times.dtype),
            dt0=None,
            y0=jax.tree.map(jnp.divide, net, units),
            args=(task, units),
            saveat=diffrax.SaveAt(
                subs=[
                    diffrax.SubSaveAt(ts=jnp.where(at_start, 0.0, times), fn=record),
                    diffrax.SubSaveAt(t1=True, fn=final),
                ]
            ),
            stepsize_controller=diffrax.PIDController(
                rtol=rtol,
                atol=rtol if self.atol is None else self.atol.astype(rtol.dtype),
            ),
            adjoint=self._adjoint(),
            event=event,
            max_steps=self.max_steps,
            throw=False,
        )
        return self._answer(question, solution, at_start)

    def _units(self, net: TwoLayerLinear) -> TwoLayerLinear:
        """The unit in which each layer is integrated: about its initial rms, or 1.

        diffrax has one `atol` for the whole state, but at |λ| = 1000 one layer is 10⁹
        times the other. A power of two, so that changing units rounds nothing.
        """
        if self.atol is not None:
            return jax.tree.map(jnp.ones_like, net)
        sizes = [jnp.sqrt(jnp.mean(w**2)) for w in (net.w1, net.w2)]
        # A layer that starts at zero is measured against the other one.
        floor = 1e-8 * jnp.maximum(*sizes)
        sizes = [jnp.maximum(size, floor) for size in sizes]
        powers = [jnp.ldexp(jnp.ones_like(size), jnp.frexp(size)[1]) for size in sizes]
        units = [
            jnp.where(size > 0, power, 1.0)
            for size, power in zip(sizes, powers, strict=True)
        ]
        return jax.lax.stop_gradient(
            TwoLayerLinear(
                jnp.broadcast_to(units[0], net.w1.shape),
                jnp.broadcast_to(units[1], net.w2.shape),
            )
        )

    def _answer(
        self,
        question: Question,
        solution: diffrax.Solution,
        at_start: Bool[Array, ""],
    ) -> Answer:
        assert solution.ys is not None
        assert solution.ts is not None
        net, times, until = question.net, question.times, question.until
        records, finals = solution.ys
        final = jax.tree.map(lambda leaf: leaf[0], finals)
        end = solution.ts[1][0]
        horizon = times[-1]
        result = solution.result
        stopped = result == diffrax.RESULTS.event_occurred
        fine = stopped | (result == diffrax.RESULTS.successful)
        nothing = horizon == 0
        stop = jnp.asarray(jnp.nan, times.dtype)
        status = jnp.asarray(Status.ok)
        if until is not None:
            stop = jnp.where(stopped & ~nothing, end, stop)
            stop = jnp.where(at_start, 0.0, stop)
            reached = ~jnp.isnan(stop)
            status = jnp.where(reached, Status.stopped, Status.not_reached)
        limit = result == diffrax.RESULTS.max_steps_reached
        failure = jnp.where(limit, Status.step_limit, Status.nonfinite)
        return Answer(
            records=records,
            final=select(nothing | at_start, net, final),
            stop_time=stop,
            status=jnp.where(fine, status, failure),
            counts={
                "steps": solution.stats["num_steps"],
                "rtol": self._rtol(question),
                "atol": self._rtol(question) if self.atol is None else self.atol,
            },
        )


def _known(value: Array | None) -> float | None:
    """The value as a float, or None if there is none or it is traced."""
    return None if value is None or not is_concrete(value) else float(value)
