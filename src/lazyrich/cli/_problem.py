"""The task that the options describe."""

import csv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from ..tasks import LinearTask, hierarchy, random_regression
from ._options import Sweep

_OWN: Mapping[str, tuple[str, ...]] = {
    "hierarchy": ("levels",),
    "random": ("inputs", "outputs", "samples"),
    "data": ("targets",),
}
"""Options that belong to one kind of task only."""


def make_task(options: Sweep) -> tuple[LinearTask, str]:
    """The task, and what to call it. `ValueError` or `OSError` say what is wrong."""
    if options.data is not None and options.task is not None:
        raise ValueError("give --task or --data, not both.")
    kind = "data" if options.data is not None else options.task or "hierarchy"
    if kind not in ("hierarchy", "random") and options.data is None:
        raise ValueError(f"--task: {kind!r} is unknown: it is hierarchy or random.")
    for other, names in _OWN.items():
        for name in names:
            if other != kind and getattr(options, name) is not None:
                wanted = "--data" if other == "data" else f"--task={other}"
                raise ValueError(f"--{name} belongs to {wanted}.")
    if options.data is not None:
        x, y = read_data(Path(options.data), options.targets)
        try:
            return LinearTask.from_data(x, y), str(options.data)
        except ValueError as error:
            raise ValueError(f"--data: {options.data}: {error}") from None
    if kind == "hierarchy":
        levels = 3 if options.levels is None else options.levels
        if not 1 <= levels <= 10:
            raise ValueError(f"--levels must be from 1 to 10, but it is {levels}.")
        return hierarchy(levels), f"hierarchy of {levels} levels"
    inputs = 5 if options.inputs is None else options.inputs
    outputs = 5 if options.outputs is None else options.outputs
    samples = 100 if options.samples is None else options.samples
    task = random_regression(jax.random.key(0), inputs, outputs, samples)
    return task, "random linear teacher"


def read_data(path: Path, targets: str | None) -> tuple[np.ndarray, np.ndarray]:
    """x (n, inputs) and y (n, outputs), float64, from a .npz or .csv file."""
    if not path.is_file():
        raise FileNotFoundError(f"--data: there is no file {path}.")
    if path.suffix == ".npz":
        if targets is not None:
            raise ValueError("--targets belongs to a .csv; a .npz has its y.")
        x, y = _read_npz(path)
    elif path.suffix == ".csv":
        x, y = _read_csv(path, "1" if targets is None else targets)
    else:
        raise ValueError(f"--data: {path} must be a .npz or a .csv file.")
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(
            f"--data: x must be (n, inputs) and y (n, outputs) or (n,) with one n, but "
            f"{path} has {x.shape} and {y.shape}."
        )
    return x, y


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no .npz file")
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files if name in ("x", "y")}
            names = ", ".join(file.files) or "nothing"
    except (ValueError, OSError) as error:
        raise ValueError(
            f"--data: {path} cannot be read: {str(error).rstrip('.')}."
        ) from None
    if missing := [name for name in ("x", "y") if name not in arrays]:
        raise ValueError(
            f"--data: {path} has no array `{missing[0]}`: it must hold x and y, but it "
            f"holds {names}."
        )
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"--data: `{name}` in {path} is {array.dtype}, no number.")
    x, y = (arrays[name].astype(np.float64) for name in ("x", "y"))
    return x, y[:, None] if y.ndim == 1 else y


def _read_csv(path: Path, targets: str) -> tuple[np.ndarray, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    header = None
    if rows and not all(map(_is_number, rows[0])):
        header, rows = [name.strip() for name in rows[0]], rows[1:]
    if not rows:
        raise ValueError(f"--data: {path} has no samples.")
    width = len(rows[0])
    first = 1 if header is None else 2
    for line, row in enumerate(rows, start=first):
        if len(row) != width or not all(map(_is_number, row)):
            raise ValueError(
                f"--data: line {line} of {path} must be {width} numbers, but it is "
                f"{','.join(row)[:60]!r}."
            )
    table = np.asarray(rows, dtype=np.float64)
    picked = _columns(path, targets, header, width)
    rest = [column for column in range(width) if column not in picked]
    if not rest:
        raise ValueError(f"--targets leaves no inputs: {path} has {width} columns.")
    return table[:, rest], table[:, picked]


def _columns(
    path: Path, targets: str, header: list[str] | None, width: int
) -> list[int]:
    words = [word.strip() for word in targets.split(",")]
    if len(words) == 1 and words[0].isdigit():
        count = int(words[0])
        if not 1 <= count <= width:
            raise ValueError(
                f"--targets: {path} has {width} columns, so {count} cannot be targets."
            )
        return list(range(width - count, width))
    for word in words:
        if word.lstrip("+-").isdigit():
            raise ValueError(f"--targets must be a count ≥ 1 or names, not {word}.")
        if header is None:
            raise ValueError(f"--targets: {path} has no header that names {word!r}.")
        if word not in header:
            raise ValueError(
                f"--targets: {path} has no column {word!r}: it has {', '.join(header)}."
            )
    assert header is not None
    return [header.index(word) for word in words]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
