"""A store that is killed, full, read-only, damaged or shared: nothing false, no loss."""

import errno
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.storage._local as local

import lazyrich as lr
from lazyrich.sweeps import _run
from lazyrich.sweeps._program import Program

TIMES = jnp.linspace(0.0, 2.0, 5)
AXES = {"lam": np.linspace(0.1, 3.0, 8).tolist(), "mode": ["a", "b"], "seed": range(3)}
CHUNKS = 8
"""Of 48 cells: a chunk is two lam, one mode and all seeds."""


def cell(lam, mode, seed):
    x = jnp.sin((1 + seed).astype(lam.dtype)) * lam + float(mode == "b")
    return {"loss": jnp.exp(-TIMES * lam) * x, "n": seed, "last": x}


def other(lam, mode, seed):
    return {name: 2 * value for name, value in cell(lam, mode, seed).items()}


def quiet(cell=cell, axes=AXES, **options):
    named = {"dims": {"loss": ("time",)}, "coords": {"time": TIMES}}
    fixed = {"piece": 6, "chunk_size": 6, "progress": False, **named}
    return lr.sweep(cell, axes, **{**fixed, **options})


@pytest.fixture
def computed(monkeypatch):
    """Chunks that are computed, as (combination, start, stop)."""
    calls = []
    run = Program.run

    def counted(self, start, stop, device):
        calls.append((self.combination, start, stop))
        return run(self, start, stop, device)

    monkeypatch.setattr(Program, "run", counted)
    return calls


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "s.zarr"
    quiet(store=path)
    return path


@pytest.fixture
def copy(undisturbed, tmp_path):
    """A finished store, to be damaged."""
    return shutil.copytree(undisturbed, tmp_path / "s.zarr")


def chunk_files(store):
    """The bytes of every chunk of every array, `done` and coordinates included."""
    found = {p.relative_to(store): p for p in store.rglob("c/**/*") if p.is_file()}
    return {k: p.read_bytes() for k, p in found.items() if p.suffix != ".partial"}


def assert_same(store, expected):
    """Bit for bit."""
    assert chunk_files(store) == chunk_files(expected)
    xr.testing.assert_equal(lr.open(store).load(), lr.open(expected).load())


def finished(store):
    return set(np.flatnonzero(zarr.open_array(store / "done", mode="r")[:]).tolist())


def number(call):
    """The chunk that a call of `computed` is about."""
    (mode,), start, _ = call
    return mode * CHUNKS // 2 + start // 6


# A process that is killed

SCRIPT = """
import sys, time
import jax.numpy as jnp
import lazyrich as lr
from lazyrich.sweeps._program import Program

AXES = {"lam": [0.1 * i for i in range(30)], "mode": ["a", "b"], "seed": range(4)}

def cell(lam, mode, seed):
    angle = jnp.arange(1.0, 9.0, dtype=lam.dtype) * (1 + seed).astype(lam.dtype)
    x = jnp.sin(angle) * lam + float(mode == "b")
    return {"y": jnp.tanh(x).sum(), "x": x, "n": seed}

def run(store):
    options = {"piece": 4, "chunk_size": 4, "progress": False}
    return lr.sweep(cell, AXES, store=store, **options)

if __name__ == "__main__":
    import jax
    jax.config.update("jax_enable_x64", True)
    quick = Program.run
    def slow(*arguments):
        time.sleep(0.03)
        return quick(*arguments)
    Program.run = slow
    run(sys.argv[1])
"""
SCRIPT_CHUNKS = 60


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """A sweep as a module, its file, and the store of its undisturbed run."""
    folder = tmp_path_factory.mktemp("script")
    path = folder / "swept.py"
    path.write_text(SCRIPT)
    spec = importlib.util.spec_from_file_location("swept", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.run(folder / "s.zarr")
    return module, path, folder / "s.zarr"


def started(path, store, chunks):
    """Another process with the sweep, as soon as so many chunks are done."""
    process = subprocess.Popen([sys.executable, str(path), str(store)])
    try:
        deadline = time.monotonic() + 100
        while not store.exists() or len(finished(store)) < chunks:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


slow_seeds = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 23)]


@pytest.mark.parametrize("seed", [0, 1, 2, *slow_seeds])
def test_a_killed_sweep_is_resumed_where_it_was(tmp_path, script, computed, seed):
    module, path, expected = script
    store, chance = tmp_path / "s.zarr", random.Random(seed)
    process = started(path, store, chance.randrange(1, 40))
    time.sleep(chance.uniform(0, 0.05))
    process.kill()
    assert process.wait() == -9
    missing = SCRIPT_CHUNKS - len(finished(store))
    assert 0 < missing < SCRIPT_CHUNKS
    module.run(store)
    assert len(computed) == len(set(computed)) == missing
    assert_same(store, expected)


