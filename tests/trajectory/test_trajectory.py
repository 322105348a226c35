"""One trajectory type for all methods: fields, text, `map`, pytree."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from lazyrich import Status

TASK = lr.tasks.LinearTask(np.diag([2.0, 1.0]))
TIMES = np.array([0.0, 1.0, 5.0])
LAMS = np.array([0.0, 1.0, 500.0])
METHODS = {
    "Exact": lr.Exact(),
    "GradientFlow": lr.GradientFlow(max_steps=100),
    "SGD": lr.SGD(0.05, steps=100),
}


def start(lam=1.0):
    """W2W1 is a rotation of size 0.1, and the weights are λ-balanced."""
    strong = jnp.sqrt(jnp.sqrt(0.01 + lam**2 / 4) + lam / 2)
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    return lr.networks.TwoLayerLinear(0.1 / strong * turn, strong * np.eye(2))


@functools.cache
def single(name):
    return lr.train(start(), TASK, TIMES, method=METHODS[name])


@functools.cache
def batch(name):
    """Three λ; at 500 the flow runs out of steps, and SGD diverges."""

    def run(lam):
        return lr.train(start(lam), TASK, TIMES, method=METHODS[name])

    return jax.jit(jax.vmap(run))(LAMS)


def member(tree, *index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@pytest.mark.parametrize("name", METHODS)
def test_fields(name):
    traj = single(name)
    np.testing.assert_array_equal(traj.times, TIMES)
    chex.assert_shape([traj.networks.w1, traj.networks.w2], (3, 2, 2))
    chex.assert_shape([traj.final.w1, traj.final.w2], (2, 2))
    assert traj.saved is None
    assert np.isnan(traj.stop_time)
    assert traj.status.dtype == jnp.int8
    assert int(traj.status) == Status.ok
    assert bool(traj.ok)
    chex.assert_trees_all_close(member(traj.networks, 0), start(), atol=1e-14)
    chex.assert_trees_all_close(member(traj.networks, 2), traj.final, atol=1e-14)
    stats = traj.stats
    assert stats["method"] == name
    assert stats["dtype"] == "float64"
    assert f"jax {jax.__version__}" in stats["versions"]
    if name != "Exact":
        assert stats["steps"].shape == ()
        assert 0 < int(stats["steps"]) <= 100


@pytest.mark.parametrize("name", METHODS)
def test_map_on_one_run(name):
    traj = single(name)
    losses = traj.map(TASK.loss)
    alone = [TASK.loss(member(traj.networks, i)) for i in range(3)]
    np.testing.assert_allclose(losses, np.array(alone), rtol=1e-12, atol=1e-15)
    assert (np.diff(losses) < 0).all()
    both = traj.map(lambda net: {"lam": lr.measures.lam(net), "w": net.product})
    chex.assert_shape([both["lam"], both["w"]], [(3,), (3, 2, 2)])
    np.testing.assert_allclose(both["w"], traj.networks.product, rtol=0, atol=1e-15)


def test_map_at_one_time():
    def run(lam):
        return lr.train(start(lam), TASK, 1.0, method=METHODS["SGD"])

    traj = run(1.0)
    assert traj.times.shape == ()
    chex.assert_shape(traj.networks.w1, (2, 2))
    loss = traj.map(TASK.loss)
    assert loss.shape == ()
    np.testing.assert_allclose(loss, single("SGD").map(TASK.loss)[1], rtol=1e-12)
    many = jax.jit(jax.vmap(run))(LAMS)
    assert many.times.shape == (3,)
    losses = many.map(TASK.loss)
    assert losses.shape == (3,)
    np.testing.assert_allclose(losses[1], loss, rtol=1e-12)
    assert "scalar at 1 τ" in repr(traj)


@pytest.mark.parametrize("name", ["GradientFlow", "SGD"])
def test_map_on_a_batch(name):
    traj = batch(name)
    assert traj.times.shape == (3, 3)
    losses = traj.map(TASK.loss)
    assert losses.shape == (3, 3)
    np.testing.assert_allclose(losses[1], single(name).map(TASK.loss), rtol=1e-9)
    # A member cut out of the batch is a trajectory again.
    one = member(traj, 1)
    np.testing.assert_allclose(one.map(TASK.loss), losses[1], rtol=1e-12)
    assert one.stats["method"] == name


def test_map_on_a_batch_with_two_axes():
    def run(lam, factor):
        task = lr.tasks.LinearTask(factor * TASK.sigma_yx)
        return lr.train(start(lam), task, TIMES, method=METHODS["SGD"])

    by_factor = jax.vmap(run, in_axes=(None, 0))
    traj = jax.jit(jax.vmap(by_factor, in_axes=(0, None)))(LAMS, np.array([1.0, 0.5]))
    assert traj.times.shape == (3, 2, 3)
    losses = traj.map(TASK.loss)
    assert losses.shape == (3, 2, 3)
    np.testing.assert_allclose(losses[:, 0], batch("SGD").map(TASK.loss), rtol=1e-9)
    assert "slowest: member (" in repr(traj)


def test_map_without_networks_points_to_saved():
    save = {"loss": TASK.loss, "lam": lr.measures.lam}
    traj = lr.train(start(), TASK, TIMES, method=METHODS["SGD"], save=save)
    assert traj.networks is None
    np.testing.assert_allclose(
        traj.saved["loss"], single("SGD").map(TASK.loss), rtol=1e-12
    )
    np.testing.assert_allclose(traj.saved["lam"][0], 1.0, rtol=1e-12)
    with pytest.raises(ValueError, match="saved"):
        traj.map(TASK.loss)
    text = repr(traj)
    assert "loss: float64[3]" in text
    assert "lam: float64[3]" in text


def test_statuses_of_a_batch_and_nan_for_what_failed():
    for name, kind in (
        ("GradientFlow", Status.step_limit),
        ("SGD", Status.nonfinite),
    ):
        traj = batch(name)
        assert traj.status.tolist() == [0, 0, kind]
        assert traj.ok.tolist() == [True, True, False]
        for leaf in jax.tree.leaves((traj.networks, traj.final)):
            assert np.isnan(leaf[2]).all()
            assert np.isfinite(leaf[:2]).all()


def test_the_other_members_equal_runs_alone():
    """A batch of runs, one beyond the step limit: the others take the same steps."""
    traj, alone = batch("GradientFlow"), single("GradientFlow")
    assert int(traj.stats["steps"][1]) == int(alone.stats["steps"])
    chex.assert_trees_all_close(member(traj.networks, 1), alone.networks, rtol=1e-12)
    chex.assert_trees_all_close(member(traj.final, 1), alone.final, rtol=1e-12)
    assert int(traj.stats["steps"][2]) == 100


@pytest.mark.parametrize("name", METHODS)
def test_text_of_one_run(name):
    text = repr(single(name))
    solver = {"Exact": "closed form", "GradientFlow": "Tsit5", "SGD": "sgd"}[name]
    for words in (name, solver, "ok", "(3,)", "0 to 5", "float64", "[2, 2]"):
        assert words in text
    if name != "Exact":
        steps = single(name).stats["steps"]
        assert f"steps     {int(steps)}" in text
    if name == "GradientFlow":
        assert "rtol 1e-06" in text
    assert str(single(name)) == text


def test_text_of_a_batch_names_the_slowest_member():
    text = repr(batch("GradientFlow"))
    steps = batch("GradientFlow").stats["steps"]
    assert int(steps.argmax()) == 2
    for words in (
        "2 ok, 1 step_limit of 3",
        f"{int(steps.min())} … 100",
        "slowest: member 2",
        "(3, 3)",
        "float64[3, 2, 2]",
    ):
        assert words in text
    assert "1 nonfinite of 3" in repr(batch("SGD"))


def test_text_of_stopped_runs_says_when():
    def run(level):
        until = lr.until_loss(level)
        return lr.train(start(), TASK, TIMES, method=METHODS["SGD"], until=until)

    traj = run(0.5)
    assert int(traj.status) == Status.stopped
    stop = float(traj.stop_time)
    assert 0 < stop < 5
    assert "stopped" in repr(traj)
    assert f"at {stop:.6g} τ" in repr(traj)
    # What comes after the stop is NaN, and the text does not mind.
    assert np.isnan(traj.networks.w1[2]).all()
    assert "0 to 5 τ" in repr(traj)
    assert TASK.loss(traj.final) <= 0.5
    never = run(-1.0)
    assert int(never.status) == Status.not_reached
    assert bool(never.ok)
    assert "not_reached" in repr(never)
    assert "stopped" not in repr(never)


def test_it_is_a_pytree_that_leaves_and_enters_jit():
    texts = []

    @jax.jit
    def run(lam):
        traj = lr.train(start(lam), TASK, TIMES, method=METHODS["SGD"])
        texts.append(repr(traj))
        return traj

    traj = run(1.0)
    assert isinstance(traj, lr.Trajectory)
    assert traj.stats["method"] == "SGD"
    chex.assert_trees_all_close(traj.networks, single("SGD").networks, rtol=1e-11)
    losses = jax.jit(lambda t: t.map(TASK.loss))(traj)
    np.testing.assert_allclose(losses, traj.map(TASK.loss), rtol=1e-12)
    doubled = jax.tree.map(lambda leaf: leaf * 2, traj)
    np.testing.assert_array_equal(doubled.times, 2 * TIMES)
    assert "SGD" in texts[0]
    assert "traced" in texts[0]
    assert "traced" not in repr(traj)
