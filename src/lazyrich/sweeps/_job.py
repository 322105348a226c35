"""The work of one call: chunks that are missing, computed, judged, kept and counted."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .._cores import cores
from ..trajectory import Status
from ._axes import Grid, describe
from ._chunks import Chunk
from ._engine import Call, completed, engine
from ._memory import Memory
from ._outcome import LISTED, Failure, judge, listing
from ._program import CellError, Outputs, Program
from ._progress import Progress
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
        if not self._done.any():
            return 0
        status = self._results.status()
        done = [status[c.region] for c in self._chunks if self._done[c.number]]
        return int(sum((s > Status.not_reached).sum() for s in done))

    def run(self, executor: Any, platform: str, bar: Progress) -> None:
        """Compute, keep and mark every missing chunk."""
        start = time.perf_counter()
        missing = [c for c in self._chunks if not self._done[c.number]]
        left = Counter(chunk.combination for chunk in missing)
        broken = [c for c in missing if not self._programs[c.combination].outputs]
        for chunk in broken:
            self._results.write(chunk, self._nothing(chunk))
            self._failed += chunk.cells
            bar.advance(chunk.cells, self._failed)
        todo = [c for c in missing if self._programs[c.combination].outputs]
        before = self.cells_done()
        ran = 0.0
        with engine(executor, platform) as pool:
            for item in completed(pool, self._calls(todo), ahead=2 * cores()):
                if item is None:
                    continue
                chunk, outputs, status, messages, seconds = item
                ran += seconds
                self._keep(chunk, outputs, status, messages)
                bar.advance(chunk.cells, self._failed)
                left[chunk.combination] -= 1
                if not left[chunk.combination]:
                    self._programs[chunk.combination].release()
        if todo:
            programs = self._programs.values()
            self._results.record["runs"].append(
                {
                    "cells": self.cells_done() - before,
                    "trace_seconds": sum(p.seconds["trace"] for p in programs),
                    "compile_seconds": sum(p.seconds["compile"] for p in programs),
                    "run_seconds": ran,
                    "wall_seconds": time.perf_counter() - start,
                }
            )

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
            fixed = {a.name: labels[a.name] for a in grid.static_axes}
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

    def _calls(self, todo: Sequence[Chunk]) -> Iterator[Call]:
        """Chunks in order; each program is compiled one combination ahead."""
        order = list(dict.fromkeys(chunk.combination for chunk in todo))
        ahead = iter(order)

        def compile_next() -> Iterator[Call]:
            if (combination := next(ahead, None)) is not None:
                yield self._programs[combination].compile, ()

        yield from compile_next()
        for combination in order:
            yield from compile_next()
            for chunk in todo:
                if chunk.combination == combination:
                    yield compute, (self._programs[combination], chunk)

    def _keep(
        self,
        chunk: Chunk,
        outputs: Outputs,
        status: np.ndarray,
        messages: dict[int, str],
    ) -> None:
        """Write one chunk; its failures stop the sweep if that was asked for."""
        grid, record = self._template.grid, self._results.record
        bad = np.flatnonzero(status > Status.not_reached)
        if len(bad) and self._raising:
            cell = chunk.start + int(bad[0])
            labels = grid.labels(chunk.combination, cell)
            kind = Status(int(status[bad[0]]))
            raise Failure(labels, kind, messages.get(cell, "")).error()
        self._failed += len(bad)
        self._results.write(chunk, {**outputs, "status": status})
        if messages:
            for cell, text in messages.items():
                labels = grid.labels(chunk.combination, cell)
                record["messages"][describe(labels)] = text
            self._results.save_record()
        self._results.mark(chunk)
        self._done[chunk.number] = True

    def _nothing(self, chunk: Chunk) -> Outputs:
        """What the cells hold of a combination whose code raised."""
        arrays = {
            name: np.full((chunk.cells, *output.shape), output.fill, output.dtype)
            for name, output in self._template.outputs.items()
        }
        return {**arrays, "status": np.full(chunk.cells, Status.error, np.int8)}


def compute(
    program: Program, chunk: Chunk
) -> tuple[Chunk, Outputs, np.ndarray, dict[int, str], float]:
    """One chunk's outputs (failed floats NaN), statuses, messages and seconds."""
    program.compile()
    start = time.perf_counter()
    outputs, messages = program.run(chunk.start, chunk.stop)
    status = judge(outputs, (i - chunk.start for i in messages), chunk.cells)
    return chunk, outputs, status, messages, time.perf_counter() - start
