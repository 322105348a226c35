"""Symmetries and invariants of the exact method, for drawn problems.

One shape a property, so that each compiles once. A start is given by λ, the scale of
its product, a seed and the side of the λ = 0 saddle it is on.
"""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import lazyrich as lr
from tests.compare import blocks, close, exact
from tests.oracle.riccati import Blocks
from tests.problems import Problem

FEW = settings(derandomize=True, deadline=None, max_examples=10, database=None)
TIMES = np.array([0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 12.0])
# Rounding of the changed start, which grows where a start is small or near a saddle.
TOLERANCE = 1e-10
SHAPE = (4, 4, 4)

sizes = st.floats(1e-3, 100.0)
lams = st.one_of(st.just(0.0), sizes, sizes.map(lambda x: -x))
scales = st.floats(-3.0, 1.0).map(lambda x: 10.0**x)
seeds = st.integers(0, 999)


def problems(shape, lams=lams, spectra=("generic", "turned", "near", "zero")):
    def build(lam, scale, spectrum, seed):
        return Problem(shape, lam, scale, spectrum, seed=seed)

    return st.builds(build, lams, scales, st.sampled_from(spectra), seeds)


def rotation(seed: int, size: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def learn(w1, w2, sigma, times=TIMES):
    """The blocks of S at each time."""
    net = lr.networks.TwoLayerLinear(jnp.asarray(w1), jnp.asarray(w2))
    found = exact(net, lr.tasks.LinearTask(jnp.asarray(sigma)), times).networks
    assert found is not None
    return blocks(found)


def agree(found, expected):
    for x, y in zip(found, expected, strict=True):
        close(x, y, TOLERANCE)


@FEW
@given(problems((5, 3, 3)), seeds)
def test_orthogonal_changes_of_basis(problem, seed):
    """New bases of inputs and outputs carry S along; one of the hidden layer, not."""
    (w1, w2), sigma = problem.weights(), problem.sigma()
    v, r, u = (rotation(seed + i, n) for i, n in enumerate(problem.shape))
    found = learn(r @ w1 @ v.T, u @ w2 @ r.T, u @ sigma @ v.T)
    expected = [
        Blocks(v @ x.w1tw1 @ v.T, u @ x.w2w1 @ v.T, u @ x.w2w2t @ u.T)
        for x in learn(w1, w2, sigma)
    ]
    agree(found, expected)


@FEW
@given(problems(SHAPE))
def test_transposition_exchanges_the_layers(problem):
    """W1 ↔ W2ᵀ and Σ ↔ Σᵀ turn λ into −λ."""
    (w1, w2), sigma = problem.weights(), problem.sigma()
    found = learn(w2.T, w1.T, sigma.T)
    expected = [Blocks(x.w2w2t, x.w2w1.T, x.w1tw1) for x in learn(w1, w2, sigma)]
    agree(found, expected)


@FEW
@given(problems(SHAPE), st.floats(0.01, 100.0))
def test_time_is_measured_by_the_target(problem, c):
    """Σ → cΣ, W → √c W (so that λ → cλ) and t → t/c scale S by c."""
    (w1, w2), sigma = problem.weights(), problem.sigma()
    found = learn(np.sqrt(c) * w1, np.sqrt(c) * w2, c * sigma, TIMES / c)
    expected = [Blocks(*(c * part for part in x)) for x in learn(w1, w2, sigma)]
    agree(found, expected)


@FEW
@given(lams, scales, scales, seeds)
def test_blocks_of_a_task_are_learned_apart(lam, scale1, scale2, seed):
    """A start and a target of two diagonal blocks are two problems, each alone."""
    halves = [
        Problem((2, 2, 2), lam, scale, seed=seed + i)
        for i, scale in enumerate((scale1, scale2))
    ]
    (a1, a2), (b1, b2) = (p.weights() for p in halves)
    sigma = halves[0].sigma()
    targets = sigma, 0.7 * sigma.T
    zero = np.zeros((2, 2))
    first, second, target = (
        np.block([[x, zero], [zero, y]]) for x, y in ((a1, b1), (a2, b2), targets)
    )
    whole = learn(first, second, target)
    upper, lower = learn(a1, a2, targets[0]), learn(b1, b2, targets[1])
    for x, y, z in zip(whole, upper, lower, strict=True):
        close([part[:2, :2] for part in x], y, TOLERANCE)
        close([part[2:, 2:] for part in x], z, TOLERANCE)
        for part in x:
            assert np.linalg.norm(part[:2, 2:]) <= TOLERANCE * np.linalg.norm(part)


@FEW
@given(problems((5, 3, 3)), st.lists(st.booleans(), min_size=3, max_size=3))
def test_signs_of_paired_singular_vectors_do_not_matter(problem, flips):
    """−u_k and −v_k give the same target, up to rounding, and the same answer."""
    (w1, w2), sigma = problem.weights(), problem.sigma()
    u, s, vt = np.linalg.svd(sigma, full_matrices=False)
    signs = np.where(flips, -1.0, 1.0)
    again = (u * signs) @ np.diag(s) @ (signs[:, None] * vt)
    agree(learn(w1, w2, again), learn(w1, w2, sigma))


@FEW
@given(problems((3, 2, 4)))
def test_what_is_returned_is_a_state_of_the_flow(problem):
    """S is symmetric and positive semidefinite and balance λI is kept in the gauge."""
    net, task, lam = problem.build()
    nets = exact(net, task, TIMES).networks
    assert nets is not None
    for w1, w2, x in zip(nets.w1, nets.w2, blocks(nets), strict=True):
        s = np.block([[x.w1tw1, x.w2w1.T], [x.w2w1, x.w2w2t]])
        assert np.linalg.eigvalsh(s)[0] >= -1e-14 * np.linalg.norm(s)
        balance = np.asarray(w2 @ jnp.eye(2)).T @ np.asarray(w2) - np.asarray(w1 @ w1.T)
        rounding = 1e-13 * max(np.linalg.norm(s), 1.0) + 1e-14 * problem.scale
        assert abs(balance - lam * np.eye(2)).max() <= rounding


@FEW
@given(problems((3, 2, 4)))
def test_the_loss_never_rises(problem):
    """Gradient flow goes downhill, and to ∞ too."""
    net, task, _ = problem.build()
    times = np.append(TIMES[:-1], np.inf)
    traj = exact(net, task, times)
    losses = np.asarray(traj.map(task.loss))
    assert (np.diff(losses) <= 1e-13 * losses[0]).all()


@FEW
@given(problems((4, 4, 4), st.just(0.0), ("generic",)), seeds)
def test_a_saddle_is_one_in_any_basis(problem, seed):
    """Bases do not help a start behind a saddle: the same mode is missed at ∞."""
    behind = Problem(problem.shape, 0.0, problem.scale, side="behind", seed=seed)
    (w1, w2), sigma = behind.weights(), behind.sigma()
    v, u = rotation(seed, 4), rotation(seed + 1, 4)
    times = np.append(TIMES[:-1], np.inf)
    end = learn(w1 @ v.T, u @ w2, u @ sigma @ v.T, times)[-1]
    error = np.linalg.norm(end.w2w1 - u @ sigma @ v.T, 2)
    assert abs(error - behind.missed) <= TOLERANCE
