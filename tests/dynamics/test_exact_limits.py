"""Where learning ends, and late times: limits, restarts, one mode in closed form."""

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import lazyrich as lr
from tests.compare import blocks, close, disagreements, exact, networks
from tests.oracle import scalar
from tests.problems import LARGEST_TIME, PROBLEMS, Problem

mp: Any = mpmath.mp  # its methods are set at run time

TOLERANCE = 1e-11
# Eight times, as of the registry: problems of one shape share one compilation.
END = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, LARGEST_TIME, np.inf)


def cases(chosen):
    return [pytest.param(p, id=p.name) for p in PROBLEMS if chosen(p)]


def rank(problem: Problem) -> int:
    """How many singular vectors of the target are learned: r of theory, §1.4."""
    smallest = {"rank 1": 1, "zero": 0}.get(problem.spectrum, min(problem.shape))
    return min(problem.shape[1], smallest)


def settled(problem: Problem) -> bool:
    """Whether the limit does not depend on the start, or by a projector only."""
    return not problem.saddle and (problem.ends or not problem.full)


def exact_lam(w1: np.ndarray, w2: np.ndarray) -> float:
    """λ = tr(W2ᵀW2 − W1W1ᵀ)/Nh of the rounded weights, itself hardly rounded."""
    squares = [[Fraction(float(x)) ** 2 for x in w.ravel()] for w in (w1, w2)]
    return float((sum(squares[1]) - sum(squares[0])) / len(w1))


def rounding(problem: Problem) -> float:
    """What an ulp of the start can do to λ."""
    return 1e-15 * sum(float(np.sum(w**2)) for w in problem.weights())


@pytest.mark.parametrize("problem", cases(settled))
def test_ends_at_the_limit(problem):
    """The limits of theory, §1.4: W2W1, and both similarities but for a projector."""
    net, task, _ = problem.build()
    found = blocks(networks(net, task, END))[-1]
    r, lam = rank(problem), exact_lam(*problem.weights())
    u, s, vt = np.linalg.svd(problem.sigma())
    u, s, v = u[:, :r], s[:r], vt[:r].T
    mu, half = np.hypot(s, lam / 2), abs(lam) / 2
    wide, narrow = mu + half, s**2 / (mu + half)
    first, second = (wide, narrow) if lam < 0 else (narrow, wide)
    learned = ((v * first) @ v.T, (u * s) @ v.T, (u * second) @ u.T)
    surplus = problem.shape[1] - r if abs(problem.lam) >= 1e-9 else 0
    for name, x, y in zip(found._fields, found, learned, strict=True):
        error, bar = x - y, TOLERANCE * np.linalg.norm(y) + 10 * rounding(problem)
        if surplus and name == ("w1tw1" if lam < 0 else "w2w2t"):
            # What is left is |λ| times a projector on unused hidden directions.
            bar += TOLERANCE * abs(lam)
            assert np.linalg.norm(error @ (v if lam < 0 else u)) <= bar
            assert np.linalg.norm(error @ error / lam - abs(lam) / lam * error) <= bar
            assert abs(np.trace(error) - surplus * abs(lam)) <= surplus * bar
        else:
            # Without λ a singular target leaves nothing behind.
            assert np.linalg.norm(error) <= bar + surplus * abs(problem.lam) * 1e-11


def at_rest(problem: Problem) -> bool:
    """Whether λ ≠ 0 and a singular target have been settled by the last time."""
    s, half = np.linalg.norm(problem.sigma(), 2), abs(problem.lam) / 2
    gap = s**2 / (np.hypot(s, half) + half) if s else 2 * half
    return not problem.full and half >= 0.5 and gap * problem.times[-1] > 26


