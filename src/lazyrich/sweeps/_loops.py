"""Loops whose length differs from cell to cell, and how not to wait for the longest.

Under `vmap` a loop runs until its slowest member has finished. Two things keep that
short: small groups inside a piece, one after the other, and pieces made of cells that
resemble each other, for which the order of the axes is chosen by a few trial cells.
Both are decided by the sweep alone, never by timings, chunks or threads.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from ._axes import Grid

GROUP = 16
"""Cells that wait for each other on a CPU. Per step, groups of 16 to 64 cost the same,
groups of 8 a quarter more and single cells twice as much."""
_ANY = ("reduce_or", "unvmap_any")
"""How JAX and Equinox ask whether any member is left."""
_BINS = 8
_SHARE = 0.15
"""An axis that explains less than this share of the variance stays where it is."""
_SPREAD = 0.2
"""Standard deviation of ln(steps) below which there is nothing to gain."""


def waits(jaxpr: Any) -> bool:
    """Whether a batched program has a loop that ends when its last member does."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        # The condition of a batched loop of varying length has one value for each
        # member, or is "any member is left" already.
        if name == "while":
            condition = equation.params["cond_jaxpr"]
            condition = getattr(condition, "jaxpr", condition)
            if condition.outvars[0].aval.shape or any(
                e.primitive.name in _ANY for e in condition.eqns
            ):
                return True
        if any(map(waits, core.jaxprs_in_params(equation.params))):
            return True
    return False


def group_size(piece: int, platform: str) -> int:
    """How many cells of a piece run side by side, when some take longer than others.

    An accelerator wants them all at once.
    """
    size = math.gcd(piece, GROUP)
    return size if platform == "cpu" and size >= 4 else piece


def grouped(function: Callable[..., Any], size: int) -> Callable[..., Any]:
    """A batched function that goes through its members in groups of `size`."""

    def run(*arguments: Any) -> Any:
        return jax.lax.map(lambda a: function(*a), arguments, batch_size=size)

    return run


def trial_cells(cells: int, count: int) -> np.ndarray:
    """Flat indices of some cells that stand for all, always the same ones."""
    return np.asarray(sorted(random.Random(0).sample(range(cells), count)))


def axis_order(grid: Grid, cells: np.ndarray, steps: np.ndarray) -> tuple[int, ...]:
    """The traced axes, from the one that decides the number of steps to the least.

    `steps` (k,) is what the trial `cells` (k,) took. An axis is judged by the share of
    the variance of ln(steps) that the means over its values (in at most eight bins)
    explain; those that explain little keep their order, behind the others.
    """
    axes = range(len(grid.traced_shape))
    logs = np.log(np.maximum(steps, 1.0))
    if logs.std() < _SPREAD:
        return tuple(axes)
    index = np.unravel_index(cells, grid.traced_shape)
    shares = [
        _explained(logs, i * min(n, _BINS) // n)
        for i, n in zip(index, grid.traced_shape, strict=True)
    ]
    worth = [share if share > _SHARE else 0.0 for share in shares]
    return tuple(sorted(axes, key=lambda axis: -worth[axis]))


def _explained(values: np.ndarray, bins: np.ndarray) -> float:
    """The share of the variance between bins, less what chance would give them."""
    kinds: Sequence[int] = np.unique(bins).tolist()
    left = sum(((v := values[bins == k]) - v.mean()) @ (v - v.mean()) for k in kinds)
    total = len(values) * values.var()
    free = len(values) - len(kinds)
    if free < 1:
        return 0.0
    return float(1 - left / free / (total / (len(values) - 1)))
