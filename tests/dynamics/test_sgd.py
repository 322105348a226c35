"""SGD against a plain loop, gradient flow as η → 0, and the drift of the balance."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lazyrich as lr

N, INPUTS, HIDDEN, OUTPUTS = 11, 3, 4, 2


@functools.cache
def _problem():
    task = lr.tasks.random_regression(jax.random.key(0), INPUTS, OUTPUTS, N, 0.3)
    net = lr.inits.gaussian(jax.random.key(1), INPUTS, HIDDEN, OUTPUTS, 0.4, 0.6)
    return net, task


def _step(w1, w2, x, y, rate):
    """One step on the mean loss of the batch, from the chain rule by hand."""
    error = (x @ w1.T @ w2.T - y) / len(x)
    return w1 - rate * w2.T @ error.T @ x, w2 - rate * error.T @ (x @ w1.T)


def _loop(batches, rate):
    net, _ = _problem()
    w1, w2 = np.asarray(net.w1), np.asarray(net.w2)
    iterates = [(w1, w2)]
    for x, y in batches:
        iterates.append(_step(*iterates[-1], x, y, rate))
    return iterates


def _check(traj, iterates, indices):
    for row, k in enumerate(indices):
        np.testing.assert_allclose(traj.networks.w1[row], iterates[k][0], atol=1e-13)
        np.testing.assert_allclose(traj.networks.w2[row], iterates[k][1], atol=1e-13)


def test_full_batch_equals_a_loop_and_shows_iterate_t_over_eta():
    net, task = _problem()
    x, y = np.asarray(task.x), np.asarray(task.y)
    iterates = _loop([(x, y)] * 30, 0.1)
    # Repeated times, times between iterates, and the start are all legitimate.
    times = [0.0, 0.0, 0.1, 0.52, 0.54, 1.0, 1.0, 2.96, 3.0]
    traj = lr.train(net, task, times, method=lr.SGD(0.1))
    _check(traj, iterates, [0, 0, 1, 5, 5, 10, 10, 30, 30])
    assert traj.status == lr.Status.ok
    assert traj.stats["steps"] == 30
    np.testing.assert_array_equal(traj.final.w1, traj.networks.w1[-1])


def test_without_replacement_an_epoch_is_the_documented_permutation():
    net, task = _problem()
    x, y = np.asarray(task.x), np.asarray(task.y)
    key, batch, steps = jax.random.key(7), 4, 13
    chosen = []
    for k in range(steps):
        epoch, position = divmod(k, N // batch)  # two batches, three samples dropped
        order = jax.random.permutation(jax.random.fold_in(key, epoch), N)
        chosen.append(np.asarray(order)[position * batch : (position + 1) * batch])
    iterates = _loop([(x[c], y[c]) for c in chosen], 0.05)
    method = lr.SGD(0.05, batch_size=batch, key=key)
    traj = lr.train(net, task, np.arange(steps + 1) * 0.05, method=method)
    _check(traj, iterates, range(steps + 1))


def test_with_replacement_each_step_draws_anew():
    net, task = _problem()
    x, y = np.asarray(task.x), np.asarray(task.y)
    key = jax.random.key(3)
    draws = [jax.random.fold_in(key, k) for k in range(8)]
    chosen = [np.asarray(jax.random.randint(d, (20,), 0, N)) for d in draws]
    iterates = _loop([(x[c], y[c]) for c in chosen], 0.05)
    method = lr.SGD(0.05, batch_size=20, replace=True, key=key)
    traj = lr.train(net, task, np.arange(9) * 0.05, method=method)
    _check(traj, iterates, range(9))


def test_label_noise_is_fresh_and_has_its_size():
    """From W1 = 0 one step moves W1 by η W2ᵀ(y + noise)ᵀx/n alone."""
    task = lr.tasks.random_regression(jax.random.key(0), 2, 2, 400)
    net = lr.networks.TwoLayerLinear(jnp.zeros((2, 2)), jnp.eye(2))
    rate, std = 1e-3, 2.0
    method = lr.SGD(rate, label_noise=std, key=jax.random.key(5))
    traj = lr.train(net, task, np.arange(401) * rate, method=method)
    plain = lr.train(net, task, np.arange(401) * rate, method=lr.SGD(rate))
    steps = jnp.diff(traj.networks.w1 - plain.networks.w1, axis=0) / rate
    # Each entry of mean(noise·x) has standard deviation std/√n.
    assert float(jnp.std(steps)) == pytest.approx(std / 20, rel=0.05)
    lagged = jnp.mean(steps[1:] * steps[:-1]) / jnp.mean(steps**2)
    assert abs(float(lagged)) < 0.1
    quiet = lr.SGD(rate, label_noise=0.0)
    again = lr.train(net, task, np.arange(401) * rate, method=quiet)
    np.testing.assert_array_equal(again.networks.w1, plain.networks.w1)


@pytest.mark.parametrize(
    "optimizer",
    [optax.adam, functools.partial(optax.sgd, momentum=0.9), optax.adamw],
    ids=["adam", "momentum", "adamw"],
)
def test_any_optax_optimizer(optimizer):
    net, task = _problem()
    method = lr.SGD(0.03, optimizer=optimizer)
    traj = lr.train(net, task, np.arange(21) * 0.03, method=method)
    with jax.numpy_dtype_promotion("standard"):
        transform = optimizer(0.03)
        current: Any = net
        memory = transform.init(current)
        for _ in range(20):
            slope = jax.grad(task.loss)(current)
            update, memory = transform.update(slope, memory, current)
            current = optax.apply_updates(current, update)
    chex.assert_trees_all_close(traj.final, current, atol=1e-12)


def test_converges_to_the_flow_at_first_order():
    task = lr.tasks.hierarchy(2)
    net = lr.inits.balanced(jax.random.key(0), 4, 4, 4, 1.0, 0.1)
    times = jnp.linspace(0.0, 4.0, 5)
    exact = lr.train(net, task, times, method=lr.Exact()).networks.product
    rates = [0.04, 0.02, 0.01, 0.005]
    errors = []
    for rate in rates:
        traj = lr.train(net, task, times, method=lr.SGD(rate, steps=800))
        errors.append(float(jnp.max(jnp.abs(traj.networks.product - exact))))
    slopes = np.diff(np.log(errors)) / np.diff(np.log(rates))
    assert np.all(np.abs(slopes - 1) < [0.2, 0.1, 0.05]), (slopes, errors)


@pytest.mark.parametrize("batch_size", [None, 5])
def test_one_step_changes_the_balance_by_the_exact_identity(batch_size):
    """ΔB = η²(W1MᵀMW1ᵀ − W2ᵀMMᵀW2) with M = mean (ŷ − y)xᵀ (theory, §1.5)."""
    net, task = _problem()
    rate, key = 0.3, jax.random.key(2)
    x, y = np.asarray(task.x), np.asarray(task.y)
    if batch_size is not None:
        order = jax.random.permutation(jax.random.fold_in(key, 0), N)
        x, y = x[order[:batch_size]], y[order[:batch_size]]
    w1, w2 = np.asarray(net.w1), np.asarray(net.w2)
    m = (x @ w1.T @ w2.T - y).T @ x / len(x)
    expected = rate**2 * (w1 @ m.T @ m @ w1.T - w2.T @ m @ m.T @ w2)
    method = lr.SGD(rate, batch_size=batch_size, key=key)
    traj = lr.train(net, task, rate, method=method)
    change = lr.measures.balance(traj.final) - lr.measures.balance(net)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(change, expected, atol=2e-15)


def test_stops_at_the_first_iterate_below_the_level():
    net, task = _problem()
    rate = 0.05
    times = np.arange(201) * rate
    plain = lr.train(net, task, times, method=lr.SGD(rate))
    losses = np.asarray(plain.map(task.loss))
    level = 0.5 * (losses[0] + losses[-1])
    first = int(np.argmax(losses <= level))
    until = lr.until_loss(level)
    traj = lr.train(net, task, times, method=lr.SGD(rate), until=until)
    assert traj.status == lr.Status.stopped
    np.testing.assert_array_equal(traj.final.w1, plain.networks.w1[first])
    share = (losses[first - 1] - level) / (losses[first - 1] - losses[first])
    assert float(traj.stop_time) == pytest.approx(rate * (first - 1 + share), rel=1e-12)
    seen = np.isfinite(np.asarray(traj.networks.w1)).all(axis=(1, 2))
    np.testing.assert_array_equal(seen, np.asarray(times) <= float(traj.stop_time))
    assert traj.stats["steps"] == first
    never = lr.train(net, task, times, method=lr.SGD(rate), until=lr.until_loss(0.0))
    assert never.status == lr.Status.not_reached
    assert jnp.isnan(never.stop_time)
    np.testing.assert_array_equal(never.final.w1, plain.final.w1)


def test_a_time_beyond_the_steps_is_a_step_limit():
    net, task = _problem()
    with pytest.raises(lr.TrainingError, match="steps") as caught:
        lr.train(net, task, [0.0, 1.0], method=lr.SGD(0.1, steps=9))
    assert caught.value.status == lr.Status.step_limit
    fine = lr.train(net, task, [0.0, 0.94], method=lr.SGD(0.1, steps=9))
    assert fine.status == lr.Status.ok
    # Stopped in time, it does not matter how far the horizon is.
    until = lr.until_loss(0.9 * float(task.loss(net)))
    stopped = lr.train(net, task, [0.0, 9.0], method=lr.SGD(0.1, steps=9), until=until)
    assert stopped.status == lr.Status.stopped


def test_divergence_is_nonfinite_and_leaves_the_others_alone():
    net, task = _problem()
    rates = jnp.array([0.1, 50.0, 0.2])

    def run(rate, scale):
        start = jax.tree.map(lambda w: scale * w, net)
        method = lr.SGD(rate, steps=4000)
        return lr.train(start, task, jnp.array([0.0, 400.0]), method=method)

    batch = jax.vmap(run, (0, None))(rates, 1.0)
    assert batch.status.tolist() == [0, int(lr.Status.nonfinite), 0]
    assert jnp.isnan(batch.networks.w1[1]).all()
    alone = run(0.2, 1.0)
    np.testing.assert_allclose(batch.final.w1[2], alone.final.w1, atol=1e-13)

    def total(scale):
        traj = jax.vmap(run, (0, None))(rates, scale)
        return lr.where_ok(traj, jax.vmap(task.loss)(traj.final)).sum()

    def without(scale):
        fine = rates[jnp.array([0, 2])]
        traj = jax.vmap(run, (0, None))(fine, scale)
        return jax.vmap(task.loss)(traj.final).sum()

    expected = jax.grad(without)(1.0)
    assert jnp.isfinite(expected)
    np.testing.assert_allclose(jax.grad(total)(1.0), expected, rtol=1e-10)
    with pytest.raises(lr.TrainingError, match="learning rate"):
        lr.train(net, task, 500.0, method=lr.SGD(50.0))


def test_learning_rates_trace_once_and_vmap_equals_a_loop():
    """Cases 18 and 20: rates, scales, λ and seeds in one call."""
    task = lr.tasks.hierarchy(2)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(lam, scale, seed, rate):
        net = lr.inits.balanced(jax.random.key(seed), 4, 4, 4, lam, scale)
        key = jax.random.key(seed)
        method = lr.SGD(rate, steps=50, batch_size=3, key=key)
        return lr.train(net, task, jnp.array([0.0, 1.0]), method=method).final.w1

    lams = jnp.array([0.0, -2.0, 1.0, 5.0, 0.5])
    scales = jnp.array([0.1, 1.0, 0.01, 0.1, 0.3])
    seeds = jnp.arange(5)
    rates = jnp.array([0.02, 0.03, 0.04, 0.05, 0.1])
    cells = list(zip(lams, scales, seeds, rates, strict=True))
    loop = jnp.stack([run(*cell) for cell in cells])
    batch = jax.vmap(run)(lams, scales, seeds, rates)
    np.testing.assert_allclose(batch, loop, atol=1e-13)


@pytest.mark.parametrize("mode", [jax.grad, jax.jacfwd])
@pytest.mark.parametrize("argument", [0, 1, 2], ids=["lam", "scale", "rate"])
def test_gradients_match_central_differences(mode, argument):
    task = lr.tasks.LinearTask(jnp.diag(jnp.array([1.0, 0.5])))

    def loss(lam, scale, rate):
        net = lr.inits.balanced(jax.random.key(0), 2, 2, 2, lam, scale)
        method = lr.SGD(rate, steps=20)
        # The iterate shown at a time is a step function of the rate: fix the iterate.
        times = 20.0 * jax.lax.stop_gradient(rate)
        return task.loss(lr.train(net, task, times, method=method).final)

    point, h = [0.7, 0.4, 0.05], 1e-5
    up, down = list(point), list(point)
    up[argument] += h
    down[argument] -= h
    value = jax.jit(loss)
    expected = (value(*up) - value(*down)) / (2 * h)
    slope = mode(loss, argument)(*(jnp.asarray(p) for p in point))
    np.testing.assert_allclose(slope, expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "`learning_rate` must be > 0"),
        ({"learning_rate": -0.1}, "`learning_rate` must be > 0"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be > 0"),
        ({"learning_rate": 0.1, "steps": -1}, "`steps` must be an integer ≥ 0"),
        ({"learning_rate": 0.1, "batch_size": 0}, "`batch_size` must be an integer ≥"),
        ({"learning_rate": 0.1, "batch_size": 2.5}, "`batch_size` must be an integer"),
        ({"learning_rate": 0.1, "label_noise": -0.1}, "`label_noise` must be ≥ 0"),
        ({"learning_rate": 0.1, "label_noise": np.nan}, "`label_noise` must be ≥ 0"),
        ({"learning_rate": 0.1, "batch_size": 2}, "give `key`"),
        ({"learning_rate": 0.1, "label_noise": 0.1}, "give `key`"),
    ],
)
def test_bad_settings(unchecked, settings, message):
    with pytest.raises(ValueError, match=message):
        lr.SGD(**settings)


def test_bad_combinations():
    net, task = _problem()
    key = jax.random.key(0)
    population = lr.tasks.LinearTask(task.sigma_yx)
    with pytest.raises(ValueError, match="from_data"):
        lr.train(net, population, 1.0, method=lr.SGD(0.1, batch_size=2, key=key))
    with pytest.raises(ValueError, match="from_data"):
        lr.train(net, population, 1.0, method=lr.SGD(0.1, label_noise=1.0, key=key))
    with pytest.raises(ValueError, match="only 11 samples"):
        lr.train(net, task, 1.0, method=lr.SGD(0.1, batch_size=12, key=key))
    with pytest.raises(ValueError, match=r"`steps`.* is required"):
        jax.jit(lambda r: lr.train(net, task, 1.0, method=lr.SGD(r)).final)(0.1)
    concrete = jax.jit(lambda n: lr.train(n, task, [0.5, 1.0], method=lr.SGD(0.1)))
    assert concrete(net).stats["max_steps"] == 10
    with pytest.raises(ValueError, match="finite `times`"):
        lr.train(net, task, jnp.inf, method=lr.SGD(0.1))
