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
from ._layout import ATTRIBUTE, DONE, STALE, create_coord, labels, lost
from ._open import open_store
from ._program import Outputs
from ._record import disagreement, merged, read_record
from ._template import Template


class Store:
    """An existing store, open for reading and writing.

    `grid` counts cells as the sweep that fills the store does; None is enough to
    read what is done.
    """

    def __init__(self, path: Path, grid: Grid | None = None):
        self.path, self.grid = path, grid
        try:
            self.group = zarr.open_group(path, mode="r+")
            self.record = read_record(self.group.attrs[ATTRIBUTE])
        except (ValueError, KeyError) as error:
            raise ValueError(lost(path, path / "zarr.json", error)) from error
        # Before anything is judged: a lost description is no damage to the chunks.
        names = dict.fromkeys([*self.record["config"]["output"], "status", DONE])
        self._arrays = {name: self._open(name) for name in names}

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
        return np.asarray(self._arrays[DONE][:], dtype=bool)

    def is_done(self, chunk: Chunk) -> bool:
        """Whether this chunk is written by now, by whichever process."""
        return bool(np.asarray(self._arrays[DONE][chunk.number]))

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
                self._arrays[name][chunk.region + whole] = block

    def mark(self, chunk: Chunk) -> None:
        """Count this chunk as computed: only after its data are written."""
        with self._writing():
            self._arrays[DONE][chunk.number] = True

    def status_of(self, chunk: Chunk) -> np.ndarray:
        """The status of a chunk's cells, flat."""
        return np.asarray(self._arrays["status"][chunk.region]).ravel()

    def status(self) -> np.ndarray:
        """The status of every cell, in the shape of the axes."""
        return np.asarray(self._arrays["status"][...])

    def repair(self, chunks: Sequence[Chunk]) -> int:
        """Read everything that counts as written; what is damaged counts no more.

        Returns how many chunks were damaged. Whole ones are left as they are.
        """
        self._sweep_up()
        done, damaged = self._marks(len(chunks))
        damaged += [
            c.number for c in chunks if done[c.number] and not self._is_whole(c)
        ]
        with self._writing():
            for number in damaged:
                self._arrays[DONE][number] = False
        return len(damaged)

    def restore(self, template: Template) -> list[str]:
        """Write labels anew that are lost or damaged, and name them.

        The configuration says that they are those of the template.
        """
        found: list[str] = []
        for name, dim, values in labels(template):
            try:
                array = self._open(name)
                there = array.nchunks_initialized == array.nchunks
                nan = values.dtype.kind in "fc"
                if there and np.array_equal(
                    np.asarray(array[:]), values, equal_nan=nan
                ):
                    continue
            except (ValueError, RuntimeError, OSError):
                pass
            found.append(name)
            with self._writing():
                create_coord(self.group, name, dim, values, overwrite=True)
        return found

    def dataset(self) -> xr.Dataset:
        """The Dataset, read from disk when it is used."""
        return open_store(self.path)

    def save_record(self) -> None:
        """Write the record of how the sweep was made, with what others added to it."""
        self.group = zarr.open_group(self.path, mode="r+")
        there = read_record(self.group.attrs[ATTRIBUTE])
        self.record = merged(there, self.record)
        if self.record == there:
            return  # the folder may be read-only by now
        with self._writing():
            self.group.attrs[ATTRIBUTE] = json.dumps(self.record)

    def _open(self, name: str) -> zarr.Array:
        try:
            array = self.group[name]
        except (ValueError, KeyError, TypeError) as error:
            file = self.path / name / "zarr.json"
            raise ValueError(lost(self.path, file, error)) from error
        assert isinstance(array, zarr.Array)
        # A chunk of fill values is written too: no file means damage.
        return array.with_config({"write_empty_chunks": True})

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
                array = self._arrays[name]
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

    def _marks(self, count: int) -> tuple[np.ndarray, list[int]]:
        """Which chunks are marked, and those whose mark is damaged."""
        try:
            return self.done(), []
        except (ValueError, RuntimeError, OSError):
            done, damaged = np.zeros(count, dtype=bool), []
        for number in range(count):
            try:
                done[number] = np.asarray(self._arrays[DONE][number])
            except (ValueError, RuntimeError, OSError):
                damaged.append(number)
        return done, damaged

    def _sweep_up(self) -> None:
        """Remove what writers that were killed long ago left half-written."""
        for path in self.path.rglob("*.partial"):
            try:
                if time.time() - path.stat().st_mtime > STALE:
                    path.unlink()
            except OSError:
                continue  # another process was faster, or it may not: harmless
