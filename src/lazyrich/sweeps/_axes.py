"""The axes of a sweep: what varies, what is traced and what is compiled."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

RESERVED = ("status", "done")
"""Names that a sweep uses itself."""


@dataclass(frozen=True)
class Static:
    """Axis values that the cell gets as they are, compiled once per combination."""

    values: tuple[Any, ...]


def static(values: Iterable[Any]) -> Static:
    """Axis values that reach the cell as Python values, compiled once for each.

    Numbers are traced by default, and one compiled program serves them all. What
    decides a shape or a branch (a width, a number of steps, a solver) cannot be
    traced: `axes={"hidden": lr.static([4, 8]), "lam": [-1.0, 1.0]}` compiles twice.
    Strings and other non-numbers are always static.
    """
    return Static(tuple(values))


@dataclass(frozen=True)
class Axis:
    """One named axis: what the cell gets, and the labels that the Dataset shows.

    `values` is an array (traced) or a tuple (static); `labels` is the coordinate:
    the numbers as they were given, or a string for each value.
    """

    name: str
    values: np.ndarray | tuple[Any, ...]
    labels: np.ndarray

    @property
    def is_static(self) -> bool:
        return isinstance(self.values, tuple)

    @property
    def dtype(self) -> str:
        """What the cell gets: a dtype, or "static"."""
        return "static" if isinstance(self.values, tuple) else str(self.values.dtype)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Grid:
    """The product of axes, in C order: the last axis varies fastest."""

    axes: tuple[Axis, ...]

    @property
    def static_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.is_static)

    @property
    def traced_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if not axis.is_static)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    @property
    def static_shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.static_axes)

    @property
    def traced_shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.traced_axes)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def traced_size(self) -> int:
        """Cells that share one compiled program."""
        return math.prod(self.traced_shape)

    @property
    def combinations(self) -> list[tuple[int, ...]]:
        """The index of every static combination: one compiled program each."""
        return list(itertools.product(*map(range, self.static_shape)))

    def static_values(self, combination: tuple[int, ...]) -> dict[str, Any]:
        """What the cell gets on the static axes."""
        pairs = zip(self.static_axes, combination, strict=True)
        return {axis.name: axis.values[i] for axis, i in pairs}

    def traced_values(self, cells: np.ndarray) -> dict[str, np.ndarray]:
        """What the cells with these flat indices get on the traced axes."""
        index = np.unravel_index(cells, self.traced_shape) if self.traced_shape else ()
        pairs = zip(self.traced_axes, index, strict=True)
        return {axis.name: np.asarray(axis.values)[i] for axis, i in pairs}

    def labels(
        self, combination: tuple[int, ...], cell: int | None = None
    ) -> dict[str, Any]:
        """The labels of one cell, or of a whole static combination."""
        index = dict(zip((a.name for a in self.static_axes), combination, strict=True))
        if cell is not None and self.traced_shape:
            where = np.unravel_index(cell, self.traced_shape)
            names = (axis.name for axis in self.traced_axes)
            index |= {n: int(i) for n, i in zip(names, where, strict=True)}
        return {
            axis.name: _python(axis.labels[index[axis.name]])
            for axis in self.axes
            if axis.name in index
        }

    def labels_at(self, index: tuple[int, ...]) -> dict[str, Any]:
        """The labels of the cell with this index on the axes."""
        pairs = zip(self.axes, index, strict=True)
        return {axis.name: _python(axis.labels[i]) for axis, i in pairs}


def describe(labels: Mapping[str, Any]) -> str:
    """`lam=-8.0, seed=3`, or "every cell" where nothing is fixed."""
    return ", ".join(f"{k}={v!r}" for k, v in labels.items()) or "every cell"


def make_grid(axes: Mapping[str, Any]) -> Grid:
    """Check the axes and lay out their product."""
    if not isinstance(axes, Mapping) or not axes:
        raise ValueError(
            "`axes` must name at least one axis: axes={'lam': [-1.0, 0.0, 1.0]}."
        )
    return Grid(tuple(_make_axis(name, values) for name, values in axes.items()))


def _make_axis(name: Any, values: Any) -> Axis:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"Axis {name!r} must be a name: it becomes an argument.")
    if name in RESERVED:
        raise ValueError(f"Axis `{name}` has a name that every sweep uses itself.")
    if isinstance(values, Static):
        given: Any = values.values
    elif isinstance(values, np.ndarray | jax.Array):
        given = _array(name, values)
    elif isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(
            f"Axis `{name}` must be a sequence of values, but it is {values!r}."
        )
    else:
        given = list(values)
    if len(given) == 0:
        raise ValueError(f"Axis `{name}` has no values.")
    if isinstance(given, np.ndarray):
        return _traced(name, given)
    if not isinstance(values, Static) and all(map(_is_number, given)):
        return _traced(name, np.asarray([_python(v) for v in given], _common(given)))
    return Axis(name, tuple(given), _labels(given))


def _array(name: str, values: np.ndarray | jax.Array) -> np.ndarray | list[Any]:
    """The array's values; a list if they are not numbers."""
    if jnp.issubdtype(values.dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"Axis `{name}` holds random keys: give integer seeds, and make the key "
            "in the cell with `jax.random.key(seed)`."
        )
    if values.ndim != 1:
        raise ValueError(
            f"Axis `{name}` must be one-dimensional, but its shape is {values.shape}."
        )
    if values.dtype == bool or jnp.issubdtype(values.dtype, np.integer):
        return np.asarray(values)
    if jnp.issubdtype(values.dtype, np.floating):
        return np.asarray(values)
    if jnp.issubdtype(values.dtype, np.complexfloating):
        raise TypeError(f"Axis `{name}` is complex: give real and imaginary parts.")
    return list(np.asarray(values))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        return True
    return isinstance(value, np.ndarray | jax.Array) and (
        value.ndim == 0
        and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        and not jnp.issubdtype(value.dtype, np.complexfloating)
    )


