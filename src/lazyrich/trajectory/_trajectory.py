"""The result of training, whatever the method."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._arrays import is_concrete
from ._status import Status


class Trajectory(eqx.Module):
    """Networks over time, and how the run ended.

    - `times`: as asked for, in units of τ = 1/η; shape () or (times,).
    - `networks`: the networks at those times, leading axes those of `times`; None if
      `save` was given. NaN after a stop.
    - `saved`: what `save` returned at those times, or None.
    - `final`: the network at the earlier of stop and horizon.
    - `stop_time`: when `until` was met; NaN if never, or if nothing was asked for.
    - `status`: a `Status` (int8). A failed run's floats are NaN.

    Under `jax.vmap` every field gains the batch axis in front. `stats` says how the
    run was made.
    """

    times: Float[Array, "*times"]
    networks: Any
    saved: Any
    final: Any
    stop_time: Float[Array, "*batch"]
    status: Int[Array, "*batch"]
    _counts: dict[str, Array]
    _facts: tuple[tuple[str, Any], ...] = eqx.field(static=True)

    def __init__(
        self,
        *,
        times: Float[Array, "*times"],
        networks: Any,
        saved: Any,
        final: Any,
        stop_time: Float[Array, "*batch"],
        status: Int[Array, "*batch"],
        counts: Mapping[str, Array],
        facts: Mapping[str, Any],
    ):
        self.times, self.networks, self.saved = times, networks, saved
        self.final, self.stop_time, self.status = final, stop_time, status
        self._counts = dict(counts)
        self._facts = tuple(facts.items())

    @property
    def stats(self) -> dict[str, Any]:
        """How the run was made: method, solver, tolerances, dtype, versions, steps …

        Facts are strings and numbers; counts (`steps`, …) are arrays, one value per
        batch member.
        """
        return {**dict(self._facts), **self._counts}

    @property
    def ok(self) -> Bool[Array, "*batch"]:
        """Where the run succeeded (`status` ok, stopped or not_reached)."""
        return self.status <= Status.not_reached

    def map(self, f: Callable[[Any], PyTree]) -> PyTree:
        """`f` of the network at every time: vmapped over every axis of `times`.

        Works on vmapped trajectories too, whose `times` carry the batch axes.
        """
        if self.networks is None:
            raise ValueError(
                "This trajectory holds no networks, since `save` was given: its "
                "results are in `saved`."
            )
        for _ in range(self.times.ndim):
            f = jax.vmap(f)
        return f(self.networks)

    def __repr__(self) -> str:
        facts, counts = dict(self._facts), self._counts
        lines = [f"Trajectory by {facts.get('method', '?')}"]
        if facts.get("solver"):
            lines[0] += f" ({facts['solver']})"
        lines.append(f"  times     {_span(self.times)}")
        lines.append(f"  final     {_shapes(self.final)}")
        if self.networks is None:
            lines.append(f"  saved     {_shapes(self.saved)}")
        if not is_concrete((self.status, counts, self.times)):
            lines.append("  status    traced")
            return "\n".join(lines)
        lines.append(f"  status    {_tally(np.asarray(self.status))}")
        stops = np.asarray(self.stop_time)
        if np.isfinite(stops).any():
            lines.append(f"  stopped   {_range(stops[np.isfinite(stops)])} τ")
        if "steps" in counts:
            lines.append(f"  steps     {_slowest(np.asarray(counts['steps']))}")
        told = [f"{k} {v}" for k, v in facts.items() if k in ("dtype", "adjoint")]
        if "rtol" in counts:
            told.insert(0, f"rtol {float(np.max(np.asarray(counts['rtol']))):g}")
        if told:
            lines.append("  with      " + ", ".join(told))
        return "\n".join(lines)


def where_ok(traj: Trajectory, value: PyTree, otherwise: float = 0.0) -> PyTree:
    """`value` where the run succeeded, and `otherwise` (0) where it failed.

    For sums and means over a batch of runs, some of which may fail: values and
    gradients of the others stay finite. `value` holds arrays whose leading axes are
    those of `traj.status`. A mean over successes is
    `where_ok(traj, loss).sum() / traj.ok.sum(dtype=float)`.
    """

    def pick(leaf: Array) -> Array:
        extra = leaf.ndim - traj.ok.ndim
        if extra < 0 or leaf.shape[: traj.ok.ndim] != traj.ok.shape:
            raise ValueError(
                f"`value` must have leading axes {traj.ok.shape}, those of the "
                f"trajectory's status, but its shape is {leaf.shape}."
            )
        ok = jnp.broadcast_to(traj.ok.reshape(traj.ok.shape + (1,) * extra), leaf.shape)
        return jnp.where(ok, leaf, jnp.asarray(otherwise, leaf.dtype))

    return jax.tree.map(pick, value)


def _span(times: Array) -> str:
    if times.ndim == 0:
        where = f" at {float(times):.6g} τ" if is_concrete(times) else ""
        return "scalar" + where
    text = f"{times.shape}"
    if is_concrete(times) and times.size:
        text += f" from {float(times.min()):.6g} to {float(times.max()):.6g} τ"
    return text


def _shapes(tree: PyTree) -> str:
    def one(leaf: Any) -> str:
        return f"{leaf.dtype}{list(leaf.shape)}"

    if isinstance(tree, dict):
        return ", ".join(f"{k}: {_shapes(v)}" for k, v in tree.items())
    leaves = ", ".join(
        one(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)
    )
    return f"{type(tree).__name__}({leaves})" if eqx.is_array(tree) is False else leaves


def _tally(status: np.ndarray) -> str:
    if status.ndim == 0:
        return Status(int(status)).name
    kinds, counts = np.unique(status, return_counts=True)
    tally = ", ".join(
        f"{n} {Status(int(k)).name}" for k, n in zip(kinds, counts, strict=True)
    )
    return f"{tally} of {status.size}"


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"at {low:.6g}" if low == high else f"at {low:.6g} … {high:.6g}"


def _slowest(steps: np.ndarray) -> str:
    if steps.ndim == 0:
        return str(int(steps))
    where = [int(i) for i in np.unravel_index(int(steps.argmax()), steps.shape)]
    member = tuple(where) if len(where) > 1 else where[0]
    return f"{steps.min()} … {steps.max()} (slowest: member {member})"