def test_two_processes_share_a_store(tmp_path, script, computed):
    module, path, expected = script
    store = tmp_path / "s.zarr"
    with started(path, store, 5) as process:
        before = finished(store)
        ds = module.run(store).load()
        assert process.wait(100) == 0
    half = SCRIPT_CHUNKS // 2
    own = {mode * half + start // 4 for (mode,), start, _ in computed}
    assert not own & before
    assert_same(store, expected)
    xr.testing.assert_equal(ds, lr.open(expected).load())


# A disk that is full, or that may not be written


@pytest.fixture
def failing(monkeypatch):
    """Makes every write to disk fail from the n-th on; counts them if n is None."""
    put, lock = local._put, threading.Lock()

    def fail(after, code=errno.ENOSPC):
        writes = []

        def limited(path, *arguments, **options):
            with lock:
                writes.append(path)
                fails = after is not None and len(writes) > after
            if fails:
                raise OSError(code, os.strerror(code), str(path))
            return put(path, *arguments, **options)

        monkeypatch.setattr(local, "_put", limited)
        return writes

    yield fail


@pytest.fixture
def writes(tmp_path, failing):
    """How many there are while a store is laid out, and in all."""
    counted = failing(None)
    quiet(store=tmp_path / "counted.zarr")
    first = next(i for i, path in enumerate(counted) if ".partial" not in str(path))
    shutil.rmtree(tmp_path / "counted.zarr")
    return first, len(counted)


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS]
)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_what_was_finished_survives_failing_writes(
    tmp_path, undisturbed, computed, failing, writes, code, share
):
    store = tmp_path / "s.zarr"
    laid_out, total = writes
    failing(laid_out + int(share * (total - laid_out)), code)
    with pytest.raises(OSError, match="chunk that was finished is kept") as caught:
        quiet(store=store)
    assert caught.value.errno == code
    full = code in (errno.ENOSPC, errno.EDQUOT)
    for text in (str(store), os.strerror(code), "ree some" if full else "make it writ"):
        assert text in str(caught.value)
    kept = finished(store)
    del computed[:]
    with pytest.raises(OSError, match=re.escape(str(store))):
        quiet(store=store)
    assert finished(store) == kept
    failing(None)
    del computed[:]
    quiet(store=store)
    assert {number(call) for call in computed} == set(range(CHUNKS)) - kept
    assert len(computed) == CHUNKS - len(kept)
    assert_same(store, undisturbed)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_failed_layout_leaves_nothing_behind(
    tmp_path, undisturbed, failing, writes, code
):
    store = tmp_path / "s.zarr"
    for after in range(writes[0]):
        failing(after, code)
        with pytest.raises(OSError, match="cannot be created") as caught:
            quiet(store=store)
        assert caught.value.errno == code
        assert str(store) in str(caught.value)
        assert os.strerror(code) in str(caught.value)
        assert list(tmp_path.iterdir()) == []
    failing(None)
    quiet(store=store)
    assert_same(store, undisturbed)


def test_a_failed_overwrite_leaves_the_old_store(copy, undisturbed, failing, writes):
    for after in (0, writes[0] - 1):
        failing(after)
        with pytest.raises(OSError, match="cannot be created"):
            quiet(other, store=copy, overwrite=True)
        assert [p.name for p in copy.parent.iterdir()] == [copy.name]
        assert_same(copy, undisturbed)


# Files that are damaged


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


def garbage(file):
    file.write_bytes(b"}garbage{")


def not_utf8(file):
    file.write_bytes(b"\xff\xfe" + file.read_bytes())


CHUNK = ((1,), 6, 12)
"""The chunk that is damaged, number 5; its files by variable:"""
FILES = {"loss": "1/1/0/0", "n": "1/1/0", "status": "1/1/0", "done": "5"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip, truncate, empty, Path.unlink])
def test_a_damaged_chunk_is_computed_anew(
    copy, undisturbed, computed, capsys, name, damage
):
    damage(copy / name / "c" / FILES[name])
    if damage is flip and name != "done":
        with pytest.raises(ValueError, match="checksum"):
            lr.open(copy).load()
    quiet(store=copy, progress=True)
    assert computed == [CHUNK]
    if (name, damage) != ("done", Path.unlink):  # that is just not computed yet
        said = capsys.readouterr().err
        assert f"1 chunk was damaged in {copy}: computed anew" in said
    assert_same(copy, undisturbed)


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_damaged_labels_are_never_believed(copy, undisturbed, computed, damage):
    damage(copy / "lam/c/0")
    try:
        quiet(store=copy)
    except ValueError as error:
        assert str(copy) in str(error)  # noqa: PT017
        return
    assert computed == []
    assert_same(copy, undisturbed)


@pytest.mark.parametrize("array", ["", "loss", "status", "done", "lam"])
@pytest.mark.parametrize("damage", [garbage, truncate, not_utf8, Path.unlink])
def test_a_damaged_description_is_refused(copy, undisturbed, computed, array, damage):
    file = copy / array / "zarr.json"
    before = file.read_bytes()
    damage(file)
    with pytest.raises(ValueError, match=re.escape(str(copy))):
        quiet(store=copy)
    assert computed == []
    file.write_bytes(before)
    quiet(store=copy)
    assert computed == []  # the refusal cost nothing
    damage(file)
    quiet(store=copy, overwrite=True)
    assert_same(copy, undisturbed)


