"""`lazyrich show` and `lazyrich plot`: what a store holds, in words and as a figure."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..sweeps import open as open_store
from ..trajectory import Status
from ._options import Plot, Show
from ._report import aligned, picked
from ._sweep import figure_path

COLUMNS = 5
"""Variables that the table shows."""
FAILURES = 10
"""Failures that are listed."""


def show(options: Show) -> int:
    """Print a store; the exit code."""
    ds = open_store(options.store)
    print(describe_store(options.store, ds))
    return 0


def plot(options: Plot) -> int:
    """Draw a store; the exit code."""
    from ..plots import overview

    figure = figure_path(options.figure, options.store)
    if figure is None:
        raise ValueError("--figure: say where the figure goes.")
    names = None
    if options.variables is not None:
        names = [word.strip() for word in options.variables.split(",")]
    ds = open_store(options.store).load()
    picture = overview(ds, names)
    figure.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(figure, dpi=200)
    print(f"Figure: {figure}.")
    return 0


def describe_store(path: str, ds: xr.Dataset) -> str:
    """Axes, progress, failures, how it was made, and a small table."""
    record = json.loads(ds.attrs["lazyrich"])
    config = record["config"]
    dims = config["axes"]
    status = np.asarray(ds["status"].values)
    done = int((status != Status.pending).sum())
    versions = config["version"]
    lines = [
        f"{path}: {status.size} cells in {config['dtype']}, on {config['device']}",
        *(f"  {text}" for name in dims for text in _axis(ds, name, config["axis"])),
        f"  outputs  {_outputs(ds, config['output'])}",
        f"  done     {done} of {status.size} cells ({done / status.size:.0%}), in "
        f"chunks of {record['chunk_size']} and pieces of {record['piece']}",
        f"  time     {_timings(record['runs'])}",
        f"  made by  {', '.join(f'{k} {v}' for k, v in versions.items())}",
        *_failures(record, status),
        "",
    ]
    return "\n".join([*lines, *_table(ds, dims)])


def _axis(ds: xr.Dataset, name: str, axis: Mapping[str, Any]) -> list[str]:
    """One line for each label along an axis."""
    found = [str(k) for k, c in ds.coords.items() if c.dims == (name,)] or [name]
    texts = []
    for label in found:
        facts = axis[name].get(label, axis[name])
        zipped = f" (along {name})" if label != name else ""
        count = facts["size"]
        span = str(facts["first"])
        if count > 1:
            dots = ", " if count == 2 else " … "
            span += f"{dots}{facts['last']} ({count})"
        texts.append(f"{label.ljust(8)} {span}{zipped}")
    return texts


def _outputs(ds: xr.Dataset, outputs: Mapping[str, Any]) -> str:
    words = []
    for name in outputs:
        own = [str(d) for d in outputs[name]["dims"]]
        words.append(f"{name} ({', '.join(own)})" if own else name)
    added = [str(name) for name in ds.data_vars if name not in outputs]
    return ", ".join([*words, *(n for n in added if n != "status")])


def _timings(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return "no call has finished yet"
    seconds = {
        k: sum(run[f"{k}_seconds"] for run in runs) for k in ("wall", "compile", "run")
    }
    calls = f" in {len(runs)} calls" if len(runs) > 1 else ""
    return (
        f"{seconds['wall']:.3g} s{calls} (compiling {seconds['compile']:.3g} s, "
        f"running {seconds['run']:.3g} s over all threads)"
    )


def _failures(record: Mapping[str, Any], status: np.ndarray) -> list[str]:
    kinds = [k for k in Status if Status.not_reached < k < Status.pending]
    counts = {k.name: int((status == k).sum()) for k in kinds}
    total = sum(counts.values())
    if not total:
        return ["  failed   none"]
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines = [f"  failed   {total} ({said})"]
    for failure in record["failures"][:FAILURES]:
        labels = ", ".join(f"{k}={v!r}" for k, v in failure["labels"].items())
        message = f": {failure['message']}" if failure.get("message") else ""
        lines.append(f"    {labels or 'every cell'}: {failure['status']}{message}")
    if total > FAILURES and len(record["failures"]) > FAILURES:
        lines.append("    … (all are in ds.attrs['lazyrich'])")
    lines += [f"  {name}: {remedy}" for name, remedy in record["remedies"].items()]
    return lines


def _table(ds: xr.Dataset, dims: list[str]) -> list[str]:
    """Means of the scalar variables along the axis that says most, at nine values."""
    scalars = [
        str(name)
        for name, data in ds.data_vars.items()
        if set(data.dims) <= set(dims) and data.dtype.kind == "f"
    ][:COLUMNS]
    numeric = [d for d in dims if d in ds.coords and ds[d].dtype.kind in "iuf"]
    if not scalars or not (numeric or dims):
        return []
    along = (
        "lam" if "lam" in numeric else max(numeric or dims, key=ds.sizes.__getitem__)
    )
    others = [d for d in dims if d != along]
    data = ds[scalars].load()
    rows = [[along, *scalars]]
    for i in picked(ds.sizes[along]):
        label = data[along].values[i] if along in data.coords else i
        row = [f"{label:g}" if isinstance(label, int | float | np.number) else label]
        for name in scalars:
            one = data[name].isel({along: i} if along in data[name].dims else {})
            whole = np.asarray(one.values)
            kept = whole[np.isfinite(whole)]
            mean = float(kept.mean()) if kept.size else math.nan
            row.append("–" if math.isnan(mean) else f"{mean:.4g}")
        rows.append([str(word) for word in row])
    over = f"Means over {', '.join(others)}, without failed cells." if others else ""
    return [*aligned(rows), *([over] if over else [])]
