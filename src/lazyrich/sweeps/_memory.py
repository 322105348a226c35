"""Results kept in memory: the counterpart of a store."""

from typing import Any

import numpy as np
import xarray as xr

from ..trajectory import Status
from ._chunks import Chunk
from ._program import Outputs
from ._template import Template


class Memory:
    """One array for each variable: static axes, then the cells of a combination."""

    def __init__(self, template: Template, chunks: int, record: dict[str, Any]):
        self.record = record
        self._template = template
        self._done = np.zeros(chunks, dtype=bool)
        grid = template.grid
        lead = (*grid.static_shape, grid.traced_size)
        self._arrays: dict[str, np.ndarray] = {}
        for name, output in template.variables.items():
            fill = Status.pending if name == "status" else output.fill
            self._arrays[name] = np.full(lead + output.shape, fill, output.dtype)

    def done(self) -> np.ndarray:
        """Which chunks are computed, bool (chunks,)."""
        return self._done

    def write(self, chunk: Chunk, results: Outputs) -> None:
        """Keep one chunk's variables, each array (cells, …)."""
        for name, array in results.items():
            self._arrays[name][chunk.combination][chunk.start : chunk.stop] = array

    def mark(self, chunk: Chunk) -> None:
        """Count this chunk as computed."""
        self._done[chunk.number] = True

    def status(self) -> np.ndarray:
        """The status of every cell, in the shape of the axes."""
        return self._on_axes(self._arrays["status"])

    def save_record(self) -> None:
        """Nothing to do: `record` is all there is."""

    def dataset(self) -> xr.Dataset:
        """Everything, with the axes in the order in which they were given."""
        arrays = {name: self._on_axes(array) for name, array in self._arrays.items()}
        return self._template.dataset(arrays)

    def _on_axes(self, array: np.ndarray) -> np.ndarray:
        grid = self._template.grid
        own = array.shape[len(grid.static_shape) + 1 :]
        return grid.on_axes(array, grid.static_shape + grid.traced_shape, own)
