"""Laying out a store: made aside and moved into place, whole or not at all."""

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from ..trajectory import Status
from ._chunks import Chunk
from ._template import Template

ATTRIBUTE = "lazyrich"
"""The group's and the Dataset's attribute: one JSON string."""
DONE = "done"
"""The array that says which chunks are written."""
STALE = 3600.0
"""Seconds after which what is half-written belongs to nobody."""


def find_store(path: str | os.PathLike[str], overwrite: bool) -> tuple[Path, bool]:
    """The path, and whether a store is there; anything else there is refused."""
    if "://" in str(path):
        raise ValueError(f"`store` must be a local folder, but it is {path}.")
    folder = Path(path)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return folder, False
    if not is_store(folder) and not (overwrite and was_store(folder)):
        if was_store(folder):
            raise ValueError(lost(folder, folder / "zarr.json", "it is damaged"))
        raise ValueError(
            f"`store`: {folder} exists and was not written by `lr.sweep`: choose "
            "another path."
        )
    return folder, True


def lost(folder: Path, file: Path, why: object) -> str:
    """What to say of a store whose description cannot be read."""
    return (
        f"`store`: {file} does not describe {folder} any more ({why}). Restore that "
        "file, or start anew with `overwrite=True`."
    )


def is_store(folder: Path) -> bool:
    """Whether a sweep laid out this folder."""
    try:
        metadata = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))
        return ATTRIBUTE in metadata["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def was_store(folder: Path) -> bool:
    """Whether a folder looks like a store whose description is lost."""
    return all((folder / name / "zarr.json").is_file() for name in (DONE, "status"))


def create_store(
    path: Path,
    template: Template,
    block: tuple[int, ...],
    chunks: Sequence[Chunk],
    record: dict[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Lay out an empty store: all variables, coordinates and the record.

    If another process lays one out at the same time, the one that is there first
    stays; the caller finds out whether it agrees. `overwrite` replaces what is there.
    """
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear_away(path)
        _lay_out(aside, template, block, len(chunks), record)
        if overwrite and path.exists():
            old = aside.with_suffix(".old")
            os.replace(path, old)
            shutil.rmtree(old, ignore_errors=True)
        os.replace(aside, path)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if is_store(path) and not overwrite:
            return
        raise OSError(
            error.errno,
            f"`store`: {path} cannot be created ({error.strerror or error})",
        ) from error


def _clear_away(path: Path) -> None:
    """Remove layouts that were killed before they were moved into place."""
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.(partial|old)")
    for old in path.parent.iterdir():
        if name.fullmatch(old.name) and time.time() - old.stat().st_mtime > STALE:
            shutil.rmtree(old, ignore_errors=True)


def labels(template: Template) -> Iterator[tuple[str, str, np.ndarray]]:
    """Every coordinate: its name, its dimension, its values."""
    for axis in template.grid.axes:
        for column in axis.columns:
            yield column.name, axis.name, column.labels
    for name, values in template.coords.items():
        yield name, name, values


def _lay_out(
    folder: Path,
    template: Template,
    block: tuple[int, ...],
    chunks: int,
    record: dict[str, Any],
) -> None:
    group = zarr.create_group(
        folder, zarr_format=3, attributes={ATTRIBUTE: json.dumps(record)}
    )
    grid = template.grid
    sizes = dict(zip((a.name for a in grid.traced_axes), block, strict=True))
    blocks = tuple(sizes.get(name, 1) for name in grid.names)
    # Plain xarray finds labels that are no dimensions by this attribute.
    extra = " ".join(c.name for a in grid.axes if a.is_zipped for c in a.columns)
    for name, output in template.variables.items():
        attributes = dict(template.attrs.get(name, {}))
        group.create_array(
            name,
            shape=grid.shape + output.shape,
            chunks=blocks + tuple(max(n, 1) for n in output.shape),
            dtype=output.dtype,
            compressors=[ZstdCodec(), Crc32cCodec()],
            fill_value=int(Status.pending) if name == "status" else output.fill,
            dimension_names=grid.names + output.dims,
            attributes=attributes | ({"coordinates": extra} if extra else {}),
        )
    for coord in labels(template):
        create_coord(group, *coord)
    group.create_array(
        DONE,
        shape=(chunks,),
        chunks=(1,),
        dtype=bool,
        fill_value=False,
        dimension_names=("chunk",),
        attributes={"long_name": "whether this chunk of cells is computed"},
    )


def create_coord(
    group: zarr.Group,
    name: str,
    dim: str,
    values: np.ndarray,
    *,
    overwrite: bool = False,
) -> None:
    """Write labels, with a checksum; no file means damage, so zeros are written too."""
    text = values.dtype.kind == "U"
    array = group.create_array(
        name,
        shape=values.shape,
        dtype="str" if text else values.dtype,
        compressors=[ZstdCodec(), Crc32cCodec()],
        dimension_names=(dim,),
        config={"write_empty_chunks": True},
        overwrite=overwrite,
    )
    array[:] = values.astype(object) if text else values
