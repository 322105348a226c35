"""Gradient flow, integrated numerically."""

import warnings
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

from ..networks import TwoLayerLinear
from ..trajectory import Status
from ._gradient import gradient
from ._method import AbstractMethod, Answer, Question, select


class GradientFlow(AbstractMethod):
    """dθ/dt = −∇L(θ), integrated by diffrax; for any task.

    **Arguments**

    - `solver`: a diffrax solver. None: `diffrax.Tsit5()` for linear networks. For
      stiff problems (|λ|·times[-1] beyond about 10⁵) use an implicit one,
      `diffrax.Kvaerno5()`.
    - `rtol`: relative tolerance of a step. None: 1e-6 in float64, 1e-4 in float32. A
      tolerance below 10 ε of the dtype cannot be reached, and warns.
    - `atol`: absolute tolerance in the weights. None: rtol × the root mean square of
      each layer's initial weights, so that small starts are resolved.
    - `max_steps`: limit on steps, accepted and rejected; beyond it the status is
      `step_limit`.
    - `adjoint`: a diffrax adjoint. None: `RecursiveCheckpointAdjoint`, which has
      reverse mode; for forward mode use `diffrax.ForwardMode()`, for both and for
      second derivatives `diffrax.DirectAdjoint()`.
    """

    solver: diffrax.AbstractSolver | None = None
    rtol: float | None = eqx.field(static=True, default=None)
    atol: float | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=100_000)
    adjoint: diffrax.AbstractAdjoint | None = None

    def __check_init__(self):
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not (value > 0 or (name == "atol" and value == 0)):
                raise ValueError(f"`{name}` must be > 0, but it is {value}.")
        if self.max_steps < 1:
            raise ValueError(f"`max_steps` must be ≥ 1, but it is {self.max_steps}.")

    def check(self, question: Question) -> None:
        eps = float(jnp.finfo(question.net.w1.dtype).eps)
        if self.rtol is not None and self.rtol < 10 * eps:
            warnings.warn(
                f"rtol = {self.rtol:g} cannot be reached in {question.net.w1.dtype} "
                f"(ε = {eps:.2g}): use float64 weights, or rtol ≥ {10 * eps:.1g}.",
                stacklevel=3,
            )

    def _settings(self, question: Question) -> tuple[Any, float, Any]:
        single = jnp.finfo(question.net.w1.dtype).bits < 64
        rtol = self.rtol if self.rtol is not None else (1e-4 if single else 1e-6)
        solver = diffrax.Tsit5() if self.solver is None else self.solver
        adjoint = self.adjoint
        if adjoint is None:
            adjoint = diffrax.RecursiveCheckpointAdjoint()
        return solver, rtol, adjoint

    def facts(self, question: Question) -> dict[str, Any]:
        solver, rtol, adjoint = self._settings(question)
        return {
            "method": "GradientFlow",
            "solver": type(solver).__name__,
            "rtol": rtol,
            "atol": f"{rtol:g} × initial rms" if self.atol is None else self.atol,
            "max_steps": self.max_steps,
            "adjoint": type(adjoint).__name__,
        }

    def solve(self, question: Question) -> Answer:
        solver, rtol, adjoint = self._settings(question)
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
            solver,
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
                rtol=rtol, atol=rtol if self.atol is None else self.atol
            ),
            adjoint=adjoint,
            event=event,
            max_steps=self.max_steps,
            throw=False,
        )
        return self._answer(question, solution, at_start)

    def _units(self, net: TwoLayerLinear) -> TwoLayerLinear:
        """The unit in which each layer is integrated: its initial rms, or 1.

        diffrax has one `atol` for the whole state, but at |λ| = 1000 one layer is 10⁹
        times the other.
        """
        if self.atol is not None:
            return jax.tree.map(jnp.ones_like, net)
        sizes = [jnp.sqrt(jnp.mean(w**2)) for w in (net.w1, net.w2)]
        # A layer that starts at zero is measured against the other one.
        floor = 1e-8 * jnp.maximum(*sizes)
        sizes = [jnp.maximum(size, floor) for size in sizes]
        units = [jnp.where(size > 0, size, 1.0) for size in sizes]
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
        at_start: Float[Array, ""],
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
            counts={"steps": solution.stats["num_steps"]},
        )