@pytest.mark.parametrize("problem", cases(at_rest))
def test_the_projector_is_the_one_the_start_chooses(problem):
    """The limit is the arbitrary-precision answer at a time when nothing moves."""
    net, task, _ = problem.build()
    found, late = blocks(networks(net, task, END))[-1], problem.answers[-1]
    # The product with a zero target is hardly 0 yet: blocks share their scale.
    size = max(np.linalg.norm(y) for y in late)
    for x, y in zip(found, late, strict=True):
        assert np.linalg.norm(x - y) <= TOLERANCE * size


@pytest.mark.parametrize("problem", cases(lambda p: p.ends))
def test_a_million_is_infinity(problem):
    net, task, _ = problem.build()
    *_, million, end = blocks(networks(net, task, END))
    for x, y in zip(million, end, strict=True):
        assert np.isfinite(x).all()
        assert np.linalg.norm(x - y) <= 1e-10 * np.linalg.norm(y)


@pytest.mark.parametrize("problem", cases(lambda p: not p.ends))
def test_a_million_is_finite(problem):
    """Slow and singular targets are still on their way, and never NaN."""
    net, task, _ = problem.build()
    for found in blocks(networks(net, task, END))[-3:]:
        for x in found:
            assert np.isfinite(x).all()


@pytest.mark.parametrize("problem", cases(lambda p: p.saddle and p.ends))
def test_a_saddle_is_never_left(problem):
    """Exactly the missed mode is missing at ∞, in the diagonal to the last bit."""
    net, task, _ = problem.build()
    product = np.asarray(networks(net, task, END).product)[-1]
    sigma = problem.sigma()
    error = np.linalg.norm(product - sigma, 2)
    assert abs(error - problem.missed) <= TOLERANCE * np.linalg.norm(sigma)
    if problem.modes is None:
        return
    learned = sigma.copy()
    for i, s in enumerate(problem.modes):
        if s <= 0:
            learned[i, i] = 0.0
        if s == 0:
            assert (product[i] == 0).all()
            assert (product[:, i] == 0).all()
    assert np.linalg.norm(product - learned) <= TOLERANCE * np.linalg.norm(sigma)


RESTARTS = (
    Problem((4, 4, 4), 0.0, 1e-8),
    Problem((4, 4, 4), 0.0, 0.1, "spread"),
    Problem((4, 4, 4), 0.0, 0.1, side="behind"),
    Problem((4, 4, 4), 1e-6, 0.1, "near", side="behind"),
    Problem((4, 4, 4), -30.0, 0.1, "turned"),
    Problem((4, 4, 4), 1e3, 1e-6, "rank 1"),
    Problem((6, 3, 3), -1.0, 1e-3, "rank 1"),
    Problem((6, 3, 3), 30.0, 1e-3),
    Problem((3, 3, 6), 1.0, 1e-3, "near"),
    Problem((4, 6, 4), 0.0, 0.1, "turned"),
    Problem((4, 2, 4), -30.0, 1e-3),
    Problem((2, 4, 6), 1e3, 1e-3),
    Problem((2, 7, 3), 0.0, 1e-8, "spread"),
)


@pytest.mark.parametrize("stop", [0.02, 0.7, 6.0])
@pytest.mark.parametrize("problem", RESTARTS, ids=lambda p: p.name)
def test_restart_equals_going_through(problem, stop):
    """S(t2) from the network at t1 equals S(t2) from the start (not the gauge)."""
    net, task, _ = problem.build()
    later = [0.0, 0.0, 0.01, 0.1, 0.5, 2.0, 5.0, 12.0]
    middle = exact(net, task, [*[0.0] * 7, stop]).final
    found = blocks(networks(middle, task, later))
    through = blocks(networks(net, task, [stop + t for t in later]))
    weights = np.asarray(middle.w1), np.asarray(middle.w2)
    sigma = problem.sigma()
    assert not disagreements(weights, sigma, later, found, through, TOLERANCE)


