"""Tasks that are made: random regression and the semantic hierarchy."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich.networks import TwoLayerLinear
from lazyrich.tasks import hierarchy, random_regression

KEY = jax.random.key(0)


def sample_loss(net, task):
    w, x, y = (np.asarray(a) for a in (net.w2 @ net.w1, task.x, task.y))
    return np.mean([0.5 * np.sum((b - w @ a) ** 2) for a, b in zip(x, y, strict=True)])


def test_random_regression_is_whitened_exactly_and_keeps_its_samples():
    task = random_regression(KEY, 4, 3, 11, noise=0.3)
    chex.assert_shape([task.x, task.y], [(11, 4), (11, 3)])
    assert (task.inputs, task.outputs, task.samples, task.rank) == (4, 3, 11, 4)
    assert task.sigma_xx is None
    x, y = np.asarray(task.x), np.asarray(task.y)
    np.testing.assert_allclose(x.T @ x / 11, np.eye(4), atol=1e-14)
    np.testing.assert_allclose(task.sigma_yx, y.T @ x / 11, atol=1e-14)
    np.testing.assert_allclose(task.yy, np.mean(np.sum(y**2, axis=1)), rtol=1e-14)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    least = 0.5 * np.mean(np.sum((y - x @ best) ** 2, axis=1))
    np.testing.assert_allclose(task.optimum, least, rtol=1e-11)
    net = TwoLayerLinear(jnp.ones((2, 4)), jnp.ones((3, 2)))
    np.testing.assert_allclose(task.loss(net), sample_loss(net, task), rtol=1e-12)
    np.testing.assert_array_equal(task.prepare(x), x)


def test_samples_equal_to_inputs_are_enough_and_fewer_are_refused():
    x = np.asarray(random_regression(KEY, 4, 3, 4).x)
    np.testing.assert_allclose(x.T @ x / 4, np.eye(4), atol=1e-13)
    with pytest.raises(ValueError) as caught:
        random_regression(KEY, 4, 3, 3)
    for word in ("`samples`", "`inputs` = 4", "it is 3"):
        assert word in str(caught.value)
    with pytest.raises(ValueError, match=r"`inputs` and `outputs`.* 0 and 3"):
        random_regression(KEY, 0, 3, 3)
    with pytest.raises(ValueError, match=r"`inputs` and `outputs`.* 4 and 0"):
        random_regression(KEY, 4, 0, 5)


@functools.cache
def family():
    """A thousand tasks, half of them noisy, in one compilation."""
    keys = jax.random.split(KEY, 1000)
    noise = jnp.tile(jnp.array([0.0, 0.6]), 500)
    make = jax.jit(jax.vmap(lambda key, s: random_regression(key, 4, 3, 11, s)))
    return keys, make(keys, noise)


def test_random_regression_vmaps_over_keys_and_noise():
    keys, many = family()
    chex.assert_shape([many.x, many.sigma_yx], [(1000, 11, 4), (1000, 3, 4)])
    assert many.rank == 4
    moments = np.einsum("bni,bnj->bij", many.x, many.x) / 11
    np.testing.assert_allclose(moments, np.tile(np.eye(4), (1000, 1, 1)), atol=1e-13)
    assert np.ptp(np.asarray(many.x), axis=0).min() > 0  # every key its own inputs
    alone = random_regression(keys[1], 4, 3, 11, 0.6)
    one = jax.tree.map(lambda a: a[1], many)
    chex.assert_trees_all_close(one, alone, rtol=1e-9, atol=1e-13)
    # A stack of tasks is a task: it can be vmapped over in turn.
    net = TwoLayerLinear(jnp.ones((2, 4)), jnp.ones((3, 2)))
    losses = jax.jit(jax.vmap(lambda task: task.loss(net)))(many)
    np.testing.assert_allclose(losses[1], sample_loss(net, alone), rtol=1e-11)


def test_the_teacher_gives_outputs_of_unit_variance_and_noise_adds_its_own():
    _, many = family()
    power, left = np.asarray(many.yy) / 3, 2 * np.asarray(many.optimum) / 3
    # 500 teachers of 12 entries: one standard error is √(2/6000) = 1.8%.
    np.testing.assert_allclose(power[::2].mean(), 1.0, atol=0.07)
    np.testing.assert_allclose(power[1::2].mean(), 1.36, atol=0.09)
    np.testing.assert_allclose(left[::2], 0.0, atol=1e-25)
    # Least squares on 11 samples fits 4 of their 11 dimensions of noise.
    np.testing.assert_allclose(left[1::2].mean(), 0.36 * 7 / 11, rtol=0.07)


def test_noise_changes_neither_inputs_nor_teacher():
    quiet, loud = (random_regression(KEY, 4, 3, 11, s) for s in (0.0, 0.7))
    np.testing.assert_array_equal(quiet.x, loud.x)
    louder = random_regression(KEY, 4, 3, 11, 1.4)
    y0, y1, y2 = (np.asarray(task.y) for task in (quiet, loud, louder))
    np.testing.assert_allclose(y2 - y0, 2 * (y1 - y0), rtol=1e-9)
    slope = jax.grad(lambda s: random_regression(KEY, 4, 3, 11, s).yy)(0.7)
    h = 1e-4
    up, down = (random_regression(KEY, 4, 3, 11, 0.7 + d).yy for d in (h, -h))
    np.testing.assert_allclose(slope, (up - down) / (2 * h), rtol=1e-7)


def test_hierarchy_of_three_levels_has_the_stated_entries():
    task = hierarchy()
    x, y = np.asarray(task.x), np.asarray(task.y)
    np.testing.assert_allclose(x, np.sqrt(8) * np.eye(8), rtol=1e-15)
    features = [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, -1, -1, -1, -1],
        [1, 1, -1, -1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, -1, -1],
        [1, -1, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, -1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, -1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, -1],
    ]
    assert sorted(y.T.tolist()) == sorted(np.array(features, float).tolist())
    assert task.sigma_xx is None
    assert (task.inputs, task.outputs, task.samples, task.rank) == (8, 8, 8, 8)
    strengths = np.linalg.svd(task.sigma_yx)[1]
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        strengths, [1, 1, half, half, 0.5, 0.5, 0.5, 0.5], atol=1e-14
    )


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_hierarchy_of_any_depth(levels):
    task = hierarchy(levels)
    n = 2**levels
    chex.assert_shape([task.x, task.y, task.sigma_yx], (n, n))
    x, y = np.asarray(task.x), np.asarray(task.y)
    np.testing.assert_allclose(x.T @ x / n, np.eye(n), atol=1e-14)
    assert set(np.unique(y)) <= {-1.0, 0.0, 1.0}
    # Features are orthogonal: a parent sees both branches of a child alike.
    gram = y.T @ y
    np.testing.assert_array_equal(gram, np.diag(np.diag(gram)))
    expected = [1.0] + [2.0 ** (-k / 2) for k in range(levels) for _ in range(2**k)]
    np.testing.assert_allclose(
        np.linalg.svd(task.sigma_yx)[1], sorted(expected)[::-1], atol=1e-13
    )
    # Solvable: the items are independent.
    np.testing.assert_allclose(task.optimum, 0.0, atol=1e-25)
    zero = TwoLayerLinear(jnp.zeros((n, n)), jnp.zeros((n, n)))
    np.testing.assert_allclose(task.loss(zero), 0.5 * np.mean(np.sum(y**2, axis=1)))
    np.testing.assert_allclose(task.yy, 1 + levels, rtol=1e-14)


def test_no_levels_are_refused():
    with pytest.raises(ValueError, match="`levels` must be ≥ 1, but it is 0"):
        hierarchy(0)


def test_reversed_hierarchy():
    task = hierarchy(2)
    turned = task.reversed()
    assert turned.x is not None
    assert turned.y is not None
    np.testing.assert_array_equal(turned.y, -np.asarray(task.y))
    np.testing.assert_array_equal(turned.sigma_yx, -np.asarray(task.sigma_yx))
    np.testing.assert_array_equal(turned.x, task.x)
    np.testing.assert_array_equal(turned.yy, task.yy)
    identity = jnp.eye(4)
    net = TwoLayerLinear(task.solution, identity)
    np.testing.assert_allclose(task.loss(net), 0.0, atol=1e-25)
    # From there the reversed task is four times as far as from zero.
    np.testing.assert_allclose(turned.loss(net), 2 * task.yy, rtol=1e-13)


def test_single_precision_tasks_when_float64_is_off():
    with jax.enable_x64(False):
        drawn = jax.eval_shape(lambda key: random_regression(key, 4, 3, 11, 0.1), KEY)
        for task in (hierarchy(2), drawn):
            dtypes = {leaf.dtype for leaf in jax.tree.leaves(task)}
            assert dtypes == {jnp.dtype("float32")}