def _common(values: list[Any]) -> np.dtype | None:
    """The dtype of a list of numbers: theirs if all have one and the same."""
    dtypes = {getattr(value, "dtype", None) for value in values}
    return np.dtype(dtypes.pop()) if len(dtypes) == 1 and None not in dtypes else None


def _traced(name: str, given: np.ndarray) -> Axis:
    """An axis of numbers, in a dtype that JAX has now; labels stay as given."""
    if given.dtype == object:
        raise ValueError(f"Axis `{name}` holds integers that do not fit 64 bits.")
    values = given.astype(jax.dtypes.canonicalize_dtype(given.dtype))
    if given.dtype.kind in "iu" and (values != given).any():
        raise ValueError(
            f"Axis `{name}` holds integers that do not fit {values.dtype}: enable "
            "64-bit types with `jax.config.update('jax_enable_x64', True)`."
        )
    # Half-precision types that NumPy does not know cannot be stored as labels.
    return Axis(name, values, given if given.dtype.kind in "biuf" else _wide(given))


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def _labels(values: tuple[Any, ...] | list[Any]) -> np.ndarray:
    """Numbers as they are, and a string for everything else."""
    if all(isinstance(v, bool | np.bool_) for v in values) or all(
        _is_number(v) and not isinstance(v, bool | np.bool_) for v in values
    ):
        numbers = np.asarray([_python(v) for v in values])
        if numbers.dtype.kind in "biuf":
            return numbers
    names = [_name(value) for value in values]
    pairs = zip(names, values, strict=True)
    for name in {name for name, value in pairs if not isinstance(value, str)}:
        twins = [i for i, other in enumerate(names) if other == name]
        if len(twins) > 1:
            for count, i in enumerate(twins):
                names[i] = f"{name}#{count}"
    return np.asarray(names, dtype=np.str_)


def _name(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    # Addresses would make every process's labels different.
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(value).split()))


def _python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
