"""Chunks, threads and devices: where cells run must not matter."""

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from lazyrich.sweeps import sweep
from lazyrich.sweeps._axes import make_grid
from lazyrich.sweeps._chunks import block_shape, blocks, default_chunk, runs
from lazyrich.sweeps._program import Program


def cell(lam, seed):
    x = jnp.sin(jnp.arange(1.0, 5.0, dtype=lam.dtype) * (1 + seed).astype(lam.dtype))
    return {"y": jnp.tanh(lam * x).sum(), "x": x}


AXES = {"lam": np.linspace(-1.0, 1.0, 9), "seed": range(3)}


def quiet(cell=cell, axes=AXES, **options):
    return sweep(cell, axes, **{"piece": 4, "progress": False, **options})


def test_block_shapes():
    assert block_shape((33, 2, 8), 64) == (4, 2, 8)
    assert block_shape((33, 2, 8), 1000) == (33, 2, 8)
    assert block_shape((10, 1000), 64) == (1, 64)
    assert block_shape((5, 3), 2) == (1, 2)
    assert block_shape((), 64) == ()


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    chunk=st.integers(1, 60),
    fixed=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_chunks_cover_every_cell_once(shape, chunk, fixed):
    names = [f"x{i}" for i in range(len(shape))]
    axes = {name: range(n) for name, n in zip(names, shape, strict=True)}
    grid = make_grid({**axes, "mode": ["abc"[i] for i in range(fixed)]})
    block = block_shape(grid.traced_shape, chunk)
    for cut in (runs(grid, chunk), blocks(grid, block)):
        assert [c.number for c in cut] == list(range(len(cut)))
        assert all(0 < c.cells <= chunk for c in cut)
        assert cut[0].start == 0
        assert cut[-1].stop == grid.traced_size
        for a, b in pairwise(cut):
            same = a.combination == b.combination
            assert (b.start == a.stop) if same else (b.start == 0)
    counts = np.zeros(grid.shape, int)
    flat = np.arange(grid.traced_size).reshape(grid.traced_shape)
    for c in blocks(grid, block):
        counts[c.region] += 1
        np.testing.assert_array_equal(
            flat[c.region[:-1]].ravel(), np.arange(c.start, c.stop)
        )
    assert (counts == 1).all()


def test_default_chunks_are_whole_pieces():
    assert default_chunk(1, 64) == 64
    assert default_chunk(20_000, 64) == 1024
    assert default_chunk(10**9, 64) == 64 * 64


@pytest.mark.parametrize("stored", [False, True])
def test_executors_change_no_bit(tmp_path, stored):
    reference = quiet()
    options = {"chunk_size": 4}
    if stored:
        options["store"] = tmp_path / "s.zarr"
    with ThreadPoolExecutor(3) as pool:
        ds = quiet(executor=pool, **options)
    xr.testing.assert_equal(ds.load(), reference)


def test_a_piece_on_a_boundary_is_run_once(tmp_path, monkeypatch):
    ran = []
    run = Program._run

    def counted(self, index, device):
        ran.append(index)
        return run(self, index, device)

    monkeypatch.setattr(Program, "_run", counted)
    axes = {"lam": [0.5, 1.0, 2.0], "seed": range(7)}  # rows of 7, pieces of 4
    quiet(axes=axes, store=tmp_path / "s.zarr", chunk_size=8)
    assert sorted(ran) == list(range(6))


def test_executors_that_cannot_serve_are_refused():
    with pytest.raises(TypeError, match="must have `submit"):
        quiet(executor=3)
    for address in ("dusk://here", "threads://0", "threads://many"):
        with pytest.raises(ValueError, match="`executor`"):
            quiet(executor=address)
    fork = multiprocessing.get_context("fork")
    with (
        ProcessPoolExecutor(1, mp_context=fork) as pool,
        pytest.raises(ValueError, match="spawn"),
    ):
        quiet(executor=pool)


@pytest.mark.parametrize("stored", [False, True])
def test_other_processes_change_no_bit(tmp_path, stored):
    reference = quiet()
    options = {"chunk_size": 8}
    if stored:
        options["store"] = tmp_path / "s.zarr"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        ds = quiet(executor=pool, **options).load()
        again = quiet(executor=pool, **options)
    xr.testing.assert_equal(ds, reference)
    xr.testing.assert_equal(again.load(), reference)


@pytest.mark.parametrize(("factor", "most"), [(True, 1), (False, 2)])
def test_programs_that_call_lapack_take_turns(monkeypatch, factor, most):
    """In jaxlib 0.10 two of them at a time can wait for each other for ever."""
    running, seen = [], []
    meet = threading.Barrier(2)

    def watched(self, inputs, device):
        with self._turn:
            running.append(1)
            if not factor:
                meet.wait(timeout=20)
            time.sleep(0.01)
            seen.append(len(running))
            running.pop()
            return {"y": np.zeros(4)}, np.zeros(4)

    def cell(x):
        matrix = jnp.eye(2) * x
        return {"y": jnp.linalg.qr(matrix)[1].sum() if factor else matrix.sum()}

    monkeypatch.setattr(Program, "_call", watched)
    with ThreadPoolExecutor(2) as pool:
        quiet(cell, {"x": np.ones(16)}, chunk_size=4, executor=pool)
    assert max(seen) == most


def test_a_named_device_changes_nothing():
    xr.testing.assert_equal(quiet(devices=jax.devices()[:1]), quiet())


def test_threads_use_the_callers_float_type():
    with jax.enable_x64(False):
        narrow = quiet()
    assert narrow["y"].dtype == np.float32
    assert quiet()["y"].dtype == np.float64
