"""What every method has in common: the question, the raw answer, its completion."""

import abc
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..networks import TwoLayerLinear
from ..tasks import LinearTask
from ..trajectory import Status, Trajectory
from ._until import UntilLoss

Save = Callable[[Any], PyTree] | dict[str, Callable[[Any], PyTree]] | None


class Recorder(eqx.Module):
    """`save` as one callable: functions static in jit, arrays bound to them traced."""

    save: Any

    def __check_init__(self):
        several = isinstance(self.save, dict)
        if several and not self.save:
            raise ValueError("`save` is an empty dict: name what to save, or leave it.")
        parts = self.save.items() if several else [("", self.save)]
        for name, part in parts:
            if not callable(part):
                what = f"`save[{name!r}]`" if several else "`save`"
                raise ValueError(
                    f"{what} must be a callable net → pytree, or a dict of callables, "
                    f"but it is {type(part).__name__}."
                )

    def __call__(self, net: Any) -> PyTree:
        if isinstance(self.save, dict):
            return {name: part(net) for name, part in self.save.items()}
        return self.save(net)


class Question(NamedTuple):
    """One run, checked: `times` has shape (times,), and every input is finite."""

    net: TwoLayerLinear
    task: LinearTask
    times: Float[Array, " times"]
    until: UntilLoss | None
    save: Recorder | None

    def record(self, net: TwoLayerLinear) -> PyTree:
        """What is kept at a time: the network, or what `save` makes of it."""
        return net if self.save is None else self.save(net)


class Answer(NamedTuple):
    """What a method found, before failed runs and times after a stop are masked."""

    records: PyTree  # `Question.record` at every time
    final: TwoLayerLinear
    stop_time: Float[Array, ""]  # NaN without a stop
    status: Int[Array, ""]
    counts: dict[str, Array]


class AbstractMethod(eqx.Module):
    """A way of learning. `lr.train` is its only caller."""

    allows_infinity: ClassVar[bool] = False
    forward_mode: ClassVar[str] = ""
    """What to say where JAX refuses forward mode."""

    @abc.abstractmethod
    def check(self, question: Question) -> None:
        """`ValueError` for static mistakes: shapes, settings that exclude others."""

    def resolve(self, times: Float[Array, "*times"]) -> "AbstractMethod":
        """The method with static settings that depend on concrete values filled in."""
        return self

    @abc.abstractmethod
    def solve(self, question: Question) -> Answer:
        """The run. Never raises on values."""

    @abc.abstractmethod
    def facts(self, question: Question) -> dict[str, Any]:
        """Static, hashable facts for `Trajectory.stats`."""


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every float in the tree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def keep_where(keep: Bool[Array, "*lead"], tree: PyTree, other: float) -> PyTree:
    """The tree's floats where `keep` (leading axes), and `other` elsewhere."""

    def pick(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        shape = keep.shape + (1,) * (leaf.ndim - keep.ndim)
        mask = jnp.broadcast_to(keep.reshape(shape), leaf.shape)
        return jnp.where(mask, leaf, jnp.asarray(other, leaf.dtype))

    return jax.tree.map(pick, tree)


def select(which: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    """`yes` if `which`, else `no`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), yes, no)


def run(
    method: AbstractMethod,
    net: TwoLayerLinear,
    task: LinearTask,
    times: Float[Array, "*times"],
    until: UntilLoss | None,
    save: Recorder | None,
) -> Trajectory:
    """Guard the inputs, let the method solve, mask what must not be seen."""
    flat = jnp.atleast_1d(times)
    ordered = jnp.all(flat >= 0) & jnp.all(flat[1:] >= flat[:-1])
    if not method.allows_infinity:
        ordered &= jnp.isfinite(flat).all()
    known = jnp.ones((), bool) if until is None else ~jnp.isnan(until.level)
    net_ok, task_ok = all_finite(net), all_finite(task)
    sound = net_ok & task_ok & ordered & known
    # What is unsound is replaced, so that no NaN enters the solver, where it would cost
    # steps and poison the gradients of the rest of the batch. Each input is judged by
    # itself: a task that many runs share must not be copied for each.
    safe = Question(
        net=keep_where(net_ok, net, 0.0),
        task=keep_where(task_ok, task, 0.0),
        times=keep_where(ordered, flat, 0.0),
        until=until and UntilLoss(keep_where(known, until.level, 0.0), until.of),
        save=save,
    )
    answer = method.solve(safe)

    status = jnp.where(sound, answer.status, Status.nonfinite)
    reached = ~(flat > answer.stop_time)  # a NaN stop time reaches everything
    finite = all_finite(answer.final)
    if save is None:
        finite &= all_finite(keep_where(reached, answer.records, 0.0))
    status = jnp.where(
        (status <= Status.not_reached) & ~finite, Status.nonfinite, status
    )
    success = status <= Status.not_reached
    records = keep_where(success & reached, answer.records, jnp.nan)
    if times.ndim == 0:
        records = jax.tree.map(lambda leaf: leaf[0], records)
    return Trajectory(
        times=times,
        networks=records if save is None else None,
        saved=None if save is None else records,
        final=keep_where(success, answer.final, jnp.nan),
        stop_time=keep_where(success, answer.stop_time, jnp.nan),
        status=status.astype(jnp.int8),
        counts=answer.counts,
        facts={
            **method.facts(safe),
            "dtype": str(net.w1.dtype),
            "versions": _versions(),
        },
    )


def _versions() -> str:
    names = ("lazyrich", "jax", "jaxlib", "equinox", "diffrax", "optax")
    return ", ".join(f"{name} {version(name)}" for name in names)
