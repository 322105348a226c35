"""Gradient flow against the closed form, SciPy, and its own conservation law."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import lazyrich as lr
from tests.oracle import scalar
from tests.problems import SIMULATED, Problem

RTOLS = (1e-4, 1e-6, 1e-8)


def _comparable_until(problem: Problem, rtol: float) -> float:
    """Until when a simulation can follow: rounding and truncation leave a saddle."""
    horizon = 40.0 / max(1.0, abs(problem.lam) / 20)
    if problem.missed > 0 and abs(problem.lam) < rtol:
        horizon = min(horizon, np.log(1 / rtol) / (2 * problem.missed))
    return horizon


def _disagreement(problem: Problem, rtol: float) -> float:
    """max over t of ‖ΔW2W1‖_F/‖Σ‖_F between GradientFlow and Exact."""
    net, task, _ = problem.build()
    times = jnp.linspace(0.0, _comparable_until(problem, rtol), 21)
    exact = lr.train(net, task, times, method=lr.Exact())
    flow = lr.train(net, task, times, method=lr.GradientFlow(rtol=rtol))
    gap = exact.networks.product - flow.networks.product
    # A target of 0 has no size: there the start is the scale.
    size = jnp.maximum(jnp.linalg.norm(task.sigma_yx), jnp.linalg.norm(net.product))
    return float(jnp.max(jnp.linalg.norm(gap, axis=(1, 2))) / size)


# Every shape compiles anew: these four always run, the others are slow.
QUICK_SHAPES = ((4, 4, 4), (6, 3, 3), (3, 3, 6), (4, 2, 4))
REGISTRY = [
    pytest.param(
        problem,
        id=problem.name,
        marks=() if problem.shape in QUICK_SHAPES else pytest.mark.slow,
    )
    for problem in SIMULATED
]


@pytest.mark.parametrize("problem", REGISTRY)
def test_agrees_with_exact_in_proportion_to_rtol(problem):
    for rtol in RTOLS:
        assert _disagreement(problem, rtol) <= 30 * rtol


@pytest.mark.parametrize("lam", [0.0, 3.0, -20.0])
def test_agrees_with_scipy(lam):
    sigma = np.random.default_rng(0).normal(size=(3, 4))
    task = lr.tasks.LinearTask(jnp.asarray(sigma))
    net = lr.inits.balanced(jax.random.key(1), 4, 3, 3, lam, 0.1)
    times = jnp.linspace(0.0, 5.0, 11)

    def velocity(_, y):
        w1, w2 = y[:12].reshape(3, 4), y[12:].reshape(3, 3)
        error = sigma - w2 @ w1
        return np.concatenate([(w2.T @ error).ravel(), (error @ w1.T).ravel()])

    start = np.concatenate([np.ravel(net.w1), np.ravel(net.w2)])
    solution = solve_ivp(
        velocity, (0, 5), start, "DOP853", np.asarray(times), rtol=1e-12, atol=1e-14
    )
    for rtol in (1e-5, 1e-8):
        flow = lr.train(net, task, times, method=lr.GradientFlow(rtol=rtol))
        w1 = solution.y[:12].T.reshape(-1, 3, 4)
        w2 = solution.y[12:].T.reshape(-1, 3, 3)
        for ours, theirs in ((flow.networks.w1, w1), (flow.networks.w2, w2)):
            assert np.max(np.abs(ours - theirs)) <= 100 * rtol
        gap = np.linalg.norm(flow.networks.product - w2 @ w1, axis=(1, 2))
        assert gap.max() / np.linalg.norm(sigma) <= 30 * rtol


def test_unwhitened_and_sampled_tasks_follow_the_sample_gradient():
    key_x, key_y = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key_x, (20, 3)) * jnp.array([[1.0, 2.0, 0.3]])
    y = jax.random.normal(key_y, (20, 2))
    task = lr.tasks.LinearTask.from_data(x, y, whiten=False)
    net = lr.inits.gaussian(jax.random.key(1), 3, 4, 2, 0.3, 0.3)
    times = jnp.array([0.0, 200.0])
    traj = lr.train(net, task, times, method=lr.GradientFlow(rtol=1e-9))
    best = np.linalg.lstsq(np.asarray(x), np.asarray(y))[0].T
    np.testing.assert_allclose(traj.final.product, best, atol=1e-7)
    assert float(task.loss(traj.final) - task.optimum) < 1e-12
    # A small step along the flow equals one along minus the sample gradient.
    dt = 1e-4
    moved = lr.train(net, task, dt, method=lr.GradientFlow(rtol=1e-10)).final

    def sample_loss(net):
        return 0.5 * jnp.mean(jnp.sum((y - net(x)) ** 2, axis=1))

    slope = np.asarray(jax.grad(sample_loss)(net).w1)
    atol = 5 * dt * np.abs(slope).max()
    np.testing.assert_allclose((moved.w1 - net.w1) / dt, -slope, atol=atol)


def test_conserves_balance():
    task = lr.tasks.LinearTask(jax.random.normal(jax.random.key(0), (3, 3)))
    net = lr.inits.gaussian(jax.random.key(1), 3, 5, 3, 0.5, 0.7)
    for rtol in (1e-5, 1e-8):
        traj = lr.train(net, task, 20.0, method=lr.GradientFlow(rtol=rtol))
        drift = lr.measures.balance(traj.final) - lr.measures.balance(net)
        assert float(jnp.abs(drift).max()) <= 30 * rtol


@pytest.mark.parametrize("solver", [diffrax.Dopri8(), diffrax.Kvaerno5()])
def test_other_solvers(solver):
    problem = Problem((4, 4, 4), 1.0)
    net, task, _ = problem.build()
    exact = lr.train(net, task, 3.0, method=lr.Exact())
    method = lr.GradientFlow(solver=solver, rtol=1e-7)
    flow = lr.train(net, task, 3.0, method=method)
    np.testing.assert_allclose(flow.final.product, exact.final.product, atol=1e-5)
    assert flow.stats["solver"] == type(solver).__name__


def test_stiff_problem_names_the_implicit_solver_which_succeeds():
    task = lr.tasks.LinearTask(jnp.diag(jnp.array([1.0, 0.5])))
    net = lr.inits.balanced(jax.random.key(0), 2, 2, 2, 1e6, 0.1)
    times = jnp.array([0.0, 2.0])
    with pytest.raises(lr.TrainingError, match=r"Kvaerno5") as caught:
        lr.train(net, task, times, method=lr.GradientFlow(rtol=1e-5, max_steps=2000))
    assert caught.value.status == lr.Status.step_limit
    assert jnp.isnan(caught.value.trajectory.networks.w1).all()
    method = lr.GradientFlow(diffrax.Kvaerno5(), rtol=1e-5, max_steps=2000)
    flow = lr.train(net, task, times, method=method)
    np.testing.assert_allclose(flow.final.product, task.sigma_yx, atol=1e-3)


def test_stop_is_located_and_differentiable():
    """One aligned mode: the exact time and its derivative are known (case 14)."""
    lam, s0, target, level = 0.7, 0.05, 1.3, 0.2
    task = lr.tasks.LinearTask(jnp.array([[target]]))

    def stop(s0, lam, method):
        net = lr.inits.aligned(task, lam, s0)
        until = lr.until_loss(level)
        return lr.train(net, task, 50.0, method=method, until=until).stop_time

    # The loss ½(s̃ − s)² meets the level where s does this.
    strength = target - np.sqrt(2 * level)
    time = float(scalar.time_to(strength, s0, target, lam))
    _, *slopes = (float(x) for x in scalar.time_to_by(strength, s0, target, lam))
    flow = lr.GradientFlow(rtol=1e-9)
    assert float(stop(s0, lam, flow)) == pytest.approx(time, rel=1e-8)
    assert float(stop(s0, lam, lr.Exact())) == pytest.approx(time, rel=1e-12)

    def slopes_by(derivative, method):
        both = derivative(lambda s0, lam: stop(s0, lam, method), argnums=(0, 1))
        return jax.jit(both)(s0, lam)

    np.testing.assert_allclose(slopes_by(jax.grad, flow), slopes, rtol=1e-6)
    np.testing.assert_allclose(slopes_by(jax.grad, lr.Exact()), slopes, rtol=1e-10)
    np.testing.assert_allclose(slopes_by(jax.jacfwd, lr.Exact()), slopes, rtol=1e-10)


def test_members_of_a_batch_step_as_alone():
    """Case 8: and the report names the slowest."""
    task = lr.tasks.hierarchy(2)
    times = jnp.linspace(0.0, 10.0, 5)

    def run(lam):
        net = lr.inits.balanced(jax.random.key(0), 4, 4, 4, lam, 0.1)
        return lr.train(net, task, times, method=lr.GradientFlow())

    lams = [0.0, 50.0, -50.0]
    batch = jax.jit(jax.vmap(run))(jnp.array(lams))
    alone = [run(lam) for lam in lams]
    assert batch.stats["steps"].tolist() == [int(t.stats["steps"]) for t in alone]
    for i, single in enumerate(alone):
        np.testing.assert_allclose(batch.networks.w1[i], single.networks.w1, atol=1e-12)
    slowest = int(jnp.argmax(batch.stats["steps"]))
    assert f"slowest: member {slowest}" in repr(batch)


@pytest.mark.parametrize("method", [lr.Exact(), lr.GradientFlow(), lr.SGD(0.05)])
def test_start_at_the_solution(method):
    """Case 11: initial weights, stop time 0, nothing after."""
    task = lr.tasks.hierarchy(2)
    net = lr.inits.aligned(task, 1.0, jnp.linalg.svd(task.sigma_yx)[1])
    times = jnp.array([0.0, 1.0, 2.0])
    until = lr.until_loss(1e-10)
    traj = lr.train(net, task, times, method=method, until=until)
    assert traj.status == lr.Status.stopped
    assert traj.stop_time == 0.0
    np.testing.assert_array_equal(traj.final.w1, net.w1)
    np.testing.assert_array_equal(traj.networks.w1[0], net.w1)
    assert jnp.isnan(traj.networks.w1[1:]).all()


def test_gradients_forward_reverse_and_second_order():
    """Case 13: the setting that each derivative needs is the documented one."""
    task = lr.tasks.LinearTask(jnp.diag(jnp.array([1.0, 0.6])))

    def loss(p, adjoint):
        net = lr.inits.balanced(jax.random.key(0), 2, 2, 2, p[0], p[1])
        method = lr.GradientFlow(rtol=1e-9, max_steps=200, adjoint=adjoint)
        return task.loss(lr.train(net, task, 1.5, method=method).final)

    def exact(p):
        net = lr.inits.balanced(jax.random.key(0), 2, 2, 2, p[0], p[1])
        return task.loss(lr.train(net, task, 1.5, method=lr.Exact()).final)

    p = jnp.array([0.8, 0.3])
    reference = jax.jit(jax.grad(exact))(p)
    reverse = jax.jit(jax.grad(lambda p: loss(p, None)))(p)
    forward = jax.jit(jax.jacfwd(lambda p: loss(p, diffrax.ForwardMode())))(p)
    np.testing.assert_allclose(reverse, reference, rtol=1e-6)
    np.testing.assert_allclose(forward, reference, rtol=1e-6)
    hessian = jax.jit(jax.hessian(lambda p: loss(p, diffrax.DirectAdjoint())))(p)
    expected = jax.jit(jax.hessian(exact))(p)
    np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["solver", "adjoint"])
def test_a_setting_that_is_not_diffrax_is_named(unchecked, name):
    wrong: Any = {name: "x"}
    with pytest.raises(ValueError, match=f"`{name}` must be a diffrax {name}"):
        lr.GradientFlow(**wrong)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.hessian])
def test_forward_mode_of_the_default_says_which_setting_works(derivative):
    """Case 13."""
    task = lr.tasks.LinearTask(jnp.array([[1.0]]))

    def loss(s0):
        net = lr.inits.aligned(task, 1.0, s0)
        return task.loss(lr.train(net, task, 1.0, method=lr.GradientFlow()).final)

    with pytest.raises(TypeError, match=r"\.ForwardMode.*\.DirectAdjoint"):
        derivative(loss)(0.1)


def test_a_mistake_in_user_code_keeps_its_own_message():
    task = lr.tasks.LinearTask(jnp.array([[1.0]]))
    net = lr.inits.aligned(task, 1.0, 0.1)

    def broken(net):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        lr.train(net, task, 1.0, method=lr.GradientFlow(), save=broken)
