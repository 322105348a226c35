"""Running chunks side by side, in threads of this process."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from .._cores import cores

Call = tuple[Callable[..., Any], tuple[Any, ...]]


@contextmanager
def engine(executor: Any, platform: str) -> Iterator[Any]:
    """The given executor, or one thread for each core (two on an accelerator).

    Most programs run on one core; threads keep all of them busy. (Those that call
    LAPACK take turns on a CPU: see `Program`.)
    """
    if executor is not None:
        yield executor
        return
    pool = ThreadPoolExecutor(cores() if platform == "cpu" else 2)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_executor(executor: Any) -> None:
    """Refuse what cannot submit, and what runs in other processes."""
    if executor is None:
        return
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"`executor` must have `submit(function, *arguments)`, but it is "
            f"{executor!r}."
        )
    if executor.submit(os.getpid).result() != os.getpid():
        raise ValueError(
            "`executor` runs its tasks in other processes, and compiled cells cannot "
            "go there: use one with threads, such as `ThreadPoolExecutor`."
        )


def completed(executor: Any, calls: Iterable[Call], ahead: int) -> Iterator[Any]:
    """Results as they come, with at most `ahead` calls submitted at a time."""
    waiting = iter(calls)
    pending: list[Any] = []
    try:
        while True:
            while len(pending) < ahead and (call := next(waiting, None)) is not None:
                pending.append(executor.submit(call[0], *call[1]))
            if not pending:
                return
            ready = [future for future in pending if future.done()]
            if not ready:
                time.sleep(0.002)
            for future in ready:
                pending.remove(future)
                yield future.result()
    finally:
        for future in pending:
            if hasattr(future, "cancel"):
                future.cancel()
