"""Loss over time for a few λ, each by all methods."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..measures import half_time
from ._style import TIME, colours, make_axes, nearest, plain, reference, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR = 1e-4
"""Where the curves are cut: below, they are the same straight lines."""
CURVES = 4
"""λ that are drawn when none are named."""
MARKS = 14
"""Markers on one curve."""


def loss_curves(
    ds: xr.Dataset,
    axes: Any = None,
    *,
    lam: Sequence[float] | None = None,
    scale: float | None = None,
    seed: int | None = None,
    variable: str = "excess",
) -> "Axes":
    """The excess loss of single runs, relative to its start, over time.

    `variable` has the dimensions `lam` and `time`, and maybe `method`, `scale` and
    `seed`. `lam` picks values (the nearest are drawn; by default up to four that are
    learned at different speeds), `scale` and `seed` one run each (default: the first).
    Exact runs are thin lines, gradient flow open circles, SGD crosses: they part only
    where the methods do. Other methods, or a Dataset without methods, are lines. Both
    axes are logarithmic; t = 0 is not shown.

    `ValueError` if the variable or its dimensions are missing.
    """
    data = require(ds, variable, "lam", "time")
    for dim, value in (("scale", scale), ("seed", seed)):
        if dim in data.dims:
            at = 0 if value is None else nearest(data[dim].values, [value])[0]
            data = data.isel({dim: at})
    axes = make_axes(axes)
    start = data.isel(time=0)
    data = data / start
    values = data["lam"].values
    if lam is None:
        shown = _telling(values, reference(data))
    else:
        shown = nearest(values, list(lam))
    data = data.isel(time=data["time"].values > 0)
    times = data["time"].values
    methods = ["exact"]
    if "method" in data.dims:
        methods = [str(name) for name in data["method"].values]
    end = times[0]
    for index, colour in zip(shown, colours(len(shown)), strict=True):
        run = data.isel(lam=index)
        for number, method in enumerate(methods):
            curve = run.isel(method=number) if "method" in run.dims else run
            end = max(end, _fallen(times, curve.values))
            _draw(axes, times, curve.values, method, colour)
        axes.plot([], [], color=colour, label=rf"$\lambda = {plain(values[index])}$")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(times[0], end)
    axes.set_ylim(FLOOR, 2.0)
    _place_marks(axes)
    axes.set_xlabel(TIME)
    axes.set_ylabel(r"excess loss $(L - L^*)\,/\,(L_0 - L^*)$")
    for method in methods if len(methods) > 1 else []:
        _draw(
            axes, np.array([]), np.array([]), method, "0.25", _NAMES.get(method, method)
        )
    axes.legend(frameon=False, fontsize="small", labelspacing=0.3)
    fixed = [
        f"{d} {plain(float(data[d]))}" for d in ("scale", "seed") if d in data.coords
    ]
    axes.set_title(", ".join(fixed), fontsize="medium")
    return axes


_NAMES = {"exact": "exact", "flow": "gradient flow", "sgd": "SGD"}
_MARKS: dict[str, dict[str, Any]] = {
    "flow": {"marker": "o", "markersize": 5.5, "markerfacecolor": "none"},
    "sgd": {"marker": "x", "markersize": 5},
}


def _draw(
    axes: "Axes",
    times: np.ndarray,
    curve: np.ndarray,
    method: str,
    colour: Any,
    label: str | None = None,
) -> None:
    style: dict[str, Any] = {"linestyle": "-", "linewidth": 1.1}
    if method in _MARKS:
        style = {"linestyle": "none", "markeredgewidth": 0.9, **_MARKS[method]}
    axes.plot(times, curve, color=colour, label=label, **style)


def _place_marks(axes: "Axes") -> None:
    """Few markers, evenly over the time shown; crosses halfway between circles."""
    low, high = np.log(axes.get_xlim())
    for line in axes.lines:
        times = np.asarray(line.get_xdata(), dtype=float)
        if line.get_marker() in ("o", "x") and times.size:
            offset = 0.0 if line.get_marker() == "o" else 0.5
            places = np.arange(MARKS) + offset
            wanted = np.exp(low + places * (high - low) / MARKS)
            line.set_markevery(nearest(times, wanted.tolist()))


def _fallen(times: np.ndarray, curve: np.ndarray) -> float:
    """When the curve leaves the picture, or the last time."""
    below = np.flatnonzero(curve < FLOOR)
    return float(times[below[0]] if below.size else times[-1])


def _telling(values: np.ndarray, data: xr.DataArray) -> list[int]:
    """Up to four λ whose curves differ: spread evenly in the logarithm of half-times.

    λ that halve their loss before the first time shown are left out if others remain.
    Of λ that are learned equally fast, such as ±λ in a square task, one is kept: the
    smallest that is not negative.
    """
    times = data["time"].values
    halves = np.array(
        [float(half_time(times, data.isel(lam=i).values)) for i in range(len(values))]
    )
    halves = np.where(np.isnan(halves), 2.0 * times[-1], halves)  # never, or nothing
    distinct: list[int] = []
    for i in np.lexsort((np.abs(values), values < 0)):
        if all(abs(np.log(halves[i] / halves[k])) > 0.1 for k in distinct):
            distinct.append(int(i))
    distinct = [i for i in distinct if halves[i] > times[1]] or distinct[:1]
    if len(distinct) > CURVES:
        distinct.sort(key=lambda i: halves[i])
        logs = np.log(halves[distinct])
        even = np.linspace(logs[0], logs[-1], CURVES).tolist()
        distinct = [distinct[k] for k in nearest(logs, even)]
    return sorted(distinct)
