"""A chunk in another process: what is sent, what runs there, what comes back.

The worker gets the cell itself, traces it and compares fingerprints: it computes what
the client would have computed, or refuses. With a store it writes its own chunk.
"""

import hashlib
import itertools
import os
import pickle
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from .._worker import ENVIRONMENT, call
from ._axes import Grid
from ._chunks import Chunk
from ._compute import Done, compute
from ._engine import Call
from ._program import CellError, Program
from ._store import Store

KEPT = 4
"""Compiled programs that a worker keeps."""
_programs: OrderedDict[tuple[str, tuple[int, ...]], Program] = OrderedDict()
_lock = threading.Lock()
_turns = itertools.count()


@dataclass(frozen=True)
class Task:
    """One chunk of one program. `cell` is pickled: (function, grid)."""

    cell: bytes
    piece: int
    x64: bool
    platform: str
    fingerprint: str | None
    chunk: Chunk
    store: Path | None
    raising: bool


def remote_call(task: Task) -> Call:
    """What to submit for a task."""
    environment = {k: os.environ[k] for k in ENVIRONMENT if k in os.environ}
    if folder := jax.config.values["jax_compilation_cache_dir"]:
        environment["JAX_COMPILATION_CACHE_DIR"] = folder
    return call, (environment, pickle.dumps((work, (task,))))


def work(task: Task) -> Done:
    """Compute one chunk, and write it if there is a store."""
    with jax.enable_x64(task.x64):
        devices = jax.local_devices(backend=task.platform)
        device = devices[next(_turns) % len(devices)]
        program = _program(task, devices[0])
        store = None
        if task.store is not None:
            if not (task.store / "zarr.json").exists():
                raise OSError(
                    f"`store`: {task.store} is not there for a worker on "
                    f"{os.uname().nodename}: all machines must share its folder."
                )
            store = Store(task.store, program.grid)
        done = compute(program, task.chunk, device, store)
        failed = task.raising and done.failed
        if store is not None and not done.known and not failed:
            store.write(task.chunk, {**done.outputs, "status": done.status})
            store.mark(task.chunk)
        return done.without_outputs() if store is not None else done


def _program(task: Task, device: Any) -> Program:
    """The compiled program, made once for each process."""
    key = (hashlib.sha256(task.cell).hexdigest(), task.chunk.combination)
    with _lock:
        if key in _programs:
            _programs.move_to_end(key)
            return _programs[key]
        cell, grid = pickle.loads(task.cell)
        assert isinstance(grid, Grid)
        program = Program(
            cell, grid, task.chunk.combination, task.piece, device, sharing=False
        )
        try:
            program.trace()
        except CellError as error:
            raise RuntimeError(f"the cell raised in a worker: {error}") from None
        if program.fingerprint != task.fingerprint:
            raise ValueError(
                "`executor`: a worker would run another program than this process: "
                "versions of the packages, the kind of device and EQX_ON_ERROR "
                f"({os.environ.get('EQX_ON_ERROR', 'raise')!r} there) must agree."
            )
        _programs[key] = program
        while len(_programs) > KEPT:
            _programs.popitem(last=False)
        return program
