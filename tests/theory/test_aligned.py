"""Aligned modes in closed form, against the scalar arbitrary-precision solution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from tests.oracle import scalar

TIMES = (0.0, 1e-3, 0.1, 0.7, 2.0, 9.0, 40.0)
START = (1e-8, 1e-3, 0.5, -0.3, 3.0, 0.2)
TARGET = (1.0, 2.0, 0.5, 1.5, 0.8, 0.0)
LAMBDAS = (0.0, 1e-9, 0.5, -0.5, 20.0, -20.0, 1e3, -1e3)


@jax.jit
def compiled(times, start, target, lam):
    return lr.theory.aligned_modes(times, start, target, lam)


def modes(*arguments):
    return compiled(*(jnp.asarray(x) for x in arguments))


def expected(times, start, target, lam):
    pairs = list(zip(start, target, strict=True))
    return np.array(
        [[float(scalar.strength(t, s, x, lam)) for s, x in pairs] for t in times]
    )


def allowed(values, times, start, target, lam):
    """1e-11 of each value, or ten times the effect of one ulp of its layers.

    An ulp of the larger layer moves the start, and λ, by twice their product. The floor
    is for strengths that cross 0 or have decayed.
    """
    layer = np.array([float(max(map(abs, scalar.strengths(s, lam)))) for s in start])
    ulp = 2 * layer * np.spacing(layer)
    by_start = expected(times, start + ulp, target, lam)
    by_lam = [
        expected(times, [s], [x], lam + u)
        for s, x, u in zip(start, target, ulp, strict=True)
    ]
    effect = abs(by_start - values) + abs(np.concatenate(by_lam, axis=1) - values)
    return np.maximum(1e-11 * abs(values), 10 * effect) + 1e-15


@pytest.mark.parametrize("lam", LAMBDAS)
def test_equals_the_scalar_solution(lam):
    found = modes(TIMES, START, TARGET, lam)
    assert found.shape == (len(TIMES), len(START))
    values = expected(TIMES, START, TARGET, lam)
    assert (abs(found - values) <= allowed(values, TIMES, START, TARGET, lam)).all()
    np.testing.assert_allclose(found[0], START, rtol=1e-14)


def test_zero_lambda_is_the_sigmoid_for_either_sign():
    found = modes(TIMES, (0.01, -0.01, -1.0), (1.5, 1.5, 0.5), 0.0)
    values = [
        [
            float(scalar.sigmoid(t, s, x))
            for s, x in ((0.01, 1.5), (-0.01, 1.5), (-1, 0.5))
        ]
        for t in TIMES
    ]
    # The wrong sign decays like e^{−2s̃t}, to 1e-50: relative to the start then.
    np.testing.assert_allclose(found, values, rtol=1e-11, atol=1e-15)
    assert found[-1, 0] == pytest.approx(1.5, abs=1e-14)
    assert (found[:, 1:] <= 0).all()


def test_the_sign_of_lambda_does_not_matter():
    for lam in (1e-9, 0.5, 20.0, 1e3):
        plus, minus = (modes(TIMES, START, TARGET, x) for x in (lam, -lam))
        tolerance = 2 * allowed(plus, TIMES, START, TARGET, lam)
        assert (abs(plus - minus) <= tolerance).all()


def test_large_lambda_is_exponential():
    times = np.array(TIMES) / 1e7
    for lam in (1e7, -1e7):
        gamma = (modes(times, 0.1, 2.0, lam) - 0.1) / (2.0 - 0.1)
        np.testing.assert_allclose(gamma, -np.expm1(-np.abs(lam) * times), atol=1e-12)


def test_a_mode_at_zero_stays_only_without_lambda():
    assert (modes(TIMES, (0.0,), (2.0,), 0.0) == 0).all()
    found = modes(TIMES, (0.0,), (2.0,), 1e-6)
    np.testing.assert_allclose(
        found, expected(TIMES, (0.0,), (2.0,), 1e-6), rtol=1e-11, atol=1e-30
    )
    assert found[-1, 0] == pytest.approx(2.0, abs=1e-14)


def test_shapes():
    times, many = jnp.asarray(TIMES), jnp.asarray(TARGET)

    def shape(times, start, target):
        def run():
            return lr.theory.aligned_modes(times, start, target, 1.0)

        return jax.eval_shape(run).shape

    assert shape(1.0, 0.1, 2.0) == ()
    assert shape(times, 0.1, 2.0) == (len(TIMES),)
    assert shape(1.0, many, many) == (len(TARGET),)
    assert shape(times, 0.1, many) == (len(TIMES), len(TARGET))
    assert shape(times, many, 1.0) == (len(TIMES), len(TARGET))


@jax.jit
def slopes(*point):
    modes = (jax.jacfwd, jax.jacrev)
    return [m(lr.theory.aligned_modes, argnums=(0, 1, 3))(*point) for m in modes]


@pytest.mark.parametrize("lam", [0.0, 1e-9, 0.5, -3.0])
@pytest.mark.parametrize("t", [0.0, 1.1, 300.0])
def test_derivatives(lam, t):
    s0, target = 0.05, 2.0
    s = scalar.strength(t, s0, target, lam)
    expected = [
        float(scalar.speed(s, target, lam)),
        float(scalar.strength_by_start(t, s0, target, lam)),
        float(scalar.strength_by_lam(t, s0, target, lam)),
    ]
    for found in slopes(*(jnp.asarray(x) for x in (t, s0, target, lam))):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("lam", [0.0, 0.5, -2.0])
@pytest.mark.parametrize("shape", [(3, 3), (3, 5), (5, 3)])
def test_exact_training_of_an_aligned_start(lam, shape):
    rng = np.random.default_rng(4)
    sigma = rng.normal(size=shape)
    task = lr.tasks.LinearTask(jnp.asarray(sigma))
    target = np.linalg.svd(sigma, compute_uv=False)
    start = np.array([0.01, 0.2, 0.05])
    net = lr.inits.aligned(task, lam, jnp.asarray(start))
    nets = lr.train(net, task, jnp.asarray(TIMES), method=lr.Exact()).networks
    assert nets is not None
    u, _, vt = np.linalg.svd(sigma, full_matrices=False)
    product = u.T @ np.asarray(nets.w2 @ nets.w1) @ vt.T
    strengths = np.diagonal(product, axis1=1, axis2=2)
    values = expected(TIMES, start, target, lam)
    np.testing.assert_allclose(strengths, values, rtol=1e-11)
    np.testing.assert_allclose(modes(TIMES, start, target, lam), values, rtol=1e-11)
    assert abs(product - strengths[..., None] * np.eye(3)).max() <= 1e-13
