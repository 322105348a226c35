"""Cells that wait for each other: found, put in groups and in order, never changed."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import zarr

import lazyrich as lr
import lazyrich.sweeps._run as sweep_module
from lazyrich._steps import listening, say_steps
from lazyrich.sweeps import sweep
from lazyrich.sweeps._axes import make_grid
from lazyrich.sweeps._loops import (
    axis_order,
    group_size,
    grouped,
    trial_cells,
    waits,
)

TIMES = jnp.array([0.0, 0.5, 1.0])
AXES = {"seed": range(6), "hard": np.linspace(1.0, 5.0, 25), "x": [0.3, 0.7]}


TASK = lr.tasks.LinearTask(jnp.diag(jnp.array([1.0, 0.5])))


def run(method, lam, seed: jax.Array | int = 0, until=None, task=TASK):
    net = lr.inits.balanced(jax.random.key(seed), 2, 2, 2, lam, 0.3)
    return lr.train(net, task, TIMES, method=method, until=until, throw=False)


def halving(hard, x):
    """Steps that only `hard` decides, by a loop of that length."""
    stop = jnp.exp(-3 * hard)
    return jax.lax.while_loop(
        lambda s: s[1] > stop, lambda s: (s[0] + 1, jnp.tanh(0.7 * s[1])), (0, x)
    )


def cell(seed, hard, x):
    steps, value = halving(hard, 1.0 + 0 * x)
    say_steps(steps)
    draw = jax.random.normal(jax.random.key(seed))
    return {"y": jnp.exp(draw * x) * value, "steps": steps, "n": seed}


def quiet(cell=cell, axes=AXES, **options):
    return sweep(cell, axes, **{"piece": 32, "progress": False, **options})


def order_of(ds):
    return json.loads(ds.attrs["lazyrich"])["order"]


@functools.cache
def reference():
    return quiet()


@pytest.mark.parametrize(
    ("method", "until", "expected"),
    [
        (lr.Exact(), None, False),
        (lr.Exact(), lr.until_loss(0.1), True),  # bisects until every stop is found
        (lr.SGD(0.1, steps=10), None, False),
        (lr.SGD(0.1, steps=10, batch_size=2, key=jax.random.key(0)), None, False),
        (lr.SGD(0.1, steps=10), lr.until_loss(0.1), False),
        (lr.GradientFlow(), None, True),
        (lr.GradientFlow(), lr.until_loss(0.1), True),
    ],
)
def test_only_loops_of_varying_length_make_cells_wait(method, until, expected):
    task = lr.tasks.random_regression(jax.random.key(0), 2, 2, 5)
    batched = jax.vmap(lambda lam: run(method, lam, until=until, task=task).final.w1)
    found = waits(jax.make_jaxpr(batched)(jnp.array([0.0, 1.0])))
    assert found is expected


def test_loops_of_a_length_of_their_own_make_cells_wait():
    def deep(x):
        inner = jax.lax.cond(x > 0, lambda: halving(x, 1.0)[1], lambda: x)
        return jax.lax.scan(lambda c, _: (c + inner, None), 0.0, None, length=2)[0]

    def shared(x, n):
        return jax.lax.fori_loop(0, n, lambda i, s: jnp.tanh(s), x)

    def told(f, axes, *values):
        return waits(jax.make_jaxpr(jax.vmap(jax.jit(f), axes))(*values))

    xs, counts = jnp.array([0.5, 1.0]), jnp.array([3, 5])
    assert told(deep, 0, xs)
    assert told(lambda x: jax.lax.map(lambda a: halving(a, 1.0)[1], xs + x), 0, xs)
    assert told(shared, (0, 0), xs, counts)
    assert not told(shared, (0, None), xs, 3)
    assert not told(lambda x: jax.lax.fori_loop(0, 9, lambda i, s: s * 2, x), 0, xs)


def test_group_sizes():
    sizes = [group_size(piece, "cpu") for piece in (1, 4, 6, 16, 24, 64, 100)]
    assert sizes == [1, 4, 6, 16, 8, 16, 4]
    assert group_size(4096, "gpu") == 4096


@pytest.mark.parametrize("size", [1, 3, 4, 10])
def test_groups_compute_the_same(size):
    hard, x = jnp.linspace(1.0, 4.0, 10), jnp.linspace(0.2, 0.9, 10)
    together = jax.vmap(halving)(hard, x)
    count, value = grouped(halving, size)(hard, x)
    np.testing.assert_array_equal(count, together[0])
    np.testing.assert_allclose(value, together[1], rtol=1e-14)


def test_trial_cells_are_always_the_same_and_differ():
    cells = trial_cells(1000, 64)
    np.testing.assert_array_equal(cells, trial_cells(1000, 64))
    assert len(set(cells.tolist())) == 64
    assert (cells >= 0).all()
    assert (cells < 1000).all()
    assert (np.diff(cells) > 0).all()


@pytest.mark.parametrize("deciding", [(0,), (1,), (2,), (1, 0), (2, 1), (2, 0)])
def test_the_deciding_axis_comes_first(deciding):
    shape = (4, 6, 40)
    grid = make_grid({f"a{i}": range(n) for i, n in enumerate(shape)})
    cells = trial_cells(grid.traced_size, 64)
    index = np.unravel_index(cells, shape)
    logs = np.full(64, 3.0)
    for weight, axis in zip((3.0, 1.8), deciding, strict=False):
        logs += weight * index[axis] / shape[axis]
    rest = [axis for axis in range(3) if axis not in deciding]
    order = axis_order(grid, cells, np.exp(logs))
    assert order == (*deciding, *rest)
    assert order == axis_order(grid, cells, np.exp(logs))


def test_axes_that_decide_nothing_stay_where_they_are():
    grid = make_grid({"a": range(4), "b": range(6), "c": range(40)})
    cells = trial_cells(grid.traced_size, 64)
    random = np.random.default_rng(0)
    noise = np.exp(random.normal(5, 1, 64))
    # Alike, unknown (0 steps), and different for no reason to be seen.
    for steps in (np.full(64, 30), np.zeros(64, int), 30 + cells % 2, noise):
        assert axis_order(grid, cells, steps) == (0, 1, 2)


def test_the_order_is_recorded_and_results_are_laid_out_as_given():
    ds = reference()
    assert order_of(ds) == ["hard", "seed", "x"]
    assert ds["y"].dims == ("seed", "hard", "x")
    np.testing.assert_array_equal(ds["n"].isel(hard=0, x=0), range(6))
    assert (ds["n"] == ds["n"].isel(hard=0, x=0)).all()
    np.testing.assert_array_equal(
        ds["steps"].isel(seed=0, x=0), [halving(h, 1.0)[0] for h in AXES["hard"]]
    )
    assert (ds["steps"] == ds["steps"].isel(seed=0, x=0)).all()


def test_equals_single_runs():
    ds = reference()
    for seed, hard, x in [(0, 0, 0), (5, 24, 1), (3, 11, 0), (2, 17, 1)]:
        values = (AXES["seed"][seed], AXES["hard"][hard], AXES["x"][x])
        one = cell(*map(jnp.asarray, values))
        at = ds.isel(seed=seed, hard=hard, x=x)
        np.testing.assert_allclose(at["y"], one["y"], rtol=1e-14)
        assert at["steps"] == one["steps"]


@pytest.mark.parametrize("names", [("hard", "x", "seed"), ("x", "seed", "hard")])
def test_axes_in_another_order_change_no_bit(names):
    ds = quiet(axes={name: AXES[name] for name in names})
    assert order_of(ds)[0] == "hard"
    assert ds["y"].dims == names
    xr.testing.assert_equal(ds.transpose(*AXES), reference())


def test_neither_order_nor_groups_change_results(monkeypatch):
    monkeypatch.setattr(sweep_module, "axis_order", lambda *_: (2, 0, 1))
    ds = quiet()
    assert order_of(ds) == ["x", "seed", "hard"]
    xr.testing.assert_equal(ds, reference())
    monkeypatch.setattr("lazyrich.sweeps._program.waits", lambda _: False)
    ds = quiet()
    assert order_of(ds) == list(AXES)
    xr.testing.assert_allclose(ds, reference(), rtol=1e-14)


@pytest.mark.parametrize("stored", [False, True])
def test_chunks_and_executors_change_no_bit(tmp_path, stored):
    with ThreadPoolExecutor(3) as pool:
        for number, (chunk, executor) in enumerate(
            [(32, None), (70, pool), (1000, "threads://1")]
        ):
            options = {"store": tmp_path / f"{number}.zarr"} if stored else {}
            ds = quiet(chunk_size=chunk, executor=executor, **options)
            assert order_of(ds) == ["hard", "seed", "x"]
            xr.testing.assert_equal(ds.load(), reference())


def test_a_resumed_store_keeps_its_order(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    assert order_of(quiet(store=path, chunk_size=32)) == ["hard", "seed", "x"]
    done = zarr.open_array(path / "done", mode="r+")
    done[3] = done[7] = False
    monkeypatch.setattr(sweep_module, "axis_order", lambda *_: (2, 0, 1))
    again = quiet(store=path)
    assert order_of(again) == ["hard", "seed", "x"]
    assert json.loads(again.attrs["lazyrich"])["runs"][1]["cells"] < 300
    xr.testing.assert_equal(again.load(), reference())


def test_small_sweeps_and_cells_that_do_not_wait_keep_the_order():
    def fixed(seed, hard, x):
        say_steps(jnp.exp(hard))
        return {"y": x * hard}

    assert order_of(quiet(fixed)) == list(AXES)
    assert order_of(quiet(axes={**AXES, "seed": range(4)})) == list(AXES)


def test_steps_are_heard_outside_of_inner_transformations_only():
    say_steps(1)  # nobody listens
    with listening() as steps:
        say_steps(2)
        with listening() as inner:
            say_steps(3)
        jax.vmap(say_steps)(jnp.arange(4))
        say_steps(5)
    assert (steps, inner) == ([2, 5], [3])


def flow(lam, seed):
    traj = run(lr.GradientFlow(max_steps=60), lam, seed)
    return {
        "loss": TASK.loss(traj.final),
        "w1": traj.networks.w1,
        "steps": traj.stats["steps"],
        "status": traj.status,
    }


single = jax.jit(flow)


def same(many, one):
    assert many["steps"] == one["steps"]
    assert many["status"] == one["status"] == lr.Status.ok
    np.testing.assert_allclose(many["w1"], one["w1"], rtol=1e-12, atol=1e-12)


LAMS = np.array([0.0, 50.0, -50.0, 1000.0, *np.linspace(-30.0, 30.0, 12)])
FLOWS = {"seed": range(16), "lam": LAMS}


@functools.cache
def flows():
    return quiet(flow, FLOWS)


def test_members_of_a_batch_take_the_steps_they_take_alone():
    ds = flows()
    for i in (0, 1, 2, 15):
        for seed in (0, 9):
            one = single(jnp.asarray(LAMS[i]), jnp.asarray(seed))
            same(ds.isel(lam=i, seed=seed), one)
    assert (ds["steps"].isel(lam=1) > 2 * ds["steps"].isel(lam=0)).all()


def test_cells_beyond_their_steps_are_flagged_and_leave_the_others_alone():
    ds = flows()
    assert (ds["status"].isel(lam=3) == lr.Status.step_limit).all()
    assert ds["w1"].isel(lam=3).isnull().all()
    assert ds["loss"].isel(lam=3).isnull().all()
    others = ds.drop_isel(lam=3)
    assert (others["status"] == lr.Status.ok).all()
    assert others["w1"].notnull().all()


def test_gradient_flow_runs_alike_cells_together_and_changes_no_bit(monkeypatch):
    ds = flows()
    assert order_of(ds) == ["lam", "seed"]
    monkeypatch.setattr(sweep_module, "axis_order", lambda *_: (0, 1))
    given = quiet(flow, FLOWS)
    assert order_of(given) == ["seed", "lam"]
    xr.testing.assert_equal(given, ds)
