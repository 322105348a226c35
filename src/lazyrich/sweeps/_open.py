"""Reading a sweep back."""

import json
import os
from pathlib import Path

import numpy as np
import xarray as xr

from ._layout import ATTRIBUTE, DONE, is_store


def open_store(store: str | os.PathLike[str]) -> xr.Dataset:
    """Open the Dataset that `lr.sweep(..., store=...)` wrote.

    Values are read from disk when they are used (`.load()` reads them all). Cells that
    have not run have the status `pending` (7) and NaN in their floats, 0 in their
    integers. `ds.attrs["lazyrich"]` is a JSON string: configuration, versions, device,
    timings, failures. Plain `xarray.open_zarr(store, consolidated=False)` reads the
    same data, and `done`, which says which chunks are written.

    `FileNotFoundError` if nothing is there, `ValueError` if no sweep wrote it. Every
    chunk has a checksum: a damaged one raises when it is read, and the sweep's call,
    made again, finds it and computes it anew.
    """
    folder = Path(store)
    if not folder.exists():
        raise FileNotFoundError(f"There is no store at {folder}.")
    if not is_store(folder):
        raise ValueError(f"{folder} was not written by `lr.sweep`.")
    ds = xr.open_zarr(folder, consolidated=False, chunks=None).drop_vars(DONE)
    # A folder has no order: the cell's outputs first, in the cell's order.
    order = list(json.loads(ds.attrs[ATTRIBUTE])["config"]["output"])
    ds = ds[[*order, *(name for name in ds.data_vars if name not in order)]]
    texts = {
        name: (coord.dims, np.asarray(coord.values.tolist(), dtype=np.str_))
        for name, coord in ds.coords.items()
        if coord.dtype.kind not in "biufc"
    }
    return ds.assign_coords(texts)