@pytest.mark.parametrize("record", ["garbage", "{}", "[]", '{"config": {}}', None, 1])
def test_a_damaged_record_is_refused(copy, computed, record):
    content = json.loads((copy / "zarr.json").read_text())
    content["attributes"]["lazyrich"] = record
    (copy / "zarr.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(str(copy))):
        quiet(store=copy)
    assert computed == []


# Two sweeps at one path


def test_two_writers_at_once(tmp_path, undisturbed, monkeypatch):
    store, barrier, create = (
        tmp_path / "s.zarr",
        threading.Barrier(2),
        _run.create_store,
    )
    results = []

    def together(*arguments, **options):
        barrier.wait(100)
        create(*arguments, **options)

    monkeypatch.setattr(_run, "create_store", together)
    threads = [
        threading.Thread(target=lambda: results.append(quiet(store=store).load()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(results) == 2
    for ds in results:
        xr.testing.assert_equal(ds, lr.open(undisturbed).load())
    assert_same(store, undisturbed)
    assert [p.name for p in tmp_path.iterdir()] == ["s.zarr"]


def test_neither_of_two_writers_repeats_what_the_other_has_done(
    tmp_path, undisturbed, monkeypatch
):
    store, run, calls = tmp_path / "s.zarr", Program.run, []

    def interrupted(self, start, stop, device):
        calls.append((self.combination, start, stop))
        if len(calls) == 4:  # three chunks are computed; now another call does it all
            before = finished(store)
            quiet(store=store)
            assert not {number(call) for call in calls[4:]} & before
            assert finished(store) == set(range(CHUNKS))
        return run(self, start, stop, device)

    monkeypatch.setattr(Program, "run", interrupted)
    quiet(store=store, executor="threads://1")
    begun = calls[:4]
    assert not set(calls[4:]) & set(begun[:1])
    assert len(calls[4:]) == len(set(calls[4:]))  # the first went no further
    assert_same(store, undisturbed)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cell": other}, r"holds another sweep.*cell mode='a' \(changed\)"),
        ({"axes": {**AXES, "lam": [0.1, 3.0]}}, "holds another sweep.*axis lam size"),
        ({"chunk_size": 12}, "by another process just now"),
    ],
)
def test_the_second_of_two_sweeps_is_refused(
    tmp_path, undisturbed, monkeypatch, options, text
):
    store, create = tmp_path / "s.zarr", _run.create_store

    def too_late(*arguments, **keywords):
        monkeypatch.setattr(_run, "create_store", create)
        quiet(store=store)
        create(*arguments, **keywords)

    monkeypatch.setattr(_run, "create_store", too_late)
    with pytest.raises(ValueError, match=text) as caught:
        quiet(**options, store=store)
    assert str(store) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["s.zarr"]
    assert_same(store, undisturbed)


# Starting anew, and reading back


def test_overwrite_replaces_another_sweep(copy, computed):
    with pytest.raises(ValueError, match="holds another sweep"):
        quiet(other, store=copy)
    ds = quiet(other, store=copy, overwrite=True)
    assert len(computed) == CHUNKS
    xr.testing.assert_equal(ds.load(), quiet(other))
    assert [p.name for p in copy.parent.iterdir()] == [copy.name]


@pytest.mark.parametrize("kind", ["files", "zarr", "file"])
def test_overwrite_spares_what_no_sweep_wrote(tmp_path, computed, kind):
    path = tmp_path / "precious"
    if kind == "zarr":
        zarr.create_group(path).create_array("loss", shape=(3,), dtype=float)[:] = 1.0
    elif kind == "files":
        (path / "done").mkdir(parents=True)
        (path / "zarr.json").write_text('{"attributes": {}}')
    else:
        path.write_text("data")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"precious.*not written by `lr\.sweep`"):
        quiet(store=path, overwrite=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert computed == []


def test_a_configuration_comes_back_exactly(tmp_path, computed):
    def configured(lam, kind, shape):
        if kind is True:
            raise ZeroDivisionError("no such kind")
        return {"y": lam * len(shape), "m": jnp.full((2, 3), lam)}

    kinds = lr.static([None, False, True, (1, (2, 3)), [[1, None], [2.5, "λ"]]])
    shapes = lr.static([(4, 8), [[4], [8, 2]]])
    axes = {"lam": [0.5, 1.5], "kind": kinds, "shape": shapes}
    call = {"cell": configured, "axes": axes, "dims": {"m": ("a", "b")}, "coords": {}}
    memory, written = quiet(**call), quiet(**call, store=tmp_path / "s.zarr")
    configs = [
        json.loads(ds.attrs["lazyrich"])["config"]
        for ds in (memory, written, lr.open(tmp_path / "s.zarr"))
    ]
    assert configs[0] == configs[1] == configs[2]
    assert None in configs[0]["cell"].values()
    assert configs[0]["output"]["m"]["shape"] == [2, 3]
    xr.testing.assert_equal(lr.open(tmp_path / "s.zarr").load(), memory)
    del computed[:]
    quiet(**call, store=tmp_path / "s.zarr")
    assert computed == []
