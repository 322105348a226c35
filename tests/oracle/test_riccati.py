"""The arbitrary-precision solution against three other routes."""

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from tests.oracle import riccati, steps

mp: Any = mpmath.mp  # its methods are set at run time

SHAPES = [(1, 1, 1), (2, 2, 3), (3, 2, 2), (3, 1, 2), (2, 4, 3)]


def draw(shape, seed=0):
    """Weights and a target; no balance is needed for the Riccati equation."""
    rng = np.random.default_rng(seed)
    inputs, hidden, outputs = shape
    return (
        rng.normal(size=(hidden, inputs)),
        rng.normal(size=(outputs, hidden)),
        rng.normal(size=(outputs, inputs)),
    )


def error(one, other):
    return max(
        np.linalg.norm(x - y) / np.linalg.norm(y)
        for x, y in zip(one, other, strict=True)
    )


def linear(w1, w2, sigma, t):
    """S = YX⁻¹ with X′ = −FX + Y, Y′ = FY, by one exponential of 2(Ni + No) rows."""
    hidden, inputs = w1.shape
    size = inputs + w2.shape[0]
    with mp.workdps(150):
        w1, w2, sigma = (mp.matrix(x.tolist()) for x in (w1, w2, sigma))
        b = w2.T * w2 - w1 * w1.T
        lam = mp.fsum(b[i, i] for i in range(hidden)) / hidden
        f, q = mp.zeros(size), mp.zeros(size, hidden)
        for i in range(size):
            f[i, i] = lam / 2 * (-1 if i < inputs else 1)
            for j in range(hidden):
                q[i, j] = w1[j, i] if i < inputs else w2[i - inputs, j]
        for i in range(inputs, size):
            for j in range(inputs):
                f[i, j] = f[j, i] = sigma[i - inputs, j]
        whole = mp.zeros(2 * size)
        whole[:size, :size] = -f
        whole[:size, size:] = mp.eye(size)
        whole[size:, size:] = f
        grown = mp.expm(whole * mp.mpf(t))
        s0 = q * q.T
        x = grown[:size, :size] + grown[:size, size:] * s0
        s = grown[size:, size:] * s0 * x**-1
        s = np.array(s.tolist(), dtype=float).reshape(size, size)
    return s[:inputs, :inputs], s[inputs:, :inputs], s[inputs:, inputs:]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("t", [0.0, 0.3, 9.0])
def test_equals_the_linear_system(shape, t):
    weights = draw(shape)
    (found,) = riccati.solve(*weights, [t])
    assert error(found, linear(*weights, t)) < 1e-15


def test_equals_the_linear_system_where_the_target_is_singular():
    w1, w2, _ = draw((3, 2, 2), seed=1)
    for sigma in (np.zeros((2, 3)), np.outer([1.0, 2.0], [1.0, 0.5, -1.0])):
        for scale in (1.0, 1e-8):
            (found,) = riccati.solve(scale * w1, scale * w2, sigma, [2.5])
            expected = linear(scale * w1, scale * w2, sigma, 2.5)
            assert error(found, expected) < 1e-15


def test_equals_the_linear_system_at_exactly_zero_balance():
    w1 = np.array([[0.5, 0.0], [0.0, 0.25]])
    w2 = w1.T
    sigma = np.array([[1.0, 0.5], [0.25, 0.125]])  # rank 1
    for t in (1.0, 20.0):
        (found,) = riccati.solve(w1, w2, sigma, [t])
        assert error(found, linear(w1, w2, sigma, t)) < 1e-15


@pytest.mark.parametrize("shape", [*SHAPES, (4, 4, 4), (6, 3, 3), (3, 3, 6)])
def test_equals_bounded_steps(shape):
    weights = draw(shape, seed=2)
    times = [0.1, 1.0, 10.0, 60.0]
    for t, found in zip(times, riccati.solve(*weights, times), strict=True):
        # 1e-11: the rounding of up to about 50 steps in float64.
        assert error(steps.solve(*weights, t), found) < 1e-11


@pytest.mark.parametrize("lam", [0.0, 1.5, -1.5])
def test_equals_gradient_flow_when_balanced(lam):
    target = np.array([[1.0, 0.4], [-0.3, 0.8]])
    s = np.array([0.3, 0.1])
    mu = np.sqrt(s**2 + lam**2 / 4)
    w1, w2 = np.diag(np.sqrt(mu - lam / 2)), np.diag(np.sqrt(mu + lam / 2))

    def flow(_, y):
        a, b = y[:4].reshape(2, 2), y[4:].reshape(2, 2)
        rest = target - b @ a
        return np.concatenate([(b.T @ rest).ravel(), (rest @ a.T).ravel()])

    start = np.concatenate([w1.ravel(), w2.ravel()])
    y = solve_ivp(flow, (0, 1.7), start, method="DOP853", rtol=1e-12, atol=1e-14)
    a, b = y.y[:4, -1].reshape(2, 2), y.y[4:, -1].reshape(2, 2)
    (found,) = riccati.solve(w1, w2, target, [1.7])
    assert error(found, (a.T @ a, b @ a, b @ b.T)) < 1e-10


def test_more_digits_change_nothing(monkeypatch):
    weights = draw((4, 4, 4), seed=3)
    times = [300.0 / riccati.rate(*weights), 2000.0 / riccati.rate(*weights)]
    first = riccati.solve(*weights, times)
    monkeypatch.setattr(riccati, "_SPARE_DIGITS", 260)
    monkeypatch.setattr(riccati, "_OUTPUT_DIGITS", 200)
    for one, other in zip(first, riccati.solve(*weights, times), strict=True):
        assert error(one, other) < 1e-15


def test_long_times_end_at_the_target():
    w1, w2, sigma = draw((3, 3, 3), seed=4)
    (found,) = riccati.solve(w1, w2, sigma, [2000 / riccati.rate(w1, w2, sigma)])
    assert np.linalg.norm(found.w2w1 - sigma) < 1e-15


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 2), (2, 1, 4)])
def test_one_hidden_unit_at_any_time(shape):
    w1, w2, sigma = draw(shape, seed=5)
    for t, found in zip(
        [0.0, 2.0, 90.0], riccati.solve(w1, w2, sigma, [0, 2, 90]), strict=True
    ):
        assert error(riccati.solve_narrow(w1, w2, sigma, t), found) < 1e-15
    late = riccati.solve_narrow(w1, w2, sigma, 1e6).w2w1
    u, s, vt = np.linalg.svd(sigma)
    assert np.allclose(late, s[0] * np.outer(u[:, 0], vt[0]), atol=1e-14)
