"""Derivatives of the exact method, against differences of the exact answers.

The probe is a fixed linear function of the three blocks W1ᵀW1, W2W1 and W2W2ᵀ: unlike
the loss it keeps depending on the start at late times. Functions of one shape are
compiled once, with the target and the key as arguments.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from tests.oracle import riccati, scalar
from tests.problems import Problem

Shape = tuple[int, int, int]
SQUARE = (3, 3, 3)
SCALE = 0.3


def key(behind: bool):
    """A key whose start in `SQUARE` lies (at λ = 0) behind a saddle, or does not."""
    for seed in range(20):
        net = lr.inits.balanced(jax.random.key(seed), *SQUARE, 0.0, SCALE)
        if (np.linalg.det(net.w2 @ net.w1) < 0) == behind:
            return jax.random.key(seed)
    raise AssertionError


def target(spectrum: str, shape: Shape = SQUARE):
    return jnp.asarray(Problem(shape, 0.0, spectrum=spectrum).sigma())


def probe(blocks):
    rng = np.random.default_rng(1)
    return sum((rng.normal(size=x.shape) * x).sum() for x in blocks)


def train(net, task, t):
    out = lr.train(net, task, t, method=lr.Exact()).networks
    assert out is not None
    return out


def trained_probe(net, sigma, t):
    out = train(net, lr.tasks.LinearTask(sigma), t)
    return probe((out.w1.T @ out.w1, out.w2 @ out.w1, out.w2 @ out.w2.T))


def oracle(net, sigma, t):
    w1, w2 = np.asarray(net.w1), np.asarray(net.w2)
    return riccati.solve(w1, w2, np.asarray(sigma), [float(t)])[0]


def difference(f, point, i, h):
    """The central difference of f in argument i."""
    up, down = (
        f(*(x + step if k == i else x for k, x in enumerate(point))) for step in (h, -h)
    )
    return (up - down) / (2 * h)


def start_slope(f):
    """The slope of f at 0 from its values at 0 and after it."""
    h = 1e-5
    return (4 * f(h) - 3 * f(0.0) - f(2 * h)) / (2 * h)


def arrays(*numbers):
    return tuple(jnp.asarray(x) for x in numbers)


@jax.jit
def derivatives(lam, scale, t, sigma, key):
    """Forward and reverse derivatives of the probe in λ, scale and t."""

    def value(lam, scale, t):
        return trained_probe(lr.inits.balanced(key, *SQUARE, lam, scale), sigma, t)

    return [
        jnp.stack(mode(value, argnums=(0, 1, 2))(lam, scale, t))
        for mode in (jax.jacfwd, jax.jacrev)
    ]


def check(spectrum, lam, t, *, behind=False, arguments=(0, 1, 2)):
    sigma, which = target(spectrum), key(behind)
    forward, reverse = derivatives(*arrays(lam, SCALE, t), sigma, which)

    def answer(lam, scale, t):
        return probe(oracle(lr.inits.balanced(which, *SQUARE, lam, scale), sigma, t))

    steps = (1e-6 * max(1.0, abs(lam)), 1e-5 * SCALE, 1e-6 * max(t, 0.1))
    for i in arguments:
        if i == 2 and t == 0:
            expected = start_slope(functools.partial(answer, lam, SCALE))
        else:
            expected = difference(answer, (lam, SCALE, t), i, steps[i])
        size = max(abs(expected), 1e-3)
        assert abs(forward[i] - expected) <= 1e-6 * size, (i, forward[i], expected)
        assert abs(reverse[i] - forward[i]) <= 1e-9 * size, (i, reverse[i], expected)


@pytest.mark.parametrize("t", [0.0, 1.0, 300.0])
@pytest.mark.parametrize("lam", [0.0, 1e-9, 1.0, -2.0])
@pytest.mark.parametrize("spectrum", ["generic", "repeated", "rank 1", "zero"])
def test_lambda_scale_and_time(spectrum, lam, t):
    check(spectrum, lam, t)


@pytest.mark.parametrize("t", [0.0, 1.0, 15.0])
def test_behind_a_saddle(t):
    # In λ the slope grows like e^{2s̃t} off the saddle, to which Exact holds on.
    check("generic", 0.0, t, behind=True, arguments=(1, 2))
    late = derivatives(*arrays(0.0, SCALE, 1e6), target("generic"), key(True))
    assert np.isfinite(late).all()


def test_finite_for_every_lambda_scale_and_time():
    for lam in (0.0, 1e-9, -1e3, 1e3):
        for scale in (1e-8, 1.0):
            for t in (0.0, 1.0, 1e6):
                point = arrays(lam, scale, t)
                for spectrum in ("repeated", "rank 1"):
                    found = derivatives(*point, target(spectrum), key(False))
                    assert np.isfinite(found).all()


def test_vmap_equals_a_loop():
    lams = jnp.asarray([-20.0, -1.0, 0.0, 1e-9, 1.0, 20.0])
    rest = (*arrays(SCALE, 1.0), target("repeated"), key(False))
    batch = jax.jit(jax.vmap(lambda lam: derivatives(lam, *rest)[1]))(lams)
    alone = np.stack([derivatives(lam, *rest)[1] for lam in lams])
    np.testing.assert_allclose(batch, alone, rtol=1e-10, atol=1e-12)


slopes = jax.jit(jax.grad(trained_probe, argnums=(0, 1, 2)))


@pytest.mark.parametrize(
    ("shape", "spectrum", "lam", "t"),
    [
        ((3, 3, 3), "generic", 1.0, 1.3),
        ((3, 3, 3), "generic", 0.0, 1.3),
        ((5, 3, 3), "generic", 0.0, 1.3),
        ((5, 3, 3), "generic", -20.0, 10.0),
        ((5, 3, 3), "rank 1", 20.0, 0.1),
        ((4, 2, 4), "generic", 0.0, 2.0),
        ((4, 2, 4), "repeated", -1.0, 100.0),
        ((3, 5, 3), "generic", 0.0, 1.3),
        ((3, 5, 3), "rank 1", 0.0, 1.3),
    ],
)
def test_weights_target_and_time_for_other_shapes(shape, spectrum, lam, t):
    """Along random directions: the formula's derivatives, with λ = tr B/Nh."""
    problem = Problem(shape, lam, SCALE, spectrum)
    net, sigma = problem.build()[0], jnp.asarray(problem.sigma())
    point = (net, sigma, jnp.asarray(t))
    rng = np.random.default_rng(5)
    # In the target derivatives need a simple spectrum.
    for i in (0, 1, 2) if problem.simple_spectrum else (0, 2):
        move = jax.tree.map(lambda x: rng.normal(size=x.shape), point[i])
        found = sum(
            float((x * d).sum())
            for x, d in zip(
                jax.tree.leaves(slopes(*point)[i]), jax.tree.leaves(move), strict=True
            )
        )

        ends = []
        for h in (1e-6, -1e-6):
            step = jax.tree.map(functools.partial(np.multiply, h), move)
            moved = jax.tree.map(jnp.add, point[i], step)
            a, b, c = (moved if k == i else x for k, x in enumerate(point))
            ends.append(probe(oracle(a, b, c)))
        expected = (ends[0] - ends[1]) / 2e-6
        assert abs(found - expected) <= 1e-6 * max(abs(expected), 1e-3)


