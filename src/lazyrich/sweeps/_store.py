"""A sweep on disk: a zarr v3 group that plain xarray opens, filled chunk by chunk.

Every variable has the axes of the sweep as its first dimensions, and one zarr chunk
for each chunk of the sweep: a block of whole trailing axes, so that no two chunks ever
write to the same file. `done` (one element for each chunk) is written after the data
of its chunk; what counts as computed is read from it alone. The layout is made aside
and moved into place, so a store is either laid out whole or not there.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..trajectory import Status
from ._chunks import Chunk
from ._program import Outputs
from ._record import disagreement
from ._template import Template

ATTRIBUTE = "lazyrich"
"""The group's and the Dataset's attribute: one JSON string."""


class Store:
    """An existing store, open for reading and writing."""

    def __init__(self, path: Path):
        self.path = path
        self.group = zarr.open_group(path, mode="r+")
        self.record: dict[str, Any] = json.loads(str(self.group.attrs[ATTRIBUTE]))

    def agree(self, config: Mapping[str, Any]) -> None:
        """Refuse to go on with a sweep that is not the one in the store."""
        if changed := disagreement(self.record["config"], config):
            raise ValueError(
                f"`store`: {self.path} holds another sweep, which differs in "
                f"{'; '.join(changed)}. Choose another path, or delete it."
            )
        self.record["config"] = dict(config)

    def done(self) -> np.ndarray:
        """Which chunks are written, bool (chunks,)."""
        return np.asarray(self._array("done")[:], dtype=bool)

    def write(self, chunk: Chunk, results: Outputs) -> None:
        """Write one chunk's variables, each array (cells, …)."""
        lengths = tuple(s.stop - s.start for s in chunk.region)
        for name, results_array in results.items():
            own = results_array.shape[1:]
            whole = tuple(slice(0, n) for n in own)
            self._array(name)[chunk.region + whole] = results_array.reshape(
                lengths + own
            )

    def mark(self, chunk: Chunk) -> None:
        """Count this chunk as computed: only after its data are written."""
        self._array("done")[chunk.number] = True

    def status(self) -> np.ndarray:
        """The status of every cell, in the shape of the axes."""
        return np.asarray(self._array("status")[...])

    def dataset(self) -> xr.Dataset:
        """The Dataset, read from disk when it is used."""
        return open_store(self.path)

    def save_record(self) -> None:
        """Write the record of how the sweep was made."""
        self.group.attrs[ATTRIBUTE] = json.dumps(self.record)

    def _array(self, name: str) -> zarr.Array:
        array = self.group[name]
        assert isinstance(array, zarr.Array)
        return array


def find_store(path: str | os.PathLike[str]) -> tuple[Path, Store | None]:
    """The path, and the store there, if there is one; anything else is refused."""
    if "://" in str(path):
        raise ValueError(f"`store` must be a local folder, but it is {path}.")
    folder = Path(path)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return folder, None
    if not is_store(folder):
        raise ValueError(
            f"`store`: {folder} exists and was not written by `lr.sweep`: choose "
            "another path."
        )
    return folder, Store(folder)


def is_store(folder: Path) -> bool:
    """Whether a sweep laid out this folder."""
    try:
        metadata = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))
        return ATTRIBUTE in metadata["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def create_store(
    path: Path,
    template: Template,
    block: tuple[int, ...],
    chunks: Sequence[Chunk],
    record: dict[str, Any],
) -> Store:
    """Lay out an empty store: all variables, coordinates and the record."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    group = zarr.create_group(
        aside, zarr_format=3, attributes={ATTRIBUTE: json.dumps(record)}
    )
    grid = template.grid
    sizes = iter(block)
    blocks = tuple(1 if axis.is_static else next(sizes) for axis in grid.axes)
    for name, output in template.variables.items():
        group.create_array(
            name,
            shape=grid.shape + output.shape,
            chunks=blocks + tuple(max(n, 1) for n in output.shape),
            dtype=output.dtype,
            fill_value=int(Status.pending) if name == "status" else output.fill,
            dimension_names=grid.names + output.dims,
            attributes=template.attrs.get(name, {}),
        )
    for axis in grid.axes:
        _create_coord(group, axis.name, axis.labels)
    for name, values in template.coords.items():
        _create_coord(group, name, values)
    group.create_array(
        "done",
        shape=(len(chunks),),
        chunks=(1,),
        dtype=bool,
        fill_value=False,
        dimension_names=("chunk",),
        attributes={"long_name": "whether this chunk of cells is computed"},
    )
    os.replace(aside, path)
    return Store(path)


def _create_coord(group: zarr.Group, name: str, values: np.ndarray) -> None:
    text = values.dtype.kind == "U"
    array = group.create_array(
        name,
        shape=values.shape,
        dtype="str" if text else values.dtype,
        dimension_names=(name,),
    )
    array[:] = values.astype(object) if text else values


def open_store(store: str | os.PathLike[str]) -> xr.Dataset:
    """Open the Dataset that `lr.sweep(..., store=...)` wrote.

    Values are read from disk when they are used (`.load()` reads them all). Cells that
    have not run have the status `pending` (7) and NaN in their floats, 0 in their
    integers. `ds.attrs["lazyrich"]` is a JSON string: configuration, versions, device,
    timings, failures. Plain `xarray.open_zarr(store, consolidated=False)` reads the
    same data, and `done`, which says which chunks are written.

    `FileNotFoundError` if nothing is there, `ValueError` if no sweep wrote it.
    """
    folder = Path(store)
    if not folder.exists():
        raise FileNotFoundError(f"There is no store at {folder}.")
    if not is_store(folder):
        raise ValueError(f"{folder} was not written by `lr.sweep`.")
    ds = xr.open_zarr(folder, consolidated=False, chunks=None).drop_vars("done")
    # A folder has no order: the cell's outputs first, in the cell's order.
    order = list(json.loads(ds.attrs[ATTRIBUTE])["config"]["output"])
    ds = ds[[*order, *(name for name in ds.data_vars if name not in order)]]
    texts = {
        name: (coord.dims, np.asarray(coord.values.tolist(), dtype=np.str_))
        for name, coord in ds.coords.items()
        if coord.dtype.kind not in "biufc"
    }
    return ds.assign_coords(texts)
