"""One number of each run over λ, one curve a scale."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ._style import LAMBDA, colours, make_axes, plain, reference, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {
    "half_time": r"half-time of the loss (units of $\tau$)",
    "kernel_distance": "kernel distance, start to end",
    "final_excess": r"final excess loss $L - L^*$",
}
_MARKERS = "osD^v"
_STYLES = ("-", "--", "-.", ":", "-")
REGIMES = (("lazy", 0.0), ("mixed", 0.1), ("rich", 0.5))
"""Names of the regimes, and the kernel distances from which they hold."""


def phase(ds: xr.Dataset, variable: str, axes: Any = None, *, x: str = "lam") -> "Axes":
    """A variable over λ: one curve a scale, the mean over seeds, by the exact method.

    The band spans the least and the greatest over the seeds. `variable` has the
    dimension `x`, and maybe `scale`, `seed` and `method` (the first method, if exact
    is not among them). Positive values are drawn on a logarithmic axis. Kernel
    distances get the names of the regimes: lazy < 0.1 ≤ mixed < 0.5 ≤ rich.

    `ValueError` if the variable or its dimension is missing.
    """
    data = reference(require(ds, variable, x))
    axes = make_axes(axes)
    by_scale = x != "scale" and "scale" in data.dims
    scales = data["scale"].values if by_scale else [None]
    for number, (scale, colour) in enumerate(
        zip(scales, colours(len(scales) + 1), strict=False)
    ):
        one = data if scale is None else data.isel(scale=number)
        mean, low, high = one, one, one
        if "seed" in one.dims:
            mean, low, high = one.mean("seed"), one.min("seed"), one.max("seed")
        along = one[x].values
        axes.fill_between(
            along, low.values, high.values, color=colour, alpha=0.18, linewidth=0
        )
        axes.plot(
            along,
            mean.values,
            color=colour,
            linestyle=_STYLES[number % len(_STYLES)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=3,
            linewidth=1.2,
            label=None if scale is None else f"scale {plain(float(scale))}",
        )
    axes.set_xlabel(LAMBDA if x == "lam" else x)
    axes.set_ylabel(LABELS.get(variable, variable))
    axes.margins(x=0.01)
    finite = data.values[np.isfinite(data.values)]
    if finite.size and (finite > 0).all():
        axes.set_yscale("log")
    if variable == "kernel_distance" and axes.get_yscale() == "log":
        _name_regimes(axes)
    if scales[0] is not None:
        axes.legend(frameon=False, fontsize="small")
    return axes


def _name_regimes(axes: "Axes") -> None:
    """Thin lines between the regimes; names of those in view beside the axes."""
    bottom, top = axes.get_ylim()
    top = max(top, 2 * REGIMES[1][1])
    axes.set_ylim(bottom, top)
    edges = [*(start for _, start in REGIMES[1:]), 1.0]
    for (name, start), edge in zip(REGIMES, edges, strict=True):
        low, high = max(start, bottom), min(edge, top)
        if low >= high:
            continue
        if start > bottom:
            axes.axhline(start, color="0.6", linewidth=0.7, linestyle=":", zorder=0)
        # The lowest regime has no lower edge: its name stands under the upper one.
        place, align = (np.sqrt(low * high), "center") if start else (0.8 * high, "top")
        axes.text(
            1.015,
            place,
            name,
            transform=axes.get_yaxis_transform(),
            fontsize="small",
            color="0.35",
            va=align,
        )