def loss(lam, scale, t, sigma):
    task = lr.tasks.LinearTask(sigma)
    net = lr.inits.balanced(jax.random.key(3), *SQUARE, lam, scale)
    return task.loss(train(net, task, t))


@jax.jit
def loss_slopes(*point):
    """The loss, its gradient and its Hessian in (λ, scale, t)."""
    value, gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))(*point)
    hessian = jax.hessian(loss, argnums=(0, 1, 2))(*point)
    return value, jnp.stack(gradient), jnp.stack([jnp.stack(row) for row in hessian])


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("spectrum", ["repeated", "rank 1"])
def test_loss_gradient_and_hessian(lam, spectrum):
    sigma = target(spectrum)
    point = (*arrays(lam, SCALE, 1.0), sigma)
    value, gradient, hessian = loss_slopes(*point)
    # Differentiation adds no jitter: it would show at 1e-12.
    assert abs(value - jax.jit(loss)(*point)) <= 1e-15 * value
    for i in range(3):
        slope, row = (
            difference(lambda *x, k=k: loss_slopes(*x)[k], point, i, 1e-5)
            for k in (0, 1)
        )
        assert abs(gradient[i] - slope) <= 1e-6 * max(abs(slope), 1e-3)
        np.testing.assert_allclose(hessian[i], row, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_the_loss_falls_by_its_squared_gradient(lam):
    sigma = target("repeated")
    net = lr.inits.balanced(jax.random.key(3), *SQUARE, lam, SCALE)
    for t in (0.0, 0.4, 3.0, 1e3):
        x, p, y = oracle(net, sigma, t)
        rest = np.asarray(sigma) - p
        expected = -np.trace(rest.T @ y @ rest) - np.trace(rest @ x @ rest.T)
        found = loss_slopes(*arrays(lam, SCALE, t), sigma)[1][2]
        assert abs(found - expected) <= 1e-9 * abs(expected) + 1e-25


@jax.jit
def aligned_slopes(lam, s0, t, values):
    """Derivatives of tr W2W1 for aligned modes in λ, their start and t."""
    task = lr.tasks.LinearTask(jnp.diag(values))

    def total(lam, s0, t):
        out = train(lr.inits.aligned(task, lam, s0), task, t)
        return jnp.trace(out.w2 @ out.w1)

    return [m(total, argnums=(0, 1, 2))(lam, s0, t) for m in (jax.jacfwd, jax.jacrev)]


@pytest.mark.parametrize("values", [(2.0, 1.0, 1.0), (1.5, 0.0, 0.0)])
@pytest.mark.parametrize("lam", [0.0, 1e-9, 0.7, -5.0])
def test_aligned_start(values, lam):
    s0, t = 0.05, 0.9
    expected = [
        sum(float(f(s0, x)) for x in values)
        for f in (
            lambda s, x: scalar.strength_by_lam(t, s, x, lam),
            lambda s, x: scalar.strength_by_start(t, s, x, lam),
            lambda s, x: scalar.speed(scalar.strength(t, s, x, lam), x, lam),
        )
    ]
    for found in aligned_slopes(*arrays(lam, s0, t), jnp.asarray(values)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@jax.jit
def stop_slopes(*point):
    """The time to a loss level in one aligned mode, and its derivatives."""

    def stop(level, s0, lam, values):
        task = lr.tasks.LinearTask(values)
        net = lr.inits.aligned(task, lam, s0)
        times, until = jnp.asarray([0.0, 10.0]), lr.until_loss(level)
        return lr.train(net, task, times, method=lr.Exact(), until=until).stop_time

    slopes = [m(stop, argnums=(0, 1, 2))(*point) for m in (jax.jacfwd, jax.jacrev)]
    return stop(*point), slopes


@pytest.mark.parametrize("lam", [0.0, 0.5, -3.0])
def test_time_to_a_loss_level(lam):
    end, s0, strength = 2.0, 0.05, 1.2
    level = 0.5 * (end - strength) ** 2
    stop, found = stop_slopes(*arrays(level, s0, lam), jnp.asarray([[end]]))
    time = float(scalar.time_to(strength, s0, end, lam))
    assert abs(stop - time) <= 1e-10 * time
    by = [float(x) for x in scalar.time_to_by(strength, s0, end, lam)]
    by[0] /= strength - end  # from the strength to the loss
    for slopes in found:
        np.testing.assert_allclose(slopes, by, rtol=1e-8, atol=1e-10)
