"""Derivatives of the exact solution, by central differences in arbitrary precision.

S(t) is analytic in Σ, the weights (λ = tr(W2ᵀW2 − W1W1ᵀ)/Nh among them) and t, at
every finite t. Both ends of a difference are evaluated with some 55 digits from
unrounded arguments, so that a step of 1e-20 costs nothing: the first derivative is
right to about 1e-30 and the second, with a step of 1e-15, to about 1e-20.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

from tests.oracle import riccati
from tests.oracle.riccati import Blocks

mp: Any = mpmath.mp  # its methods are set at run time
Real = Any  # a float or an mpf

_DIGITS = 80  # of the arguments: a step of 1e-20 and 60 digits after it
_STEP = mp.mpf(10) ** -20
_SECOND_STEP = mp.mpf(10) ** -15


def slope(f: Callable[[Real], Any], step: Real = _STEP) -> Any:
    """f′(0), of a function of an mpf with mpf or object arrays as values."""
    with mp.workdps(_DIGITS):
        return (f(step) - f(-step)) / (2 * step)


def curvature(f: Callable[[Real, Real], Any], step: Real = _SECOND_STEP) -> Any:
    """∂²f/∂x∂y at (0, 0); of g(x + y) it is g″."""
    h = step
    with mp.workdps(_DIGITS):
        return (f(h, h) - f(h, -h) - f(-h, h) + f(-h, -h)) / (4 * h * h)


def values(
    w1: np.ndarray,
    w2: np.ndarray,
    sigma: np.ndarray,
    times: Any,
    coefficients: Blocks,
) -> np.ndarray:
    """The sum over the three blocks of coefficient × entry, at each time, in mpf."""
    with mp.workdps(_DIGITS):
        return np.array(
            [
                sum((c * x).sum() for c, x in zip(coefficients, blocks, strict=True))
                for blocks in riccati.solve_exactly(w1, w2, sigma, times)
            ],
            dtype=object,
        )


def straight(point: Any, move: Any, x: Real) -> Any:
    """The array `point` + x · `move`, unrounded."""
    with mp.workdps(_DIGITS):
        return riccati.exact(point) + x * riccati.exact(move)


def rotation(generator: np.ndarray, x: Real) -> np.ndarray:
    """An orthogonal matrix with derivative `generator` (antisymmetric) at x = 0.

    It is Cayley's (I − xA/2)⁻¹(I + xA/2), which agrees with e^{xA} to second order.
    """
    with mp.workdps(_DIGITS):
        half = mp.matrix((riccati.exact(generator) * x / 2).tolist())
        one = mp.eye(half.rows)
        turned = (one - half) ** -1 * (one + half)
        return np.array(turned.tolist(), dtype=object).reshape(generator.shape)


def balanced(
    u: np.ndarray, r: np.ndarray, v: np.ndarray, s: Any, lam: Real
) -> tuple[np.ndarray, np.ndarray]:
    """W1 = R S1 Vᵀ and W2 = U S2 Rᵀ (theory, §1.1) of modes s, with no padding.

    u (outputs, k), r (hidden, k) and v (inputs, k); s > 0 or λ ≠ 0. At λ = 0 the
    formulas for both signs of λ agree, as one analytic function: √(μ ± λ/2).
    """
    with mp.workdps(_DIGITS + 40):  # μ − |λ|/2 cancels
        u, r, v = (riccati.exact(x) for x in (u, r, v))
        half = riccati.exact(lam)[()] / 2
        mu = [mp.sqrt(x**2 + half**2) for x in riccati.exact(s)]
        s1 = np.array([mp.sqrt(x - half) for x in mu], dtype=object)
        s2 = np.array([mp.sqrt(x + half) for x in mu], dtype=object)
        return (r * s1) @ v.T, (u * s2) @ r.T


def singular_vectors(
    w1: np.ndarray, w2: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """u, r and v of `balanced` for its weights with distinct s > 0, in float64."""
    k = min(*w1.shape, *w2.shape)
    r, _, vt = np.linalg.svd(w1, full_matrices=False)
    u = w2 @ r[:, :k]
    return u / np.linalg.norm(u, axis=0), r[:, :k], vt[:k].T
