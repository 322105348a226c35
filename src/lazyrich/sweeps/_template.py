"""What the Dataset looks like: its outputs, their dimensions and coordinates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr

from ..trajectory import Status
from ._axes import RESERVED, Grid, describe


@dataclass(frozen=True)
class Output:
    """One output of a cell, without the axes of the sweep."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def fill(self) -> Any:
        """What cells hold that have not run, or whose code raised."""
        return np.nan if self.dtype.kind in "fc" else self.dtype.type(0)


@dataclass(frozen=True)
class Template:
    """Names, dimensions, shapes and types of everything a sweep returns."""

    grid: Grid
    outputs: dict[str, Output]
    coords: dict[str, np.ndarray]

    @property
    def variables(self) -> dict[str, Output]:
        """The outputs, and the status."""
        return {**self.outputs, "status": Output((), (), np.dtype(np.int8))}

    @property
    def attrs(self) -> dict[str, dict[str, Any]]:
        """Attributes of variables: what the numbers of `status` mean."""
        meanings = " ".join(status.name for status in Status)
        values = [int(status) for status in Status]
        return {"status": {"flag_values": values, "flag_meanings": meanings}}

    def dataset(self, arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
        """The Dataset, from one array (axes …, output's own …) for each variable."""
        grid = self.grid
        data = {
            name: (grid.names + output.dims, arrays[name], self.attrs.get(name, {}))
            for name, output in self.variables.items()
        }
        coords = {c.name: (a.name, c.labels) for a in grid.axes for c in a.columns}
        coords |= {name: (name, values) for name, values in self.coords.items()}
        return xr.Dataset(data, coords)


def make_template(
    grid: Grid,
    outputs: Mapping[str, jax.ShapeDtypeStruct],
    dims: Mapping[str, Any] | None,
    coords: Mapping[str, Any] | None,
) -> Template:
    """Check the declared dimensions and coordinates against what the cell returns."""
    dims = dict(dims or {})
    if unknown := [name for name in dims if name not in outputs]:
        raise ValueError(
            f"`dims` names `{unknown[0]}`, which the cell does not return: it returns "
            f"{', '.join(outputs)}."
        )
    laid_out: dict[str, Output] = {}
    sizes: dict[str, int] = {}
    for name, info in outputs.items():
        if name == "status":
            continue
        output = Output(
            _dims(name, info, dims.get(name), grid), info.shape, np.dtype(info.dtype)
        )
        for dim, size in zip(output.dims, output.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(
                    f"Dimension `{dim}` has size {size} in `{name}`, but "
                    f"{sizes[dim]} in an output before it."
                )
        laid_out[name] = output
    for name in laid_out:
        if name in (*grid.names, *grid.arguments, *RESERVED, *sizes):
            raise ValueError(
                f"The cell returns `{name}`, which is the name of an axis, of a "
                "dimension, or one that every sweep uses itself: rename the output."
            )
    return Template(grid, laid_out, _coords(coords, sizes, grid))


def _dims(
    name: str, info: jax.ShapeDtypeStruct, declared: Any, grid: Grid
) -> tuple[str, ...]:
    if declared is None:
        return tuple(f"{name}_dim_{i}" for i in range(len(info.shape)))
    own = (declared,) if isinstance(declared, str) else tuple(declared)
    if len(own) != len(info.shape):
        raise ValueError(
            f"`dims` names {len(own)} dimensions of `{name}`, {own}, but the cell "
            f"returns it with shape {info.shape}."
        )
    if len(set(own)) < len(own) or set(own) & {*grid.names, *grid.arguments, *RESERVED}:
        raise ValueError(
            f"`dims` of `{name}`, {own}, must differ from each other and from the "
            "axes of the sweep."
        )
    return own


def _coords(
    coords: Mapping[str, Any] | None, sizes: Mapping[str, int], grid: Grid
) -> dict[str, np.ndarray]:
    checked: dict[str, np.ndarray] = {}
    for name, values in (coords or {}).items():
        if name in (*grid.names, *grid.arguments):
            raise ValueError(f"`coords` names `{name}`, an axis: it has its values.")
        if name not in sizes:
            raise ValueError(
                f"`coords` names `{name}`, which is no dimension of an output: "
                f"name it in `dims` (dimensions: {', '.join(sizes) or 'none'})."
            )
        array = np.asarray(values)
        if array.shape != (sizes[name],):
            raise ValueError(
                f"`coords` gives `{name}` the shape {array.shape}, but the outputs "
                f"have {sizes[name]} values along it."
            )
        if array.dtype.kind in "OSU":
            array = np.asarray([str(v) for v in array.tolist()], dtype=np.str_)
        if array.dtype.kind not in "biufU":
            raise TypeError(
                f"`coords` gives `{name}` as {array.dtype}: give numbers or strings."
            )
        checked[name] = array
    return checked


def common_outputs(
    programs: Sequence[tuple[Mapping[str, Any], Mapping[str, jax.ShapeDtypeStruct]]],
) -> dict[str, jax.ShapeDtypeStruct]:
    """The outputs that all static combinations share; they must be the same."""
    labels, first = programs[0]
    for other, outputs in programs[1:]:
        if set(outputs) != set(first):
            raise ValueError(
                f"Every cell must return the same outputs, but {describe(labels)} "
                f"returns {sorted(first)} and {describe(other)} {sorted(outputs)}."
            )
        for name, info in outputs.items():
            if (info.shape, info.dtype) != (first[name].shape, first[name].dtype):
                raise ValueError(
                    f"Every cell must return `{name}` alike, but it is "
                    f"{first[name].dtype}{list(first[name].shape)} for "
                    f"{describe(labels)} and {info.dtype}{list(info.shape)} for "
                    f"{describe(other)}."
                )
    return dict(first)
