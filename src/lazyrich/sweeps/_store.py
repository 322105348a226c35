"""A sweep on disk: a zarr v3 group that plain xarray opens, filled chunk by chunk.

Every variable has the axes of the sweep as its first dimensions, and one zarr chunk
for each chunk of the sweep: a block of whole axes, so that no two chunks ever write to
the same file. `done` (one element for each chunk) is written after the data of its
chunk; what counts as computed is read from it alone. Every chunk carries a checksum
and is written even where it holds fill values only, so damage can be told.
"""

import errno
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..trajectory import Status
from ._axes import Grid
from ._chunks import Chunk
from ._layout import ATTRIBUTE, DONE
from ._open import open_store
from ._program import Outputs
from ._record import disagreement, merged

STALE = 3600.0
"""Seconds after which a half-written file of a chunk belongs to nobody."""


class Store:
    """An existing store, open for reading and writing.

    `grid` counts cells as the sweep that fills the store does; None is enough to
    read what is done.
    """

    def __init__(self, path: Path, grid: Grid | None = None):
        self.path, self.grid = path, grid
        try:
            self.group = zarr.open_group(path, mode="r+")
            self.record: dict[str, Any] = json.loads(str(self.group.attrs[ATTRIBUTE]))
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"`store`: the description of {path} (zarr.json) cannot be read: "
                f"{error}. Restore that file, or start anew with `overwrite=True`."
            ) from error
        self._arrays: dict[str, zarr.Array] = {}

    def agree(self, config: Mapping[str, Any]) -> None:
        """Refuse to go on with a sweep that is not the one in the store."""
        if changed := disagreement(self.record["config"], config):
            raise ValueError(
                f"`store`: {self.path} holds another sweep, which differs in "
                f"{'; '.join(changed)}. Choose another path, or start anew with "
                "`overwrite=True`."
            )
        self.record["config"] = dict(config)

    def done(self) -> np.ndarray:
        """Which chunks are written, bool (chunks,)."""
        return np.asarray(self._array(DONE)[:], dtype=bool)

    def is_done(self, chunk: Chunk) -> bool:
        """Whether this chunk is written by now, by whichever process."""
        return bool(np.asarray(self._array(DONE)[chunk.number]))

    def write(self, chunk: Chunk, results: Outputs) -> None:
        """Write one chunk's variables, each array (cells, …), as they are counted."""
        grid = self.grid
        assert grid is not None
        lengths = (1,) * len(grid.static_axes) + chunk.lengths
        with self._writing():
            for name, array in results.items():
                own = array.shape[1:]
                whole = tuple(slice(0, n) for n in own)
                block = grid.on_axes(array, lengths, own)
                self._array(name)[chunk.region + whole] = block

    def mark(self, chunk: Chunk) -> None:
        """Count this chunk as computed: only after its data are written."""
        with self._writing():
            self._array(DONE)[chunk.number] = True

    def status_of(self, chunk: Chunk) -> np.ndarray:
        """The status of a chunk's cells, flat."""
        return np.asarray(self._array("status")[chunk.region]).ravel()

    def status(self) -> np.ndarray:
        """The status of every cell, in the shape of the axes."""
        return np.asarray(self._array("status")[...])

    def repair(self, chunks: Sequence[Chunk]) -> int:
        """Read everything that counts as written; what is damaged counts no more.

        Returns how many chunks were damaged. Whole ones are left as they are.
        """
        self._sweep_up()
        try:
            done = self.done()
        except (ValueError, RuntimeError, OSError):
            done = self._done_one_by_one(len(chunks))
        damaged = [c for c in chunks if done[c.number] and not self._is_whole(c)]
        with self._writing():
            for chunk in damaged:
                self._array(DONE)[chunk.number] = False
        return len(damaged)

    def dataset(self) -> xr.Dataset:
        """The Dataset, read from disk when it is used."""
        return open_store(self.path)

    def save_record(self) -> None:
        """Write the record of how the sweep was made, with what others added to it."""
        self.group = zarr.open_group(self.path, mode="r+")
        there = json.loads(str(self.group.attrs[ATTRIBUTE]))
        self.record = merged(there, self.record)
        with self._writing():
            self.group.attrs[ATTRIBUTE] = json.dumps(self.record)

    def _array(self, name: str) -> zarr.Array:
        if name not in self._arrays:
            array = self.group[name]
            assert isinstance(array, zarr.Array)
            # A chunk of fill values is written too: no file means damage.
            self._arrays[name] = array.with_config({"write_empty_chunks": True})
        return self._arrays[name]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Free some space" if full else "Make it writable"
            raise OSError(
                error.errno,
                f"`store`: {self.path} could not be written "
                f"({error.strerror or error}). Every chunk that was finished is kept: "
                f"{remedy.lower()}, and the same call computes the rest",
            ) from error

    def _is_whole(self, chunk: Chunk) -> bool:
        """Whether every variable of a chunk is there, with its checksums right."""
        names = [n for n in self.record["config"]["output"] if n != "status"]
        try:
            if (self.status_of(chunk) == Status.pending).any():
                return False
            for name in names:
                array = self._array(name)
                if not self._file(array, chunk).exists():
                    return False
                array[chunk.region]
        except (ValueError, RuntimeError, OSError):
            return False
        return True

    def _file(self, array: zarr.Array, chunk: Chunk) -> Path:
        rest = array.ndim - len(chunk.region)
        pairs = zip(chunk.region, array.chunks, strict=False)
        index = [str(s.start // size) for s, size in pairs] + ["0"] * rest
        return self.path / array.path.strip("/") / "/".join(["c", *index])

    def _done_one_by_one(self, count: int) -> np.ndarray:
        done = np.zeros(count, dtype=bool)
        for number in range(count):
            try:
                done[number] = np.asarray(self._array(DONE)[number])
            except (ValueError, RuntimeError, OSError):
                with self._writing():
                    self._array(DONE)[number] = False
        return done

    def _sweep_up(self) -> None:
        """Remove what writers that were killed long ago left half-written."""
        for path in self.path.rglob("*.partial"):
            try:
                if time.time() - path.stat().st_mtime > STALE:
                    path.unlink()
            except OSError:
                continue  # another process was faster, or it may not: harmless
