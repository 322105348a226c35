"""`sweep`: one cell, many labels, one labelled Dataset."""

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from ._axes import Grid, make_grid
from ._budget import Plan, cell_bytes, make_plan, parse_memory
from ._chunks import Chunk, block_shape, blocks, default_piece, runs
from ._engine import check_executor, is_remote, make_engine, pickled
from ._job import Job, trace
from ._layout import create_store, find_store
from ._loops import axis_order, trial_cells
from ._memory import Memory
from ._program import Program, check_signature
from ._progress import Progress
from ._record import configuration, new_record
from ._store import Store
from ._template import Template, common_outputs, make_template

TRIAL = 8
"""Pieces that a sweep must have before trial cells are worth their time."""


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
    memory: int | str | None = None,
    overwrite: bool = False,
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
    `lr.zipped(lam=…, alpha=…)` is one axis with several labels.

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
    devices, the executor and the order; otherwise they are equal to rounding.

    **Waiting.** Where cells need different numbers of solver steps, a piece goes
    through its cells in groups of 16 (on CPU), and a few trial cells decide which axis
    makes the difference, so that cells of a group are alike. Neither changes what is
    computed for a cell.

    **Chunks and memory.** `chunk_size` (rounded up to a multiple of `piece`) is how
    many cells are computed, transferred, counted by the progress bar and written
    together. Default: about twenty chunks of at most 64 pieces, fewer if they do not
    fit. `memory` (bytes, or a text such as "4GB"; default: half of what is available)
    is a budget for what the sweep adds to the process: running pieces, as the compiler
    counts them, results on their way, and all results without a store. What does not
    fit is a `ValueError` before anything runs.

    **Store.** With `store` (a local path) the results go to a zarr group that
    `lr.open` and plain xarray read, one chunk at a time: a block of whole axes
    of at most `chunk_size` cells. The same call again computes only what is missing or
    damaged, with the `piece` and chunks of the store; a changed cell, axis or version
    is refused by a `ValueError` that names the difference, and `overwrite=True` starts
    anew. Several processes may work on one store. The Dataset reads from disk.

    **Where.** `devices`: a list of devices of one kind (default: all local ones of
    JAX's default kind, or the one set as default); each runs its own pieces.
    `executor`: anything with `submit(function, *arguments)` that returns futures with
    `done()` and `result()`, in threads or in other processes; a Dask client; or a
    text: "threads://1", "dask://host:port", "dask://local". Default: a thread for each
    core. Workers in other processes get the cell by pickling, compile it themselves
    and write their own chunks: all must see the folder of the store.
    `progress=False` silences the bar and the listing of failures.

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
    budget = parse_memory(memory)
    on = _devices(devices)
    grid = make_grid(axes)
    check_signature(cell, grid.arguments)
    path, there = (None, False) if store is None else find_store(store, overwrite)
    existing = Store(path) if path is not None and there and not overwrite else None
    platform = on[0].platform
    piece = _kept("piece", piece, existing) or default_piece(platform)
    whole = None if chunk_size is None else -(-chunk_size // piece) * piece
    chunk = _kept("chunk_size", whole, existing)

    programs, failures = trace(cell, grid, piece, on[0], on_error)
    traced = [p for p in programs if p.outputs]
    template = make_template(
        grid, common_outputs([(p.labels, p.outputs) for p in traced]), dims, coords
    )
    config = configuration(template, programs, piece, on[0])
    if existing is not None:
        existing.agree(config)
    with Progress(grid.size, progress) as bar:
        grid = _ordered(grid, traced, existing)
        template = replace(template, grid=grid)
        for program in programs:
            program.grid = grid

        def plan() -> Plan:
            return make_plan(
                grid.size,
                piece,
                piece_bytes=traced[0].bytes(),
                cell=cell_bytes(template.outputs),
                memory=budget,
                stored=path is not None,
                chunk=chunk,
                platform=platform,
            )

        # Before a store is laid out: a cell may refuse.
        sent = pickled((cell, grid)) if is_remote(executor) else b""
        if existing is not None:
            work = _continued(existing, template, plan, bar)
        else:
            work = _begun(path, template, config, plan(), overwrite)
            bar.say(work.plan.words(piece))
        job = Job(
            template, programs, work.chunks, work.results, raising=on_error == "raise"
        )
        bar.begin(job.cells_done())
        with make_engine(executor, work.plan.workers) as engine:
            if engine.remote and not sent:
                sent = pickled((cell, grid))
            job.run(engine, on, sent, bar)
        listed = job.conclude(failures)
    if listed:
        bar.say(listed)
    ds = work.results.dataset()
    ds.attrs["lazyrich"] = json.dumps(work.results.record)
    return ds


@dataclass(frozen=True)
class _Work:
    """Where results go, the chunks to fill, and how many at a time."""

    results: Memory | Store
    chunks: list[Chunk]
    plan: Plan


def _begun(
    path: Path | None,
    template: Template,
    config: Mapping[str, Any],
    plan: Plan,
    overwrite: bool,
) -> _Work:
    grid = template.grid
    order = [axis.name for axis in grid.traced_axes]
    record = new_record(config, plan.chunk, order, plan.record())
    if path is None:
        chunks = runs(grid, plan.chunk)
        return _Work(Memory(template, len(chunks), record), chunks, plan)
    block = block_shape(grid.traced_shape, plan.chunk)
    chunks = blocks(grid, block)
    create_store(path, template, block, chunks, record, overwrite=overwrite)
    # Another process may have been faster, with a sweep of its own.
    store = Store(path, grid)
    store.agree(config)
    if (store.record["chunk_size"], store.record["order"]) != (plan.chunk, order):
        raise ValueError(
            f"`store`: {path} was laid out by another process just now: call again."
        )
    return _Work(store, chunks, plan)


def _continued(
    store: Store, template: Template, plan: Callable[[], Plan], bar: Progress
) -> _Work:
    store.grid = grid = template.grid
    block = block_shape(grid.traced_shape, int(store.record["chunk_size"]))
    chunks = blocks(grid, block)
    if lost := store.restore(template):
        bar.say(f"The labels {', '.join(lost)} were damaged in {store.path}: restored.")
    if damaged := store.repair(chunks):
        noun = "chunk was" if damaged == 1 else "chunks were"
        bar.say(f"{damaged} {noun} damaged in {store.path}: computed anew.")
    if store.done().all():
        return _Work(store, chunks, Plan(**store.record["memory"]))
    # Another process may be at work on the store: meet it rarely.
    random.shuffle(chunks)
    return _Work(store, chunks, plan())


def _ordered(grid: Grid, programs: Sequence[Program], existing: Store | None) -> Grid:
    """The order in which cells are counted: a store's, or one that a trial suggests.

    Only where cells wait for each other, and there are enough of them to gain by it.
    """
    given = [axis.name for axis in grid.traced_axes]
    if existing is not None:
        kept = existing.record["order"]
        return replace(grid, order=tuple(given.index(name) for name in kept))
    program = next((p for p in programs if p.waits), None)
    if program is None or len(given) < 2 or grid.traced_size < TRIAL * program.piece:
        return grid
    cells = trial_cells(grid.traced_size, program.piece)
    try:
        steps = program.trial(cells)
    except jax.errors.JaxRuntimeError:
        return grid  # a cell raised: it will be found, and named, in its place
    return replace(grid, order=axis_order(grid, cells, steps))


def _check_count(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer, but it is {value!r}.")


def _devices(devices: Sequence[Any] | None) -> list[Any]:
    """The devices to use: those given, or all of this process of the default kind."""
    if devices is None:
        # The default may be set to a device or to a platform's name.
        (default,) = jax.numpy.zeros(()).devices()
        if isinstance(jax.config.values["jax_default_device"], jax.Device):
            return [default]
        return jax.local_devices(backend=default.platform)
    if not devices:
        raise ValueError("`devices` is empty: leave it out to use all there are.")
    for device in devices:
        if not isinstance(device, jax.Device):
            raise TypeError(f"`devices` must hold `jax.Device`s, not {device!r}.")
    if len(set(devices)) < len(devices):
        raise ValueError("`devices` has a device that is named twice.")
    if len({(d.platform, d.device_kind) for d in devices}) > 1:
        raise ValueError("`devices` must be of one kind: results differ between kinds.")
    return list(devices)


def _kept(name: str, asked: int | None, existing: Store | None) -> int | None:
    """What a store was laid out with, which cannot change; or what is asked for."""
    if existing is None:
        return asked
    kept = int(existing.record[name])
    if asked not in (None, kept):
        raise ValueError(
            f"`{name}`: {existing.path} was laid out with {kept}, not {asked}: leave "
            "it out, choose another path, or start anew with `overwrite=True`."
        )
    return kept
