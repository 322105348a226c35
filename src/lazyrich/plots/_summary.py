"""The whole story of a sweep in one figure."""

from typing import TYPE_CHECKING

import xarray as xr

from ._curves import loss_curves
from ._phase import phase

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summary(ds: xr.Dataset) -> "Figure":
    """Loss curves of a few λ by all methods, half-time and kernel distance over λ.

    The Dataset is that of `lazyrich sweep`: `excess` (…, time), `half_time` and
    `kernel_distance` over `lam`, and maybe `method`, `scale` and `seed`. See
    `loss_curves` and `phase` for what is drawn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 3.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    loss_curves(ds, left)
    phase(ds, "half_time", middle)
    phase(ds, "kernel_distance", right)
    if legend := right.get_legend():
        legend.remove()  # the same as in the middle
    if "seed" in ds.dims:
        seeds = ds.sizes["seed"]
        middle.set_title(f"mean and range over {seeds} seeds", fontsize="medium")
        right.set_title(f"mean and range over {seeds} seeds", fontsize="medium")
    for letter, axes in zip("abc", (left, middle, right), strict=True):
        axes.set_title(letter, loc="left", fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    return figure
