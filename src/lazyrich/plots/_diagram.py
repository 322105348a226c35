"""One number of each run over two axes, as a map."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ._phase import LABELS, REGIMES
from ._style import LAMBDA, make_axes, reference, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXES = {"lam": LAMBDA, "scale": "scale of the start"}


def phase_diagram(
    ds: xr.Dataset,
    variable: str,
    axes: Any = None,
    *,
    x: str = "lam",
    y: str = "scale",
) -> "Axes":
    """A variable over two axes of a sweep: the mean over seeds, by the exact method.

    `variable` has the dimensions `x` and `y`, and maybe `method` (the first, if exact
    is not among them) and others, over which the mean is taken; failed runs are left
    out, and where all have failed the map is blank. An axis whose values are positive
    and evenly spaced in the logarithm is drawn logarithmic, and so are the colours of
    positive values that span more than a factor 30. Lines on a kernel distance part
    the regimes: lazy < 0.1 ≤ mixed < 0.5 ≤ rich.

    `ValueError` if the variable or its dimensions are missing.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.patheffects import withStroke

    data = reference(require(ds, variable, x, y))
    data = data.mean([d for d in data.dims if d not in (x, y)]).transpose(y, x)
    axes = make_axes(axes)
    values = np.asarray(data.values, dtype=float)
    finite = values[np.isfinite(values)]
    wide = finite.size and finite.min() > 0 and finite.max() > 30 * finite.min()
    grids = [np.asarray(data[name].values, dtype=float) for name in (x, y)]
    mesh = axes.pcolormesh(
        *grids,
        np.ma.masked_invalid(values),
        shading="nearest",
        cmap="viridis",
        norm=LogNorm() if wide else None,
        rasterized=True,
    )
    for grid, name, set_scale, set_label in (
        (grids[0], x, axes.set_xscale, axes.set_xlabel),
        (grids[1], y, axes.set_yscale, axes.set_ylabel),
    ):
        if _is_logarithmic(grid):
            set_scale("log")
        set_label(_AXES.get(name, name))
    bar = axes.figure.colorbar(mesh, ax=axes)
    bar.set_label(LABELS.get(variable, variable))
    if variable == "kernel_distance" and min(values.shape) > 1:
        edges = [start for _, start in REGIMES[1:]]
        shown = [e for e in edges if finite.size and finite.min() < e < finite.max()]
        if shown:
            # White on black shows on every colour.
            outline = [withStroke(linewidth=2.5, foreground="black")]
            lines = axes.contour(
                *grids, values, shown, colors=["white"], linewidths=[1.0]
            )
            lines.set_path_effects(outline)
            names = {
                b: f"{below} | {above}" for (below, _), (above, b) in pairwise(REGIMES)
            }
            for text in axes.clabel(lines, fmt=names, fontsize="small"):
                text.set_path_effects(outline)
    return axes


def _is_logarithmic(grid: np.ndarray) -> bool:
    if grid.size < 3 or (grid <= 0).any():
        return False
    steps = np.diff(np.log(grid))
    return bool(np.allclose(steps, steps[0], rtol=1e-3) and abs(steps[0]) > 0)
