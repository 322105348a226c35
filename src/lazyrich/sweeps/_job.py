"""The work of one call: chunks that are missing, computed, judged, kept and counted."""

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..trajectory import Status
from ._axes import Grid, describe
from ._chunks import Chunk
from ._compute import Done, on_a_device
from ._engine import Call, Engine, completed
from ._memory import Memory
from ._outcome import LISTED, Failure, SweepError, listing
from ._program import CellError, Outputs, Program
from ._progress import Progress
from ._remote import Task, remote_call
from ._store import Store
from ._template import Template


def trace(
    cell: Callable[..., Any],
    grid: Grid,
    piece: int,
    device: Any,
    on_error: str,
) -> tuple[list[Program], list[Failure]]:
    """One program per static combination, and those whose code raised."""
    programs: list[Program] = []
    failures: list[Failure] = []
    first: BaseException | None = None
    for combination in grid.combinations:
        program = Program(cell, grid, combination, piece, device)
        programs.append(program)
        try:
            program.trace()
        except CellError as error:
            failure = Failure(program.labels, Status.error, str(error))
            if on_error == "raise":
                raise failure.error() from error.__cause__
            failures.append(failure)
            first = first or error.__cause__
    if len(failures) == len(programs):
        raise failures[0].error() from first
    return programs, failures


