"""One compiled program per static combination: a batch of exactly `piece` cells."""

import hashlib
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._steps import listening
from ._axes import Grid, describe
from ._loops import group_size, grouped, waits

Outputs = dict[str, np.ndarray]
_Inputs = tuple[np.ndarray, dict[str, np.ndarray]]
_Result = tuple[Outputs, dict[int, str]]


_BLOCKING = ("lapack_", "stablehlo.fft")
"""Calls that wait, on XLA's CPU threads, for work queued on the same threads."""
_ALONE = threading.Lock()


class CellError(Exception):
    """The cell itself raised: carries the message; the cause is chained."""


def check_signature(cell: Callable[..., Any], names: tuple[str, ...]) -> None:
    """Refuse a cell that cannot be called with the axes as its arguments."""
    if not callable(cell):
        raise TypeError(f"The cell must be a function, but it is {cell!r}.")
    try:
        signature = inspect.signature(cell)
    except (TypeError, ValueError):
        return  # a built-in without a signature: the call itself will tell
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(
            f"The cell{signature} cannot take the axes {', '.join(names)}: {error}."
        ) from None


class Program:
    """The cells of one static combination, compiled for batches of `piece` cells.

    `fingerprint` is the SHA-256 of the lowered program's text, which holds the data
    that the cell closes over; None until it is traced. `waits`: whether cells differ
    in how long they take, and so wait for each other.

    Every piece is the same cells whatever the chunks are, and a short last piece is
    filled up with its last cell. So a cell's bits depend on `piece` alone. There is a
    copy for each device, which knows nothing of the others.
    """

    def __init__(
        self,
        cell: Callable[..., Any],
        grid: Grid,
        combination: tuple[int, ...],
        piece: int,
        device: Any,
        *,
        sharing: bool = True,
    ):
        self.grid, self.combination = grid, combination
        self.piece, self.device = piece, device
        self.seconds = {"trace": 0.0, "compile": 0.0}
        self.outputs: dict[str, jax.ShapeDtypeStruct] = {}
        self.fingerprint: str | None = None
        self.waits = False
        self._cell = cell
        self.x64 = bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)
        self._lowered: jax.stages.Lowered | None = None
        self._function: Any = None
        self._compiled: dict[Any, Any] = {}
        self._turn: AbstractContextManager[Any] = nullcontext()
        self._compiling = threading.Lock()
        self._sharing = threading.Lock() if sharing else None
        self._shared: dict[int, Future[_Result]] = {}

    @property
    def labels(self) -> dict[str, Any]:
        return self.grid.labels(self.combination)

    def trace(self) -> None:
        """Trace and lower. `CellError` if the cell raises; its outputs are checked."""
        start = time.perf_counter()
        fixed = self.grid.static_values(self.combination)
        names: list[Any] = []

        # The lane index gives the batch a size when no axis is traced.
        def sweep_cell(
            lane: jax.Array, values: Mapping[str, jax.Array]
        ) -> tuple[dict[str, jax.Array], jax.Array]:
            with listening() as steps:
                try:
                    out = self._cell(**fixed, **values)
                except Exception as error:
                    raise CellError(_explained(error)) from error
            names[:] = out if isinstance(out, dict) else ()
            total = sum((jnp.asarray(s, int) for s in steps), jnp.zeros((), int))
            return _checked(out, self.labels), total

        self._function = jax.jit(jax.vmap(sweep_cell))
        traced = self._function.trace(*self._shapes(self.device))
        self.waits = waits(traced.jaxpr)
        size = group_size(self.piece, self.device.platform)
        if self.waits and size < self.piece:
            self._function = jax.jit(grouped(sweep_cell, size))
            traced = self._function.trace(*self._shapes(self.device))
        infos, _ = traced.out_info
        # JAX sorts a dict's keys; the Dataset keeps the cell's order.
        self.outputs = {
            name: jax.ShapeDtypeStruct(infos[name].shape[1:], infos[name].dtype)
            for name in names
        }
        self._lowered = lowered = traced.lower()
        text = lowered.as_text()
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        # Two programs with such calls can take all threads and wait for ever: with
        # jaxlib 0.10 on two cores they do so within seconds.
        if self.device.platform == "cpu" and any(call in text for call in _BLOCKING):
            self._turn = _ALONE
        self.seconds["trace"] = time.perf_counter() - start

    def compile(self, device: Any = None) -> None:
        """Compile for a device, once, whichever thread comes first."""
        device = device or self.device
        with self._compiling:
            if device in self._compiled:
                return
            start = time.perf_counter()
            lowered, self._lowered = self._lowered, None
            if lowered is None or device != self.device:
                assert self._function is not None
                with jax.enable_x64(self.x64):
                    lowered = self._function.trace(*self._shapes(device)).lower()
            self._compiled[device] = lowered.compile()
            self.seconds["compile"] += time.perf_counter() - start

    def bytes(self) -> int:
        """Memory that one piece takes while it runs, by the compiler's own account."""
        self.compile()
        analysis = self._compiled[self.device].memory_analysis()
        sizes = ("temp_size", "output_size", "argument_size", "generated_code_size")
        return sum(getattr(analysis, f"{n}_in_bytes", 0) for n in sizes)

    def release(self) -> None:
        """Forget the compiled program: this combination is finished."""
        self._compiled.clear()
        self._shared.clear()

    def trial(self, cells: np.ndarray) -> np.ndarray:
        """The steps that these cells take, at most a piece of them; 0 if unknown."""
        self.compile()
        lanes = np.arange(self.piece, dtype=np.int32)
        chosen = cells[np.minimum(lanes, len(cells) - 1)]
        with jax.enable_x64(self.x64):
            _, steps = self._call((lanes, self.grid.traced_values(chosen)))
        return steps[: len(cells)]

    def run(
        self, start: int, stop: int, device: Any = None
    ) -> tuple[Outputs, dict[int, str]]:
        """The cells start … stop: arrays (cells, …), and messages of those that raised.

        Results of a cell that raised are zeros: its status, `error`, says so.
        """
        device = device or self.device
        self.compile(device)
        parts: list[Outputs] = []
        messages: dict[int, str] = {}
        # Which float types exist is a setting of each thread: use the caller's.
        with jax.enable_x64(self.x64):
            for index in range(start // self.piece, -(-stop // self.piece)):
                first = index * self.piece
                end = min(first + self.piece, self.grid.traced_size)
                whole = start <= first and end <= stop
                run = self._run if whole else self._share
                outputs, raised = run(index, device)
                kept = slice(max(start - first, 0), min(stop, end) - first)
                parts.append({name: array[kept] for name, array in outputs.items()})
                messages |= {first + i: text for i, text in raised.items()}
        merged = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        return merged, {i: text for i, text in messages.items() if start <= i < stop}

    def _share(self, index: int, device: Any) -> _Result:
        """A piece across a boundary of chunks: whoever comes second gets it free."""
        if self._sharing is None:
            return self._run(index, device)
        with self._sharing:
            result = self._shared.pop(index, None)
            if owner := result is None:
                result = self._shared[index] = Future()
        if owner:
            try:
                result.set_result(self._run(index, device))
            except BaseException as error:
                result.set_exception(error)
        return result.result()

    def _run(self, index: int, device: Any) -> _Result:
        inputs = self._inputs(index)
        try:
            return self._call(inputs, device)[0], {}
        except jax.errors.JaxRuntimeError as error:
            # One cell's exception ends its whole batch: find out whose it was by
            # running each cell in a batch of its copies, with the same program.
            return self._one_by_one(index, error, device)

    def _one_by_one(self, index: int, error: Exception, device: Any) -> _Result:
        lanes, values = self._inputs(index)
        outputs = {
            name: np.zeros((self.piece, *info.shape), info.dtype)
            for name, info in self.outputs.items()
        }
        messages: dict[int, str] = {}
        for i in lanes:
            copies = {name: np.full_like(v, v[i]) for name, v in values.items()}
            try:
                alone, _ = self._call((lanes, copies), device)
            except jax.errors.JaxRuntimeError as own:
                messages[int(i)] = first_line(own)
                continue
            for name, array in alone.items():
                outputs[name][i] = array[i]
        if not messages:  # nothing a cell did: out of memory, a lost device
            raise error
        return outputs, messages

    def _call(self, inputs: _Inputs, device: Any = None) -> tuple[Outputs, np.ndarray]:
        device = device or self.device
        with self._turn:
            outputs, steps = self._compiled[device](*jax.device_put(inputs, device))
            arrays = {name: np.asarray(array) for name, array in outputs.items()}
            return arrays, np.asarray(steps)

    def _inputs(self, index: int) -> _Inputs:
        """Lane numbers, and the traced values of one piece, filled up at the end."""
        lanes = np.arange(self.piece, dtype=np.int32)
        cells = np.minimum(index * self.piece + lanes, self.grid.traced_size - 1)
        return lanes, self.grid.traced_values(cells)

    def _shapes(self, device: Any) -> Any:
        sharding = jax.sharding.SingleDeviceSharding(device)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            self._inputs(0),
        )


