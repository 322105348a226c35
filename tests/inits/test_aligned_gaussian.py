"""`aligned`: the task's own singular vectors. `gaussian`: moments of its balance."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich.inits import aligned, balanced, gaussian
from lazyrich.tasks import LinearTask, hierarchy

KEY = jax.random.key(0)


def target(outputs, inputs, strengths):
    rng = np.random.default_rng(0)
    u = np.linalg.qr(rng.normal(size=(outputs, outputs)))[0]
    v = np.linalg.qr(rng.normal(size=(inputs, inputs)))[0]
    k = len(strengths)
    return u[:, :k] @ np.diag(strengths) @ v[:, :k].T, u[:, :k], v[:, :k]


def balance_of(net):
    return np.asarray(net.w2.T @ net.w2 - net.w1 @ net.w1.T)


@pytest.mark.parametrize(
    ("inputs", "hidden", "outputs", "lam"),
    [
        (3, None, 3, 0.0),
        (3, 2, 3, 1e-9),
        (4, None, 3, 2.0),
        (3, None, 4, -1e3),
        (3, 4, 4, 2.0),
        (4, 4, 3, -2.0),
        (3, 5, 3, 0.0),
    ],
)
def test_modes_start_at_the_strengths_asked_for(inputs, hidden, outputs, lam):
    narrow = min(inputs, outputs)
    strengths = np.array([3.0, 2.0, 1.0])[:narrow]
    sigma, u, v = target(outputs, inputs, strengths)
    task = LinearTask(sigma)
    k = min(narrow, hidden or narrow)
    one_each = np.array([0.1, -0.2, 0.3])[:k]
    for scale in (0.05, one_each):
        net = aligned(task, lam, scale, hidden)
        assert net.hidden == (hidden or narrow)
        assert (net.inputs, net.outputs) == (inputs, outputs)
        size = float(np.sum(net.w1**2) + np.sum(net.w2**2))
        np.testing.assert_allclose(
            balance_of(net), lam * np.eye(net.hidden), atol=1e-12 * size
        )
        # In the task's own singular vectors the product is diagonal.
        expected = np.zeros((narrow, narrow))
        np.fill_diagonal(expected[:k, :k], scale)
        np.testing.assert_allclose(u.T @ net.product @ v, expected, atol=1e-13)
        whole = u @ expected @ v.T
        np.testing.assert_allclose(net.product, whole, atol=1e-13)


def test_the_start_follows_signs_and_repetitions_of_the_task():
    """Where singular vectors are arbitrary, the product of a uniform start is not."""
    task = hierarchy(2)
    start = aligned(task, 1.0, 0.1)
    turned = aligned(task.reversed(), 1.0, 0.1)
    np.testing.assert_allclose(turned.product, -start.product, atol=1e-14)
    # UVᵀ is the orthogonal factor of Σ, which has no repeated modes to choose from.
    left, _, right = np.linalg.svd(task.sigma_yx)
    np.testing.assert_allclose(start.product, 0.1 * left @ right, atol=1e-13)


def test_aligned_under_jit_vmap_and_grad():
    sigma, u, v = target(3, 3, [3.0, 2.0, 1.0])
    task = LinearTask(sigma)
    lams = jnp.array([0.0, 1.0, -1.0])
    many = jax.jit(jax.vmap(lambda lam: aligned(task, lam, 0.1)))(lams)
    for i, lam in enumerate(lams):
        one = jax.tree.map(lambda w, i=i: w[i], many)
        chex.assert_trees_all_close(one, aligned(task, lam, 0.1), atol=1e-13)

    def strengths(lam, scale):
        net = aligned(task, lam, scale)
        return jnp.diagonal(u.T @ net.product @ v), jnp.sum(net.w2**2)

    slopes = jax.jit(jax.jacfwd(strengths, argnums=(0, 1)))
    for lam in (0.0, 0.7):
        (by_lam, by_scale), norms = slopes(lam, 0.3)
        np.testing.assert_allclose(by_lam, np.zeros(3), atol=1e-13)
        np.testing.assert_allclose(by_scale, np.ones(3), atol=1e-12)
        # ‖W2‖² = Σ(μ + λ/2).
        mu = np.sqrt(0.09 + lam**2 / 4)
        np.testing.assert_allclose(norms[0], 3 * (lam / (4 * mu) + 0.5), rtol=1e-11)
        np.testing.assert_allclose(norms[1], 3 * 0.3 / mu, rtol=1e-11)


def test_aligned_refuses_in_words(unchecked):
    task = LinearTask(target(3, 4, [3.0, 2.0, 1.0])[0])
    with pytest.raises(ValueError, match="`lam` must be ≤ 0 when hidden > outputs"):
        aligned(task, 1.0, 0.1, hidden=4)
    with pytest.raises(ValueError, match="`lam` must be ≥ 0 when hidden > inputs"):
        aligned(task, -1.0, 0.1, hidden=5)
    with pytest.raises(ValueError, match=r"`scale`.*\(3,\).*\(2,\)"):
        aligned(task, 0.0, np.array([0.1, 0.2]))
    with pytest.raises(ValueError, match=r"`hidden`.*≥ 1.*0"):
        aligned(task, 0.0, 0.1, hidden=0)
    traced = jax.jit(lambda lam: aligned(task, lam, 0.1, hidden=4))(1.0)
    assert np.isnan(traced.w1).all()
    assert np.isnan(traced.w2).all()


def test_aligned_dtype_follows_the_task():
    task = LinearTask(target(3, 3, [3.0, 2.0, 1.0])[0].astype(np.float32))
    net = aligned(task, 0.5, 0.1)
    assert net.w1.dtype == net.w2.dtype == jnp.float32
    np.testing.assert_allclose(balance_of(net), 0.5 * np.eye(3), atol=1e-6)


def test_balance_of_gaussian_layers_has_the_stated_mean_and_variances():
    inputs, hidden, outputs, std1, std2 = 3, 4, 5, 0.7, 0.4
    runs = 4000
    keys = jax.random.split(KEY, runs)

    @jax.jit
    @jax.vmap
    def balance(key):
        net = gaussian(key, inputs, hidden, outputs, std1, std2)
        return net.w2.T @ net.w2 - net.w1 @ net.w1.T

    b = np.asarray(balance(keys))
    variance = outputs * std2**4 + inputs * std1**4
    mean = (outputs * std2**2 - inputs * std1**2) * np.eye(hidden)
    # Five standard errors of a mean over the runs, at the larger (diagonal) variance.
    band = 5 * np.sqrt(2 * variance / runs)
    np.testing.assert_allclose(b.mean(axis=0), mean, atol=band)
    spread = b.var(axis=0)
    on = np.diag(spread)
    off = spread[~np.eye(hidden, dtype=bool)]
    np.testing.assert_allclose(on.mean(), 2 * variance, rtol=0.07)
    np.testing.assert_allclose(off.mean(), variance, rtol=0.07)
    np.testing.assert_allclose(on, 2 * variance, rtol=0.15)
    np.testing.assert_allclose(off, variance, rtol=0.15)


def test_gaussian_entries_scale_with_the_standard_deviations():
    a, b = gaussian(KEY, 3, 4, 5, 1.0, 1.0), gaussian(KEY, 3, 4, 5, 0.5, 2)
    chex.assert_shape([a.w1, a.w2], [(4, 3), (5, 4)])
    np.testing.assert_allclose(b.w1, 0.5 * a.w1, rtol=1e-14)
    np.testing.assert_allclose(b.w2, 2.0 * a.w2, rtol=1e-14)
    other = gaussian(jax.random.key(1), 3, 4, 5, 1.0, 1.0)
    assert np.abs(other.w1 - a.w1).min() > 0
    assert gaussian(KEY, 3, 4, 5, 0, 0.0).product.any() == np.False_
    slope = jax.grad(lambda s: jnp.sum(gaussian(KEY, 3, 4, 5, s, 1.0).w1))(0.5)
    np.testing.assert_allclose(slope, jnp.sum(a.w1), rtol=1e-12)


def test_gaussian_layers_are_independent_normal_draws():
    @jax.jit
    @jax.vmap
    def entries(key):
        net = gaussian(key, 3, 4, 3, 1.0, 1.0)
        return jnp.concatenate([net.w1.ravel(), net.w2.ravel()])

    draws = np.asarray(entries(jax.random.split(KEY, 4000)))
    np.testing.assert_allclose(np.cov(draws.T), np.eye(24), atol=5 * np.sqrt(2 / 4000))
    np.testing.assert_allclose((draws**4).mean(), 3.0, atol=0.15)


def test_gaussian_dtype_and_refusals(unchecked):
    net = gaussian(KEY, 3, 4, 5, np.float32(0.5), 1.0)
    assert net.w1.dtype == net.w2.dtype == jnp.float32
    with pytest.raises(ValueError, match=r"`outputs` must be integers ≥ 1.*3, 4 and 0"):
        gaussian(KEY, 3, 4, 0, 1.0, 1.0)


@pytest.mark.parametrize("stds", [(-1.0, 1.0), (1.0, -1.0), (np.nan, 1.0)])
def test_gaussian_layers_need_a_standard_deviation(stds):
    with pytest.raises(ValueError, match=r"`std[12]` must be ≥ 0"):
        gaussian(jax.random.key(0), 2, 2, 2, *stds)


@pytest.mark.parametrize("key", [0, np.zeros(3), jax.random.split(jax.random.key(0))])
def test_a_seed_or_a_stack_of_keys_is_no_key(unchecked, key):
    for init in (gaussian, balanced):
        with pytest.raises(ValueError, match="`key` must be one JAX random key"):
            init(key, 2, 2, 2, 1.0, 1.0)


def test_sizes_must_be_integers(unchecked):
    width: Any = 2.0
    with pytest.raises(ValueError, match="must be integers ≥ 1"):
        balanced(jax.random.key(0), width, 2, 2, 0.0, 1.0)


def test_raw_keys_serve_too():
    net = balanced(jax.random.PRNGKey(0), 2, 2, 2, 1.0, 1.0)
    again = balanced(jax.random.key(0), 2, 2, 2, 1.0, 1.0)
    np.testing.assert_array_equal(net.w1, again.w1)
