"""The one entry: `train`."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Real

from .._arrays import as_floating, is_concrete
from .._steps import say_steps
from ..networks import TwoLayerLinear
from ..tasks import LinearTask
from ..trajectory import Status, TrainingError, Trajectory
from ._method import AbstractMethod, Question, Recorder, Save, all_finite, run
from ._until import UntilLoss

_run = eqx.filter_jit(run)


def train(
    net: TwoLayerLinear,
    task: LinearTask,
    times: Real[ArrayLike, "*times"] | Sequence[float],
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
      lambda or `functools.partial` compiles anew (`jax.tree_util.Partial` does not).
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
    (times,) = as_floating(times, dtype=net.w1.dtype)
    _check_times(times, method)
    recorder = None if save is None else Recorder(save)
    method.check(Question(net, task, jnp.atleast_1d(times), until, recorder))
    method = method.resolve(times)
    try:
        traj = _run(method, net, task, times, until, recorder)
    except TypeError as error:
        if method.forward_mode and "forward-mode autodiff" in str(error):
            raise TypeError(method.forward_mode) from error
        raise
    if "steps" in traj.stats:
        say_steps(traj.stats["steps"])
    if throw and is_concrete((net, task, times, traj.status)):
        _raise_on_failure(traj, net, task)
    return traj


def _one_dtype(
    net: TwoLayerLinear, task: LinearTask
) -> tuple[TwoLayerLinear, LinearTask]:
    """Weights and task in the wider of their dtypes."""
    (example, _) = as_floating(net.w1, task.sigma_yx)
    dtype = example.dtype

    def cast(leaf: Any) -> Any:
        same = not eqx.is_inexact_array(leaf) or leaf.dtype == dtype
        return leaf if same else leaf.astype(dtype)

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
    if np.isnan(values).any() or (values < 0).any() or (values[1:] < values[:-1]).any():
        raise ValueError(
            "`times` must be non-decreasing and ≥ 0 (learning starts at t = 0), but "
            f"they are {values}."
        )
    if np.isinf(values).any() and not method.allows_infinity:
        raise ValueError(
            f"{type(method).__name__} needs finite `times`: t = ∞ is for lr.Exact()."
        )


def _raise_on_failure(traj: Trajectory, net: TwoLayerLinear, task: LinearTask) -> None:
    kind = Status(int(traj.status))
    if kind.is_success:
        return
    stats = traj.stats
    why = ""
    if kind == Status.not_balanced:
        why = (
            "The largest deviation of W2ᵀW2 − W1W1ᵀ from λI is "
            f"{float(stats['balance_defect']):.6g}, more than the "
            f"{float(stats['balance_tol']):.3g} allowed. "
        )
    elif kind == Status.step_limit:
        why = f"It had taken {int(stats['steps'])} steps. "
    elif not all_finite(net):
        why = "`net` holds a value that is not finite. "
    elif not all_finite(task):
        why = "`task` holds a value that is not finite. "
    elif kind == Status.nonfinite:
        why = "The inputs are finite, so the run itself diverged. "
    message = f"{stats['method']} failed with status `{kind.name}`. {why}{kind.remedy}"
    raise TrainingError(message, kind, traj)
