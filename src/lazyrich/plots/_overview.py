"""Any sweep in one figure, whatever its axes and variables are called."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ._diagram import phase_diagram
from ._phase import phase
from ._style import plain, reference, require
from ._summary import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 3
"""Variables that are drawn when none are named."""
CURVES = 6
"""Values of the second axis up to which each is a curve of its own."""


def overview(ds: xr.Dataset, variables: Sequence[str] | None = None) -> "Figure":
    """The variables of a sweep that are one number for each run, a panel each.

    The Dataset of `lazyrich sweep` gets its `summary`, unless there are too many scales
    for it, or `variables` are named. Others are drawn over their first two axes of
    numbers (`lam` and `scale`, if there are such): as curves if the second is
    `scale` with at most six values, as a `phase_diagram` otherwise, and as one curve if
    there is no second. Means are taken over `seed`; on any other axis the first
    value is shown, and named above the panel.

    `ValueError` if there is nothing to draw, or a named variable is missing.
    """
    from matplotlib.figure import Figure

    told = {"excess", "half_time", "kernel_distance"} <= set(ds.data_vars)
    if variables is None and told and {"lam", "time"} <= set(ds["excess"].dims):
        few = "scale" not in ds.dims or ds.sizes["scale"] <= CURVES
        if few and set(ds["half_time"].dims) <= {"method", "lam", "scale", "seed"}:
            return summary(ds)
    names = _numbers(ds) if variables is None else list(variables)
    if not names:
        raise ValueError("The Dataset has no variable that is one number for each run.")
    figure = Figure(figsize=(4.6 * len(names), 3.6), layout="constrained")
    row = figure.subplots(1, len(names), squeeze=False)[0]
    for name, axes in zip(names, row, strict=True):
        data = reference(require(ds, name))
        x, y = _pair(data)
        rest = [d for d in data.dims if d not in (x, y, "seed")]
        said = [f"{d} {_word(data[d].values[0])}" for d in rest if data.sizes[d] > 1]
        one = data.isel(dict.fromkeys(rest, 0), drop=True).to_dataset(name=name)
        if y is None or (y == "scale" and one.sizes[y] <= CURVES):
            phase(one, name, axes, x=x)
        else:
            phase_diagram(one, name, axes, x=x, y=y)
        axes.set_title(", ".join(said), fontsize="medium")
    return figure


def _numbers(ds: xr.Dataset) -> list[str]:
    """Float variables with nothing but axes of the sweep, at most three of them."""
    cells = set(ds["status"].dims) if "status" in ds else set(ds.dims)
    names = [
        str(name)
        for name, data in ds.data_vars.items()
        if data.dtype.kind == "f" and set(data.dims) <= cells and data.notnull().any()
    ]
    return names[:PANELS]


def _pair(data: xr.DataArray) -> tuple[str, str | None]:
    """The axes to draw over: λ and scale first, then the order of the Dataset."""
    own = [
        str(d)
        for d in data.dims
        if data.sizes[d] > 1 and d != "seed" and data[d].dtype.kind in "iuf"
    ]
    own.sort(key=lambda d: {"lam": 0, "scale": 1}.get(d, 2))
    if not own:
        others = [str(d) for d in data.dims if data[d].dtype.kind in "iuf"]
        if not others:
            raise ValueError(f"`{data.name}` has no axis of numbers to be drawn over.")
        own = others[:1]
    return own[0], own[1] if len(own) > 1 else None


def _word(value: object) -> str:
    number = isinstance(value, int | float | np.number)
    return plain(float(value)) if number else str(value)
