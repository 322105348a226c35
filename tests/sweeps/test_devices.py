"""Several devices, and many values in one compiled program."""

import json
import os
import subprocess
import sys

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from lazyrich.sweeps import sweep
from lazyrich.sweeps._program import Program

THREE = """
import contextlib, hashlib, json, os, sys
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import lazyrich as lr
from lazyrich.sweeps._program import Program

used = set()
call = Program._call

def spied(self, inputs, device=None):
    used.add((device or self.device).id)
    return call(self, inputs, device)

Program._call = spied

def cell(lam, seed, mode):
    x = jnp.sin(jnp.arange(3.0) + seed)
    y = jnp.tanh(lam * x) if mode == "a" else jnp.exp(-lam * x)
    bad = (lam > 0.9) & (seed == 2)
    return {"y": jnp.where(bad, jnp.nan, y), "n": seed, "mean": y.sum()}

axes = {"lam": np.linspace(-1.0, 1.0, 10), "mode": ["a", "b"], "seed": range(5)}

def told(**options):
    used.clear()
    if "store" in options:
        options["store"] = os.path.join(sys.argv[1], options["store"])
    with contextlib.redirect_stderr(open(os.devnull, "w")):
        ds = lr.sweep(
            cell, axes, piece=8, **{"chunk_size": 16, "progress": False, **options}
        ).load()
    data = [name.encode() + ds[name].values.tobytes() for name in sorted(ds)]
    return [hashlib.sha256(b"".join(data)).hexdigest(), sorted(used)]

one, three = jax.devices()[:1], jax.devices()
runs = {
    "one": told(devices=one),
    "default": told(executor="threads://3"),
    "three": told(devices=three, executor="threads://3"),
    "last two": told(devices=three[:0:-1], executor="threads://4", chunk_size=8),
    "shown": told(devices=three, progress=True),
    "stored": told(devices=three, store="a.zarr", executor="threads://3"),
    "shown and stored": told(devices=three, store="b.zarr", progress=True),
    "stored by one": told(devices=one, store="c.zarr"),
    "again": told(devices=three, store="c.zarr"),
}
with jax.default_device(three[1]):
    runs["by default one"] = told(executor="threads://3")
print(json.dumps([len(three), runs]))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Digest of the results and the devices used, for every way of running."""
    flags = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=3"
    )
    answer = subprocess.run(
        [sys.executable, "-c", THREE, str(tmp_path_factory.mktemp("stores"))],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    count, runs = json.loads(answer.stdout)
    assert count == 3
    return runs


def test_devices_stores_and_progress_change_no_bit(runs):
    digests = {name: digest for name, (digest, _) in runs.items()}
    assert digests == dict.fromkeys(digests, digests["one"])


def test_the_devices_that_are_asked_for_run(runs):
    used = {name: devices for name, (_, devices) in runs.items()}
    assert used["one"] == used["stored by one"] == [0]
    assert used["default"] == used["three"] == used["stored"] == [0, 1, 2]
    assert used["last two"] == [1, 2]
    assert used["by default one"] == [1]
    assert used["again"] == []


@pytest.mark.parametrize(
    ("devices", "error", "text"),
    [
        ([], ValueError, "`devices` is empty"),
        (jax.devices() * 2, ValueError, "named twice"),
        (["cpu"], TypeError, "must hold `jax.Device`s, not 'cpu'"),
        ("cpu", TypeError, "must hold `jax.Device`s, not 'c'"),
        ([0], TypeError, "must hold `jax.Device`s, not 0"),
        ([*jax.devices(), None], TypeError, "not None"),
        (jax.devices()[0], TypeError, None),
    ],
)
def test_devices_that_cannot_be(unchecked, tmp_path, devices, error, text):
    def cell(x):
        raise AssertionError("the cell was traced")

    options = {"store": tmp_path / "s.zarr", "progress": False, "devices": devices}
    with pytest.raises(error, match=text) as caught:
        sweep(cell, {"x": [1.0]}, **options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def compiled(monkeypatch):
    """One entry for each program that is compiled."""
    programs = []
    compiling = Program.compile

    def counted(self, device=None):
        before = len(self._compiled)
        compiling(self, device)
        programs.extend([1] * (len(self._compiled) - before))

    monkeypatch.setattr(Program, "compile", counted)
    return programs


TASK = lr.tasks.LinearTask(jnp.diag(jnp.array([1.0, 0.5])))
TIMES = jnp.array([0.0, 0.4, 1.0])


def trained(lam, scale, seed, rate):
    net = lr.inits.balanced(jax.random.key(seed), 2, 2, 2, lam, scale)
    method = lr.SGD(rate, steps=50)
    traj = lr.train(net, TASK, TIMES, method=method, throw=False)
    return {"w1": traj.networks.w1, "steps": traj.stats["steps"]}


def counting(defaults):
    """A cell with these values where no axis has any, and its traces."""
    traces = []

    def cell(**labels):
        traces.append(labels)
        return trained(**{**defaults, **labels})

    return cell, traces


DEFAULTS = {
    "lam": np.float64(0.5),
    "scale": np.float64(0.3),
    "seed": 1,
    "rate": np.float64(0.05),
}


jitted = jax.jit(trained)


def alone(**labels):
    """One run by itself, without a sweep."""
    return jitted(**jax.tree.map(jnp.asarray, {**DEFAULTS, **labels}))


def same(at, one):
    assert at["steps"] == one["steps"]
    np.testing.assert_allclose(at["w1"], one["w1"], rtol=1e-12, atol=1e-14)


def quiet(cell, axes, **options):
    return sweep(cell, axes, **{"piece": 4, "progress": False, **options})


def test_five_learning_rates_take_one_trace_and_equal_a_loop(compiled):
    cell, traces = counting(DEFAULTS)
    rates = [0.02, 0.03, 0.04, 0.05, 0.1]
    ds = quiet(cell, {"rate": rates})
    assert (len(traces), len(compiled)) == (1, 1)
    for i, rate in enumerate(rates):
        same(ds.isel(rate=i), alone(rate=rate))
    np.testing.assert_array_equal(ds["steps"], [50, 33, 25, 20, 10])


def test_python_floats_compile_once_for_a_whole_sweep(compiled):
    cell, traces = counting(DEFAULTS)
    lams = [-3.0, -1.0, 0.0, 0.5, 2.0, 7.0]
    ds = quiet(cell, {"lam": lams, "seed": [0, 3, 4]})
    assert (len(traces), len(compiled)) == (1, 1)
    assert isinstance(traces[0]["lam"], jax.core.Tracer)
    for i, j in [(0, 0), (2, 1), (5, 2)]:
        same(ds.isel(lam=i, seed=j), alone(lam=lams[i], seed=[0, 3, 4][j]))


def test_a_scale_lam_seed_and_rate_for_each_member_in_one_call(tmp_path, compiled):
    cell, traces = counting({})
    columns = {
        "lam": [0.0, -2.0, 1.0, 5.0, 0.5],
        "scale": [0.1, 1.0, 0.01, 0.1, 0.3],
        "seed": range(5),
        "rate": [0.02, 0.03, 0.04, 0.05, 0.1],
    }
    store = tmp_path / "s.zarr"
    ds = quiet(cell, {"member": lr.zipped(**columns)}, store=store)
    assert (len(traces), len(compiled)) == (1, 1)
    assert ds["w1"].dims[0] == "member"
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        labels = dict(zip(columns, values, strict=True))
        same(ds.isel(member=i), alone(**labels))
        assert {name: ds[name].values[i] for name in columns} == labels
