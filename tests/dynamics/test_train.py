"""What `train` promises whatever the method."""

import functools
import warnings
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr

METHODS = {
    "exact": lr.Exact(),
    "flow": lr.GradientFlow(rtol=1e-9),
    "sgd": lr.SGD(0.05, steps=40),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
TIMES = jnp.array([0.0, 0.5, 1.0])


@functools.cache
def _problem():
    task = lr.tasks.LinearTask(jnp.diag(jnp.array([1.0, 0.5])))
    return lr.inits.balanced(jax.random.key(0), 2, 2, 2, 0.7, 0.3), task


def _outcome(lam, scale, method):
    _, task = _problem()
    net = lr.inits.balanced(jax.random.key(0), 2, 2, 2, lam, scale)
    return task.loss(lr.train(net, task, TIMES, method=method).final)


@every_method
def test_shapes_status_and_start(method):
    net, task = _problem()
    traj = lr.train(net, task, TIMES, method=method)
    assert traj.networks.w1.shape == (3, 2, 2)
    assert traj.saved is None
    assert traj.status == lr.Status.ok
    assert traj.status.dtype == jnp.int8
    assert traj.ok
    assert jnp.isnan(traj.stop_time)
    np.testing.assert_array_equal(traj.networks.w1[0], net.w1)
    np.testing.assert_array_equal(traj.networks.w2[0], net.w2)
    np.testing.assert_array_equal(traj.final.w2, traj.networks.w2[-1])
    assert np.all(np.diff(traj.map(task.loss)) < 0)
    for fact in ("method", "solver", "dtype", "versions"):
        assert fact in traj.stats


@every_method
def test_scalar_time_and_lists(method):
    net, task = _problem()
    vector = lr.train(net, task, [0.0, 0.5, 1.0], method=method)
    scalar = lr.train(net, task, 1.0, method=method)
    assert scalar.networks.w1.shape == (2, 2)
    np.testing.assert_allclose(scalar.networks.w1, vector.networks.w1[-1], atol=1e-8)
    at_once = lr.train(net, task, 0.0, method=method)
    np.testing.assert_array_equal(at_once.final.w1, net.w1)
    assert at_once.status == lr.Status.ok


@every_method
def test_save_keeps_results_in_place_of_networks(method):
    net, task = _problem()
    plain = lr.train(net, task, TIMES, method=method)
    one = lr.train(net, task, TIMES, method=method, save=task.loss)
    assert one.networks is None
    np.testing.assert_allclose(one.saved, plain.map(task.loss), atol=1e-12)
    save = {"loss": task.loss, "lam": lr.measures.lam}
    until = lr.until_loss(0.3)
    both = lr.train(net, task, TIMES, method=method, save=save, until=until)
    assert set(both.saved) == {"loss", "lam"}
    late = np.asarray(TIMES) > float(both.stop_time)
    assert late.any()
    assert not late.all()
    np.testing.assert_array_equal(np.isnan(both.saved["loss"]), late)
    with pytest.raises(ValueError, match="holds no networks"):
        both.map(task.loss)


@every_method
def test_until_in_excess_and_total(method):
    """The two differ by L*, here 0.8."""
    net, task = _problem()
    hard = lr.tasks.LinearTask(task.sigma_yx, yy=jnp.sum(task.sigma_yx**2) + 1.6)
    for until in (lr.until_loss(1.0), lr.until_loss(0.2, of="excess")):
        traj = lr.train(net, hard, 20.0, method=_longer(method), until=until)
        assert traj.status == lr.Status.stopped
        tolerance = 0.05 if isinstance(method, lr.SGD) else 1e-7
        assert float(hard.excess(traj.final)) == pytest.approx(0.2, abs=tolerance)
    never = lr.train(net, hard, 20.0, method=_longer(method), until=lr.until_loss(0.79))
    assert never.status == lr.Status.not_reached
    assert jnp.isnan(never.stop_time)
    assert never.ok


def _longer(method):
    return lr.SGD(0.05) if isinstance(method, lr.SGD) else method


@every_method
def test_chain_of_tasks(method):
    """The end of one run is the start of the next; λ survives the switch."""
    net, task = _problem()
    first = lr.train(net, task, 1.0, method=method)
    second = lr.train(first.final, task.reversed(), TIMES, method=method)
    np.testing.assert_array_equal(second.networks.w1[0], first.final.w1)
    assert float(task.reversed().loss(second.final)) < float(
        task.reversed().loss(first.final)
    )
    if not isinstance(method, lr.SGD):
        lams = second.map(lr.measures.lam)
        np.testing.assert_allclose(lams, 0.7, atol=1e-7)


@every_method
def test_jit_vmap_and_loop_agree(method):
    lams, scales = jnp.array([0.0, -3.0, 0.4]), jnp.array([0.1, 0.5, 1.0])
    run = functools.partial(_outcome, method=method)
    eager = run(lams[1], scales[1])
    jitted = jax.jit(run)
    loop = jnp.stack([jitted(lam, s) for lam, s in zip(lams, scales, strict=True)])
    batch = jax.jit(jax.vmap(run))(lams, scales)
    np.testing.assert_allclose(batch, loop, atol=1e-12)
    np.testing.assert_allclose(loop[1], eager, atol=1e-12)


def test_python_floats_compile_once():
    """Case 19: a loop over λ as Python floats traces a saved measure once."""
    net, task = _problem()
    traces = []

    def loss(net):
        traces.append(None)
        return task.loss(net)

    for lam in (0.0, 1.0, -2.5, 3):
        net = lr.inits.balanced(jax.random.key(0), 2, 2, 2, lam, 0.1)
        until = lr.until_loss(0.01 * lam + 0.2)
        lr.train(net, task, TIMES, method=lr.Exact(), save=loss, until=until)
    assert len(traces) == 1


@pytest.mark.parametrize("argument", [0, 1], ids=["lam", "scale"])
@pytest.mark.parametrize("name", METHODS)
def test_forward_and_reverse_agree_with_differences(name, argument):
    """Case 13, for every method, also under vmap."""
    reverse, forward = METHODS[name], METHODS[name]
    if name == "flow":
        forward = lr.GradientFlow(rtol=1e-9, adjoint=diffrax.ForwardMode())
    point, h = [jnp.array([0.7, -1.2]), jnp.array([0.3, 0.6])], 1e-5

    def batch(method):
        return jax.vmap(functools.partial(_outcome, method=method))

    value = jax.jit(batch(reverse))
    up, down = list(point), list(point)
    up[argument] = up[argument] + h
    down[argument] = down[argument] - h
    expected = (value(*up) - value(*down)) / (2 * h)
    slope = jax.grad(functools.partial(_outcome, method=reverse), argument)
    by_reverse = jax.jit(jax.vmap(slope))(*point)
    ones = [jnp.ones(2) if i == argument else jnp.zeros(2) for i in range(2)]
    _, by_forward = jax.jit(lambda p, d: jax.jvp(batch(forward), p, d))(point, ones)
    np.testing.assert_allclose(by_reverse, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(by_forward, by_reverse, rtol=1e-6, atol=1e-9)


@every_method
def test_nan_is_flagged_at_once_and_disturbs_nobody(method):
    """Case 12, and the gradient of the others (case 15)."""
    net, task = _problem()
    bad = lr.networks.TwoLayerLinear(net.w1.at[0, 1].set(jnp.nan), net.w2)
    with pytest.raises(lr.TrainingError, match="`net` holds a value") as caught:
        lr.train(bad, task, TIMES, method=method)
    assert caught.value.status == lr.Status.nonfinite
    assert jnp.isnan(caught.value.trajectory.final.w1).all()
    quiet = lr.train(bad, task, TIMES, method=method, throw=False)
    assert quiet.status == lr.Status.nonfinite
    if isinstance(method, lr.GradientFlow):
        assert quiet.stats["steps"] < 50

    def mean_loss(scale, lams):
        def run(lam):
            net = lr.inits.balanced(jax.random.key(0), 2, 3, 2, lam, scale)
            return lr.train(net, task, TIMES, method=method)

        trajs = jax.vmap(run)(lams)  # hidden > inputs, outputs: only λ = 0 is possible
        losses = jax.vmap(task.loss)(trajs.final)
        successes = trajs.ok.sum().astype(float)
        return lr.where_ok(trajs, losses).sum() / successes, trajs.status

    both = jax.jit(jax.value_and_grad(mean_loss, has_aux=True))
    (value, status), slope = both(0.3, jnp.array([0.0, 1.0]))
    (alone, _), expected = both(0.3, jnp.array([0.0]))
    assert status.tolist() == [lr.Status.ok, lr.Status.nonfinite]
    np.testing.assert_allclose(value, alone, rtol=1e-12)
    np.testing.assert_allclose(slope, expected, rtol=1e-9)


def test_nan_in_one_input_row():
    """Case 12: data are refused when concrete, and flagged when traced."""
    x = jnp.ones((4, 2)).at[2, 0].set(jnp.nan)
    y = jnp.ones((4, 2))
    with pytest.raises(ValueError, match="finite"):
        lr.tasks.LinearTask.from_data(x, y, whiten=False)
    net, _ = _problem()

    @jax.jit
    def run(x):
        task = lr.tasks.LinearTask.from_data(x, y, whiten=False)
        traj = lr.train(net, task, TIMES, method=lr.GradientFlow())
        return traj.status, traj.final.w1, traj.stats["steps"]

    status, w1, steps = run(x)
    assert status == lr.Status.nonfinite
    assert jnp.isnan(w1).all()
    assert steps < 50


def test_one_member_at_the_step_limit():
    """Case 10: it is flagged and missing; the other equals itself alone."""
    _, task = _problem()

    def run(lam):
        net = lr.inits.balanced(jax.random.key(0), 2, 2, 2, lam, 0.3)
        method = lr.GradientFlow(max_steps=100)
        return lr.train(net, task, jnp.array([0.0, 5.0]), method=method)

    batch = jax.vmap(run)(jnp.array([1.0, 1e4]))
    assert batch.status.tolist() == [lr.Status.ok, lr.Status.step_limit]
    assert jnp.isnan(batch.networks.w1[1]).all()
    assert jnp.isnan(batch.final.w2[1]).all()
    np.testing.assert_allclose(batch.final.w1[0], run(1.0).final.w1, atol=1e-13)


def test_traced_mistakes_do_not_raise():
    net, task = _problem()

    @jax.jit
    def run(times):
        traj = lr.train(net, task, times, method=lr.Exact())
        return traj.status, traj.final.w1

    for times in ([0.0, 1.0, 0.5], [-1.0, 0.0, 1.0], [0.0, jnp.nan, 1.0]):
        status, w1 = run(jnp.array(times))
        assert status == lr.Status.nonfinite
        assert jnp.isnan(w1).all()
    assert run(TIMES)[0] == lr.Status.ok


def test_static_mistakes_raise_at_once(unchecked):
    net, task = _problem()
    exact = lr.Exact()
    wrong: Any = 1
    stack = jax.tree.map(lambda w: jnp.stack([w, w]), net)
    wide = lr.networks.TwoLayerLinear(jnp.ones((2, 3)), jnp.ones((2, 2)))
    coloured = lr.tasks.LinearTask(task.sigma_yx, jnp.diag(jnp.array([1.0, 2.0])))
    cases = [
        (r"3 inputs", lambda: lr.train(wide, task, 1.0, method=exact)),
        (r"leading axes", lambda: lr.train(stack, task, 1.0, method=exact)),
        (r"whitened", lambda: lr.train(net, coloured, 1.0, method=exact)),
        (r"non-decreasing", lambda: lr.train(net, task, [1.0, 0.5], method=exact)),
        (r"≥ 0", lambda: lr.train(net, task, [-1.0, 0.5], method=exact)),
        (r"non-decreasing", lambda: lr.train(net, task, np.nan, method=exact)),
        (r"at least one", lambda: lr.train(net, task, [], method=exact)),
        (r"1-D", lambda: lr.train(net, task, jnp.ones((2, 2)), method=exact)),
        (r"finite", lambda: lr.train(net, task, np.inf, method=lr.GradientFlow())),
        (r"`max_steps`", lambda: lr.GradientFlow(max_steps=0)),
        (r"`rtol` must", lambda: lr.GradientFlow(rtol=0.0)),
        (r"`balance_tol`", lambda: lr.Exact(balance_tol=-1.0)),
        (r"scalar", lambda: lr.until_loss(jnp.ones(2))),
        (r"NaN", lambda: lr.until_loss(np.nan)),
        (r"`save`", lambda: lr.train(net, task, 1.0, method=exact, save=wrong)),
        (r"empty dict", lambda: lr.train(net, task, 1.0, method=exact, save={})),
        (
            r"`save\['a'\]`",
            lambda: lr.train(net, task, 1.0, method=exact, save={"a": wrong}),
        ),
        (r"`method` must", lambda: lr.train(net, task, 1.0, method=wrong)),
        (r"`until` must", lambda: lr.train(net, task, 1.0, method=exact, until=wrong)),
    ]
    for message, call in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_infinity_is_the_limit():
    net, task = _problem()
    traj = lr.train(net, task, [0.0, 1.0, np.inf, np.inf], method=lr.Exact())
    np.testing.assert_allclose(traj.final.product, task.sigma_yx, atol=1e-14)
    late = lr.train(net, task, 1e3, method=lr.Exact())
    np.testing.assert_allclose(traj.final.w1, late.final.w1, atol=1e-12)
    until = lr.until_loss(1e-3)
    stopped = lr.train(net, task, np.inf, method=lr.Exact(), until=until)
    assert stopped.status == lr.Status.stopped
    assert float(task.loss(stopped.final)) == pytest.approx(1e-3, rel=1e-10)


def test_float32_stays_float32_and_warns_of_tolerances_beyond_it():
    """Case 30."""
    net, task = _problem()
    net, task = jax.tree.map(lambda a: a.astype(jnp.float32), (net, task))
    for method in METHODS.values():
        if isinstance(method, lr.GradientFlow):
            with pytest.warns(UserWarning, match="float32"):
                traj = lr.train(net, task, TIMES, method=method)
        else:
            traj = lr.train(net, task, TIMES, method=method)
        assert traj.final.w1.dtype == jnp.float32
        assert traj.stop_time.dtype == jnp.float32
        assert traj.stats["dtype"] == "float32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow = lr.train(net, task, TIMES, method=lr.GradientFlow())
    exact = lr.train(net, task, TIMES, method=lr.Exact())
    np.testing.assert_allclose(flow.final.product, exact.final.product, atol=3e-3)


def test_mixed_precision_computes_in_the_wider():
    net, task = _problem()
    single = jax.tree.map(lambda a: a.astype(jnp.float32), net)
    traj = lr.train(single, task, TIMES, method=lr.Exact())
    assert traj.final.w1.dtype == jnp.float64
