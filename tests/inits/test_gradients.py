"""Derivatives of the inits, against central differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich.inits import balanced
from lazyrich.networks import TwoLayerLinear

KEY = jax.random.key(0)
H = 1e-4
STRENGTHS = np.array([1.0, 1.0, 0.3])  # repeated on purpose


def probe(net: TwoLayerLinear):
    """A fixed linear function of all weights."""
    rng = np.random.default_rng(1)
    c1, c2 = rng.normal(size=net.w1.shape), rng.normal(size=net.w2.shape)
    return jnp.sum(c1 * net.w1) + jnp.sum(c2 * net.w2)


@functools.cache
def derivatives(shape: tuple[int, int, int], name):
    """The probe, and its forward and reverse derivatives in λ and in the size."""

    def value(lam, size):
        return probe(balanced(KEY, *shape, lam, **{name: size}))

    def all_three(lam, size):
        return (
            value(lam, size),
            jax.jacfwd(value, argnums=(0, 1))(lam, size),
            jax.jacrev(value, argnums=(0, 1))(lam, size),
        )

    return jax.jit(all_three)


def difference(f, h):
    """f′(0) from four points; the error is of fourth order in h."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


def check(shape, name, lam, size):
    f = derivatives(shape, name)
    lam, size = np.asarray(float(lam)), np.asarray(size, float)
    _, forward, reverse = f(lam, size)
    expected = difference(lambda h: f(lam + h, size)[0], H)
    for slope in (forward[0], reverse[0]):
        np.testing.assert_allclose(slope, expected, rtol=1e-7, atol=1e-9)
    for i in np.ndindex(size.shape):
        unit = np.zeros_like(size)
        unit[i] = 1.0
        expected = difference(lambda h, u=unit: f(lam, size + h * u)[0], H)
        for slope in (forward[1], reverse[1]):
            np.testing.assert_allclose(slope[i], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("lam", [0.0, 1e-9, -1e-9, 1.5, -1.5, 30.0])
def test_in_lam_and_singular_values_through_zero(lam):
    check((4, 3, 5), "singular_values", lam, STRENGTHS)


def test_in_lam_and_singular_values_with_padded_directions():
    check((3, 4, 5), "singular_values", 0.8, STRENGTHS)


@pytest.mark.parametrize("lam", [0.0, 1.0, -20.0])
def test_in_lam_and_scale(lam):
    check((3, 3, 3), "scale", lam, 0.2)


@pytest.mark.parametrize("lam", [0.3, -1.0])
def test_in_lam_and_norm(lam):
    check((3, 3, 3), "norm", lam, 9.0)


def test_a_mode_at_zero_has_finite_slopes():
    f = derivatives((4, 3, 5), "singular_values")
    at = np.array([1.0, 0.5, 0.0])
    for lam in (0.5, -0.5):
        here, forward, reverse = f(np.asarray(lam), at)
        for slopes in (forward, reverse):
            # s ≥ 0: a one-sided difference, s/√|λ| to first order.
            step = np.array([0.0, 0.0, 1e-7])
            one_sided = (f(np.asarray(lam), at + step)[0] - here) / 1e-7
            np.testing.assert_allclose(slopes[1][2], one_sided, rtol=1e-5)
            expected = difference(lambda h, lam=lam: f(np.asarray(lam + h), at)[0], H)
            np.testing.assert_allclose(slopes[0], expected, rtol=1e-7)


def test_padded_directions_have_infinite_slope_at_zero():
    """√|λ|: what cannot be differentiated must not look as if it could."""
    f = derivatives((3, 4, 5), "singular_values")
    _, forward, reverse = f(np.asarray(0.0), STRENGTHS)
    assert not np.isfinite(forward[0])
    assert not np.isfinite(reverse[0])
    # The derivatives in the size are unharmed.
    for i in range(3):
        unit = np.eye(3)[i]
        expected = difference(
            lambda h, unit=unit: f(np.asarray(0.0), STRENGTHS + h * unit)[0], H
        )
        np.testing.assert_allclose(reverse[1][i], expected, rtol=1e-7, atol=1e-9)


def test_refused_members_do_not_spoil_the_gradients_of_the_others():
    lams = jnp.array([-1.0, 0.5, 1.0])

    def total(lams):
        values = jax.vmap(
            lambda lam: probe(balanced(KEY, 3, 4, 5, lam, singular_values=STRENGTHS))
        )(lams)
        return jnp.sum(jnp.where(jnp.isnan(values), 0.0, values))

    slopes = jax.jit(jax.grad(total))(lams)
    assert np.isfinite(slopes[1:]).all()
    _, forward, _ = derivatives((3, 4, 5), "singular_values")(
        np.asarray(0.5), STRENGTHS
    )
    np.testing.assert_allclose(slopes[1], forward[0], rtol=1e-9)


def test_the_product_and_the_norm_know_their_derivatives():
    """W2W1 does not depend on λ, and ‖W1‖² + ‖W2‖² = 2Σ√(s² + λ²/4)."""

    def quantities(lam):
        net = balanced(KEY, 3, 3, 3, lam, singular_values=STRENGTHS)
        return net.product, jnp.sum(net.w1**2) + jnp.sum(net.w2**2)

    slopes = jax.jit(jax.jacfwd(quantities))
    for lam in (0.0, 1.0, -2.0):
        product, norm = slopes(lam)
        np.testing.assert_allclose(product, np.zeros((3, 3)), atol=1e-14)
        mu = np.sqrt(STRENGTHS**2 + lam**2 / 4)
        np.testing.assert_allclose(norm, np.sum(lam / (2 * mu)), atol=1e-13)
