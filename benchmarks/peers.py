"""What people use instead."""

import numpy as np
from scipy.integrate import solve_ivp


def lsoda(w1, w2, sigma, times, rtol: float, atol: float):
    """Both layers at `times` by SciPy's LSODA, for one start."""

    def velocity(_, y):
        a, b = y[: w1.size].reshape(w1.shape), y[w1.size :].reshape(w2.shape)
        gap = sigma - b @ a
        return np.concatenate([(b.T @ gap).ravel(), (gap @ a.T).ravel()])

    y0 = np.concatenate([w1.ravel(), w2.ravel()])
    span = (times[0], times[-1])
    y = solve_ivp(velocity, span, y0, "LSODA", times, rtol=rtol, atol=atol).y.T
    first = y[:, : w1.size].reshape(-1, *w1.shape)
    return first, y[:, w1.size :].reshape(-1, *w2.shape)
