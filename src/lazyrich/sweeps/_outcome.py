"""How each cell ended, and what to say about those that failed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..trajectory import Status
from ._axes import describe

LISTED = 1000
"""Failures kept one by one in a Dataset's attributes; the rest is a count."""


class SweepError(RuntimeError):
    """A cell failed, and `on_error="raise"` was asked for, or none could be run.

    The message names the cell, says why, and what to change. `status` is the cell's
    `Status` and `labels` its place on the axes (the static ones only, if the cell's
    code itself raised an exception, which is then the `__cause__`).
    """

    def __init__(self, message: str, status: Status, labels: Mapping[str, Any]):
        super().__init__(message)
        self.status = status
        self.labels = dict(labels)

    def __reduce__(self):
        return type(self), (str(self), self.status, self.labels)


@dataclass(frozen=True)
class Failure:
    """One failed cell, or one static combination whose code raised."""

    labels: dict[str, Any]
    status: Status
    message: str = ""

    def record(self) -> dict[str, Any]:
        """A form that JSON can hold."""
        labels = {k: _plain(v) for k, v in self.labels.items()}
        return {
            "labels": labels,
            "status": self.status.name,
            "message": self.message,
        }

    def error(self) -> SweepError:
        """The exception that reports this failure alone."""
        where, name = describe(self.labels), self.status.name
        if self.message:
            text = f"The cell's code raised for {where}: {self.message}"
        else:
            text = f"The cell {where} failed ({name}). {self.status.remedy}"
        return SweepError(text, self.status, self.labels)


def judge(
    outputs: dict[str, np.ndarray], raised: Iterable[int], cells: int
) -> np.ndarray:
    """The status of each cell, int8 (cells,); removes `status` from the outputs.

    A returned status decides alone; without one, a float that is not finite makes the
    cell `nonfinite`. Cells that raised are `error`. A failed cell's floats become NaN
    in place; its integers and flags stay as they are.
    """
    given = outputs.pop("status", None)
    if given is None:
        bad = np.zeros(cells, dtype=bool)
        for array in outputs.values():
            if array.dtype.kind in "fc":
                bad |= ~np.isfinite(array).reshape(cells, -1).all(axis=1)
        status = np.where(bad, Status.nonfinite, Status.ok).astype(np.int8)
    else:
        unknown = (given < Status.ok) | (given >= Status.pending)
        if unknown.any():
            raise ValueError(
                f"A cell returned status {given[unknown][0]}: it must be an "
                "`lr.Status` from 0 (ok) to 6 (error)."
            )
        status = given.astype(np.int8)
    status[list(raised)] = Status.error
    failed = status > Status.not_reached
    for name, array in outputs.items():
        if array.dtype.kind in "fc" and failed.any():
            outputs[name] = np.where(
                failed.reshape(-1, *[1] * (array.ndim - 1)),
                np.array(np.nan, array.dtype),
                array,
            )
    return status


def listing(failures: Sequence[Failure], failed: int, cells: int) -> str:
    """Every kind of failure with its labels (the first few) and its remedy."""
    noun = "cell" if cells == 1 else "cells"
    lines = [f"{failed} of {cells} {noun} failed; their floats are NaN."]
    kinds = dict.fromkeys((f.status, f.message) for f in failures)
    for status, message in kinds:
        labels = [
            describe(f.labels)
            for f in failures
            if (f.status, f.message) == (status, message)
        ]
        shown = "; ".join(labels[:6])
        more = f"; and {len(labels) - 6} more" if len(labels) > 6 else ""
        lines.append(f"  {status.name}: {shown}{more}")
        lines.append(f"    {message or status.remedy}")
    if failed > len(failures) and len(failures) == LISTED:
        lines.append(f"  (only the first {LISTED} are listed)")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
