"""Chunks: the runs of cells that are computed, transferred and written together."""

import itertools
import math
from dataclasses import dataclass

from ._axes import Grid

UPDATES = 20
"""Chunks that a small sweep is cut into: the grain of its progress bar."""
PIECES = 64
"""Pieces that a default chunk holds at most."""


def default_piece(platform: str) -> int:
    """Cells in one compiled batch: fixed for a platform, never a matter of memory."""
    return 64 if platform == "cpu" else 4096


def default_chunk(cells: int, piece: int) -> int:
    """About twenty chunks, in whole pieces, of at most 64 pieces."""
    return piece * min(max(math.ceil(cells / UPDATES / piece), 1), PIECES)


@dataclass(frozen=True)
class Chunk:
    """Cells start … stop (flat, C order) of one static combination.

    `number` counts chunks through the whole sweep. `region` is the part of the axes
    that the chunk fills, if it was cut along them (in the order of the Dataset), and
    `lengths` its size along the traced ones (in the order in which cells are counted).
    """

    number: int
    combination: tuple[int, ...]
    start: int
    stop: int
    region: tuple[slice, ...] = ()
    lengths: tuple[int, ...] = ()

    @property
    def cells(self) -> int:
        return self.stop - self.start


def block_shape(shape: tuple[int, ...], chunk: int) -> tuple[int, ...]:
    """The largest block of at most `chunk` cells that is contiguous in C order.

    It spans whole trailing axes, part of one axis, and one index of those before it:
    shape (33, 2, 8) and chunk 64 give (4, 2, 8).
    """
    block = [1] * len(shape)
    room = chunk
    for axis in reversed(range(len(shape))):
        block[axis] = min(shape[axis], room)
        if block[axis] < shape[axis]:
            break
        room //= shape[axis]
    return tuple(max(size, 1) for size in block)


def runs(grid: Grid, chunk: int) -> list[Chunk]:
    """Chunks of exactly `chunk` cells in C order (the last one may be shorter)."""
    ranges = [
        (start, min(start + chunk, grid.traced_size))
        for start in range(0, grid.traced_size, chunk)
    ]
    pairs = itertools.product(grid.combinations, ranges)
    return [Chunk(n, combination, *span) for n, (combination, span) in enumerate(pairs)]


def blocks(grid: Grid, block: tuple[int, ...]) -> list[Chunk]:
    """Chunks that are blocks of the traced axes, one for each chunk of a store."""
    shape = grid.traced_shape
    cuts = [
        [slice(i, min(i + b, n)) for i in range(0, n, b)]
        for n, b in zip(shape, block, strict=True)
    ]
    chunks: list[Chunk] = []
    for combination in grid.combinations:
        start = 0
        for traced in itertools.product(*cuts):
            stop = start + math.prod(s.stop - s.start for s in traced)
            region = grid.region(combination, traced)
            lengths = tuple(s.stop - s.start for s in traced)
            chunks.append(Chunk(len(chunks), combination, start, stop, region, lengths))
            start = stop
    return chunks
