"""Derivatives of the exact method in the target Σ, whatever its singular values.

S(t) is analytic in Σ at every finite t: singular values that coincide, nearly coincide
or vanish, and inputs or outputs outside the range of Σ, leave nothing singular. The
derivatives of a probe, a fixed linear function of the blocks W1ᵀW1, W2W1 and W2W2ᵀ,
are held against differences of the exact answer in arbitrary precision.

Left out, because there is no derivative to compare: t = ∞ with a tie at the cut of a
hidden bottleneck, or with a zero singular value that has not died out (the limit jumps,
its derivative is infinite); and starts behind a saddle at λ = 0, at times when rounding
has let go of it (the derivative off the saddle grows like e^{2s̃t}; Exact stays on it).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from tests.oracle import derivatives
from tests.oracle.riccati import Blocks
from tests.problems import Problem

Shape = tuple[int, int, int]
SCALE = 0.3
TIMES = (0.0, 0.3, 2.0, 30.0, 1e3)
MODERATE = (0.0, 0.3, 2.0, 10.0, 30.0)  # |λ| = 20 costs the oracle 20 digits a unit
TOLERANCE = 1e-7
FLOOR = 1e-3  # of the probe's size: a derivative that nearly vanishes is held to this

# Singular values, and whether they stand exactly on the diagonal or are rotated (and
# then rounded, which splits equal ones by 1e-16).
SPECTRA = {
    "generic": ((1.0, 0.7, 0.4), False),
    "identity": ((1.0, 1.0, 1.0), True),
    "all equal": ((1.0, 1.0, 1.0), False),
    "two equal": ((1.0, 1.0, 0.5), True),
    "two equal below": ((1.0, 0.5, 0.5), False),
    "1e-9 apart": ((1.0, 0.5 + 1e-9, 0.5), False),
    "1e-5 apart": ((1.0 + 1e-5, 1.0, 0.5), False),
    "one zero": ((1.0, 0.5, 0.0), True),
    "far apart": ((1.0, 1e-3, 1e-6), False),
    "nearly zero": ((1.0, 0.5, 1e-9), False),
    "two zero": ((1.0, 0.0, 0.0), False),
    "equal and zero": ((0.5, 0.5, 0.0), False),
    "null": ((0.0, 0.0, 0.0), True),
    "rank 1": ((0.0, 0.0, 0.0), True),
}
# Of four modes, for a hidden layer of two: with and without a tie at the cut.
WIDE_SPECTRA = {
    "tie at the cut": ((1.0, 0.7, 0.7, 0.4), False),
    "ties beside the cut": ((1.0, 1.0, 0.5, 0.5), True),
    "two zeros": ((1.0, 0.5, 0.0, 0.0), False),
    "rank below the cut": ((1.0, 0.0, 0.0, 0.0), True),
}


def orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    """A random rotation: its determinant is 1, so that no start is behind a saddle."""
    q = np.linalg.qr(rng.normal(size=(size, size)))[0]
    q[:, 0] *= np.linalg.det(q)
    return q


@functools.cache
def target(shape: Shape, spectrum: str) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Σ, and four directions of unit length.

    They are dense; along Σ; within the cluster of repeated values; out of the range
    and the row space of Σ. Where one of them does not exist, a dense one.
    """
    inputs, _, outputs = shape
    k = min(inputs, outputs)
    rng = np.random.default_rng([inputs, outputs])
    values, straight = (SPECTRA | WIDE_SPECTRA)[spectrum]
    s = np.array(values[:k])
    u, v = np.eye(outputs), np.eye(inputs)
    if not straight:
        u, v = orthogonal(rng, outputs), orthogonal(rng, inputs)
    sigma = (u[:, :k] * s) @ v[:, :k].T
    if spectrum == "rank 1":  # few bits, so that the products are exact
        sigma = np.outer(rng.integers(1, 9, outputs), rng.integers(1, 9, inputs)) / 64
        left, s, right = np.linalg.svd(sigma)
        u, v = left, right.T
    dense = [rng.normal(size=sigma.shape) for _ in range(4)]
    near = np.abs(s[:, None] - s) < 1e-3
    cluster = near.sum(0) > 1
    zero_u, zero_v = (
        np.pad(s < 1e-6, (0, n - k), constant_values=True) for n in (outputs, inputs)
    )
    inside = u[:, :k] * cluster @ u[:, :k].T @ dense[2] @ (v[:, :k] * cluster)
    within = inside @ v[:, :k].T
    outside = (u * zero_u) @ u.T @ dense[3] @ (v * zero_v) @ v.T
    if not outside.any():  # surplus on one side only
        outside = (u * zero_u) @ u.T @ dense[3] + dense[3] @ (v * zero_v) @ v.T
    found = [
        move if move.any() else other
        for move, other in zip((dense[0], sigma, within, outside), dense, strict=True)
    ]
    return sigma, tuple(move / np.linalg.norm(move) for move in found)


