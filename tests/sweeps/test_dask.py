"""Workers in other processes: a Dask cluster, one that loses a worker, none at all."""

import contextlib
import importlib.util
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

import distributed
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import zarr

from lazyrich import Status
from lazyrich.sweeps import SweepError, sweep
from lazyrich.sweeps._program import Program

AXES = {"lam": np.linspace(-1.0, 1.0, 9), "seed": range(3)}


def cell(lam, seed):
    x = jnp.sin(jnp.arange(1.0, 5.0, dtype=lam.dtype) * (1 + seed).astype(lam.dtype))
    return {"y": jnp.tanh(lam * x).sum(), "x": x}


def quiet(cell=cell, axes=AXES, **options):
    options = {"piece": 4, "chunk_size": 4, "progress": False, **options}
    return sweep(cell, axes, **options).load()


@pytest.fixture(scope="module")
def client():
    """Two spawned processes with one thread each, and no port that others want."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(params=[False, True], ids=["memory", "store"])
def kept(request, tmp_path):
    """Options for a sweep in memory, and for one in a store."""
    return {"store": tmp_path / "s.zarr"} if request.param else {}


def on_host(act):
    """`cell`, which calls `act()` on the host once for each piece."""

    def seen(lam):
        act()
        return np.zeros_like(lam)

    def acting(lam, seed):
        zero = jax.pure_callback(seen, lam, lam, vmap_method="broadcast_all")
        return cell(lam + zero, seed)

    return acting


def dying(flag):
    """A cell that kills its process, once: whoever makes the file `flag`."""
    home = os.getpid()

    def die():
        assert os.getpid() != home
        with contextlib.suppress(FileExistsError):
            flag.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    return on_host(die)


def counting(log):
    """A cell that adds a byte to the file `log` for each piece."""

    def count():
        with log.open("ab") as file:
            file.write(b".")

    return on_host(count)


def test_a_client_changes_no_bit(client, kept):
    reference = quiet()
    xr.testing.assert_equal(quiet(executor=client, **kept), reference)
    xr.testing.assert_equal(quiet(executor=client, **kept), reference)


def test_an_address_is_connected_to(client, kept):
    scheduler = client.scheduler.address
    assert scheduler.startswith("tcp://")
    for where in (scheduler, scheduler.removeprefix("tcp://")):
        xr.testing.assert_equal(quiet(executor=f"dask://{where}", **kept), quiet())
    assert client.status == "running"


def test_a_local_cluster_is_started_beside_others_and_ended(monkeypatch):
    monkeypatch.setattr("lazyrich.sweeps._engine.cores", lambda: 1)
    before = {child.pid for child in multiprocessing.active_children()}
    with socket.socket() as taken:
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 8787))  # the port of Dask's dashboard
            taken.listen()
        xr.testing.assert_equal(quiet(executor="dask://local"), quiet())
    assert {child.pid for child in multiprocessing.active_children()} <= before


def test_cells_are_counted_and_failures_listed_here(client, kept, capsys):
    def cell(x, seed):
        return {"y": jnp.where((x > 2.5) & (seed == 1), jnp.nan, x)}

    axes = {"x": [1.0, 2.0, 3.0], "seed": range(2)}
    ds = quiet(cell, axes, executor=client, progress=True, **kept)
    assert ds["status"].values.tolist() == [[0, 0], [0, 0], [0, Status.nonfinite]]
    said = capsys.readouterr().err
    assert "6/6" in said
    assert "failed=1" in said
    assert "1 of 6 cells failed" in said
    assert "nonfinite: x=3.0, seed=1" in said


def test_what_a_cell_raises_in_a_worker_is_listed_here(client, kept, capsys):
    def cell(x, seed):
        bad = (x > 2.5) & (seed == 1)
        return {"y": eqx.error_if(x, bad, "x is too large")}

    axes = {"x": [1.0, 2.0, 3.0], "seed": range(2)}
    ds = quiet(cell, axes, executor=client, progress=True, **kept)
    np.testing.assert_array_equal(ds["y"], [[1.0, 1.0], [2.0, 2.0], [3.0, np.nan]])
    said = capsys.readouterr().err
    assert "error: x=3.0, seed=1" in said
    assert "x is too large" in said


def test_a_closure_reaches_the_workers(client):
    shift = np.arange(3.0)

    def local(x):
        return {"y": x + jnp.asarray(shift)}

    for cell in (local, local):
        ds = quiet(cell, {"x": [1.0, 2.0]}, executor=client)
        np.testing.assert_array_equal(ds["y"], [[1, 2, 3], [2, 3, 4]])


def test_a_cell_that_cannot_be_sent_is_refused(client, kept, tmp_path):
    lock = threading.Lock()

    def cell(x):
        with lock:
            return {"y": x}

    with pytest.raises(TypeError, match=r"cannot be sent there.*lock"):
        quiet(cell, {"x": [1.0]}, executor=client, **kept)
    assert not list(tmp_path.iterdir())


def test_raise_names_the_labels(client, kept):
    def cell(x, mode):
        return {"y": jnp.log(x) if mode == "log" else x}

    axes = {"x": [1.0, 2.0, -3.0], "mode": ["id", "log"]}
    with pytest.raises(SweepError, match=r"x=-3\.0, mode='log'.*nonfinite") as caught:
        quiet(cell, axes, executor=client, on_error="raise", **kept)
    assert caught.value.labels == {"x": -3.0, "mode": "log"}
    assert caught.value.status == Status.nonfinite


@pytest.mark.parametrize("size", [64, 4])
def test_a_killed_worker_changes_no_bit(client, kept, tmp_path, size):
    """Killed in its only chunk, or while the other worker goes on."""
    flag = tmp_path / "killed"
    before = set(client.run(os.getpid).values())
    ds = quiet(dying(flag), executor=client, chunk_size=size, **kept)
    assert flag.exists()
    client.wait_for_workers(2, timeout=30)
    assert set(client.run(os.getpid).values()) != before
    xr.testing.assert_equal(ds, quiet())
    if kept:
        assert np.all(zarr.open_array(kept["store"] / "done")[:])


def test_resume_computes_only_what_is_missing(client, tmp_path):
    path, log = tmp_path / "s.zarr", tmp_path / "log"
    options = {"store": path, "executor": client, "chunk_size": 6}  # two rows
    whole = quiet(counting(log), **options)
    log.unlink()
    done = zarr.open_array(path / "done", mode="r+")
    done[1] = done[4] = False  # cells 6 … 11 and 24 … 26: pieces 1, 2 and 6
    again = quiet(counting(log), **options)
    assert log.read_bytes() == b"..."
    xr.testing.assert_equal(again, whole)
    runs = json.loads(again.attrs["lazyrich"])["runs"]
    assert [run["cells"] for run in runs] == [27, 9]
    log.unlink()
    quiet(counting(log), **options)
    assert not log.exists()


def test_a_broken_pool_is_named_and_its_finished_chunks_are_kept(tmp_path):
    log, store = tmp_path / "log", tmp_path / "s.zarr"
    axes = {"lam": AXES["lam"], "seed": range(4)}  # 9 chunks, of one piece each

    def die():
        with log.open("ab") as file:
            file.write(b".")
        if log.stat().st_size == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    def attempt():
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            return quiet(on_host(die), axes, executor=pool, store=store)

    told = r"BrokenProcessPool.*finished are kept.*same call computes the rest"
    with pytest.raises(SweepError, match=told):
        attempt()
    assert np.sum(zarr.open_array(store / "done")[:]) == 4
    xr.testing.assert_equal(attempt(), quiet(axes=axes))
    assert log.stat().st_size == 10


def test_no_scheduler_is_said_in_one_line(monkeypatch):
    connect = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda at, **_: connect(at, timeout=1))
    with pytest.raises(OSError, match="no Dask scheduler at nowhere:1"):
        quiet(executor="dask://nowhere:1")


def test_dask_that_is_not_installed_is_named(monkeypatch):
    find = importlib.util.find_spec

    def without(name, *rest):
        return None if name == "distributed" else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ImportError, match=r"pip install 'lazyrich\[distributed\]'"):
        quiet(executor="dask://local")


@pytest.mark.parametrize(("executor", "most"), [(None, 2), ("threads://1", 1)])
def test_as_many_chunks_at_a_time_as_cores_or_asked_for(monkeypatch, executor, most):
    monkeypatch.setattr("lazyrich.sweeps._budget.cores", lambda: 2)
    running, seen = [], []
    meet = threading.Barrier(most)
    call = Program._call

    def watched(self, inputs, device):
        running.append(1)
        seen.append(len(running))
        meet.wait(timeout=20)
        try:
            return call(self, inputs, device)
        finally:
            running.pop()

    monkeypatch.setattr(Program, "_call", watched)
    quiet(axes={"lam": np.ones(8), "seed": range(2)}, executor=executor)
    assert len(seen) == 4
    assert max(seen) == most


def test_a_second_process_compiles_nothing_new(tmp_path):
    cache = tmp_path / "compiled"
    script = "import sys; from lazyrich.cli import main; sys.exit(main())"
    words = (
        "sweep --lam=-1:1:3 --scale=0.1 --seed=0:2 --method=exact --times=0:10:11 "
        "--levels=1 --figure=none --quiet"
    )
    arguments = words.split()
    files = []
    for name in ("first", "second"):
        subprocess.run(
            [sys.executable, "-c", script, *arguments, f"--store={tmp_path / name}"],
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
            check=True,
            timeout=100,
        )
        files.append({p.name for p in cache.iterdir() if p.name.endswith("-cache")})
    first, second = files
    assert first
    assert second == first
