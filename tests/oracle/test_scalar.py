"""The closed form of one mode against its differential equation and its limits."""

from typing import Any

import mpmath
import numpy as np
import pytest

from tests.oracle import riccati, scalar

mp: Any = mpmath.mp  # its methods are set at run time

CASES = [  # s0, target, lam
    (0.1, 2.0, 0.0),
    (1e-3, 2.0, 0.5),
    (1e-3, 2.0, -0.5),
    (-0.3, 1.0, 0.7),
    (-0.3, 1.0, -20.0),
    (0.0, 1.5, 1.0),
    (1e-8, 1.0, 1e-6),
    (0.7, 0.0, 0.0),
    (0.7, 0.0, -2.0),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("t", [0.0, 0.4, 3.0, 40.0])
def test_layers_equal_the_matrix_solution(case, t):
    s0, target, lam = case
    with mp.workdps(40):
        a0, b0 = scalar.strengths(s0, lam)
        assert abs(a0 * b0 - s0) < 1e-35
        assert abs(b0**2 - a0**2 - lam) < 1e-35
        a, b = scalar.layers(t, s0, target, lam)
        assert abs(b**2 - a**2 - lam) < 1e-30
    w1, w2 = np.array([[float(a0)]]), np.array([[float(b0)]])
    (found,) = riccati.solve(w1, w2, np.array([[target]]), [t])
    expected = float(a * b)
    # The matrix solution starts from rounded layers: 1e-12 is their effect.
    assert abs(found.w2w1.item() - expected) <= 1e-12 * max(abs(expected), 1e-3)
    assert float(scalar.strength(t, s0, target, lam)) == expected


@pytest.mark.parametrize("case", CASES)
def test_strength_solves_its_equation(case):
    s0, target, lam = case
    with mp.workdps(40):
        for t in (mp.mpf("0.1"), mp.mpf("1.3")):
            slope = mp.diff(lambda x: scalar.strength(x, s0, target, lam), t, h=1e-12)
            speed = scalar.speed(scalar.strength(t, s0, target, lam), target, lam)
            assert abs(slope - speed) < 1e-10 * max(abs(speed), 1e-3)


@pytest.mark.parametrize("s0", [1e-3, -0.2])
def test_limits(s0):
    for t in (0.0, 0.5, 4.0, 9.0):
        exact = scalar.strength(t, s0, 1.5, 0.0)
        assert abs(scalar.sigmoid(t, s0, 1.5) - exact) < 1e-30
        near = scalar.strength(t / 1e7, s0, 1.5, 1e7)
        assert abs(scalar.exponential(t / 1e7, s0, 1.5, 1e7) - near) < 1e-12


@pytest.mark.parametrize("case", [c for c in CASES if c[0] or c[2]])
def test_derivatives(case):
    s0, target, lam = case
    t, h = 1.1, mp.mpf(10) ** -12

    def slope(f, x):
        with mp.workdps(40):
            x = mp.mpf(x)
            return (f(x + h * max(1, abs(x))) - f(x - h * max(1, abs(x)))) / (
                2 * h * max(1, abs(x))
            )

    def close(found, expected):
        return abs(found - expected) <= 1e-8 * max(abs(expected), 1e-3)

    assert close(
        slope(lambda x: scalar.strength(t, s0, target, x), lam),
        scalar.strength_by_lam(t, s0, target, lam),
    )
    assert close(
        slope(lambda x: scalar.strength(t, x, target, lam), s0),
        scalar.strength_by_start(t, s0, target, lam),
    )


@pytest.mark.parametrize("lam", [0.0, 0.5, -3.0])
def test_time_to_a_level(lam):
    s0, target, level = 0.05, 2.0, 1.2
    h = 1e-10
    with mp.workdps(40):
        t = scalar.time_to(level, s0, target, lam)
        assert abs(scalar.strength(t, s0, target, lam) - level) < 1e-30
        by = scalar.time_to_by(level, s0, target, lam)
        start = np.array([level, s0, lam])
        for i, expected in enumerate(by):
            move = h * np.eye(3)[i]
            up, down = start + move, start - move
            ends = [scalar.time_to(x[0], x[1], target, x[2]) for x in (up, down)]
            width = mp.mpf(up[i]) - mp.mpf(down[i])
            assert abs((ends[0] - ends[1]) / width - expected) < 1e-8