def coefficients(shape: Shape) -> Blocks:
    inputs, _, outputs = shape
    rng = np.random.default_rng(1)
    sizes = ((inputs, inputs), (outputs, inputs), (outputs, outputs))
    return Blocks(*(rng.normal(size=size) for size in sizes))


def probes(w1, w2, sigma, times):
    """The probe at each time, in terms of what is tested."""
    net = lr.networks.TwoLayerLinear(w1, w2)
    task = lr.tasks.LinearTask(sigma)
    out = lr.train(net, task, times, method=lr.Exact()).networks
    assert out is not None

    def at(out):
        blocks = (out.w1.T @ out.w1, out.w2 @ out.w1, out.w2 @ out.w2.T)
        shape = (w1.shape[1], w1.shape[0], w2.shape[0])
        return sum(
            (c * x).sum() for c, x in zip(coefficients(shape), blocks, strict=True)
        )

    return jax.vmap(at)(out)


@jax.jit
def found(w1, w2, sigma, times, moves):
    """Directional derivatives (times, moves): forward, reverse."""

    def f(sigma):
        return probes(w1, w2, sigma, times)

    forward = jax.vmap(lambda d: jax.jvp(f, (sigma,), (d,))[1], out_axes=1)(moves)
    reverse = jnp.einsum("tij,dij->td", jax.jacrev(f)(sigma), moves)
    return forward, reverse


def expected(w1, w2, sigma, times, moves):
    """The same in arbitrary precision."""
    shape = (w1.shape[1], w1.shape[0], w2.shape[0])

    def slope(move):
        return derivatives.slope(
            lambda x: derivatives.values(
                w1, w2, derivatives.straight(sigma, move, x), times, coefficients(shape)
            )
        )

    return np.stack([slope(move) for move in moves], axis=1).astype(float)


def check(shape: Shape, spectrum: str, lam: float, times=TIMES):
    w1, w2 = Problem(shape, lam, SCALE).weights()
    sigma, moves = target(shape, spectrum)
    point = (*map(jnp.asarray, (w1, w2, sigma, np.array(times))),)
    forward, reverse = found(*point, jnp.asarray(np.stack(moves)))
    right = expected(w1, w2, sigma, times, moves)
    size = np.linalg.norm(np.concatenate([w1.T, w2])) ** 2 + np.linalg.norm(sigma)
    allowed = TOLERANCE * np.maximum(np.abs(right), FLOOR * size)
    np.testing.assert_array_less(np.abs(forward - right) / allowed, 1.0)
    np.testing.assert_array_less(np.abs(reverse - right) / allowed, 1.0)


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_square(spectrum, lam):
    # The longest time costs the oracle 2000 digits: once for each spectrum.
    check((3, 3, 3), spectrum, lam, TIMES if lam == 0 else MODERATE)


@pytest.mark.parametrize(
    ("spectrum", "lam"),
    [
        ("identity", 1e-9),
        ("two equal below", -1.0),
        ("1e-9 apart", 1e-9),
        ("1e-5 apart", -1.0),
        ("one zero", 1e-9),
        ("two zero", -1.0),
        ("null", 1e-9),
        ("rank 1", -1e-9),
    ],
)
def test_square_for_other_lambdas(spectrum, lam):
    check((3, 3, 3), spectrum, lam)


@pytest.mark.parametrize(
    ("spectrum", "lam"),
    [
        ("identity", -20.0),
        ("1e-9 apart", 20.0),
        ("one zero", -20.0),
        ("null", 20.0),
    ],
)
def test_square_for_large_lambdas(spectrum, lam):
    check((3, 3, 3), spectrum, lam, MODERATE)


@pytest.mark.parametrize("shape", [(5, 3, 3), (3, 3, 5)])
@pytest.mark.parametrize(
    ("spectrum", "lam", "times"),
    [
        ("generic", 1.0, MODERATE),
        ("all equal", 0.0, TIMES),
        ("1e-9 apart", -1.0, MODERATE),
        ("one zero", 0.0, MODERATE),
        ("one zero", 1e-9, MODERATE),
        ("two zero", -20.0, MODERATE),
        ("equal and zero", 20.0, MODERATE),
        ("null", 0.0, TIMES),
        ("null", -1.0, MODERATE),
        ("rank 1", 1.0, MODERATE),
    ],
)
def test_rectangular(shape, spectrum, lam, times):
    check(shape, spectrum, lam, times)


