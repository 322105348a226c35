"""Derivatives of the exact method, against differences of the exact answers.

The probe is a fixed linear function of the three blocks W1ᵀW1, W2W1 and W2W2ᵀ: unlike
the loss it keeps depending on the start at late times. Its differences are taken in
arbitrary precision. Functions of one shape are compiled once, with the target and the
key as arguments. Derivatives in the target: test_exact_sigma.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from tests.oracle import derivatives, riccati, scalar
from tests.oracle.riccati import Blocks
from tests.problems import Problem

Shape = tuple[int, int, int]
SQUARE = (3, 3, 3)
SCALE = 0.3
STRENGTHS = (1.2, 0.7, 0.3)  # of the modes at the start, times the scale
FIRST, SECOND = 1e-7, 1e-6  # tolerances of first and second derivatives
FLOOR = 1e-3  # smaller derivatives are held to this


def key(behind: bool = False):
    """A key whose start in `SQUARE` lies (at λ = 0) behind a saddle, or does not."""
    for seed in range(20):
        net = lr.inits.balanced(jax.random.key(seed), *SQUARE, 0.0, SCALE)
        if (np.linalg.det(net.w2 @ net.w1) < 0) == behind:
            return jax.random.key(seed)
    raise AssertionError


def target(spectrum: str, shape: Shape = SQUARE):
    return jnp.asarray(Problem(shape, 0.0, spectrum=spectrum).sigma())


def coefficients(shape: Shape) -> Blocks:
    inputs, _, outputs = shape
    rng = np.random.default_rng(1)
    sizes = ((inputs, inputs), (outputs, inputs), (outputs, outputs))
    return Blocks(*(rng.normal(size=size) for size in sizes))


def generators(shape: Shape):
    """An antisymmetric matrix each for inputs, hidden units and outputs."""
    rng = np.random.default_rng(2)
    draws = [rng.normal(size=(n, n)) for n in shape]
    return [(x - x.T) / 2 for x in draws]


def train(net, task, t):
    out = lr.train(net, task, t, method=lr.Exact()).networks
    assert out is not None
    return out


def trained_probe(net, sigma, t):
    shape = (net.inputs, net.hidden, net.outputs)
    out = train(net, lr.tasks.LinearTask(sigma), t)
    blocks = (out.w1.T @ out.w1, out.w2 @ out.w1, out.w2 @ out.w2.T)
    return sum((c * x).sum() for c, x in zip(coefficients(shape), blocks, strict=True))


def oracle(net, sigma, t):
    w1, w2 = np.asarray(net.w1), np.asarray(net.w2)
    return riccati.solve(w1, w2, np.asarray(sigma), [float(t)])[0]


def close(found, expected, tolerance):
    """Relative to what is expected, but not to less than `FLOOR`. NaN fails."""
    expected = np.asarray(expected, dtype=float)
    allowed = tolerance * np.maximum(np.abs(expected), FLOOR)
    np.testing.assert_array_less(np.abs(found - expected) / allowed, 1.0)


def arrays(*numbers):
    return tuple(jnp.asarray(x) for x in numbers)


def strengths(scale, others):
    return scale * np.array(STRENGTHS)[: len(others) - 3] + others[:-3]


def moved_probe(main, others, sigma, key, shape: Shape):
    """Of a start with main = (λ, scale, t) and others, all 0: modes and rotations.

    W1 → e^{bH} W1 e^{aI} and W2 → e^{cO} W2 e^{−bH}, as far as second order.
    """
    lam, scale, t = main
    net = lr.inits.balanced(key, *shape, lam, singular_values=strengths(scale, others))
    turns = [
        jnp.eye(g.shape[0]) + x * g + x**2 / 2 * (g @ g)
        for x, g in zip(others[-3:], generators(shape), strict=True)
    ]
    w1 = turns[1] @ net.w1 @ turns[0]
    w2 = turns[2] @ net.w2 @ turns[1].T
    return trained_probe(lr.networks.TwoLayerLinear(w1, w2), sigma, t)


@functools.partial(jax.jit, static_argnums=4)
def first(*point):
    """Forward and reverse derivatives of the probe, in `main` and in `others`."""
    return [
        jnp.concatenate(mode(moved_probe, argnums=(0, 1))(*point))
        for mode in (jax.jacfwd, jax.jacrev)
    ]


@functools.partial(jax.jit, static_argnums=4)
def second(*point):
    return jax.hessian(moved_probe)(*point)


@functools.cache
def vectors(behind: bool, shape: Shape):
    """The singular vectors of the starts of `key(behind)`, from their weights."""
    k = min(shape)
    net = lr.inits.balanced(
        key(behind), *shape, 0.0, singular_values=np.arange(k, 0.0, -1.0)
    )
    return derivatives.singular_vectors(np.asarray(net.w1), np.asarray(net.w2))


def exact_probe(main, others, sigma, behind, shape):
    """`moved_probe` in arbitrary precision."""
    u, r, v = vectors(behind, shape)
    lam, scale, t = main
    w1, w2 = derivatives.balanced(u, r, v, strengths(scale, others), lam)
    turns = [
        derivatives.rotation(g, x)
        for g, x in zip(generators(shape), others[-3:], strict=True)
    ]
    w1, w2 = turns[1] @ w1 @ turns[0], turns[2] @ w2 @ turns[1].T
    sigma = np.asarray(sigma)
    return derivatives.values(w1, w2, sigma, [t], coefficients(shape))[0]


def check(spectrum, lam, t, *, behind=False, shape=SQUARE, scale=SCALE):
    """First derivatives, both ways, in every argument that has one."""
    sigma = target(spectrum, shape) if isinstance(spectrum, str) else spectrum
    point = np.array([lam, scale, t] + [0.0] * (min(shape) + 3))
    found = first(*arrays(point[:3], point[3:]), sigma, key(behind), shape)

    def answer(x, i):
        moved = riccati.exact(point)
        moved[i] = moved[i] + x
        return exact_probe(moved[:3], moved[3:], sigma, behind, shape)

    # Behind a saddle the slope in λ grows like e^{2s̃t} off it; Exact holds on to it.
    which = range(1 if behind else 0, len(point))
    expected = [derivatives.slope(functools.partial(answer, i=i)) for i in which]
    for derivative in found:
        close(derivative[which.start :], expected, FIRST)


@pytest.mark.parametrize("t", [0.0, 1.0, 300.0])
@pytest.mark.parametrize("lam", [0.0, 1e-9, 1.0, -2.0])
@pytest.mark.parametrize("spectrum", ["generic", "repeated", "rank 1", "zero"])
def test_lambda_scale_time_modes_and_rotations(spectrum, lam, t):
    check(spectrum, lam, t)


@pytest.mark.parametrize(
    ("shape", "spectrum", "lam", "t"),
    [
        ((5, 3, 3), "repeated", 0.0, 1.0),
        ((5, 3, 3), "rank 1", -20.0, 30.0),
        ((5, 3, 3), "zero", 20.0, 1.0),
        ((5, 3, 3), "repeated", 1e-9, 300.0),
        ((4, 2, 4), "generic", 0.0, 3.0),
        ((4, 2, 4), "repeated", -1.0, 30.0),
    ],
)
def test_modes_and_rotations_for_other_shapes(shape, spectrum, lam, t):
    # Not with more hidden units than modes: their √|λ| has no slope at λ = 0.
    check(spectrum, lam, t, shape=shape)


@pytest.mark.parametrize("t", [0.0, 1.0, 10.0])
def test_behind_a_saddle(t):
    check("generic", 0.0, t, behind=True)
    point = arrays(np.array([0.0, SCALE, 1e6]), np.zeros(6))
    late = first(*point, target("generic"), key(True), SQUARE)
    assert np.isfinite(late).all()


@pytest.mark.parametrize("lam", [0.0, 1e-9, -1.0])
@pytest.mark.parametrize(
    ("values", "scale", "t"),
    [
        ((1.0, 1e-3, 1e-6), 0.3, 0.3),
        ((1.0, 1e-3, 1e-6), 1e-3, 30.0),
        ((1.0, 1.0, 1e-6), 1e-4, 30.0),
        ((1e3, 1.0, 1e-3), 1e-3, 1e-2),
        ((1e3, 1.0, 1e-3), 1.0, 1.0),
    ],
)
def test_slow_modes_that_have_not_moved(values, scale, t, lam):
    """Singular values far apart: θ of a slow mode turns within a tiny range of λ."""
    u, v = (np.linalg.qr(x)[0] for x in np.random.default_rng(7).normal(size=(2, 3, 3)))
    u[:, 0] *= np.linalg.det(u) * np.linalg.det(v)  # not behind a saddle
    check(jnp.asarray((u * np.array(values)) @ v.T), lam, t, scale=scale)


@pytest.mark.parametrize("t", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("lam", [0.0, 1e-9, 1.0, -20.0])
@pytest.mark.parametrize("spectrum", ["generic", "repeated", "rank 1"])
def test_second_derivatives_in_lambda_scale_and_time(spectrum, lam, t):
    sigma, point, others = target(spectrum), np.array([lam, SCALE, t]), np.zeros(6)
    found = second(*arrays(point, others), sigma, key(), SQUARE)

    def answer(x, y, i, j):
        moved = riccati.exact(point)
        moved[i] = moved[i] + x
        moved[j] = moved[j] + y
        return exact_probe(moved, others, sigma, False, SQUARE)

    for i in range(3):
        for j in range(i + 1):
            f = functools.partial(answer, i=i, j=j)
            expected = derivatives.curvature(f)
            close(found[i, j], expected, SECOND)
            close(found[j, i], expected, SECOND)


def test_finite_for_every_lambda_scale_and_time():
    for lam in (0.0, 1e-9, -1e3, 1e3):
        for scale in (1e-8, 1.0):
            for t in (0.0, 1.0, 1e6):
                point = arrays(np.array([lam, scale, t]), np.zeros(6))
                for spectrum in ("repeated", "rank 1"):
                    found = first(*point, target(spectrum), key(), SQUARE)
                    assert np.isfinite(found).all()


def test_vmap_equals_a_loop():
    lams = np.array([-20.0, -1.0, 0.0, 1e-9, 1.0, 20.0])
    points = jnp.asarray(np.stack([[lam, SCALE, 1.0] for lam in lams]))
    rest = (jnp.zeros(6), target("repeated"), key(), SQUARE)
    batch = jax.jit(jax.vmap(lambda main: first(main, *rest)[1]))(points)
    alone = np.stack([first(main, *rest)[1] for main in points])
    np.testing.assert_allclose(batch, alone, rtol=1e-10, atol=1e-12)


@jax.jit
def along(point, move, sigma):
    """The derivative of the probe along `move`: forward, reverse."""

    def value(point):
        return trained_probe(point[0], sigma, point[1])

    parts = jax.tree.map(lambda x, d: (x * d).sum(), jax.grad(value)(point), move)
    return jax.jvp(value, (point,), (move,))[1], sum(jax.tree.leaves(parts))


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
def test_weights_and_time_for_other_shapes(shape, spectrum, lam, t):
    """Along random directions: the formula's derivatives, with λ = tr B/Nh."""
    problem = Problem(shape, lam, SCALE, spectrum)
    net, sigma, t = problem.build()[0], problem.sigma(), jnp.asarray(t)
    rng = np.random.default_rng(5)
    by = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), net)
    for move in ((by, 0 * t), (jax.tree.map(jnp.zeros_like, net), t + 1)):

        def answer(x, move=move):
            w1, w2 = (
                derivatives.straight(w, d, x)
                for w, d in ((net.w1, move[0].w1), (net.w2, move[0].w2))
            )
            times = derivatives.straight(t.reshape(1), move[1].reshape(1), x)
            return derivatives.values(w1, w2, sigma, times, coefficients(shape))[0]

        expected = derivatives.slope(answer)
        for found in along((net, t), move, jnp.asarray(sigma)):
            close(found, expected, FIRST)


def loss(lam, scale, t, sigma):
    task = lr.tasks.LinearTask(sigma)
    net = lr.inits.balanced(jax.random.key(3), *SQUARE, lam, scale)
    return task.loss(train(net, task, t))


loss_slopes = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("spectrum", ["repeated", "rank 1"])
def test_loss_and_its_gradient(lam, spectrum):
    point = (*arrays(lam, SCALE, 1.0), target(spectrum))
    value, gradient = loss_slopes(*point)
    # Differentiation adds no jitter: it would show at 1e-12.
    assert abs(value - jax.jit(loss)(*point)) <= 1e-15 * value
    for i in range(3):
        up, down = (
            loss_slopes(*(x + h * (k == i) for k, x in enumerate(point)))[0]
            for h in (1e-5, -1e-5)
        )
        close(gradient[i], (up - down) / 2e-5, 1e-6)


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
