"""Tasks stated by their second moments: loss, least loss, what is impossible."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich.networks import TwoLayerLinear
from lazyrich.tasks import LinearTask

INPUTS, OUTPUTS, HIDDEN = 4, 3, 2
rng = np.random.default_rng(0)
SIGMA = rng.normal(size=(OUTPUTS, INPUTS))
ROOT = rng.normal(size=(INPUTS, INPUTS))
SIGMA_XX = ROOT @ ROOT.T / INPUTS
LOW = ROOT[:, :2] @ ROOT[:, :2].T  # of rank 2
SIGMA_LOW = SIGMA @ LOW  # moments that inputs of covariance LOW can have


def network(*lead, dtype: Any = np.float64, seed=1):
    rng = np.random.default_rng(seed)
    return TwoLayerLinear(
        rng.normal(size=(*lead, HIDDEN, INPUTS)).astype(dtype),
        rng.normal(size=(*lead, OUTPUTS, HIDDEN)).astype(dtype),
    )


def loss_of_moments(w, sigma_yx, sigma_xx, yy):
    """½E‖y − Wx‖² = ½(tr Σyy − 2 tr WᵀΣyx + tr WΣxxWᵀ)."""
    return 0.5 * (yy - 2 * np.sum(w * sigma_yx) + np.trace(w @ sigma_xx @ w.T))


CASES = {
    "whitened": (SIGMA, None),
    "identity": (SIGMA, np.eye(INPUTS)),
    "general": (SIGMA, SIGMA_XX),
    "singular": (SIGMA_LOW, LOW),
}


def stated(name):
    sigma, xx = CASES[name]
    return sigma, xx, (np.eye(INPUTS) if xx is None else xx)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_moments(name):
    sigma, given, xx = stated(name)
    task = LinearTask(sigma, given, yy=90.0)
    net = network()
    w = np.asarray(net.w2 @ net.w1)
    np.testing.assert_allclose(
        task.loss(net), loss_of_moments(w, sigma, xx, 90.0), rtol=1e-12
    )
    slope = jax.grad(task.loss)(net)
    residual = w @ xx - sigma
    np.testing.assert_allclose(slope.w1, net.w2.T @ residual, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(slope.w2, residual @ net.w1.T, rtol=1e-10, atol=1e-12)
    for a, b in zip(
        jax.tree.leaves(jax.grad(task.excess)(net)), jax.tree.leaves(slope), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_optimum_is_the_least_loss_of_any_linear_map(name):
    sigma, given, xx = stated(name)
    task = LinearTask(sigma, given, yy=90.0)
    best = sigma @ np.linalg.pinv(xx)
    np.testing.assert_allclose(task.solution, best, rtol=1e-9, atol=1e-12)
    least = loss_of_moments(best, sigma, xx, 90.0)
    np.testing.assert_allclose(task.optimum, least, rtol=1e-12)
    solved = TwoLayerLinear(best, np.eye(OUTPUTS))
    np.testing.assert_allclose(task.loss(solved), least, rtol=1e-12)
    np.testing.assert_allclose(task.excess(solved), 0.0, atol=1e-25)
    # No other map does better.
    others = network(50, seed=3)
    assert (np.asarray(task.loss(others)) > least).all()
    np.testing.assert_allclose(
        task.excess(others), np.asarray(task.loss(others)) - least, rtol=1e-10
    )


def test_the_fields_of_a_population_task():
    task = LinearTask(SIGMA)
    assert (task.inputs, task.outputs, task.rank) == (INPUTS, OUTPUTS, INPUTS)
    assert isinstance(task.rank, int)
    assert task.sigma_xx is None
    assert task.x is task.y is task.transform is task.samples is None
    np.testing.assert_array_equal(task.sigma_yx, SIGMA)
    assert LinearTask(SIGMA_LOW, LOW).rank == INPUTS


def test_by_default_yy_is_what_the_inputs_explain():
    whitened = LinearTask(SIGMA)
    np.testing.assert_allclose(whitened.yy, np.sum(SIGMA**2), rtol=1e-14)
    assert whitened.optimum == 0
    general = LinearTask(SIGMA_LOW, LOW)
    explained = np.sum(SIGMA_LOW * (SIGMA_LOW @ np.linalg.pinv(LOW)))
    np.testing.assert_allclose(general.yy, explained, rtol=1e-10)
    assert general.optimum == 0
    # L = ½‖W − Σ‖², with nothing left over.
    net = network()
    gap = np.asarray(net.w2 @ net.w1) - SIGMA
    np.testing.assert_allclose(whitened.loss(net), 0.5 * np.sum(gap**2), rtol=1e-13)


def test_a_loss_near_its_optimum_keeps_its_digits():
    gap = 1e-9 * np.random.default_rng(4).normal(size=SIGMA.shape)
    net = TwoLayerLinear(SIGMA + gap, np.eye(OUTPUTS))
    excess = LinearTask(SIGMA, yy=1e3).excess(net)
    np.testing.assert_allclose(excess, 0.5 * np.sum(gap**2), rtol=1e-5)


def test_yy_adds_a_constant():
    least = np.sum(SIGMA**2)
    task = LinearTask(SIGMA, yy=least + 7)
    np.testing.assert_allclose(task.optimum, 3.5, rtol=1e-12)
    np.testing.assert_allclose(
        task.loss(network()) - LinearTask(SIGMA).loss(network()), 3.5, rtol=1e-12
    )
    # Exactly the least, in any rounding, is possible.
    assert LinearTask(SIGMA, yy=least * (1 - 1e-15)).optimum == 0


@pytest.mark.parametrize("name", CASES)
def test_an_impossible_yy_is_refused_or_nan_when_traced(name):
    sigma, given, xx = stated(name)
    least = np.sum(sigma * (sigma @ np.linalg.pinv(xx)))
    with pytest.raises(ValueError) as caught:
        LinearTask(sigma, given, yy=0.99 * least)
    message = str(caught.value)
    for word in ("`yy`", f"{least:.6g}", f"{0.99 * least:.6g}"):
        assert word in message
    traced = jax.jit(lambda yy: LinearTask(sigma, given, yy).optimum)
    assert jnp.isnan(traced(0.99 * least))
    np.testing.assert_allclose(traced(least + 2), 1.0, rtol=1e-8)


@pytest.mark.parametrize(
    ("sigma", "xx", "yy", "words"),
    [
        (np.ones(3), None, None, ["`sigma_yx`", "(outputs, inputs)", "(3,)"]),
        (np.ones((0, 3)), None, None, ["`sigma_yx`", "(outputs, inputs)", "(0, 3)"]),
        (np.ones((2, 3)), np.eye(2), None, ["`sigma_xx`", "(3, 3)", "(2, 2)"]),
        (np.ones((2, 3)), np.ones(3), None, ["`sigma_xx`", "(3, 3)", "(3,)"]),
        (np.ones((2, 3)), None, np.ones(2), ["`yy`", "scalar", "(2,)"]),
        (np.ones((1, 2)), np.array([[1.0, 0.5], [0.0, 1]]), None, ["symmetric"]),
        (np.ones((1, 2)), np.diag([1.0, -0.1]), None, ["`sigma_xx`", "negative"]),
    ],
)
def test_moments_that_do_not_fit_are_refused(unchecked, sigma, xx, yy, words):
    with pytest.raises(ValueError) as caught:
        LinearTask(sigma, xx, yy)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_network_of_other_sizes_is_refused():
    task = LinearTask(SIGMA)
    wrong = TwoLayerLinear(jnp.ones((2, 3)), jnp.ones((OUTPUTS, 2)))
    for f in (task.loss, task.excess):
        with pytest.raises(ValueError, match=r"4 inputs and 3 outputs.*3 inputs"):
            f(wrong)


def test_reversal_turns_the_targets_round():
    task = LinearTask(SIGMA, SIGMA_XX, yy=90.0)
    turned = task.reversed()
    np.testing.assert_array_equal(turned.sigma_yx, -SIGMA)
    np.testing.assert_array_equal(turned.yy, task.yy)
    np.testing.assert_array_equal(turned.optimum, task.optimum)
    net = network()
    mirrored = TwoLayerLinear(net.w1, -net.w2)
    np.testing.assert_allclose(turned.loss(net), task.loss(mirrored), rtol=1e-13)
    chex.assert_trees_all_equal(turned.reversed(), task)


def test_a_population_task_leaves_new_inputs_as_they_are():
    x = np.arange(5.0 * INPUTS).reshape(5, INPUTS)
    np.testing.assert_array_equal(LinearTask(SIGMA).prepare(x), x)
    with pytest.raises(ValueError, match=r"`x` must have 4 entries.*\(5, 3\)"):
        LinearTask(SIGMA).prepare(x[:, :3])


def test_loss_of_a_stack_of_networks_is_one_loss_each():
    for task in (LinearTask(SIGMA, yy=90.0), LinearTask(SIGMA, SIGMA_XX, 90.0)):
        nets = network(2, 3)
        for f in (task.loss, task.excess):
            out = f(nets)
            chex.assert_shape(out, (2, 3))
            one = f(jax.tree.map(lambda leaf: leaf[1, 2], nets))
            np.testing.assert_allclose(out[1, 2], one, rtol=1e-13)


def test_tasks_vmap_along_a_leading_axis():
    sigmas = np.stack([SIGMA, 2 * SIGMA, -SIGMA])
    tasks = jax.vmap(LinearTask)(sigmas)
    chex.assert_shape(tasks.sigma_yx, (3, OUTPUTS, INPUTS))
    net = network()
    many = jax.jit(jax.vmap(lambda task: task.loss(net)))(tasks)
    alone = jnp.stack([LinearTask(s).loss(net) for s in sigmas])
    np.testing.assert_allclose(many, alone, rtol=1e-13)


def test_derivative_in_the_moments():
    net = network()
    w = np.asarray(net.w2 @ net.w1)

    def loss(sigma, xx, yy):
        return LinearTask(sigma, xx, yy).loss(net)

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(SIGMA, SIGMA_XX, 90.0)
    np.testing.assert_allclose(slopes[0], -w, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(slopes[1] + slopes[1].T, w.T @ w, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(slopes[2], 0.5, rtol=1e-12)


def test_dtype_follows_the_moments():
    single = SIGMA.astype(np.float32)
    task = LinearTask(single, yy=90.0)
    floats = [leaf.dtype for leaf in jax.tree.leaves(task)]
    assert set(floats) == {jnp.dtype("float32")}
    assert task.loss(network(dtype=np.float32)).dtype == jnp.float32
    assert LinearTask(single).optimum == 0
    mixed = LinearTask(single, SIGMA_XX)
    assert mixed.sigma_yx.dtype == mixed.yy.dtype == jnp.float64


def test_moments_that_a_jitted_function_closes_over():
    sigma, xx = jnp.asarray(SIGMA), jnp.asarray(SIGMA_XX)
    net = network()
    inside = jax.jit(lambda yy: LinearTask(sigma, xx, yy).loss(net))(90.0)
    np.testing.assert_allclose(inside, LinearTask(sigma, xx, 90.0).loss(net), rtol=1e-9)


def test_nan_moments_are_not_hidden():
    broken = SIGMA.copy()
    broken[1, 2] = np.nan
    task = LinearTask(broken)
    assert jnp.isnan(task.loss(network()))
    assert jnp.isnan(task.optimum)