@pytest.mark.parametrize(
    ("spectrum", "lam"),
    [
        ("tie at the cut", 0.0),
        ("tie at the cut", -1.0),
        ("ties beside the cut", 0.0),
        ("ties beside the cut", 20.0),
        ("two zeros", 0.0),
        ("two zeros", 1.0),
        ("rank below the cut", -1.0),
    ],
)
def test_hidden_bottleneck(spectrum, lam):
    # With a tie at the cut the derivative grows like t.
    check((4, 2, 4), spectrum, lam, MODERATE)


@pytest.mark.parametrize("shape", [(9, 2, 3), (2, 2, 9)])
@pytest.mark.parametrize(
    ("spectrum", "lam"),
    [
        ("generic", 1.0),
        ("all equal", 0.0),
        ("all equal", 1e-9),
        ("one zero", -1.0),
        ("two zero", 0.0),
        ("two zero", 20.0),
        ("null", -20.0),
    ],
)
def test_surplus_beyond_the_hidden_layer(shape, spectrum, lam):
    check(shape, spectrum, lam, MODERATE)


@pytest.mark.parametrize("spectrum", ["generic", "identity", "1e-9 apart", "one zero"])
def test_padded_hidden_layer(spectrum):
    check((3, 5, 3), spectrum, 0.0)


def test_a_batch_of_targets_equals_a_loop():
    """One repeated spectrum among simple ones spoils neither itself nor the others."""
    shape = (3, 3, 3)
    w1, w2 = map(jnp.asarray, Problem(shape, 1.0, SCALE).weights())
    names = ("generic", "identity", "one zero", "1e-5 apart", "null")
    sigmas = jnp.asarray(np.stack([target(shape, name)[0] for name in names]))
    moves = jnp.asarray(np.stack(target(shape, "generic")[1]))
    times = jnp.asarray(TIMES)
    batch = jax.jit(jax.vmap(lambda s: found(w1, w2, s, times, moves)))(sigmas)
    for i, sigma in enumerate(sigmas):
        alone = found(w1, w2, sigma, times, moves)
        for one, other in zip(batch, alone, strict=True):
            assert np.isfinite(other).all()
            np.testing.assert_allclose(one[i], other, rtol=1e-9, atol=1e-10)


@jax.jit
def curvatures(w1, w2, sigma, times, moves):
    """The second derivative along two directions, at each time, in two ways."""

    def along(f, move):
        return lambda x: jax.jvp(f, (x,), (move,))[1]

    def f(sigma):
        return probes(w1, w2, sigma, times)

    twice = along(along(f, moves[0]), moves[1])(sigma)
    mixed = jnp.einsum("tij,ij->t", jax.jacrev(along(f, moves[0]))(sigma), moves[1])
    return twice, mixed


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize(
    "spectrum", ["generic", "identity", "two equal below", "1e-9 apart", "one zero"]
)
def test_second_derivatives_are_right_or_nan(spectrum, lam):
    """Right for a simple spectrum; for another one never finite and wrong."""
    shape, times = (3, 3, 3), (0.0, 0.3, 2.0, 5.0, 30.0)
    w1, w2 = Problem(shape, lam, SCALE).weights()
    sigma, moves = target(shape, spectrum)
    moves = np.stack([moves[0], moves[2]])

    def value(x, y):
        moved = derivatives.straight(
            derivatives.straight(sigma, moves[0], x), moves[1], y
        )
        return derivatives.values(w1, w2, moved, times, coefficients(shape))

    right = derivatives.curvature(value).astype(float)
    point = (*map(jnp.asarray, (w1, w2, sigma, np.array(times), moves)),)
    for second in curvatures(*point):
        if spectrum == "generic":
            assert np.isfinite(second).all()
        wrong = np.isfinite(second) & (
            np.abs(second - right) > 1e-6 * np.maximum(np.abs(right), FLOOR)
        )
        assert not wrong.any(), (second, right)


def test_second_derivatives_outside_of_a_narrow_layer():
    """Also along directions that neither Σ nor the start has: surplus > hidden."""
    shape, times = (9, 2, 3), (0.0, 0.3, 2.0, 5.0)
    w1, w2 = Problem(shape, -1.0, SCALE).weights()
    rng = np.random.default_rng(3)
    move = rng.normal(size=w1.shape)
    sigma = target(shape, "generic")[0]

    def value(x, y):
        moved = derivatives.straight(derivatives.straight(w1, move, x), move, y)
        return derivatives.values(moved, w2, sigma, times, coefficients(shape))

    right = derivatives.curvature(value).astype(float)

    def f(x):
        return probes(w1 + x * move, jnp.asarray(w2), sigma, jnp.asarray(times))

    second = jax.jit(jax.jacfwd(jax.jacfwd(f)))(jnp.zeros(()))
    np.testing.assert_allclose(second, right, rtol=1e-6, atol=1e-6)
