"""What the exact method's tests share: how a value is found, and when it is right."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

import lazyrich as lr
from tests.oracle import riccati
from tests.oracle.riccati import Blocks


def exact(net, task, times):
    return lr.train(net, task, jnp.asarray(times), method=lr.Exact())


def networks(net, task, times):
    out = exact(net, task, times).networks
    assert out is not None
    return out


def blocks(net) -> list[Blocks]:
    """The blocks of S along a leading axis of times."""
    w1, w2 = np.asarray(net.w1), np.asarray(net.w2)
    t1, t2 = np.swapaxes(w1, -1, -2), np.swapaxes(w2, -1, -2)
    return [Blocks(*x) for x in zip(t1 @ w1, w2 @ w1, w2 @ t2, strict=True)]


def close(found, expected, tolerance):
    for x, y in zip(found, expected, strict=True):
        assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y)


def disagreements(
    weights: tuple[np.ndarray, np.ndarray],
    sigma: np.ndarray,
    times: Sequence[float],
    found: Sequence[Blocks],
    answers: Sequence[Blocks],
    tolerance: float,
) -> list[str]:
    """Blocks off by more than `tolerance` and more than ten times the effect of an ulp.

    Errors are relative to each block, in Frobenius norm; the ulp is that of the
    weights' own type.
    """
    out = []
    for t, ours, theirs in zip(times, found, answers, strict=True):
        errors = [np.linalg.norm(x - y) for x, y in zip(ours, theirs, strict=True)]
        missed = [
            not e <= tolerance * np.linalg.norm(y)
            for e, y in zip(errors, theirs, strict=True)
        ]
        if not any(missed):
            continue
        effects = riccati.ulp_effect(*weights, sigma, t)
        out += [
            f"t={t:.6g} {name}: {e:.2e}, ulp {x:.2e}, size {np.linalg.norm(y):.2e}"
            for name, e, x, y, miss in zip(
                Blocks._fields, errors, effects, theirs, missed, strict=True
            )
            if miss and not e <= 10 * x
        ]
    return out
