"""One chunk, computed and judged."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..trajectory import Status
from ._chunks import Chunk
from ._outcome import judge
from ._program import Outputs, Program
from ._store import Store


@dataclass(frozen=True)
class Done:
    """A chunk's outputs (failed floats NaN), statuses (cells,), messages and seconds.

    `known`: it was in the store by then, and only its statuses are here. `written`:
    the worker has written it.
    """

    chunk: Chunk
    outputs: Outputs
    status: np.ndarray
    messages: dict[int, str]
    seconds: float
    known: bool = False
    written: bool = False

    @property
    def failed(self) -> int:
        """Cells that failed."""
        return int((self.status > Status.not_reached).sum())

    def without_outputs(self) -> "Done":
        return replace(self, outputs={}, written=True)


def compute(program: Program, chunk: Chunk, device: Any, store: Store | None) -> Done:
    """Compute one chunk, unless another process has written it by now."""
    if store is not None and store.is_done(chunk):
        return Done(chunk, {}, store.status_of(chunk), {}, 0.0, known=True)
    program.compile(device)
    start = time.perf_counter()
    outputs, messages = program.run(chunk.start, chunk.stop, device)
    status = judge(outputs, (i - chunk.start for i in messages), chunk.cells)
    return Done(chunk, outputs, status, messages, time.perf_counter() - start)


def on_a_device(take: Callable[[], Any], give: Callable[[Any], None]) -> Any:
    """`compute` on whichever device is free."""

    def run(program: Program, chunk: Chunk, store: Store | None) -> Done:
        device = take()
        try:
            return compute(program, chunk, device, store)
        finally:
            give(device)

    return run
