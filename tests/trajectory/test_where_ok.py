"""`where_ok`: sums over runs of which some fail, with gradients of the others."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from lazyrich import where_ok

TASK = lr.tasks.LinearTask(np.diag([2.0, 1.0]))
LAMS = np.array([0.0, 1.0, 500.0])
SCALES = np.array([0.1, 0.2, 0.1])
METHOD = lr.SGD(0.05, steps=20)


def start(lam, scale):
    """W2W1 is a rotation of this scale, and the weights are λ-balanced."""
    strong = jnp.sqrt(jnp.sqrt(scale**2 + lam**2 / 4) + lam / 2)
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    return lr.networks.TwoLayerLinear(scale / strong * turn, strong * np.eye(2))


@functools.cache
def batch():
    """Three short runs of SGD, the last of which diverges."""

    def run(lam, scale):
        times = np.array([0.5, 1.0])
        return lr.train(start(lam, scale), TASK, times, method=METHOD)

    traj = jax.jit(jax.vmap(run))(LAMS, SCALES)
    assert traj.ok.tolist() == [True, True, False]
    return traj


def test_values_where_ok_and_zero_elsewhere():
    traj = batch()
    value = jnp.array([1.0, 2.0, jnp.nan])
    np.testing.assert_array_equal(where_ok(traj, value), [1.0, 2.0, 0.0])
    np.testing.assert_array_equal(where_ok(traj, value, 7.0), [1.0, 2.0, 7.0])
    losses = traj.map(TASK.loss)
    assert np.isnan(losses[2]).all()
    kept = where_ok(traj, losses)
    np.testing.assert_array_equal(kept[:2], losses[:2])
    np.testing.assert_array_equal(kept[2], np.zeros(2))
    mean = where_ok(traj, losses).sum(axis=0) / traj.ok.sum(dtype=float)
    np.testing.assert_allclose(mean, np.asarray(losses)[:2].mean(axis=0), rtol=1e-14)


def test_pytrees_and_dtypes():
    traj = batch()
    tree = {"net": traj.final, "count": jnp.array([3, 4, 5])}
    kept = where_ok(traj, tree)
    assert kept["count"].tolist() == [3, 4, 0]
    assert kept["count"].dtype == tree["count"].dtype
    np.testing.assert_array_equal(kept["net"].w1[2], np.zeros((2, 2)))
    chex.assert_trees_all_equal(
        jax.tree.map(lambda a: a[:2], kept["net"]),
        jax.tree.map(lambda a: a[:2], traj.final),
    )
    single = jnp.ones(3, jnp.float32)
    assert where_ok(traj, single).dtype == jnp.float32


def test_one_run():
    one = jax.tree.map(lambda leaf: leaf[1], batch())
    np.testing.assert_array_equal(where_ok(one, jnp.arange(3.0)), np.arange(3.0))
    failed = jax.tree.map(lambda leaf: leaf[2], batch())
    np.testing.assert_array_equal(where_ok(failed, jnp.arange(3.0)), np.zeros(3))
    assert float(where_ok(failed, jnp.asarray(jnp.nan), -1.0)) == -1.0


def test_leading_axes_must_be_those_of_the_status():
    for shape in ((), (2,), (2, 3)):
        with pytest.raises(ValueError) as caught:
            where_ok(batch(), jnp.ones(shape))
        for word in ("`value`", "(3,)", f"{shape}"):
            assert word in str(caught.value)


def test_gradient_of_a_sum_over_sgd_runs():
    def each(scales):
        def run(lam, scale):
            return lr.train(start(lam, scale), TASK, 1.0, method=METHOD)

        traj = jax.vmap(run)(LAMS, scales)
        return where_ok(traj, jax.vmap(TASK.loss)(traj.final))

    def total(scales):
        values = each(scales)
        return values.sum(), values

    f = jax.jit(jax.value_and_grad(total, has_aux=True))
    (_, values), slope = f(SCALES)
    assert values[2] == 0
    assert slope[2] == 0
    h = 1e-5
    (_, up), _ = f(SCALES + h)
    (_, down), _ = f(SCALES - h)
    np.testing.assert_allclose(slope, (up - down) / (2 * h), rtol=1e-6)


def test_mean_of_stopping_times_with_one_failing_member():
    """One mode at λ = 0, whose stopping time is known (theory.md §1.3)."""
    target, level = 2.0, 0.02
    task = lr.tasks.LinearTask(np.array([[target]]))
    starts = np.array([0.1, 0.3, 1e-60])  # the last needs more steps than there are

    @jax.jit
    def flow(starts):
        def mean(starts):
            def run(s):
                w = jnp.sqrt(s).reshape(1, 1)
                return lr.train(
                    lr.networks.TwoLayerLinear(w, w),
                    task,
                    100.0,
                    method=lr.GradientFlow(max_steps=24),
                    until=lr.until_loss(level),
                )

            traj = jax.vmap(run)(starts)
            mean = where_ok(traj, traj.stop_time).sum() / traj.ok.sum(dtype=float)
            return mean, (traj.status, traj.stop_time)

        return jax.value_and_grad(mean, has_aux=True)(starts)

    (mean, (status, times)), slope = flow(starts)
    assert status.tolist() == [1, 1, 3]
    assert np.isnan(times[2])
    assert slope[2] == 0

    def exact(s0):
        s = target - np.sqrt(2 * level)
        return np.log(s * (target - s0) / (s0 * (target - s))) / (2 * target)

    np.testing.assert_allclose(times[:2], exact(starts[:2]), rtol=1e-5)
    np.testing.assert_allclose(mean, exact(starts[:2]).mean(), rtol=1e-5)
    h = 1e-6
    slopes = (exact(starts[:2] + h) - exact(starts[:2] - h)) / (2 * h)
    np.testing.assert_allclose(slope[:2], slopes / 2, rtol=1e-4)
