"""The differences in arbitrary precision, against each other and a formula."""

import mpmath
import numpy as np
import pytest

from tests.oracle import derivatives, riccati, scalar
from tests.oracle.riccati import Blocks

STEP = mpmath.mpf("1e-12")


def draw(shape, seed=0):
    rng = np.random.default_rng(seed)
    inputs, hidden, outputs = shape
    w1, w2 = rng.normal(size=(hidden, inputs)), rng.normal(size=(outputs, hidden))
    sizes = [(inputs, inputs), (outputs, inputs), (outputs, outputs)]
    coefficients = Blocks(*(rng.normal(size=x) for x in sizes))
    return w1, w2, rng.normal(size=(outputs, inputs)), coefficients, rng


def test_exact_solution_of_rounded_numbers_is_the_rounded_solution():
    w1, w2, sigma, _, _ = draw((3, 2, 2))
    times = [0.0, 0.4, 20.0]
    exact1, exact2, target = (riccati.exact(x) for x in (w1, w2, sigma))
    for one, other in zip(
        riccati.solve(w1, w2, sigma, times),
        riccati.solve_exactly(exact1, exact2, target, times),
        strict=True,
    ):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x, y.astype(float))


@pytest.mark.parametrize("spectrum", [(1.0, 1.0), (1.0, 1.0 + 1e-9), (1.0, 0.0)])
def test_two_steps_agree(spectrum):
    """In the target and the weights, first and second order, repeated values too."""
    w1, w2, _, coefficients, rng = draw((2, 2, 2))
    point = (w1, w2, np.diag(spectrum))
    moves = [rng.normal(size=x.shape) for x in point]

    def f(x, y=0):
        a, b, c = (
            derivatives.straight(p, m, x + y) for p, m in zip(point, moves, strict=True)
        )
        return derivatives.values(a, b, c, [0.0, 0.7, 40.0], coefficients)

    for order, tolerance in (
        (derivatives.slope, 1e-25),
        (derivatives.curvature, 1e-15),
    ):
        one, other = order(f), order(f, mpmath.mpf("3e-17"))
        size = max(abs(x) for x in one)
        assert max(abs(one - other)) <= tolerance * size


def test_the_slope_in_time_is_the_riccati_equation():
    w1, w2, sigma, coefficients, _ = draw((3, 2, 2))
    lam = (np.sum(w2**2) - np.sum(w1**2)) / 2
    f = np.block([[-lam / 2 * np.eye(3), sigma.T], [sigma, lam / 2 * np.eye(2)]])
    for t in (0.0, 0.6):

        def at(x, t=t):
            return derivatives.values(w1, w2, sigma, [t + x], coefficients)[0]

        (blocks,) = riccati.solve(w1, w2, sigma, [t])
        s = np.block([[blocks[0], blocks[1].T], [blocks[1], blocks[2]]])
        fall = f @ s + s @ f - s @ s
        parts = (fall[:3, :3], fall[3:, :3], fall[3:, 3:])
        expected = sum((c * x).sum() for c, x in zip(coefficients, parts, strict=True))
        assert abs(derivatives.slope(at) - expected) <= 1e-13 * np.linalg.norm(fall)


@pytest.mark.parametrize("lam", [0.0, 1e-9, 0.7, -5.0])
def test_one_mode(lam):
    """In λ, the start and the target, which is the derivative in s̃ of the formula."""
    s0, target, t = 0.05, 1.5, 0.9
    one = np.ones((1, 1))

    def value(lam=lam, s0=s0, target=target):
        w1, w2 = derivatives.balanced(one, one, one, [s0], lam)
        coefficients = Blocks(0 * one, one, 0 * one)
        sigma = np.array([[target]], dtype=object)
        return derivatives.values(w1, w2, sigma, [t], coefficients)[0]

    assert abs(value() - scalar.strength(t, s0, target, lam)) < 1e-20
    by_lam = derivatives.slope(lambda x: value(lam=lam + x))
    assert abs(by_lam - scalar.strength_by_lam(t, s0, target, lam)) < 1e-20
    by_start = derivatives.slope(lambda x: value(s0=s0 + x))
    assert abs(by_start - scalar.strength_by_start(t, s0, target, lam)) < 1e-20
    by_target = derivatives.slope(lambda x: value(target=target + x))
    again = derivatives.slope(lambda x: scalar.strength(t, s0, target + x, lam), STEP)
    assert abs(by_target - again) < 1e-15


def test_rotation_is_orthogonal_with_the_generator_as_its_slope():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 3))
    a = a - a.T
    turned = derivatives.rotation(a, mpmath.mpf("0.3"))
    np.testing.assert_allclose((turned @ turned.T).astype(float), np.eye(3), atol=1e-15)
    found = derivatives.slope(lambda x: derivatives.rotation(a, x))
    np.testing.assert_allclose(found.astype(float), a, rtol=1e-15)
