"""The exact solution S(t) = Q(t)Q(t)ᵀ in arbitrary precision (theory, §1.2).

With Q0 = [W1ᵀ; W2] and F = [[−λ/2 I, Σᵀ], [Σ, λ/2 I]],

    S(t) = e^{Ft} Q0 M⁻¹ Q0ᵀ e^{Ft},   M = I + Q0ᵀ Φ Q0,   Φ = ∫₀ᵗ e^{2Fs} ds,

evaluated as it stands; λ = tr(W2ᵀW2 − W1W1ᵀ)/Nh is that of the given rounded
weights. Since F² = diag(ΣᵀΣ, ΣΣᵀ) + λ²/4 I, functions of F need only the
eigenvectors of ΣᵀΣ and ΣΣᵀ, which are shared by all weights and times:

    e^{Ft} = cosh(μt) + F sinh(μt)/μ,   Φ = sinh(2μt)/(2μ) + F sinh²(μt)/μ²,

with μ² = F². No pairing of singular vectors, no sign convention, no limit is needed.
The cancellation that this costs, a factor e^{4μt}, is paid for in digits.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import mpmath
import numpy as np

mp: Any = mpmath.mp  # its methods are set at run time

_SPARE_DIGITS = 60
_OUTPUT_DIGITS = 60


class Blocks(NamedTuple):
    """The three blocks of S: what does not depend on the hidden basis."""

    w1tw1: np.ndarray  # (inputs, inputs)
    w2w1: np.ndarray  # (outputs, inputs)
    w2w2t: np.ndarray  # (outputs, outputs)


def exact(array: Any) -> np.ndarray:
    """Floats or mpf as an object array of mpf: the same numbers, unrounded."""
    array = np.asarray(array)
    values = [
        x if isinstance(x, mpmath.mpf) else mp.mpf(float(x)) for x in array.ravel()
    ]
    return np.array(values, dtype=object).reshape(array.shape)


def _rounded(array: np.ndarray) -> np.ndarray:
    """The entries rounded to the working precision (and a fresh array)."""
    return np.array([+x for x in array.ravel()], dtype=object).reshape(array.shape)


@functools.lru_cache(maxsize=256)
def _eigen(shape: tuple[int, ...], entries: tuple[Any, ...], side: int, digits: int):
    """Eigenvalues and eigenvectors of ΣᵀΣ (side 0) or ΣΣᵀ (side 1)."""
    with mp.workdps(digits):
        sigma = np.array(entries, dtype=object).reshape(shape)
        gram = sigma.T @ sigma if side == 0 else sigma @ sigma.T
        values, vectors = mp.eigsy(mp.matrix(gram.tolist()))
        size = gram.shape[0]
        clipped = np.array([max(x, mp.zero) for x in values], dtype=object)
        rows = [[vectors[i, j] for j in range(size)] for i in range(size)]
        return clipped, np.array(rows, dtype=object)


def rate(w1: np.ndarray, w2: np.ndarray, sigma: np.ndarray) -> float:
    """μ, the largest eigenvalue of F in magnitude."""
    w1, w2, sigma = (np.asarray(x, dtype=float) for x in (w1, w2, sigma))
    lam = (np.sum(w2**2) - np.sum(w1**2)) / w1.shape[0]
    return float(np.hypot(np.linalg.norm(sigma, 2), lam / 2))


def _functions(root: Any, t: Any) -> tuple[Any, Any, Any, Any]:
    """Return cosh(μt), sinh(μt)/μ, sinh(2μt)/(2μ) and sinh²(μt)/μ² for one μ."""
    if root == 0:
        return mp.one, t, t, t * t
    if root * t > 1:
        grow = mp.exp(root * t)
        c, s = (grow + 1 / grow) / 2, (grow - 1 / grow) / 2
    else:  # without cancellation
        c, s = mp.cosh(root * t), mp.sinh(root * t)
    return c, s / root, c * s / root, (s / root) ** 2


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """L⁻¹ right, where L is the Cholesky factor of `matrix`, written out."""
    size = matrix.shape[0]
    low = np.full((size, size), mp.zero, dtype=object)
    out = _rounded(right)
    for i in range(size):
        for j in range(i):
            low[i, j] = (matrix[i, j] - low[i, :j] @ low[j, :j]) / low[j, j]
        low[i, i] = mp.sqrt(matrix[i, i] - low[i, :i] @ low[i, :i])
        out[i] = (right[i] - low[i, :i] @ out[:i]) / low[i, i]
    return out


def solve_exactly(
    w1: np.ndarray, w2: np.ndarray, sigma: np.ndarray, times: Sequence[Any]
) -> list[Blocks]:
    """`solve` for floats or mpf (object arrays), with blocks of mpf, unrounded."""
    hidden, inputs = w1.shape
    mu = rate(w1, w2, sigma)
    needs = [_SPARE_DIGITS + int(4 * mu * float(t) / np.log(10)) for t in times]
    # A few sizes only, so that different weights share the eigenvectors.
    digits = 600 * (1 + max(needs) // 600)
    exact1, exact2, target = exact(w1), exact(w2), exact(sigma)
    squares_v, v = _eigen(target.shape, tuple(target.ravel()), 0, digits)
    squares_u, u = _eigen(target.shape, tuple(target.ravel()), 1, digits)
    squares = np.concatenate([squares_v, squares_u])
    with mp.workdps(digits):
        lam = ((exact2**2).sum() - (exact1**2).sum()) / hidden
        top, bottom = v.T @ exact1.T, u.T @ exact2
        start = np.concatenate([top, bottom])
        middle = u.T @ target @ v
        pushed = np.concatenate(
            [middle.T @ bottom - lam / 2 * top, middle @ top + lam / 2 * bottom]
        )
    out = []
    for t, need in zip(times, needs, strict=True):
        with mp.workdps(need):
            q, fq, time = _rounded(start), _rounded(pushed), exact(t)[()]
            roots = [mp.sqrt(x + lam**2 / 4) for x in squares]
            parts = [_functions(root, time) for root in roots]
            c, s, c2, s2 = np.array(parts, dtype=object).T[:, :, None]
            moved = c * q + s * fq
            m = q.T @ (c2 * q + s2 * fq)
            m[np.diag_indices(hidden)] += mp.one
            half = _solve(m, moved.T)
        with mp.workdps(_OUTPUT_DIGITS):
            half, left, right = _rounded(half), _rounded(v), _rounded(u)
            g1, g2 = left @ half[:, :inputs].T, right @ half[:, inputs:].T
            out.append(Blocks(g1 @ g1.T, g2 @ g1.T, g2 @ g2.T))
    return out


def solve(
    w1: np.ndarray, w2: np.ndarray, sigma: np.ndarray, times: Sequence[float]
) -> list[Blocks]:
    """S at each time from the weights w1 (hidden, inputs) and w2 (outputs, hidden)."""
    answers = solve_exactly(w1, w2, sigma, times)
    return [Blocks(*(x.astype(float) for x in blocks)) for blocks in answers]


def solve_narrow(w1: np.ndarray, w2: np.ndarray, sigma: np.ndarray, t: float) -> Blocks:
    """S at any time, however late, for one hidden unit: S = NNᵀ/m has no cancellation.

    The start must have a part along the largest eigenvalue of F.
    """
    inputs, outputs = w1.shape[1], w2.shape[0]
    with mp.workdps(_OUTPUT_DIGITS + 20):
        lam = (exact(w2) ** 2).sum() - (exact(w1) ** 2).sum()
        f = mp.diag([-lam / 2] * inputs + [lam / 2] * outputs)
        for i, j in np.ndindex(outputs, inputs):
            f[inputs + i, j] = f[j, inputs + i] = mp.mpf(float(sigma[i, j]))
        values, vectors = mp.eigsy(f)
        q = mp.matrix(np.concatenate([w1.T, w2]).tolist())
        part = vectors.T * q
        grown = mp.matrix(
            [mp.exp(x * t) * p for x, p in zip(values, part, strict=True)]
        )
        m = 1 + mp.fsum(
            p**2 * (mp.expm1(2 * x * t) / (2 * x) if x else t)
            for x, p in zip(values, part, strict=True)
        )
        n = vectors * grown / mp.sqrt(m)
        s = np.array((n * n.T).tolist(), dtype=float)
    return Blocks(s[:inputs, :inputs], s[inputs:, :inputs], s[inputs:, inputs:])


def ulp_effect(
    w1: np.ndarray, w2: np.ndarray, sigma: np.ndarray, t: float, draws: int = 3
) -> Blocks:
    """The change of each block, in Frobenius norm, when rounding moves the weights.

    Every weight moves by one unit in the last place of the largest weight, with
    random signs; the largest of a few draws counts.
    """
    (base,) = solve(w1, w2, sigma, [t])
    ulp = np.spacing(max(np.abs(w1).max(), np.abs(w2).max()))
    rng = np.random.default_rng(0)
    changes = []
    for _ in range(draws):
        new1, new2 = (w + ulp * rng.choice([-1.0, 1.0], w.shape) for w in (w1, w2))
        (other,) = solve(new1, new2, sigma, [t])
        changes.append(
            [np.linalg.norm(x - y) for x, y in zip(base, other, strict=True)]
        )
    return Blocks(*np.max(changes, axis=0))
