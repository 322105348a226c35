"""Values of the exact method, against the arbitrary-precision answers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from tests.compare import blocks, close, disagreements, exact, networks
from tests.oracle import riccati
from tests.problems import PROBLEMS, Problem, grid

TOLERANCE = 1e-11
ALL = [pytest.param(p, id=p.name) for p in PROBLEMS]
ENDING = [pytest.param(p, id=p.name) for p in PROBLEMS if p.ends]
LATE = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1e3, 1e6)  # as long as every problem's times


def test_the_grid_has_at_least_600_points():
    points = list(grid())
    assert len(points) >= 600
    assert max(t for _, t in points) == 1e6
    assert len({p.name for p in PROBLEMS}) == len(PROBLEMS)


@pytest.mark.parametrize("problem", ALL)
def test_equals_the_answer(problem):
    net, task, _ = problem.build()
    trajectory = exact(net, task, problem.times)
    assert (np.asarray(trajectory.status) == lr.Status.ok).all()
    nets = trajectory.networks
    assert nets is not None
    found = blocks(nets)
    start, sigma = problem.weights(), problem.sigma()
    times, answers = problem.times[1:], problem.answers[1:]
    assert not disagreements(start, sigma, times, found[1:], answers, TOLERANCE)
    # The start itself, to the last bit.
    assert np.array_equal(nets.w1[0], net.w1)
    assert np.array_equal(nets.w2[0], net.w2)
    # Balance stays, to rounding of the weights; that of the start is rounded too.
    rounding = 1e-15 * sum(np.sum(w**2) for w in start)
    for w1, w2 in zip(nets.w1, nets.w2, strict=True):
        b = np.asarray(w2.T @ w2 - w1 @ w1.T)
        norm = float(jnp.sum(w1**2) + jnp.sum(w2**2))
        defect = abs(b - problem.lam * np.eye(len(b))).max()
        assert defect <= 1e-12 * max(norm, 1e-3) + rounding


@pytest.mark.parametrize("problem", ENDING)
def test_at_a_million_units_of_time(problem):
    net, task, _ = problem.build()
    final = exact(net, task, LATE).final
    product = np.asarray(final.w2 @ final.w1)
    if problem.saddle:
        error = np.linalg.norm(product - problem.sigma(), 2)
        assert abs(error - problem.missed) <= 1e-10
    else:
        assert np.linalg.norm(product - problem.limit()) <= 1e-10


def test_a_zero_top_mode_stays_zero():
    problem = Problem((4, 4, 4), 0.0, spectrum="diagonal", modes=(0.0, 0.1, 0.1, 0.1))
    net, task, _ = problem.build()
    times = (0.0, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6)
    nets = networks(net, task, times)
    products = np.asarray(nets.w2 @ nets.w1)
    assert (products[:, 0] == 0).all()
    assert (products[:, :, 0] == 0).all()
    error = np.linalg.norm(products[3:] - problem.sigma(), 2, axis=(1, 2))
    np.testing.assert_allclose(error, 3.0, rtol=1e-14)


@pytest.mark.parametrize("shape", [(4, 4, 4), (3, 5, 3), (4, 6, 4)])
def test_a_rotated_saddle_stays_a_saddle(shape):
    for seed in range(4):
        problem = Problem(shape, 0.0, 0.1, side="behind", seed=seed)
        assert problem.saddle
        net, task, _ = problem.build()
        nets = networks(net, task, LATE)
        error = np.linalg.norm(
            np.asarray(nets.w2 @ nets.w1)[-2:] - problem.sigma(), 2, axis=(1, 2)
        )
        np.testing.assert_allclose(error, problem.missed, rtol=1e-10)


def test_a_slow_funnel():
    # Surplus inputs, λ = −1000: learning takes |λ|/s̃², so that μt is in the millions.
    problem = Problem((3, 1, 2), -1e3)
    sigma = 0.1 * problem.sigma()
    net, task = problem.build()[0], lr.tasks.LinearTask(jnp.asarray(sigma))
    times = (0.0, 1e-2, 1.0, 1e3, 5e3, 2e4, 1e5, 1e6)
    found = blocks(networks(net, task, times))
    for t, ours in zip(times, found, strict=True):
        theirs = riccati.solve_narrow(*problem.weights(), sigma, t)
        close(ours, theirs, TOLERANCE if t else 1e-15)


@pytest.mark.parametrize("spectrum", ["generic", "rank 1", "repeated"])
@pytest.mark.parametrize("shape", [(4, 4, 4), (3, 3, 6)])
def test_almost_zero_lambda_is_almost_zero_lambda(shape, spectrum):
    times = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 6.0, 8.0)
    nets = [
        networks(*Problem(shape, lam, 0.1, spectrum).build()[:2], times)
        for lam in (0.0, 1e-9)
    ]
    for zero, almost in zip(*(blocks(n) for n in nets), strict=True):
        for x, y in zip(zero, almost, strict=True):
            assert np.linalg.norm(x - y) <= 1e-6


@pytest.mark.parametrize("shape", [(5, 3, 3), (3, 3, 5)])
@pytest.mark.parametrize("lam", [20.0, -20.0])
def test_unequal_widths_and_large_lambda(shape, lam):
    problem = Problem(shape, lam, 0.5, seed=3)
    net, task, _ = problem.build()
    times = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 100.0)
    found = blocks(networks(net, task, times))
    for t, ours in zip(times[-2:], found[-2:], strict=True):
        close(ours, problem.answer(t), TOLERANCE)


def test_unbalanced_weights_are_refused_with_their_deviation():
    net, task, _ = Problem((5, 3, 3), 1.0, 0.5).build()
    w1 = net.w1.at[0, 0].add(0.37)
    bad = lr.networks.TwoLayerLinear(w1, net.w2)
    b = np.asarray(bad.w2.T @ bad.w2 - w1 @ w1.T)
    deviation = abs(b - np.trace(b) / 3 * np.eye(3)).max()
    with pytest.raises(lr.TrainingError) as failure:
        lr.train(bad, task, jnp.asarray(LATE), method=lr.Exact())
    numbers = re.findall(r"\d+\.?\d*(?:e[+-]?\d+)?", str(failure.value))
    assert any(abs(float(x) - deviation) <= 0.05 * deviation for x in numbers)
    assert failure.value.status == lr.Status.not_balanced
    weights = failure.value.trajectory.networks
    assert weights is not None
    assert np.isnan(weights.w1).all()
    assert np.isnan(weights.w2).all()
    # With a tolerance that admits them they are taken as they are.
    loose = lr.Exact(balance_tol=10.0)
    taken = lr.train(bad, task, jnp.asarray(LATE), method=loose)
    assert taken.networks is not None
    assert np.isfinite(taken.networks.w1).all()


@pytest.mark.parametrize("lam", [0.0, 1.0, -20.0])
def test_restart_equals_going_through(lam):
    problem = Problem((4, 4, 4), lam, 0.05, seed=2)
    net, task, _ = problem.build()
    whole = (0.0, 0.5, 1.0, 1.5, 2.5, 4.0, 8.0, 20.0)
    # A time that repeats makes both calls as long as the first: one compilation.
    first = exact(net, task, (0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.5))
    rest = exact(first.final, task, (0.0, 0.0, 0.0, 0.0, 1.0, 2.5, 6.5, 18.5))
    through = blocks(networks(net, task, whole))[4:]
    for ours, theirs in zip(blocks(rest.networks)[4:], through, strict=True):
        close(ours, theirs, 1e-12)


def test_scalar_and_vector_times_agree():
    problem = Problem((4, 4, 4), 1.0, 0.1)
    net, task, _ = problem.build()
    vector = exact(net, task, problem.times)
    scalar = exact(net, task, problem.times[3])
    nets, one = vector.networks, scalar.networks
    assert nets is not None
    assert one is not None
    assert nets.w1.shape == (8, 4, 4)
    assert one.w1.shape == (4, 4)
    for alone, i in ((one, 3), (vector.final, -1)):
        np.testing.assert_allclose(alone.w1, nets.w1[i], atol=1e-14)
        np.testing.assert_allclose(alone.w2, nets.w2[i], atol=1e-14)


@pytest.mark.parametrize(
    "problem",
    [
        Problem((4, 4, 4), 1.0, 0.1),
        Problem((4, 4, 4), 0.0, 0.1),
        Problem((4, 4, 4), 0.0, 0.1, side="behind"),
        Problem((4, 4, 4), -20.0, 0.1, "repeated"),
        Problem((3, 5, 3), 0.0, 0.1, "rank 1"),
    ],
    ids=lambda p: p.name,
)
def test_weights_move_continuously_from_the_start(problem):
    net, task, _ = problem.build()
    times = np.concatenate([[0.0], np.geomspace(1e-8, 30.0, 800)])
    nets = networks(net, task, times)
    flat = np.concatenate(
        [np.asarray(w).reshape(len(times), -1) for w in (nets.w1, nets.w2)], axis=1
    )
    steps = np.linalg.norm(np.diff(flat, axis=0), axis=1)
    double = np.linalg.norm(flat[2::2] - flat[:-2:2], axis=1)
    # Of a jump, halving the step would leave all. The largest step must shrink.
    assert steps.max() <= 0.75 * double.max()
    assert steps[0] <= 1e-6
    assert np.array_equal(flat[0, : net.w1.size], np.asarray(net.w1).ravel())


def test_jit_and_vmap_over_lambda_equal_a_loop():
    lams = (0.0, 1e-9, 1.0, -1.0, 20.0, -1e3)
    built = [Problem((4, 4, 4), lam, 0.1).build() for lam in lams]
    task, times = built[0][1], jnp.asarray([0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 10.0, 1e3])
    nets = jax.tree.map(lambda *x: jnp.stack(x), *(net for net, *_ in built))

    def run(net):
        trajectory = lr.train(net, task, times, method=lr.Exact())
        return trajectory.networks, trajectory.status

    batch, status = jax.jit(jax.vmap(run))(nets)
    assert (np.asarray(status) == lr.Status.ok).all()
    for i, (net, *_) in enumerate(built):
        alone = blocks(run(net)[0])
        member = blocks(jax.tree.map(lambda x, i=i: x[i], batch))
        for ours, theirs in zip(member, alone, strict=True):
            close(ours, theirs, 1e-12)
