"""What the axes may be, and what the cell gets from them."""

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from lazyrich.sweeps import sweep
from lazyrich.sweeps._axes import make_grid


def quiet(cell, axes, **options):
    return sweep(cell, axes, piece=4, progress=False, **options)


def test_product_in_the_order_given():
    ds = quiet(lambda a, b: {"y": 10 * a + b}, {"b": [1, 2], "a": [3, 4, 5]})
    assert ds["y"].dims == ("b", "a")
    np.testing.assert_array_equal(ds["y"], [[31, 41, 51], [32, 42, 52]])
    assert ds["y"].sel(a=4, b=2) == 42


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.0, 1.0], "float64"),
        ([0, 1.5], "float64"),
        (range(2), "int64"),
        ([True, False], "bool"),
        (np.array([1, 2], np.float32), "float32"),
        ([np.float32(1), np.float32(2)], "float32"),
        (jnp.asarray([1.0, 2.0], jnp.float32), "float32"),
        (jnp.asarray([1.0, 2.0], jnp.bfloat16), "bfloat16"),
        ([jnp.asarray(1.0), jnp.asarray(2.0)], "float64"),
        (np.array([1, 2], np.uint8), "uint8"),
    ],
)
def test_numbers_are_traced_scalars_of_their_type(values, dtype):
    seen = []

    def cell(x):
        seen.append(x)
        return {"y": jnp.asarray(x, jnp.float32)}

    ds = quiet(cell, {"x": values})
    (tracer,) = seen
    assert isinstance(tracer, jax.core.Tracer)
    assert (tracer.shape, tracer.dtype, tracer.weak_type) == ((), dtype, False)
    np.testing.assert_array_equal(ds["y"], np.asarray(ds["x"], np.float32))


def test_labels_stay_as_given_where_floats_are_narrower():
    with jax.enable_x64(False):
        ds = quiet(lambda x: {"y": x}, {"x": [0.1, 0.2]})
    assert ds["y"].dtype == np.float32
    assert ds["y"].sel(x=0.1) == np.float32(0.1)


def test_strings_objects_and_static_values_arrive_as_they_are():
    def double(x):
        return 2 * x

    methods = [lr.SGD(0.1), None]
    seen = []

    def cell(name, f, n, method, x):
        seen.append((name, n, method))
        return {"y": f(x) + jnp.ones(n).sum()}

    ds = quiet(
        cell,
        {
            "name": ["first", "second"],
            "f": [double],
            "n": lr.static([2, 3]),
            "method": methods,
            "x": [0.5, 1.0],
        },
    )
    assert len(seen) == 8  # one trace for each combination
    assert {type(n) for _, n, _ in seen} == {int}
    assert all(any(m is given for given in methods) for *_, m in seen)
    assert list(ds["f"].values) == ["double"]
    assert list(ds["n"].values) == [2, 3]
    assert ds["method"].values[1] == "None"
    np.testing.assert_array_equal(
        ds["y"].isel(name=0, f=0, method=1), [[3.0, 4.0], [4.0, 5.0]]
    )


def test_labels_of_objects_are_distinct_and_free_of_addresses():
    class Thing:
        pass

    grid = make_grid({"f": [lambda x: x, lambda x: -x], "o": [Thing(), 1.0]})
    functions, objects = (list(column.labels) for column in grid.columns)
    assert functions == ["<lambda>#0", "<lambda>#1"]
    assert "0x" not in objects[0]


def test_a_sweep_without_traced_axes():
    ds = quiet(lambda name: {"y": len(name)}, {"name": ["a", "bcd"]})
    np.testing.assert_array_equal(ds["y"], [1, 3])


def test_duplicate_values_are_fine():
    ds = quiet(lambda x: {"y": x}, {"x": [1.0, 1.0]})
    np.testing.assert_array_equal(ds["y"], [1.0, 1.0])


@pytest.mark.parametrize(
    ("axes", "error", "text"),
    [
        ({}, ValueError, "at least one axis"),
        ({"x": []}, ValueError, "`x` has no values"),
        ({"x": 1.0}, TypeError, "`x` must be a sequence"),
        ({"x": "exact"}, TypeError, "`x` must be a sequence"),
        ({"x": np.ones((2, 2))}, ValueError, r"shape is \(2, 2\)"),
        ({"x": np.ones(2) * 1j}, TypeError, "complex"),
        ({"x": [2**70]}, ValueError, "do not fit"),
        ({"not a name": [1.0]}, ValueError, "must be a name"),
        ({"status": [1.0]}, ValueError, "`status`"),
        ({"z": [1.0]}, TypeError, r"cannot take the axes z: .*'x'"),
        ({"x": [1.0], "z": [1.0]}, TypeError, "unexpected keyword argument 'z'"),
    ],
)
def test_mistakes_are_one_clear_line(axes, error, text):
    with pytest.raises(error, match=text) as caught:
        quiet(lambda x: {"y": x}, axes)
    assert "\n" not in str(caught.value)


def test_random_keys_are_refused():
    with pytest.raises(TypeError, match="integer seeds"):
        quiet(lambda x: {"y": x}, {"x": jax.random.split(jax.random.key(0), 2)})


def test_integers_that_would_wrap_are_refused():
    with jax.enable_x64(False), pytest.raises(ValueError, match="int32"):
        quiet(lambda x: {"y": x}, {"x": [2**40]})
