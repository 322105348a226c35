"""How a run ends: the statuses, their remedies, and the error that carries them."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from lazyrich import Status, TrainingError

TASK = lr.tasks.LinearTask(np.diag([2.0, 1.0]))
TIMES = np.array([0.0, 1.0, 5.0])


def start():
    """1-balanced, with a rotation of size 0.1 as its product."""
    strong = np.sqrt(np.sqrt(0.26) + 0.5)
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    return lr.networks.TwoLayerLinear(0.1 / strong * turn, strong * np.eye(2))


def test_the_eight_statuses():
    assert {s.name: int(s) for s in Status} == {
        "ok": 0,
        "stopped": 1,
        "not_reached": 2,
        "step_limit": 3,
        "nonfinite": 4,
        "not_balanced": 5,
        "error": 6,
        "pending": 7,
    }


def test_the_first_three_are_successes_and_the_others_say_what_to_change():
    for status in Status:
        assert status.is_success == (status.value <= 2)
        assert isinstance(status.remedy, str)
        assert bool(status.remedy) == (status.value > 2)
        assert "\n" not in status.remedy


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.step_limit, ["max_steps", "steps", "implicit", "Kvaerno5"]),
        (Status.nonfinite, ["λ > 0 needs hidden ≤ outputs", "norm", "learning rate"]),
        (Status.not_balanced, ["rebalance", "GradientFlow", "balance_tol"]),
        (Status.pending, ["again"]),
    ],
)
def test_remedies_name_the_settings(status, words):
    for word in words:
        assert word in status.remedy


def unbalanced():
    net = start()
    return lr.networks.TwoLayerLinear(net.w1, net.w2.at[0, 0].add(0.5))


def broken():
    net = start()
    return lr.networks.TwoLayerLinear(net.w1.at[0, 0].set(jnp.nan), net.w2)


def inadmissible():
    # As it comes from a traced λ: NaN weights.
    key = jax.random.key(0)
    make = jax.jit(lambda lam: lr.inits.balanced(key, 2, 2, 2, lam, norm=1.0))
    return make(9.0)


FAILURES = {
    "unbalanced": (unbalanced, lr.Exact(), Status.not_balanced),
    "broken": (broken, lr.Exact(), Status.nonfinite),
    "inadmissible": (inadmissible, lr.Exact(), Status.nonfinite),
    "stiff": (start, lr.GradientFlow(max_steps=3), Status.step_limit),
    "too few steps": (start, lr.SGD(0.05, steps=10), Status.step_limit),
    "diverging": (start, lr.SGD(5.0, steps=10), Status.nonfinite),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failed_runs_raise_with_status_trajectory_and_remedy(name):
    make, method, status = FAILURES[name]
    times = 10 * TIMES if name == "diverging" else TIMES
    with pytest.raises(TrainingError) as caught:
        lr.train(make(), TASK, times, method=method)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.status is status
    assert status.remedy in str(error)
    assert status.name in str(error)
    assert type(method).__name__ in str(error)
    failed = error.trajectory
    assert isinstance(failed, lr.Trajectory)
    assert failed.status.dtype == jnp.int8
    assert int(failed.status) == status
    for leaf in jax.tree.leaves((failed.networks, failed.final, failed.stop_time)):
        assert np.isnan(leaf).all()
    # Without raising: the same trajectory.
    quiet = lr.train(make(), TASK, times, method=method, throw=False)
    assert int(quiet.status) == status
    assert not bool(quiet.ok)
    assert np.isnan(quiet.final.w1).all()


def test_an_unbalanced_start_is_quoted_with_its_residual():
    net = unbalanced()
    b = np.asarray(net.w2.T @ net.w2 - net.w1 @ net.w1.T)
    residual = np.abs(b - np.trace(b) / 2 * np.eye(2)).max()
    with pytest.raises(TrainingError, match=f"{residual:.6g}"):
        lr.train(net, TASK, TIMES, method=lr.Exact())


def test_the_error_survives_pickling():
    """Errors cross process boundaries; one that cannot breaks the pool it crosses."""
    with pytest.raises(TrainingError) as caught:
        lr.train(start(), TASK, TIMES, method=lr.GradientFlow(max_steps=3))
    back = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(back, TrainingError)
    assert str(back) == str(caught.value)
    assert back.status is Status.step_limit
    assert int(back.trajectory.status) == Status.step_limit


def test_traced_runs_never_raise():
    method = lr.SGD(0.05, steps=10)  # the horizon needs 100

    @jax.jit
    def run(net):
        traj = lr.train(net, TASK, TIMES, method=method)
        return traj.status, traj.final

    status, final = run(start())
    assert int(status) == Status.step_limit
    assert np.isnan(final.w2).all()
