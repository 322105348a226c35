"""Running chunks side by side: in threads of this process, or through an engine."""

import importlib.util
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from .._cores import cores

Call = tuple[Callable[..., Any], tuple[Any, ...]]

DASK = "dask://"
THREADS = "threads://"


class Engine:
    """What runs the chunks: `submit`, how many at a time, and where.

    `remote`: the tasks run in other processes, which know nothing of this one.
    """

    def __init__(self, executor: Any, workers: int, *, remote: bool, own: ExitStack):
        self.executor, self.workers, self.remote = executor, workers, remote
        self._own = own

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: Any) -> None:
        self._own.close()


def check_executor(executor: Any) -> None:
    """Refuse what cannot run chunks, before anything else is done."""
    if isinstance(executor, str):
        return _check_address(executor)
    if executor is None:
        return None
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"`executor` must have `submit(function, *arguments)`, but it is "
            f"{executor!r}."
        )
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise ValueError(
            "`executor` forks its processes, which JAX does not survive: use "
            "ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))."
        )
    return None


def _check_address(address: str) -> None:
    if address.startswith(THREADS):
        count = address.removeprefix(THREADS)
        if not count.isdigit() or int(count) < 1:
            raise ValueError(
                f"`executor`: {address!r} must be threads:// and a number of threads."
            )
        return
    if not address.startswith(DASK):
        raise ValueError(
            f"`executor`: {address!r} must be dask://host:port, dask://local or "
            "threads://N."
        )
    if importlib.util.find_spec("distributed") is None:
        raise ImportError(
            "`executor`: Dask is not installed: pip install 'lazyrich[distributed]'."
        )


def is_remote(executor: Any) -> bool:
    """Whether an executor is known to run in other processes without asking it."""
    if isinstance(executor, str):
        return executor.startswith(DASK)
    known = isinstance(executor, ProcessPoolExecutor)
    return known or callable(getattr(executor, "get_executor", None))


def make_engine(executor: Any, workers: int) -> Engine:
    """Take an executor, connect to one by its address, or start threads.

    Most programs run on one core; threads keep all of them busy. (Those that call
    LAPACK take turns on a CPU: see `Program`.)
    """
    own = ExitStack()
    if isinstance(executor, str):
        executor = _connected(executor, own)
    if executor is None:
        executor = own.enter_context(_Threads(workers))
        return Engine(executor, workers, remote=False, own=own)
    if callable(getattr(executor, "get_executor", None)):  # a Dask client
        count = sum(executor.nthreads().values())
        # Not pure: a task may be run again, and its result is on disk. A worker that
        # dies gives its task to another, twice.
        executor = executor.get_executor(pure=False, retries=2)
    else:
        count = getattr(executor, "_max_workers", cores())
    remote = executor.submit(os.getpid).result() != os.getpid()
    return Engine(executor, max(int(count), 1), remote=remote, own=own)


class _Threads(ThreadPoolExecutor):
    """Threads whose waiting tasks are dropped when the sweep ends early."""

    def __exit__(self, *error: Any) -> None:
        self.shutdown(wait=True, cancel_futures=True)


def _connected(address: str, own: ExitStack) -> Any:
    """`threads://N`, `dask://host:port`, or `dask://local`: a process for each core."""
    if address.startswith(THREADS):
        return own.enter_context(_Threads(int(address.removeprefix(THREADS))))
    from distributed import Client, LocalCluster

    where = address.removeprefix(DASK)
    if where == "local":
        # One thread to a process: XLA uses the others by itself. Its own port
        # may belong to another cluster, and no other machine may look in.
        cluster = LocalCluster(
            n_workers=cores(),
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        )
        own.callback(cluster.close)
        where = cluster.scheduler_address
    try:
        client = Client(where, timeout=30)
    except (OSError, TimeoutError, ValueError) as error:
        raise OSError(f"`executor`: no Dask scheduler at {where} ({error}).") from error
    own.callback(client.close)
    return client


def pickled(value: Any) -> bytes:
    """For another process: functions by value, if they are in no module there."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(value)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        hint = "" if pickler is not pickle else " ('lazyrich[distributed]' can do more)"
        raise TypeError(
            f"`executor` runs cells in other processes, but this one cannot be sent "
            f"there: {error}{hint}."
        ) from error


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
