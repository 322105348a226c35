"""What goes wrong at night: killed processes, full disks, two writers."""

import errno
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.storage._local as local

import lazyrich as lr
from lazyrich.sweeps import sweep
from lazyrich.sweeps._program import Program
from lazyrich.sweeps._store import Store

AXES = {"lam": np.linspace(0.1, 2.0, 8).tolist(), "seed": range(4)}
"""Eight chunks of four cells."""


def cell(lam, seed):
    return {"y": jnp.sin(lam * (1 + seed).astype(lam.dtype)), "n": seed}


def quiet(cell=cell, **options):
    return sweep(
        cell, AXES, **{"piece": 4, "chunk_size": 4, "progress": False} | options
    )


@pytest.fixture
def computed(monkeypatch):
    """The first cell of every chunk that is computed."""
    starts = []
    run = Program.run

    def counted(self, start, stop, device):
        starts.append(start)
        return run(self, start, stop, device)

    monkeypatch.setattr(Program, "run", counted)
    return starts


NIGHT = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
import lazyrich as lr
from lazyrich.sweeps._program import Program

AXES = {"lam": np.linspace(0.1, 2.0, 40), "seed": range(4)}

def cell(lam, seed):
    return {"y": jnp.sin(lam * (1 + seed).astype(lam.dtype)), "n": seed}

def run(store):
    return lr.sweep(cell, AXES, store=store, piece=4, chunk_size=4, progress=False)

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    calling = Program.run

    def slow(self, *arguments):
        time.sleep(0.05)
        return calling(self, *arguments)

    Program.run = slow
    run(sys.argv[1])
"""


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(k, marks=pytest.mark.slow) for k in range(3, 23))],
)
def test_killed_at_any_moment_only_the_rest_is_computed(tmp_path, seed, computed):
    script, store = tmp_path / "night.py", tmp_path / "s.zarr"
    script.write_text(NIGHT)
    chance = random.Random(seed)
    process = subprocess.Popen([sys.executable, str(script), str(store)])
    while not store.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 1.0))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = int(np.sum(zarr.open_array(store / "done")[:]))
    assert done < 40
    spec = importlib.util.spec_from_file_location("night", script)
    assert spec is not None
    assert spec.loader is not None
    night = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(night)
    ds = night.run(store).load()
    assert len(computed) == 40 - done
    computed.clear()
    xr.testing.assert_equal(ds, night.run(None))
    computed.clear()
    xr.testing.assert_equal(night.run(store).load(), ds)
    assert not computed


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "make it writable")],
)
def test_a_disk_that_takes_no_more_keeps_what_is_done(
    tmp_path, monkeypatch, computed, number, words
):
    store, count = tmp_path / "s.zarr", []
    setting = zarr.Array.__setitem__

    def failing(self, *arguments):
        if self.path.strip("/") == "y":
            count.append(1)
            if len(count) > 3:
                raise OSError(number, "no")
        return setting(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "__setitem__", failing)
        with pytest.raises(OSError, match="Every chunk that was finished") as caught:
            quiet(store=store)
    assert caught.value.errno == number
    assert words in str(caught.value)
    assert str(store) in str(caught.value)
    assert int(np.sum(zarr.open_array(store / "done")[:])) == 3
    computed.clear()
    ds = quiet(store=store).load()
    assert len(computed) == 5
    xr.testing.assert_equal(ds, quiet())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_store_that_cannot_be_laid_out_leaves_nothing(tmp_path, monkeypatch, number):
    def failing(self, *arguments):
        raise OSError(number, "no")

    monkeypatch.setattr(zarr.Array, "__setitem__", failing)
    with pytest.raises(OSError, match="cannot be created") as caught:
        quiet(store=tmp_path / "s.zarr")
    assert caught.value.errno == number
    assert not list(tmp_path.iterdir())


def test_a_finished_sweep_is_read_from_a_folder_that_takes_no_more(
    tmp_path, monkeypatch, computed
):
    whole = quiet(store=tmp_path / "s.zarr").load()
    computed.clear()

    def failing(*arguments, **options):
        raise OSError(errno.EROFS, "no")

    monkeypatch.setattr(local, "_put", failing)
    xr.testing.assert_identical(quiet(store=tmp_path / "s.zarr").load(), whole)
    assert not computed


def test_layouts_that_were_killed_long_ago_are_cleared_away(tmp_path):
    old, new = tmp_path / f"s.zarr.{'a' * 12}.partial", tmp_path / "s.zarr.b.partial"
    for folder in (old, new, tmp_path / f"t.zarr.{'a' * 12}.partial"):
        folder.mkdir()
        os.utime(folder, (0, 0))
    quiet(store=tmp_path / "s.zarr")
    assert not old.exists()
    assert len(list(tmp_path.iterdir())) == 3


def test_two_writers_of_one_store(tmp_path):
    store, found = tmp_path / "s.zarr", []
    meet = threading.Barrier(2)

    def write():
        meet.wait(timeout=20)
        found.append(quiet(store=store).load())

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = quiet()
    assert len(found) == 2
    xr.testing.assert_equal(lr.open(store).load(), whole)
    assert Store(store).done().all()


def test_overwrite_replaces_another_sweep_but_no_other_folder(tmp_path):
    store = tmp_path / "s.zarr"
    quiet(store=store)

    def other(lam, seed):
        return {"z": lam - 1.0}

    with pytest.raises(ValueError, match="holds another sweep"):
        quiet(other, store=store)
    ds = quiet(other, store=store, overwrite=True)
    assert list(ds.data_vars) == ["z", "status"]
    assert not (store / "y").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match="not written by"):
        quiet(store=mine, overwrite=True)
    assert (mine / "thesis.txt").read_text() == "all of it"


def test_the_configuration_comes_back_exactly(tmp_path):
    def mixed(lam, mode, seed):
        return {"y": lam, "status": jnp.zeros((), int)}

    odd = [None, True, (1, "a"), [[1, 2], [3, [4.5]]]]
    axes = {"mode": lr.static(odd), "lam": [0.5], "seed": [1]}
    memory = sweep(mixed, axes, progress=False)
    sweep(mixed, axes, store=tmp_path / "s.zarr", progress=False)
    opened = lr.open(tmp_path / "s.zarr")
    records = [json.loads(ds.attrs["lazyrich"]) for ds in (memory, opened)]
    assert records[0]["config"] == records[1]["config"]
    assert json.loads(json.dumps(records[1])) == records[1]
    assert opened["mode"].values.tolist() == [str(v) for v in odd]
