"""The axes of a sweep: what varies, what is traced and what is compiled."""

import itertools
import keyword
import math
import re
from collections.abc import Iterable, Mapping, Sequence
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
class Zipped:
    """Values that vary together along one axis."""

    columns: Mapping[str, Any]


def zipped(**columns: Any) -> Zipped:
    """One axis on which several labels vary together, in place of their product.

    `axes={"start": lr.zipped(lam=[-1.0, 0.0, 2.0], alpha=[0.1, 0.3, 1.0])}` makes an
    axis `start` of three points; the cell gets `lam` and `alpha`, and the Dataset has
    both as coordinates along `start`. The columns are what axes may be, of one length.
    If one of them is static, every point of the axis is compiled by itself.
    """
    return Zipped(dict(columns))


@dataclass(frozen=True)
class Column:
    """One label: what the cell gets, and what the Dataset shows.

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


@dataclass(frozen=True)
class Axis:
    """One dimension of the sweep: one column of its own name, or several zipped."""

    name: str
    columns: tuple[Column, ...]

    @property
    def is_static(self) -> bool:
        return any(column.is_static for column in self.columns)

    @property
    def is_zipped(self) -> bool:
        return [column.name for column in self.columns] != [self.name]

    def labels(self, index: int) -> dict[str, Any]:
        """The labels of one point."""
        return {c.name: _python(c.labels[index]) for c in self.columns}

    def __len__(self) -> int:
        return len(self.columns[0].labels)


@dataclass(frozen=True)
class Grid:
    """The product of axes, in C order: the last axis varies fastest.

    Cells that share a compiled program are counted along the traced axes in the order
    `order` (positions among the traced axes as they were given), which decides what
    cells run side by side, but not how results are laid out.
    """

    axes: tuple[Axis, ...]
    order: tuple[int, ...] = ()

    @property
    def static_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.is_static)

    @property
    def traced_axes(self) -> tuple[Axis, ...]:
        """The axes that cells of one program are counted along, slowest first."""
        given = tuple(axis for axis in self.axes if not axis.is_static)
        return tuple(given[i] for i in self.order) if self.order else given

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions."""
        return tuple(axis.name for axis in self.axes)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every label that the cell gets."""
        return tuple(column for axis in self.axes for column in axis.columns)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what the cell gets."""
        return tuple(column.name for column in self.columns)

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
        return {c.name: c.values[i] for axis, i in pairs for c in axis.columns}

    def traced_values(self, cells: np.ndarray) -> dict[str, np.ndarray]:
        """What the cells with these flat indices get on the traced axes."""
        index = np.unravel_index(cells, self.traced_shape) if self.traced_shape else ()
        pairs = zip(self.traced_axes, index, strict=True)
        return {
            c.name: np.asarray(c.values)[i] for axis, i in pairs for c in axis.columns
        }

    def labels(
        self, combination: tuple[int, ...], cell: int | None = None
    ) -> dict[str, Any]:
        """The labels of one cell, or of a whole static combination."""
        index = dict(zip((a.name for a in self.static_axes), combination, strict=True))
        if cell is not None and self.traced_shape:
            where = np.unravel_index(cell, self.traced_shape)
            names = (axis.name for axis in self.traced_axes)
            index |= {n: int(i) for n, i in zip(names, where, strict=True)}
        known = [axis for axis in self.axes if axis.name in index]
        return {k: v for a in known for k, v in a.labels(index[a.name]).items()}

    def labels_at(self, index: tuple[int, ...]) -> dict[str, Any]:
        """The labels of the cell with this index on the axes."""
        pairs = zip(self.axes, index, strict=True)
        return {k: v for axis, i in pairs for k, v in axis.labels(i).items()}

    def region(
        self, combination: tuple[int, ...], traced: Sequence[slice]
    ) -> tuple[slice, ...]:
        """The part of the axes that a block of the traced ones fills."""
        at = {
            a.name: slice(i, i + 1)
            for a, i in zip(self.static_axes, combination, strict=True)
        }
        at |= {a.name: s for a, s in zip(self.traced_axes, traced, strict=True)}
        return tuple(at[name] for name in self.names)

    def on_axes(
        self, array: np.ndarray, lengths: Sequence[int], own: Sequence[int]
    ) -> np.ndarray:
        """Bring what was counted cell by cell into the order of the axes.

        `lengths` are those of the static axes and then of the traced ones as they are
        counted, of a block or of the whole grid; `own` are an output's.
        """
        have = [axis.name for axis in (*self.static_axes, *self.traced_axes)]
        order = [have.index(name) for name in self.names]
        array = array.reshape(*lengths, *own)
        return array.transpose(*order, *range(len(order), array.ndim))


def describe(labels: Mapping[str, Any]) -> str:
    """`lam=-8.0, seed=3`, or "every cell" where nothing is fixed."""
    return ", ".join(f"{k}={v!r}" for k, v in labels.items()) or "every cell"


def make_grid(axes: Mapping[str, Any]) -> Grid:
    """Check the axes and lay out their product."""
    if not isinstance(axes, Mapping) or not axes:
        raise ValueError(
            "`axes` must name at least one axis: axes={'lam': [-1.0, 0.0, 1.0]}."
        )
    grid = Grid(tuple(_make_axis(name, values) for name, values in axes.items()))
    names = [*grid.arguments, *(a.name for a in grid.axes if a.is_zipped)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"`{name}` is named twice in `axes`: the columns of a zipped axis "
                "need names of their own."
            )
    return grid


def _make_axis(name: Any, values: Any) -> Axis:
    _check_name(name)
    if not isinstance(values, Zipped):
        return Axis(name, (_make_column(name, values),))
    if not values.columns:
        raise ValueError(f"Axis `{name}` zips nothing: lr.zipped(lam=…, alpha=…).")
    columns = tuple(
        _make_column(_check_name(key), column) for key, column in values.columns.items()
    )
    lengths = {column.name: len(column.labels) for column in columns}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{key} has {n}" for key, n in lengths.items())
        raise ValueError(f"Axis `{name}` zips columns of different lengths: {said}.")
    return Axis(name, columns)


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"Axis {name!r} must be a name: it becomes an argument.")
    if name in RESERVED:
        raise ValueError(f"Axis `{name}` has a name that every sweep uses itself.")
    return name


def _make_column(name: str, values: Any) -> Column:
    if isinstance(values, Zipped):
        raise TypeError(f"Axis `{name}` zips a zipped axis: name all columns at once.")
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
    return Column(name, tuple(given), _labels(given))


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


def _traced(name: str, given: np.ndarray) -> Column:
    """A column of numbers, in a dtype that JAX has now; labels stay as given."""
    if given.dtype == object:
        raise ValueError(f"Axis `{name}` holds integers that do not fit 64 bits.")
    values = given.astype(jax.dtypes.canonicalize_dtype(given.dtype))
    if given.dtype.kind in "iu" and (values != given).any():
        raise ValueError(
            f"Axis `{name}` holds integers that do not fit {values.dtype}: enable "
            "64-bit types with `jax.config.update('jax_enable_x64', True)`."
        )
    # Half-precision types that NumPy does not know cannot be stored as labels.
    return Column(name, values, given if given.dtype.kind in "biuf" else _wide(given))


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