def first_line(error: Exception) -> str:
    """What an exception says, in one line; of a callback's, the innermost one."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if "Traceback" in str(error):
        frames = [i for i, line in enumerate(lines) if line.startswith("  File ")]
        inner = lines[frames[-1] + 1 :] if frames else []
        lines = [line for line in inner if not line.startswith(" ")] or lines
        return lines[0].strip().lstrip("_")
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"


def _explained(error: Exception) -> str:
    hint = ""
    # JAX has several errors for a tracer where a value is needed, NumPy more.
    if isinstance(error, TypeError) and "trace" in str(error).lower():
        hint = (
            " (numbers on an axis are traced; what decides a shape or a branch must "
            "be given as `lr.static([...])`)"
        )
    return first_line(error) + hint


def _checked(out: Any, labels: Mapping[str, Any]) -> dict[str, jax.Array]:
    """A cell's outputs as arrays, or one line about what is wrong with them."""
    where = f"The cell ({describe(labels)})"
    if not isinstance(out, dict) or not out:
        raise TypeError(
            f"{where} must return a dict of scalars and arrays, such as "
            f"{{'loss': loss}}, but it returned "
            f"{'an array' if isinstance(out, jax.Array) else type(out).__name__}."
        )
    arrays: dict[str, jax.Array] = {}
    for name, value in out.items():
        if not isinstance(name, str) or not name or "/" in name or name[0] in "._":
            raise ValueError(f"{where} returned an output with the name {name!r}.")
        try:
            array = jnp.asarray(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"{where} must return scalars and arrays, but `{name}` is a "
                f"{type(value).__name__}."
            ) from None
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            raise TypeError(
                f"{where} returned a random key as `{name}`: return "
                "`jax.random.key_data(key)`."
            )
        if np.dtype(array.dtype).kind not in "biufc":
            raise TypeError(
                f"{where} returned `{name}` as {array.dtype}, which a Dataset cannot "
                "hold: cast it to float32."
            )
        arrays[name] = array
    if (status := arrays.get("status")) is not None and (
        status.ndim != 0 or not jnp.issubdtype(status.dtype, np.integer)
    ):
        raise TypeError(
            f"{where} must return `status` as one integer, an `lr.Status`, but it is "
            f"{status.dtype} with shape {status.shape}."
        )
    return arrays
