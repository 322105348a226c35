"""What a run cost, told to whoever counts: the only word between `train` and `sweep`.

Members of one batch wait for each other, so a sweep wants to know which of its axes
decides how many steps a solver takes. `train` says how many it took; nobody listens
unless a sweep is looking at a cell.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jax.extend.core import get_opaque_trace_state

_Heard = list[tuple[Any, Any]]
_listener: ContextVar[_Heard | None] = ContextVar("steps", default=None)


def say_steps(steps: Any) -> None:
    """Tell how many solver steps a run took, a scalar that may be traced."""
    heard = _listener.get()
    if heard is not None:
        heard.append((get_opaque_trace_state(convention="nnx"), steps))


@contextmanager
def listening() -> Iterator[list[Any]]:
    """Collects what is said inside; the list is filled when the block ends.

    What is said within a transformation of its own (an inner `vmap` or `scan`) means
    nothing outside of it and is left out.
    """
    heard: _Heard = []
    here = get_opaque_trace_state(convention="nnx")
    steps: list[Any] = []
    token = _listener.set(heard)
    try:
        yield steps
    finally:
        _listener.reset(token)
        steps += [count for state, count in heard if state == here]
