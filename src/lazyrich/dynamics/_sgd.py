"""Stochastic gradient descent on the clock of gradient flow."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._arrays import Scalar, as_floating, is_concrete
from .._lanes import any_lane
from ..networks import TwoLayerLinear
from ..trajectory import Status
from ._gradient import gradient
from ._method import AbstractMethod, Answer, Question, select

_NOISE_STREAM = 2**32 - 1


class SGD(AbstractMethod):
    """Gradient steps θ ← θ − η∇L: full batch, or minibatches drawn from the samples.

    One step takes a time η, so that time t (in units of τ) shows the iterate
    round(t/η) and the curves lie on gradient flow's as η → 0. With momentum or Adam
    this clock is nominal.

    **Arguments**

    - `learning_rate`: η > 0; may be traced (a sweep over rates compiles once).
    - `steps`: the most steps that may be taken, static. None: round(times[-1]/η),
      which needs a concrete η. A time beyond `steps` gives the status `step_limit`.
    - `batch_size`: samples in a step; None is the full batch (the population gradient).
    - `replace`: draw each batch independently with replacement (step k: `randint` with
      `fold_in(key, k)`). Otherwise epoch e visits the samples in the order
      `permutation(fold_in(key, e), n)` and drops the remainder n mod batch_size.
    - `label_noise`: standard deviation of Gaussian noise added to every label, fresh at
      each step; needs samples.
    - `optimizer`: rate → optax.GradientTransformation.
    - `key`: a JAX PRNG key; required for minibatches and label noise.

    With `until` the loss is that of the whole task at every iterate; `final` is the
    first iterate at or below the level and `stop_time` is interpolated linearly in the
    loss before it.
    """

    learning_rate: Float[Array, ""]
    steps: int | None = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    replace: bool = eqx.field(static=True)
    label_noise: Float[Array, ""] | None
    optimizer: Callable[[Any], optax.GradientTransformation] = eqx.field(static=True)
    key: PRNGKeyArray | None

    def __init__(
        self,
        learning_rate: Scalar,
        steps: int | None = None,
        batch_size: int | None = None,
        replace: bool = False,
        label_noise: Scalar = 0.0,
        optimizer: Callable[[Any], optax.GradientTransformation] = optax.sgd,
        key: PRNGKeyArray | None = None,
    ):
        (self.learning_rate,) = as_floating(learning_rate)
        if self.learning_rate.ndim:
            raise ValueError(
                "`learning_rate` must be a scalar, but its shape is "
                f"{self.learning_rate.shape}: use jax.vmap for several."
            )
        if is_concrete(self.learning_rate) and not 0 < float(self.learning_rate) < (
            math.inf
        ):
            raise ValueError(
                f"`learning_rate` must be > 0, but it is {float(self.learning_rate)}."
            )
        for name, count, least in (("steps", steps, 0), ("batch_size", batch_size, 1)):
            if count is None:
                continue
            if not isinstance(count, int | np.integer) or count < least:
                raise ValueError(
                    f"`{name}` must be an integer ≥ {least}, but it is {count}."
                )
        if is_concrete(label_noise) and not np.all(np.asarray(label_noise) >= 0):
            raise ValueError(f"`label_noise` must be ≥ 0, but it is {label_noise}.")
        noiseless = is_concrete(label_noise) and bool(
            np.all(np.asarray(label_noise) == 0)
        )
        self.label_noise = None if noiseless else as_floating(label_noise)[0]
        if (batch_size is not None or not noiseless) and key is None:
            raise ValueError(
                "Minibatches and label noise are random: give `key`, for example "
                "jax.random.key(0)."
            )
        self.steps, self.batch_size, self.replace = steps, batch_size, replace
        self.optimizer, self.key = optimizer, key

    def check(self, question: Question) -> None:
        task = question.task
        if self.batch_size is not None:
            if task.x is None:
                raise ValueError(
                    "Minibatches need samples, and a population task has none: build "
                    "the task with LinearTask.from_data(x, y)."
                )
            if self.batch_size > task.x.shape[0] and not self.replace:
                raise ValueError(
                    f"`batch_size` is {self.batch_size}, but the task has only "
                    f"{task.x.shape[0]} samples (and replace=False)."
                )
        if self.label_noise is not None and task.x is None:
            raise ValueError(
                "Label noise needs samples, and a population task has none: build the "
                "task with LinearTask.from_data(x, y)."
            )

    def resolve(self, times: Float[Array, "*times"]) -> "SGD":
        if self.steps is not None:
            return self
        if not is_concrete(times, self.learning_rate):
            raise ValueError(
                "`steps` (the most steps that may be taken, static) is required when "
                "the learning rate or the times are traced."
            )
        horizon = np.atleast_1d(np.asarray(times))[-1]
        ratio = horizon / np.asarray(self.learning_rate, times.dtype)
        if ratio > np.iinfo(np.int32).max:
            raise ValueError(
                f"times[-1] = {float(horizon):g} at a learning rate of "
                f"{float(self.learning_rate):g} would take {ratio:.3g} steps."
            )
        return SGD(
            self.learning_rate,
            int(np.rint(ratio)),
            self.batch_size,
            self.replace,
            0.0 if self.label_noise is None else self.label_noise,
            self.optimizer,
            self.key,
        )

    def facts(self, question: Question) -> dict[str, Any]:
        name = getattr(self.optimizer, "__name__", type(self.optimizer).__name__)
        return {
            "method": "SGD",
            "solver": name,
            "batch_size": "full" if self.batch_size is None else self.batch_size,
            "replace": self.replace,
            "max_steps": self.steps,
        }

    def _loss(
        self, question: Question, k: Int[Array, ""], order: Int[Array, " n"] | None
    ) -> Callable[[TwoLayerLinear], Float[Array, ""]]:
        """The loss whose gradient step k (from 0) follows."""
        task, size = question.task, self.batch_size
        if size is None and self.label_noise is None:
            return task.excess
        assert task.x is not None
        assert task.y is not None
        assert self.key is not None
        x, y = task.x, task.y
        if size is not None:
            n = x.shape[0]
            if order is None:
                chosen = jax.random.randint(
                    jax.random.fold_in(self.key, k), (size,), 0, n
                )
            else:
                start = k % (n // size) * size
                chosen = jax.lax.dynamic_slice_in_dim(order, start, size)
            x, y = (a.at[chosen].get(mode="promise_in_bounds") for a in (x, y))
        if self.label_noise is not None:
            stream = jax.random.fold_in(self.key, _NOISE_STREAM)
            noise = jax.random.normal(jax.random.fold_in(stream, k), y.shape, y.dtype)
            y = y + self.label_noise.astype(y.dtype) * noise
        return lambda net: task.batch_loss(net, x, y)

    def _order(self, question: Question, epoch: Int[Array, ""]) -> Int[Array, " n"]:
        assert question.task.x is not None
        assert self.key is not None
        key = jax.random.fold_in(self.key, epoch)
        return jax.random.permutation(key, question.task.x.shape[0])

    def solve(self, question: Question) -> Answer:
        net, task, times, until, _ = question
        steps = self.steps
        assert steps is not None
        rate_ok = jnp.isfinite(self.learning_rate) & (self.learning_rate > 0)
        rate = jnp.where(rate_ok, self.learning_rate, 1.0).astype(times.dtype)
        # The iterate that shows each time; clipped, since ∞ has no integer.
        index = jnp.minimum(jnp.round(times / rate), steps + 1.0).astype(int)
        last = index[-1]
        transform, memory = _started(self.optimizer, rate, net)
        shuffles = self.batch_size is not None and not self.replace
        order = self._order(question, jnp.zeros((), int)) if shuffles else None
        bound = jnp.finfo(times.dtype).max ** 0.2

        def gap(net: TwoLayerLinear) -> Float[Array, ""]:
            if until is None:
                return jnp.ones((), times.dtype)
            return until.gap(net, task)

        def step(carry, k):
            net, memory, order, before, stop, diverged, taken, kept = carry
            if shuffles:
                per_epoch = task.x.shape[0] // self.batch_size  # pyright: ignore
                order = jax.lax.cond(
                    (k % per_epoch == 0) & (k > 0),
                    lambda: self._order(question, k // per_epoch),
                    lambda: order,
                )
            active = (k < last) & jnp.isnan(stop) & ~diverged
            slope = gradient(net, self._loss(question, k, order))
            new, memory = _moved(transform, slope, memory, net)
            # Halted while everything, squares of gradients too, is still finite, so
            # that derivatives of the other members of a batch stay finite.
            largest = jnp.maximum(jnp.max(jnp.abs(new.w1)), jnp.max(jnp.abs(new.w2)))
            diverged |= active & ~(largest < bound)
            active &= ~diverged
            net = select(active, new, net)
            after = gap(net)
            met = active & (after <= 0)
            share = before / jnp.where(met, before - after, 1.0)
            stop = jnp.where(met, rate * (k.astype(rate.dtype) + share), stop)

            # Each slot keeps the latest iterate up to its own, and so ends with it.
            def write():
                slot = jnp.searchsorted(index, k + 1)
                return jax.tree.map(
                    lambda a, b: a.at[slot].set(b, mode="drop"), kept, net
                )

            due = any_lane(jnp.any(index == k + 1))
            kept = jax.lax.cond(due, write, lambda: kept)
            taken = taken + active.astype(int)
            return (net, memory, order, after, stop, diverged, taken, kept), None

        start_gap = gap(net)
        nan = jnp.asarray(jnp.nan, times.dtype)
        kept = jax.tree.map(
            lambda w: jnp.broadcast_to(w[None], (times.shape[0], *w.shape)), net
        )
        carry = (
            net,
            memory,
            order,
            start_gap,
            jnp.where(start_gap <= 0, 0.0, nan),
            jnp.zeros((), bool),
            jnp.zeros((), int),
            kept,
        )
        carry, _ = jax.lax.scan(step, carry, jnp.arange(steps))
        net, _, _, _, stop, diverged, taken, kept = carry
        first = jnp.searchsorted(index, index)
        networks = jax.tree.map(lambda a: a[first], kept)
        status = jnp.asarray(Status.ok)
        if until is not None:
            status = jnp.where(jnp.isnan(stop), Status.not_reached, Status.stopped)
        status = jnp.where((last > steps) & jnp.isnan(stop), Status.step_limit, status)
        status = jnp.where(diverged | ~rate_ok, Status.nonfinite, status)
        return Answer(
            records=jax.vmap(question.record)(networks),
            final=net,
            stop_time=stop,
            status=status,
            counts={"steps": taken, "learning_rate": self.learning_rate},
        )


def _started(optimizer: Callable[[Any], Any], rate: Array, net: Any) -> Any:
    """The optimizer at this rate, and its initial memory."""
    with _standard_promotion():
        transform = optimizer(rate)
        return transform, transform.init(net)


def _moved(transform: Any, slope: Any, memory: Any, net: Any) -> Any:
    """The network after one step of the optimizer, and its new memory."""
    with _standard_promotion():
        update, memory = transform.update(slope, memory, net)
        return optax.apply_updates(net, update), memory


@contextlib.contextmanager
def _standard_promotion():
    """Optimizers of other libraries rely on implicit promotion; nobody else does."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield
