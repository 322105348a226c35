"""The one entry: `train`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Real

from .._arrays import as_floating, is_concrete
from ..networks import TwoLayerLinear
from ..tasks import LinearTask
from ..trajectory import Status, TrainingError, Trajectory
from ._method import AbstractMethod, Question, Save, combined, run
from ._until import UntilLoss

_run = eqx.filter_jit(run)


def train(
    net: TwoLayerLinear,
    task: LinearTask,
    times: Real[ArrayLike, "*times"],
    *,
    method: AbstractMethod,
    until: UntilLoss | None = None,
    save: Save = None,
    throw: bool = True,
) -> Trajectory:
    """Let a network learn a task from t = 0, and look at it at the given times.

    **Arguments**

    - `net`: the start. `task`: what is learned, with the network's inputs and outputs.
    - `times`: a scalar or 1-D, non-decreasing, ≥ 0, in units of τ = 1/η (one unit is
      1/η SGD steps). ∞ is allowed for `Exact`.
    - `method`: `lr.Exact()`, `lr.GradientFlow()` or `lr.SGD(learning_rate)`.
    - `until`: `lr.until_loss(level)` stops the run there; `times[-1]` is the horizon.
      Results at later times are NaN.
    - `save`: a callable net → pytree (or a dict of callables), evaluated at every time
      in place of keeping the networks. Give the same function object each time: a new
      lambda compiles anew.
    - `throw`: raise `TrainingError` for failed runs; if False, read `traj.status`.

    **Returns** a `Trajectory`. Computes in the wider dtype of weights and task.

    **Raises** `ValueError` for static mistakes (shapes, settings, concrete times out of
    order). Value failures become a `Status`: `TrainingError` says which and what to
    change. If any input is traced (jit, vmap, grad), nothing is raised on values.
    """
    if not isinstance(method, AbstractMethod):
        raise ValueError(
            "`method` must be lr.Exact(), lr.GradientFlow() or lr.SGD(learning_rate), "
            f"but it is {method!r}."
        )
    if until is not None and not isinstance(until, UntilLoss):
        raise ValueError(f"`until` must be lr.until_loss(level), but it is {until!r}.")
    if not isinstance(net, TwoLayerLinear) or net.w1.ndim != 2:
        raise ValueError(
            "`net` must be one TwoLayerLinear without leading axes (use jax.vmap for "
            "several)."
        )
    task.check_fits(net)
    net, task = _one_dtype(net, task)
    times = jnp.asarray(times, net.w1.dtype)
    _check_times(times, method)
    function = combined(save)
    question = Question(net, task, jnp.atleast_1d(times), until, function)
    method.check(question)
    method = method.resolve(question.times)
    # `function` is new for each dict; the dict itself, static in jit, is what compares.
    traj = _run(method, net, task, times, until, _Save(save) if save else None)
    if throw and is_concrete((net, task, times, traj.status)):
        _raise_on_failure(traj)
    return traj


class _Save(eqx.Module):
    """`save` as a pytree: functions static, arrays bound to them traced."""

    save: Any

    def __call__(self, net: Any) -> Any:
        function = combined(self.save)
        assert function is not None
        return function(net)


def _one_dtype(
    net: TwoLayerLinear, task: LinearTask
) -> tuple[TwoLayerLinear, LinearTask]:
    """Weights and task in the wider of their dtypes."""
    (example, _) = as_floating(net.w1, task.sigma_yx)
    dtype = example.dtype

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(cast, (net, task))


def _check_times(times: Any, method: AbstractMethod) -> None:
    if times.ndim > 1 or times.size == 0:
        raise ValueError(
            "`times` must be a scalar or a 1-D array with at least one entry, but its "
            f"shape is {times.shape}."
        )
    if not is_concrete(times):
        return
    values = np.atleast_1d(np.asarray(times))
    if np.isnan(values).any() or (values < 0).any() or (np.diff(values) < 0).any():
        # np.diff of ∞ − ∞ is NaN, which is not < 0, as it should be.
        raise ValueError(
            "`times` must be non-decreasing and ≥ 0 (learning starts at t = 0), but "
            f"they are {values}."
        )
    if np.isinf(values).any() and not method.allows_infinity:
        raise ValueError(
            f"{type(method).__name__} needs finite `times`: t = ∞ is for lr.Exact()."
        )


def _raise_on_failure(traj: Trajectory) -> None:
    status = np.atleast_1d(np.asarray(traj.status))
    failed = np.flatnonzero(status > Status.not_reached)
    if not failed.size:
        return
    kind = Status(int(status[failed[0]]))
    method = traj.stats["method"]
    message = f"{method} failed with status `{kind.name}`. "
    if kind == Status.not_balanced:
        defect = np.atleast_1d(np.asarray(traj.stats["balance_defect"]))[failed[0]]
        allowed = np.atleast_1d(np.asarray(traj.stats["balance_tol"]))[failed[0]]
        message += (
            f"The largest deviation of W2ᵀW2 − W1W1ᵀ from λI is {defect:.6g}, more "
            f"than the {allowed:.3g} allowed. "
        )
    if kind == Status.step_limit:
        steps = np.atleast_1d(np.asarray(traj.stats["steps"]))[failed[0]]
        message += f"It took {steps} steps. "
    raise TrainingError(message + kind.remedy, kind, traj)
