"""The exact solution by exact steps of bounded size, in float64 (theory, §1.2).

G ← e^{FΔ} G L⁻ᵀ with LLᵀ = I + GᵀΦ(Δ)G and ΔΛ ≤ 4: slower than one evaluation but
very simple. Behind a saddle it must be used for moderate times only: rounding lets
it leave.
"""

import numpy as np
from scipy.linalg import expm, solve_triangular

from tests.oracle.riccati import Blocks

_LARGEST_STEP = 4.0


def solve(w1: np.ndarray, w2: np.ndarray, sigma: np.ndarray, t: float) -> Blocks:
    """S at time t from the weights w1 (hidden, inputs) and w2 (outputs, hidden)."""
    hidden, inputs = w1.shape
    outputs = w2.shape[0]
    size = inputs + outputs
    lam = np.trace(w2.T @ w2 - w1 @ w1.T) / hidden
    f = np.block(
        [[-lam / 2 * np.eye(inputs), sigma.T], [sigma, lam / 2 * np.eye(outputs)]]
    )
    steps = max(1, int(np.ceil(np.linalg.norm(f, 2) * t / _LARGEST_STEP)))
    step = t / steps
    grow = expm(f * step)
    # The upper right block of exp([[2F, I], [0, 0]]Δ) is the integral Φ(Δ).
    wide = np.block([[2 * f, np.eye(size)], [np.zeros((size, 2 * size))]])
    phi = expm(wide * step)[:size, size:]
    g = np.concatenate([w1.T, w2])
    for _ in range(steps):
        low = np.linalg.cholesky(np.eye(hidden) + g.T @ phi @ g)
        g = solve_triangular(low, (grow @ g).T, lower=True).T
    g1, g2 = g[:inputs], g[inputs:]
    return Blocks(g1 @ g1.T, g2 @ g1.T, g2 @ g2.T)