@pytest.mark.parametrize("problem", [p for p in RESTARTS if p.ends and not p.saddle])
def test_restart_ends_where_going_through_does(problem):
    net, task, _ = problem.build()
    middle = exact(net, task, [*[0.0] * 7, 0.7]).final
    found = blocks(networks(middle, task, END))[-1]
    close(found, blocks(networks(net, task, END))[-1], TOLERANCE)


LAMS = (0.0, 1e-12, 1e-6, 1.0, 30.0, 1e3)
ONE_MODE = [
    (lam, s0, target)
    for lam in (*LAMS, *(-x for x in LAMS[1:]))
    for s0 in (1e-10, 1e-3, 10.0, -0.3, -10.0, 0.0)
    for target in (2.0, 2e-6, 0.0)
]
ONE_MODE_TIMES = (0.0, 1e-3, 0.1, 3.0, 40.0, 800.0, LARGEST_TIME, np.inf)


def layers(t, a0, b0, target):
    """a²(t), ab, b² of the mode that starts at the floats a0 and b0, unrounded."""
    with mp.workdps(80):
        a0, b0 = mp.mpf(a0), mp.mpf(b0)
        a, b = scalar.layers(t, a0 * b0, target, b0**2 - a0**2)
        return np.array([float(x) for x in (a * a, a * b, b * b)])


def one_mode_limit(a0, b0, target):
    """a², ab, b² at ∞: a mode of no or of wrong strength stays behind at λ = 0."""
    lam = exact_lam(np.array([[a0]]), np.array([[b0]]))
    if lam == 0 and a0 * b0 <= 0:
        return np.zeros(3)
    wide = np.hypot(target, lam / 2) + abs(lam) / 2
    narrow = target**2 / wide if wide else 0.0
    first, second = (wide, narrow) if lam < 0 else (narrow, wide)
    return np.array([first, target, second])


def one_mode_start(lam, s0):
    """Both layers as floats; at λ = 0 equal in size to the last bit."""
    if lam == 0:
        return np.sqrt(abs(s0)), np.sign(s0) * np.sqrt(abs(s0))
    return tuple(float(x) for x in scalar.strengths(s0, lam))


def over(t, target):
    return np.isinf(t) or target * t > 1e4


def test_one_mode_in_closed_form():
    """Each block to 1e-11 of itself or ten times the effect of an ulp, any time."""
    starts = np.array([one_mode_start(lam, s0) for lam, s0, _ in ONE_MODE])
    targets = np.array([target for *_, target in ONE_MODE])

    def run(a, b, target):
        net = lr.networks.TwoLayerLinear(a[None, None], b[None, None])
        task = lr.tasks.LinearTask(target[None, None])
        return exact(net, task, ONE_MODE_TIMES).networks

    nets = jax.jit(jax.vmap(run))(*jnp.asarray(starts).T, jnp.asarray(targets))
    a, b = np.asarray(nets.w1)[..., 0, 0], np.asarray(nets.w2)[..., 0, 0]
    found = np.stack([a * a, a * b, b * b], axis=-1)
    wrong = []
    for case, (a0, b0), ours in zip(ONE_MODE, starts, found, strict=True):
        target = case[-1]
        for t, x in zip(ONE_MODE_TIMES, ours, strict=True):
            # The closed form can need 2s̃t/ln 10 digits; by then all has ended.
            at = one_mode_limit if over(t, target) else lambda *x, t=t: layers(t, *x)
            y = at(a0, b0, target)
            bar = TOLERANCE * abs(y) + 1e-75  # the closed form has 80 digits
            if (abs(x - y) <= bar).all():
                continue
            ulp = np.spacing(max(abs(a0), abs(b0)))
            moves = ulp * np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
            moved = [at(a0 + i, b0 + j, target) for i, j in moves]
            effect = np.max([abs(m - y) for m in moved], axis=0)
            if not (abs(x - y) <= np.maximum(bar, 10 * effect)).all():
                wrong.append((case, t, abs(x - y), effect, y))
    assert not wrong, "\n".join(str(x) for x in wrong)
