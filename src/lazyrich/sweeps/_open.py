"""Reading a sweep back."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ._layout import ATTRIBUTE, DONE, is_store, lost, was_store
from ._record import label_names, read_record


def open_store(store: str | os.PathLike[str]) -> xr.Dataset:
    """Open the Dataset that `lr.sweep(..., store=...)` wrote.

    Values are read from disk when they are used (`.load()` reads them all). Cells that
    have not run have the status `pending` (7) and NaN in their floats, 0 in their
    integers. `ds.attrs["lazyrich"]` is a JSON string: configuration, versions, device,
    timings, failures. Plain `xarray.open_zarr(store, consolidated=False)` reads the
    same data, and `done`, which says which chunks are written.

    `FileNotFoundError` if nothing is there, `ValueError` if no sweep wrote it, or if
    its description or labels are lost. Every chunk has a checksum: a damaged one raises
    when it is read; one whose file was deleted reads as NaN or 0. The sweep's call,
    made again, finds both and computes them anew.
    """
    folder = Path(store)
    if not folder.exists():
        raise FileNotFoundError(f"There is no store at {folder}.")
    if not is_store(folder):
        if was_store(folder):
            raise ValueError(lost(folder, folder / "zarr.json", "it is damaged"))
        raise ValueError(f"{folder} was not written by `lr.sweep`.")
    config = _checked(folder)
    ds = xr.open_zarr(folder, consolidated=False, chunks=None).drop_vars(DONE)
    # A folder has no order: the cell's outputs first, in the cell's order.
    order = list(config["output"])
    ds = ds[[*order, *(name for name in ds.data_vars if name not in order)]]
    texts = {
        name: (coord.dims, np.asarray(coord.values.tolist(), dtype=np.str_))
        for name, coord in ds.coords.items()
        if coord.dtype.kind not in "biufc"
    }
    return ds.assign_coords(texts)


def _checked(folder: Path) -> dict[str, Any]:
    """The configuration of a store all of whose arrays and labels are there."""
    group = zarr.open_group(folder, mode="r")
    try:
        config = read_record(group.attrs[ATTRIBUTE])["config"]
    except ValueError as error:
        raise ValueError(lost(folder, folder / "zarr.json", error)) from error
    coords = label_names(config)
    for name in dict.fromkeys([*config["output"], "status", DONE, *coords]):
        try:
            array = group[name]
            assert isinstance(array, zarr.Array)
            whole = name not in coords or array.nchunks_initialized == array.nchunks
        except (ValueError, KeyError, TypeError) as error:
            file = folder / name / "zarr.json"
            raise ValueError(lost(folder, file, error)) from error
        if not whole:
            raise ValueError(
                f"The labels `{name}` of {folder} are lost. The sweep's call, made "
                "again, restores them."
            )
    return config
