"""How time is measured: compile apart from run, blocked, medians after a warm-up."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Timing(NamedTuple):
    """Seconds to compile (0 for plain Python) and median seconds of a run."""

    compile: float
    run: float
    value: Any


def compiled(function: Callable[..., Any], *args: Any, repeats: int = 5) -> Timing:
    """Time a JAX function: lowering and compiling once, then `repeats` runs."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*args).compile()
    spent = time.perf_counter() - start
    value = jax.block_until_ready(program(*args))
    return Timing(spent, _median(lambda: program(*args), repeats), value)


def plain(function: Callable[[], Any], repeats: int = 3) -> Timing:
    """Time a Python function."""
    value = function()
    return Timing(0.0, _median(function, repeats), value)


def _median(function: Callable[[], Any], repeats: int) -> float:
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)