class Job:
    """Runs what is missing of a sweep, and keeps its record up to date."""

    def __init__(
        self,
        template: Template,
        programs: Sequence[Program],
        chunks: Sequence[Chunk],
        results: Memory | Store,
        *,
        raising: bool,
    ):
        self._template, self._results = template, results
        self._programs = {program.combination: program for program in programs}
        self._chunks = chunks
        self._done = results.done().copy()
        self._raising = raising
        self._failed = self._failed_before()

    def cells_done(self) -> int:
        """Cells that an earlier call has computed."""
        return sum(c.cells for c in self._chunks if self._done[c.number])

    def _failed_before(self) -> int:
        if not isinstance(self._results, Store):
            return 0
        # Chunk by chunk: what is damaged and to be computed anew cannot be read.
        store, there = self._results, [c for c in self._chunks if self._done[c.number]]
        done = [store.status_of(chunk) for chunk in there]
        return int(sum((s > Status.not_reached).sum() for s in done))

    def run(
        self, engine: Engine, devices: Sequence[Any], cell: bytes, bar: Progress
    ) -> None:
        """Compute, keep and mark every missing chunk.

        `cell`: what a remote engine's workers get, pickled (function, grid).
        """
        start = time.perf_counter()
        missing = [c for c in self._chunks if not self._done[c.number]]
        left = Counter(chunk.combination for chunk in missing)
        broken = [c for c in missing if not self._programs[c.combination].outputs]
        for chunk in broken:
            self._results.write(chunk, self._nothing(chunk))
            self._failed += chunk.cells
            bar.advance(chunk.cells, self._failed)
        todo = [c for c in missing if self._programs[c.combination].outputs]
        computed, ran = 0, 0.0
        if engine.remote:
            calls = self._remote_calls(todo, devices[0].platform, cell)
        else:
            calls = self._calls(todo, devices, engine.workers)
        for done in self._answers(engine, calls):
            if done is None:
                continue
            ran += done.seconds
            computed += 0 if done.known else done.chunk.cells
            self._keep(done)
            bar.advance(done.chunk.cells, self._failed)
            combination = done.chunk.combination
            left[combination] -= 1
            if not left[combination]:
                self._programs[combination].release()
        if computed:
            programs = self._programs.values()
            self._results.record["runs"].append(
                {
                    "cells": computed,
                    "trace_seconds": sum(p.seconds["trace"] for p in programs),
                    "compile_seconds": sum(p.seconds["compile"] for p in programs),
                    "run_seconds": ran,
                    "wall_seconds": time.perf_counter() - start,
                }
            )

    def _answers(self, engine: Engine, calls: Iterator[Call]) -> Iterator[Any]:
        """What the engine returns; its own breakdown is a `SweepError`."""
        answers = completed(engine.executor, calls, ahead=2 * engine.workers)
        while True:
            try:
                yield next(answers)
            except StopIteration:
                return
            except (OSError, ValueError, TypeError):
                raise
            except Exception as error:
                if not engine.remote:
                    raise
                raise SweepError(
                    f"The executor broke ({type(error).__name__}: {error}). Chunks "
                    "that were finished are kept in the store, if there is one: the "
                    "same call computes the rest.",
                    Status.error,
                    {},
                ) from error

    def conclude(self, raised: Sequence[Failure]) -> str:
        """Record all failures, earlier calls' included, and say them in words."""
        status = self._results.status()
        failed = (status > Status.not_reached) & (status < Status.pending)
        failures = list(raised)
        known = {describe(f.labels) for f in raised}
        messages = self._results.record["messages"]
        grid = self._template.grid
        for index in np.argwhere(failed):
            labels = grid.labels_at(tuple(index.tolist()))
            fixed = {
                c.name: labels[c.name] for a in grid.static_axes for c in a.columns
            }
            if describe(fixed) in known:
                continue
            if len(failures) == LISTED:
                break
            message = messages.get(describe(labels), "")
            failures.append(Failure(labels, Status(int(status[*index])), message))
        count = int(failed.sum())
        self._results.record["failed"] = count
        self._results.record["failures"] = [f.record() for f in failures]
        kinds = {f.status for f in failures}
        self._results.record["remedies"] = {k.name: k.remedy for k in sorted(kinds)}
        self._results.save_record()
        return listing(failures, count, grid.size) if count else ""

    def _calls(
        self, todo: Sequence[Chunk], devices: Sequence[Any], workers: int
    ) -> Iterator[Call]:
        """Chunks in order; each program is compiled one combination ahead."""
        order = list(dict.fromkeys(chunk.combination for chunk in todo))
        ahead = iter(order)
        free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Two at a time for each device hide the transfers of an accelerator.
        for _ in range(max(2, -(-workers // len(devices)))):
            for device in devices:
                free.put(device)
        compute = on_a_device(free.get, free.put)
        store = self._results if isinstance(self._results, Store) else None

        def compile_next() -> Iterator[Call]:
            if (combination := next(ahead, None)) is not None:
                yield self._programs[combination].compile, ()

        yield from compile_next()
        for combination in order:
            yield from compile_next()
            for chunk in todo:
                if chunk.combination == combination:
                    yield compute, (self._programs[combination], chunk, store)

    def _remote_calls(
        self, todo: Sequence[Chunk], platform: str, cell: bytes
    ) -> Iterator[Call]:
        store = self._results.path if isinstance(self._results, Store) else None
        for chunk in todo:
            program = self._programs[chunk.combination]
            yield remote_call(
                Task(
                    cell,
                    program.piece,
                    program.x64,
                    platform,
                    program.fingerprint,
                    chunk,
                    store,
                    self._raising,
                )
            )

    def _keep(self, done: Done) -> None:
        """Write one chunk; its failures stop the sweep if that was asked for."""
        grid, record = self._template.grid, self._results.record
        chunk, status, messages = done.chunk, done.status, done.messages
        bad = np.flatnonzero(status > Status.not_reached)
        if len(bad) and self._raising and not done.known:
            cell = chunk.start + int(bad[0])
            labels = grid.labels(chunk.combination, cell)
            kind = Status(int(status[bad[0]]))
            raise Failure(labels, kind, messages.get(cell, "")).error()
        self._failed += len(bad)
        if not (done.known or done.written):
            self._results.write(chunk, {**done.outputs, "status": status})
        if messages:
            for cell, text in messages.items():
                labels = grid.labels(chunk.combination, cell)
                record["messages"][describe(labels)] = text
            self._results.save_record()
        if not (done.known or done.written):
            self._results.mark(chunk)
        self._done[chunk.number] = True

    def _nothing(self, chunk: Chunk) -> Outputs:
        """What the cells hold of a combination whose code raised."""
        arrays = {
            name: np.full((chunk.cells, *output.shape), output.fill, output.dtype)
            for name, output in self._template.outputs.items()
        }
        return {**arrays, "status": np.full(chunk.cells, Status.error, np.int8)}
