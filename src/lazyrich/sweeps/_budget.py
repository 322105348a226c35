"""How much memory a sweep may take, and what fits into it."""

import contextlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._cores import cores
from ._chunks import default_chunk

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True)
class Plan:
    """How many cells to a chunk, how many pieces at a time, and what that takes.

    Bytes: `budget` in all, `held` by results kept in memory, `piece` by one piece while
    it runs, `cell` by one cell's outputs.
    """

    chunk: int
    workers: int
    budget: int
    held: int
    piece: int
    cell: int

    def record(self) -> dict[str, int]:
        return asdict(self)

    def words(self, piece: int) -> str:
        """What was picked, in one line."""
        pieces = self.chunk // piece
        side = f"{self.workers} at a time" if self.workers > 1 else "one at a time"
        results = f", results {size(self.held)}" if self.held else ""
        return (
            f"chunks of {self.chunk} cells ({pieces} pieces of {piece}), {side}; a "
            f"piece takes {size(self.piece)}{results}, of {size(self.budget)}."
        )


def parse_memory(memory: int | str | None) -> int | None:
    """Bytes, from a number of them or a text such as "500MB", "4GB" or "4 GiB"."""
    if memory is None:
        return None
    text = str(memory).strip().lower()
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?b)?", text)
    count = 0
    if match and not isinstance(memory, bool):
        count = int(float(match[1]) * _UNITS[match[2]])
    if count < 1:
        raise ValueError(
            f"`memory` must be a number of bytes or a text such as '4GB', but it is "
            f"{memory!r}."
        )
    return count


def size(count: int | float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            break
        count /= 1024
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"


def available() -> int:
    """Memory that this process could still take, in bytes; a guess where unknown."""
    found: list[int] = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):
        # Counts what the system would give back, and is the better number on Linux.
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (line,) = [text for text in lines if text.startswith("MemAvailable")]
        found = [int(line.split()[1]) * 1024]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        with contextlib.suppress(OSError, ValueError):
            most, now = (
                int(Path(p).read_text(encoding="ascii")) for p in (limit, used)
            )
            found.append(max(most - now, 0))
    return min(found, default=4 * 2**30)


def cell_bytes(outputs: Mapping[str, Any]) -> int:
    """What one cell's outputs and its status take."""
    own = (math.prod(o.shape) * np.dtype(o.dtype).itemsize for o in outputs.values())
    return sum(own) + 1


def make_plan(
    cells: int,
    piece: int,
    *,
    piece_bytes: int,
    cell: int,
    memory: int | None,
    stored: bool,
    chunk: int | None,
    platform: str,
) -> Plan:
    """Choose chunk and workers within the budget; a `ValueError` if nothing fits.

    `memory`: the budget; None is half of what is available. Counted are the pieces
    that run (on a CPU), results on their way (twice, for they are put together) and,
    without a store, all results. `chunk`: as asked for, or a store's; None chooses.
    """
    budget = available() // 2 if memory is None else memory
    stated = "available" if memory is None else "stated"
    held = 0 if stored else cells * cell
    if held > budget:
        raise ValueError(
            f"The results take {size(held)}, more than the {size(budget)} of memory "
            f"{stated}: give `store=`, which keeps them on disk, or return less."
        )
    running = piece_bytes if platform == "cpu" else 0
    least = running + 4 * piece * cell
    if least > budget - held:
        raise ValueError(
            f"One piece of {piece} cells takes {size(least)}, more than the "
            f"{size(budget - held)} of memory {stated}: give a smaller `piece` than "
            f"{piece}, or more `memory`."
        )
    most = cores() if platform == "cpu" else 2
    workers = min(most, (budget - held) // least)

    def largest(workers: int) -> int:
        """Cells in a chunk, of which two for each worker are on their way, doubled."""
        room = budget - held - workers * running
        return room // (4 * workers * cell) // piece * piece

    if chunk is None:
        chunk = min(default_chunk(cells, piece), largest(workers))
    while workers > 1 and largest(workers) < chunk:
        workers -= 1
    if largest(workers) < chunk and memory is not None:
        raise ValueError(
            f"Chunks of {chunk} cells do not fit into {size(budget)} of memory: give a "
            f"smaller `chunk_size` (at most {max(largest(1), piece)}) or more `memory`."
        )
    return Plan(chunk, workers, budget, held, piece_bytes, cell)
