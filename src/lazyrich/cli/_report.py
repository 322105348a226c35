"""What the command prints."""

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .. import __version__
from ..dynamics import default_rtol
from ..plots import REGIMES

if TYPE_CHECKING:
    from ._sweep import Plan

ROWS = 9
SADDLE = 1e-3
"""A disagreement at λ = 0 that no tolerance explains."""


def setup(plan: "Plan") -> str:
    """What will be run, in a few lines."""
    task, axes, options = plan.task, plan.axes, plan.options
    cells = int(np.prod([len(values) for values in axes.values()]))
    batch = options.batch_size or "full"
    dtype = task.sigma_yx.dtype
    names = {
        "exact": "exact",
        "flow": f"gradient flow (rtol {options.rtol or default_rtol(dtype):g})",
        "sgd": f"SGD (η = {plan.learning_rate:g}, {batch} batch)",
    }
    # The optimum of a solvable task is 0 up to rounding.
    least = float(task.optimum)
    least = 0.0 if least < 1e-20 * float(task.yy) else least
    return "\n".join(
        [
            f"lazyrich {__version__}: {cells} cells in {dtype}",
            f"  task     {plan.name}: {task.inputs} inputs, {task.outputs} outputs, "
            f"{task.samples} samples; least loss {least:.3g}",
            f"  network  {task.inputs}-{plan.hidden}-{task.outputs}",
            f"  λ        {_span(axes['lam'])}",
            f"  scale    {_span(axes['scale'])}",
            f"  seed     {_span(axes['seed'])}",
            f"  method   {', '.join(names[m] for m in axes['method'])}",
            f"  time     {_span(plan.times.tolist())}, in units of τ = 1/η",
        ]
    )


def table(ds: xr.Dataset) -> str:
    """At most nine λ: means over scales and seeds, and the worst disagreements."""
    methods = [str(name) for name in ds["method"].values]
    shown = "exact" if "exact" in methods else methods[0]
    mean = ds.sel({"method": shown}).mean(("scale", "seed"))
    others = [m for m in methods if m != "exact"] if "disagreement" in ds else []
    heads = ["λ", "half-time", "final excess", "kernel distance", ""]
    heads += [f"{name} − exact" for name in others]
    rows = [heads]
    for i in picked(ds.sizes["lam"]):
        at = mean.isel(lam=i)
        distance = float(at["kernel_distance"])
        row = [
            f"{float(at['lam']):g}",
            _number(at["half_time"], ".3f"),
            _number(at["final_excess"], ".1e"),
            _number(distance, ".2g"),
            _regime(distance),
        ]
        for name in others:
            worst = ds["disagreement"].sel({"method": name}).isel(lam=i).max()
            row.append(_number(worst, ".1e"))
        rows.append(row)
    note = f"Means over scales and seeds, by {shown}"
    if others:
        note += "; worst max|L − L exact|/L(0) over them"
    if _leaves_saddle(ds):
        note += (
            ".\nAt λ = 0 a start may lead to a saddle, where exact learning ends; "
            "simulations leave it by rounding, sooner or later"
        )
    return "\n".join(["", *aligned(rows), f"{note}.", ""])


def picked(count: int) -> list[int]:
    """At most nine of `count` positions, evenly spread, the ends among them."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, ROWS)).round())
        .astype(int)
        .tolist()
    )


def aligned(rows: list[list[str]]) -> list[str]:
    """The rows of a table as lines, columns flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _leaves_saddle(ds: xr.Dataset) -> bool:
    """Whether λ = 0 is there, and the flow parts from the exact solution at it."""
    if "disagreement" not in ds or "flow" not in ds["method"].values:
        return False
    gap = ds["disagreement"].sel({"method": "flow"})
    return bool((gap.where(np.abs(ds["lam"]) < 1e-12) > SADDLE).any())


def ending(plan: "Plan") -> str:
    """Where everything is."""
    store = json.dumps(plan.options.store, ensure_ascii=False)
    figure = f" Figure: {plan.figure}." if plan.figure else ""
    return (
        f"Store: {plan.options.store}.{figure} In Python:\n"
        f"  import lazyrich as lr; ds = lr.open({store})"
    )


def warn(text: str) -> None:
    """One line on stderr."""
    print(f"lazyrich: {text}", file=sys.stderr)


def _regime(distance: float) -> str:
    return next((name for name, start in reversed(REGIMES) if distance >= start), "")


def _number(value: Any, form: str) -> str:
    number = float(value)
    return "–" if np.isnan(number) else format(number, form)


def _span(values: list[Any]) -> str:
    if len(values) <= 4:
        return ", ".join(f"{v:g}" for v in values)
    return f"{values[0]:g} … {values[-1]:g} ({len(values)})"
