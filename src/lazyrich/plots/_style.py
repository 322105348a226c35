"""What all pictures share."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIME = r"time $t$ (units of $\tau = 1/\eta$)"
LAMBDA = r"balance $\lambda$"


def make_axes(axes: Any) -> "Axes":
    """The given Axes, or those of a new figure."""
    if axes is not None:
        return axes
    from matplotlib import pyplot as plt

    _, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
    return axes


def colours(count: int) -> list[Any]:
    """From dark to light, stopping short of a yellow that white paper swallows."""
    import matplotlib as mpl

    return list(mpl.colormaps["viridis"](np.linspace(0.0, 0.82, max(count, 1))))


def require(ds: xr.Dataset, name: str, *dims: str) -> xr.DataArray:
    """One variable of the Dataset, which must have these dimensions."""
    if name not in ds:
        raise ValueError(
            f"The Dataset has no `{name}`: it has {', '.join(map(str, ds.data_vars))}."
        )
    if missing := [dim for dim in dims if dim not in ds[name].dims]:
        raise ValueError(
            f"`{name}` has no dimension `{missing[0]}`: it has {ds[name].dims}."
        )
    return ds[name]


def nearest(values: np.ndarray, wanted: list[float]) -> list[int]:
    """Indices of the values nearest to those wanted, each once, ascending."""
    return sorted({int(np.abs(values - w).argmin()) for w in wanted})


def reference(data: xr.DataArray) -> xr.DataArray:
    """By the exact method, or else by the first one; unchanged without methods."""
    if "method" not in data.dims:
        return data
    methods = [str(name) for name in data["method"].values]
    index = methods.index("exact") if "exact" in methods else 0
    return data.isel(method=index, drop=True)


def plain(value: float) -> str:
    """A number as short as it can be, with a real minus sign."""
    return f"{value:g}".replace("-", "−")
