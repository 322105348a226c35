"""What a sweep remembers of itself: what decides its results, and how they were made.

The configuration is what must agree before a store is continued. Everything is plain
JSON: names, numbers, strings.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._axes import Axis, Column, describe
from ._program import Program
from ._template import Template

PACKAGES = ("lazyrich", "jax", "jaxlib", "equinox", "diffrax", "optax")
"""Packages that decide the bits of a result."""
FORM = {
    "config": dict,
    "piece": int,
    "chunk_size": int,
    "order": list,
    "memory": dict,
    "messages": dict,
    "runs": list,
    "axis": dict,
    "output": dict,
    "coordinate": dict,
    "cell": dict,
}
"""What a record, or its configuration, must hold before it is relied on."""


def new_record(
    config: Mapping[str, Any],
    chunk: int,
    order: Sequence[str],
    memory: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a sweep of which nothing has run yet.

    `config`: what decides the results (`cell` holds fingerprints). `order`: the traced
    axes as cells are counted, slowest first. `memory`: bytes of one piece, of one
    cell's outputs and of the budget, and what was made of them. `runs`: for each
    call that computed something, its cells and seconds: `trace_seconds` and
    `compile_seconds` summed over programs, `run_seconds` over chunks, which run side by
    side within `wall_seconds`. `messages`: what cells raised while they ran. `failed`
    counts cells; `failures` lists the first 1,000, one for each cell, or for each
    static combination whose code raised.
    """
    return {
        "config": dict(config),
        "piece": config["piece"],
        "chunk_size": chunk,
        "order": list(order),
        "memory": dict(memory),
        "messages": {},
        "runs": [],
        "failed": 0,
        "failures": [],
        "remedies": {},
    }


def read_record(text: Any) -> dict[str, Any]:
    """The record of a store from its attribute; `ValueError` if it has another form."""
    record = json.loads(str(text))
    if not isinstance(record, dict):
        raise ValueError("the sweep's record is no JSON object")
    config = record.get("config")
    parts = {**record, **(config if isinstance(config, dict) else {})}
    for name, kind in FORM.items():
        if not isinstance(parts.get(name), kind):
            raise ValueError(f"the sweep's record has no proper {name!r}")
    return record


def label_names(config: Mapping[str, Any]) -> list[str]:
    """Every coordinate of a configuration: labels of axes, and of outputs' own."""
    names: list[str] = []
    for axis, facts in config["axis"].items():
        zipped = all(isinstance(value, Mapping) for value in facts.values())
        names += list(facts) if zipped else [axis]
    return [*names, *config["coordinate"]]


def configuration(
    template: Template,
    programs: Sequence[Program],
    piece: int,
    device: Any,
) -> dict[str, Any]:
    """Everything that decides the results, apart from the programs themselves."""
    grid = template.grid
    outputs = {
        name: {
            "dims": list(output.dims),
            "shape": list(output.shape),
            "dtype": str(output.dtype),
        }
        for name, output in template.outputs.items()
    }
    return {
        "axes": list(grid.names),
        "axis": {axis.name: _axis(axis) for axis in grid.axes},
        "output": outputs,
        "coordinate": {name: _digest(v) for name, v in template.coords.items()},
        "piece": piece,
        "version": {name: metadata.version(name) for name in PACKAGES},
        "device": f"{device.platform}: {device.device_kind}",
        "dtype": str(jnp.zeros(()).dtype),
        "EQX_ON_ERROR": os.environ.get("EQX_ON_ERROR", "raise"),
        "cell": {describe(program.labels): program.fingerprint for program in programs},
    }


def merged(there: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """One process's record, with the runs and messages of others in the store."""
    runs = [*there["runs"], *(run for run in own["runs"] if run not in there["runs"])]
    messages = {**there["messages"], **own["messages"]}
    return {**own, "runs": runs, "messages": messages}


def disagreement(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between a store's configuration and that of a call, in words.

    A combination whose code raised when the store was laid out may have changed since.
    """
    then: Mapping[str, Any] = stored["cell"]
    old = {
        **stored,
        "cell": {k: v or now["cell"].get(k) for k, v in then.items()},
    }
    return _differences(old, now)


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    changed: list[str] = []
    for key in dict.fromkeys([*stored, *now]):
        old, new = stored.get(key), now.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += [f"{key} {text}" for text in _differences(old, new)]
        elif old is None or new is None:
            found.append(f"{key} (only {'now' if old is None else 'in the store'})")
        elif _is_digest(old) and _is_digest(new):
            changed.append(f"{key} (changed)")
        else:
            found.append(f"{key} ({old} in the store, {new} now)")
    return found or changed


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _axis(axis: Axis) -> dict[str, Any]:
    """One column's facts, or those of every column that is zipped, by its name."""
    if axis.is_zipped:
        return {column.name: _column(column) for column in axis.columns}
    return _column(axis.columns[0])


def _column(column: Column) -> dict[str, Any]:
    labels = column.labels
    return {
        "size": len(labels),
        "first": str(labels[0]),
        "last": str(labels[-1]),
        "dtype": column.dtype,
        "values": _digest(labels if column.is_static else np.asarray(column.values)),
    }


def _digest(values: np.ndarray) -> str:
    content = json.dumps(values.tolist()) if values.dtype.kind == "U" else ""
    data = content.encode() if content else np.ascontiguousarray(values).tobytes()
    return hashlib.sha256(data).hexdigest()
