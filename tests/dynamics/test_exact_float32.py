"""The exact method in float32: right to its precision, and never NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from tests.compare import blocks, disagreements, exact
from tests.oracle import riccati
from tests.problems import PROBLEMS, Problem

TOLERANCE = 1e-4
NEARLY_ZERO = 1e-5  # of λ: what rounding of the weights can make of 0

# A shape compiles for seconds. The shapes left out are like others but for a number;
# of the rest every second problem runs, and of the quick ones every problem.
ALIKE = ((6, 6, 6), (5, 3, 3), (3, 3, 5), (20, 10, 10))
CHOSEN = [
    p
    for i, p in enumerate(PROBLEMS)
    if (i % 2 == 0 and p.shape not in ALIKE) or p.shape in ((4, 4, 4), (1, 1, 1))
]


def single(problem: Problem):
    """The rounded weights and target, as float32."""
    w1, w2 = problem.weights()
    return (w1.astype("f4"), w2.astype("f4")), problem.sigma().astype("f4")


def train(problem: Problem, times):
    (w1, w2), sigma = single(problem)
    net = lr.networks.TwoLayerLinear(jnp.asarray(w1), jnp.asarray(w2))
    return exact(net, lr.tasks.LinearTask(jnp.asarray(sigma)), times)


def single_times(problem: Problem) -> np.ndarray:
    """The registry's times, but for those at which rounding alone leaves a saddle."""
    times = np.array(problem.times, "f4")
    held = problem.exact_start and problem.lam == 0
    if problem.missed and abs(problem.lam) < NEARLY_ZERO and not held:
        times *= min(1.0, 6.0 / problem.missed / times[-1])
    return times


@pytest.mark.parametrize("problem", CHOSEN, ids=lambda p: p.name)
def test_equals_the_answer_of_the_rounded_start(problem):
    """Also finite at every time and at ∞, in float32 throughout."""
    times = single_times(problem)
    weights, sigma = single(problem)
    trajectory = train(problem, np.array([*times[1:], np.inf], "f4"))
    assert trajectory.status.dtype == jnp.int8
    assert (np.asarray(trajectory.status) == lr.Status.ok).all()
    nets = trajectory.networks
    assert nets is not None
    for w in jax.tree.leaves((nets, trajectory.final)):
        assert w.dtype == jnp.float32
        assert np.isfinite(w).all()
    w1, w2 = (np.asarray(w, float) for w in (nets.w1, nets.w2))
    *found, end = blocks(lr.networks.TwoLayerLinear(w1, w2))
    late = [float(t) for t in times[1:]]
    start = [np.asarray(w, float) for w in weights]
    answers = riccati.solve(start[0], start[1], np.asarray(sigma, float), late)
    assert not disagreements(weights, sigma, late, found, answers, TOLERANCE)
    if problem.ends and not problem.missed:
        limit = problem.limit()
        assert np.linalg.norm(end.w2w1 - limit) <= 1e-5 * np.linalg.norm(limit)


@pytest.mark.parametrize("scale", [1e-10, 1.0, 10.0])
@pytest.mark.parametrize("lam", [1e4, -1e4, 1e3, -1e3, 0.0])
def test_no_time_overflows(lam, scale):
    """Exponents 2μt of up to 1e10: finite at every time and at ∞."""
    for spectrum in ("generic", "spread", "zero", "rank 1"):
        for side in ("front", "behind"):
            problem = Problem((4, 4, 4), lam, scale, spectrum, side)
            times = np.array([0.0, 1e-3, 0.1, 10.0, 1e3, 1e5, 1e6, np.inf], "f4")
            trajectory = train(problem, times)
            assert trajectory.status == lr.Status.ok
            for w in jax.tree.leaves(trajectory.networks):
                assert w.dtype == jnp.float32
                assert np.isfinite(w).all()
