"""`sweep`: one cell, many labels, one labelled Dataset."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

from ._axes import make_grid
from ._chunks import block_shape, blocks, default_chunk, default_piece, runs
from ._engine import check_executor
from ._job import Job, trace
from ._memory import Memory
from ._program import check_signature
from ._progress import Progress
from ._record import configuration, new_record
from ._store import Store, create_store, find_store
from ._template import common_outputs, make_template


def sweep(
    cell: Callable[..., Any],
    axes: Mapping[str, Any],
    *,
    dims: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    store: str | os.PathLike[str] | None = None,
    chunk_size: int | None = None,
    piece: int | None = None,
    devices: Sequence[Any] | None = None,
    executor: Any = None,
    progress: bool = True,
    on_error: str = "record",
) -> xr.Dataset:
    """Run `cell(**labels)` at every point of the product of `axes`.

    **The cell** is ordinary JAX code for one run: it gets one scalar for each axis and
    returns a dict of scalars and arrays. Randomness enters only through it
    (`jax.random.key(seed)`), so equal seeds share their draws across all other axes.

    **Axes.** `axes` maps names to one-dimensional sequences. Numbers (Python, NumPy or
    JAX; floats become JAX's default float type unless they bring their own) are
    traced: one compiled program serves them all. Strings, other objects and
    `lr.static([...])` reach the cell as they are, compiled once per combination.

    **Result.** A Dataset with the axes as its first dimensions, then an output's own:
    `dims={"loss": ("time",)}` names those, `coords={"time": times}` gives them values;
    undeclared ones are called `loss_dim_0`, …. `ds["status"]` (int8, `lr.Status`)
    always exists: if the cell returns "status", that alone decides; otherwise a float
    that is not finite makes a cell `nonfinite`. A failed cell's floats are NaN
    (integers and flags stay as returned) and disturb no other cell. Failures are listed
    at the end. `ds.attrs["lazyrich"]` is a JSON string: configuration, versions,
    device, dtype, timings in seconds (compiling apart from running), failures. On an
    axis called `method`, select with `ds.sel({"method": "exact"})`: xarray's `sel` has
    an option of that name.

    **Bits.** Cells run in batches of exactly `piece` (default: 64 on CPU, 4096
    elsewhere), the last one filled up with a copy of its last cell. For equal `piece`,
    versions and hardware, results are equal to the last bit whatever the chunks, the
    executor and the order; otherwise they are equal to rounding.

    **Chunks.** `chunk_size` (rounded up to a multiple of `piece`; default: about twenty
    chunks, of at most 64 pieces) is how many cells are computed, transferred, counted
    by the progress bar and written together; it bounds the memory that is used.

    **Store.** With `store` (a local path) the results go to a zarr group that
    `lr.open` and plain xarray read, one chunk at a time: a block of whole trailing axes
    of at most `chunk_size` cells. The same call again computes only what is missing,
    with the `piece` and chunks of the store; a changed cell, axis or version is refused
    by a `ValueError` that names the difference. The Dataset returned reads from disk.

    **Where.** `devices`: a list of one device (default: JAX's default device).
    `executor`: anything with `submit(function, *arguments)` that runs in threads of
    this process and returns futures with `done()` and `result()`; default: a thread for
    each core. `progress=False` silences the bar and the listing of failures.

    **Errors.** Mistakes in the call are `ValueError` or `TypeError` at once. If the
    cell's code raises, its cells get the status `error` and the message is recorded
    (a `SweepError` if no cell can be run); `on_error="raise"` stops at the first failed
    cell with a `SweepError` that names its labels, and keeps what is in the store.
    """
    if on_error not in ("record", "raise"):
        raise ValueError(f"`on_error` is 'record' or 'raise', but it is {on_error!r}.")
    _check_count("piece", piece)
    _check_count("chunk_size", chunk_size)
    check_executor(executor)
    device = _one_device(devices)
    grid = make_grid(axes)
    check_signature(cell, grid.names)
    place = None if store is None else find_store(store)
    existing = place[1] if place else None
    piece = _kept("piece", piece, existing) or default_piece(device.platform)
    rounded = None if chunk_size is None else -(-chunk_size // piece) * piece
    chunk = _kept("chunk_size", rounded, existing)
    chunk = chunk or default_chunk(grid.traced_size, piece)

    programs, failures = trace(cell, grid, piece, device, on_error)
    traced = [(p.labels, p.outputs) for p in programs if p.outputs]
    template = make_template(grid, common_outputs(traced), dims, coords)
    config = configuration(template, programs, piece, device)
    record = new_record(config, chunk)
    if place is None:
        chunks = runs(grid, chunk)
        results: Memory | Store = Memory(template, len(chunks), record)
    else:
        block = block_shape(grid.traced_shape, chunk)
        chunks = blocks(grid, block)
        results = existing or create_store(place[0], template, block, chunks, record)
        results.agree(config)

    job = Job(template, programs, chunks, results, raising=on_error == "raise")
    with Progress(grid.size, job.cells_done(), progress) as bar:
        if rounded != chunk_size:
            bar.say(f"chunk_size {chunk_size} rounded up to {chunk}: whole pieces.")
        job.run(executor, device.platform, bar)
    if listed := job.conclude(failures):
        bar.say(listed)
    ds = results.dataset()
    ds.attrs["lazyrich"] = json.dumps(results.record)
    return ds


def _check_count(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer, but it is {value!r}.")


def _one_device(devices: Sequence[Any] | None) -> Any:
    if devices is None:
        # The default may be set to a device or to a platform's name.
        return next(iter(jax.numpy.zeros(()).devices()))
    if len(devices) != 1:
        raise ValueError(
            f"`devices` must be a list of one device, but it has {len(devices)}: a "
            "sweep runs on one device."
        )
    if not isinstance(devices[0], jax.Device):
        raise TypeError(f"`devices` must hold a `jax.Device`, not {devices[0]!r}.")
    return devices[0]


def _kept(name: str, asked: int | None, existing: Store | None) -> int | None:
    """What a store was laid out with, which cannot change; or what is asked for."""
    if existing is None:
        return asked
    kept = int(existing.record[name])
    if asked not in (None, kept):
        raise ValueError(
            f"`{name}`: {existing.path} was laid out with {kept}, not {asked}: leave "
            "it out, or choose another path."
        )
    return kept
