"""`rebalance`: another λ, the same product."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich.inits import balanced, gaussian, rebalance
from lazyrich.networks import TwoLayerLinear

KEY = jax.random.key(0)
# (inputs, hidden, outputs) and the λ that they admit, 0 first.
CASES = {
    (3, 3, 3): (0.0, 1.5, -1.5, 1e3, -1e3),
    (4, 2, 3): (0.0, 1.5, -1.5, 1e3, -1e3),
    (2, 3, 4): (0.0, 1e-9, 1.5, 20.0, 1e3),
    (4, 3, 2): (0.0, -1e-9, -1.5, -20.0, -1e3),
    (2, 4, 2): (0.0,) * 5,
}


@functools.cache
def compiled(shape):
    del shape  # one compilation each
    return jax.jit(jax.vmap(rebalance, in_axes=(None, 0)))


def network(shape, seed=0):
    inputs, hidden, outputs = shape
    rng = np.random.default_rng(seed)
    return TwoLayerLinear(
        rng.normal(size=(hidden, inputs)), rng.normal(size=(outputs, hidden))
    )


def balance_of(w1, w2):
    return np.asarray(w2.T @ w2 - w1 @ w1.T)


def lam_of(net):
    return float(np.trace(balance_of(net.w1, net.w2))) / net.hidden


def distance(a, b):
    return np.sum(np.asarray(a.w1 - b.w1) ** 2) + np.sum(np.asarray(a.w2 - b.w2) ** 2)


@pytest.mark.parametrize("shape", CASES)
def test_it_keeps_the_product_and_reaches_lam(shape):
    lams = np.array(CASES[shape])
    net = network(shape)
    out = compiled(shape)(net, lams)
    scale = float(np.abs(net.product).max())
    for lam, w1, w2 in zip(lams, out.w1, out.w2, strict=True):
        size = np.sum(w1**2) + np.sum(w2**2)
        np.testing.assert_allclose(w2 @ w1, net.product, atol=1e-12 * scale)
        np.testing.assert_allclose(
            balance_of(w1, w2), lam * np.eye(shape[1]), atol=1e-12 * float(size)
        )


@pytest.mark.parametrize("shape", CASES)
def test_a_balanced_network_is_left_as_it_is(shape):
    lams = np.array(CASES[shape])
    nets = compiled(shape)(network(shape), lams)
    for i, lam in enumerate(lams):
        net = jax.tree.map(lambda w, i=i: w[i], nets)
        again = jax.tree.map(lambda w: w[0], compiled(shape)(net, np.full(5, lam)))
        size = np.sqrt(np.sum(net.w1**2) + np.sum(net.w2**2))
        chex.assert_trees_all_close(again, net, atol=1e-11 * float(size))


@pytest.mark.parametrize("shape", [s for s in CASES if s[1] <= min(s[0], s[2])])
def test_it_is_the_nearest_network(shape):
    """Without padded directions, no rotation of the hidden basis is closer."""
    net = network(shape)
    lams = np.array(CASES[shape])
    out = compiled(shape)(net, lams)
    rng = np.random.default_rng(1)
    hidden = shape[1]
    for i in (0, 2):
        found = jax.tree.map(lambda w, i=i: w[i], out)
        best = distance(found, net)
        for size in (1e-3, 1e-2, 1e-1, 1.0):
            for _ in range(10):
                skew = rng.normal(size=(hidden, hidden)) * size
                turn = np.linalg.qr(np.eye(hidden) + skew - skew.T)[0]
                turn = turn * np.sign(np.diag(turn))
                other = TwoLayerLinear(turn @ found.w1, found.w2 @ turn.T)
                assert distance(other, net) >= best * (1 - 1e-12)


def test_there_and_back_again():
    net = balanced(KEY, 3, 3, 3, 0.5, 0.7)
    chex.assert_trees_all_close(rebalance(net, 0.5), net, atol=1e-13)
    away = rebalance(net, -2.0)
    np.testing.assert_allclose(balance_of(away.w1, away.w2), -2 * np.eye(3), atol=1e-13)
    back = rebalance(away, 0.5)
    np.testing.assert_allclose(back.product, net.product, atol=1e-13)
    # The same singular values of every layer, wherever the hidden basis points.
    for a, b in ((back.w1, net.w1), (back.w2, net.w2)):
        np.testing.assert_allclose(np.linalg.svd(a)[1], np.linalg.svd(b)[1], rtol=1e-11)


def test_gaussian_networks_over_seeds():
    @jax.jit
    @jax.vmap
    def f(key):
        net = gaussian(key, 3, 3, 3, 0.5, 0.8)
        return net, rebalance(net, 1.0)

    before, after = f(jax.random.split(KEY, 5))
    np.testing.assert_allclose(after.product, before.product, atol=1e-12)
    for w1, w2 in zip(after.w1, after.w2, strict=True):
        np.testing.assert_allclose(balance_of(w1, w2), np.eye(3), atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 1.5])
def test_a_product_of_low_rank(lam):
    full = network((3, 3, 3))
    net = TwoLayerLinear(full.w1.at[1:].set(0.0), full.w2)
    out = rebalance(net, lam)
    np.testing.assert_allclose(out.product, net.product, atol=1e-13)
    np.testing.assert_allclose(balance_of(out.w1, out.w2), lam * np.eye(3), atol=1e-12)


def test_derivatives_in_lam_and_in_the_network():
    net = network((3, 3, 3))
    rng = np.random.default_rng(1)
    c1, c2 = rng.normal(size=(2, 3, 3))
    direction = network((3, 3, 3), seed=2)

    @jax.jit
    def value(lam, step):
        moved = jax.tree.map(lambda a, d: a + step * d, net, direction)
        out = rebalance(moved, lam)
        return jnp.sum(c1 * out.w1) + jnp.sum(c2 * out.w2)

    slopes = jax.jit(jax.grad(value, argnums=(0, 1)))
    h = 1e-5
    for lam in (0.0, 1.0, -1.0):
        by_lam, by_step = slopes(lam, 0.0)
        np.testing.assert_allclose(
            by_lam, (value(lam + h, 0.0) - value(lam - h, 0.0)) / (2 * h), rtol=1e-6
        )
        np.testing.assert_allclose(
            by_step, (value(lam, h) - value(lam, -h)) / (2 * h), rtol=1e-6
        )


def test_dtype_stays_single():
    net = balanced(KEY, 3, 3, 3, np.float32(0.5), 0.7)
    out = rebalance(net, 1.5)
    assert out.w1.dtype == out.w2.dtype == jnp.float32
    np.testing.assert_allclose(balance_of(out.w1, out.w2), 1.5 * np.eye(3), atol=1e-5)


def test_inadmissible_lam_is_refused_and_nan_when_traced():
    with pytest.raises(ValueError, match="`lam` must be ≤ 0 when hidden > outputs"):
        rebalance(network((4, 3, 2)), 1.0)
    with pytest.raises(ValueError, match="`lam` must be ≥ 0 when hidden > inputs"):
        rebalance(network((2, 3, 4)), -1.0)
    out = compiled((4, 3, 2))(
        network((4, 3, 2)), np.array([1.0, 0.0, -1.0, 2.0, np.nan])
    )
    for w in (out.w1, out.w2):
        lost = np.isnan(w).all(axis=(1, 2))
        np.testing.assert_array_equal(lost, [True, False, False, True, True])
        assert np.isfinite(w[1:3]).all()


def test_a_stack_of_networks_is_refused():
    stack = TwoLayerLinear(jnp.ones((2, 3, 3)), jnp.ones((2, 3, 3)))
    with pytest.raises(ValueError, match=r"one network.*vmap"):
        rebalance(stack, 0.0)
