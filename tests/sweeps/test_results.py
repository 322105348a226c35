"""Values, statuses and labels of a sweep."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from lazyrich import Status
from lazyrich.sweeps import SweepError, static, sweep

TIMES = jnp.linspace(0.0, 2.0, 5)


def decay(lam, seed):
    """A toy run: a data-dependent loop, an array over time."""
    x = jnp.sin(jnp.arange(1.0, 4.0) * (1 + seed).astype(lam.dtype)) * lam
    steps = jax.lax.while_loop(
        lambda s: s[1] > 1e-3, lambda s: (s[0] + 1, s[1] * 0.5), (0, x @ x)
    )[0]
    return {"loss": jnp.exp(-TIMES * lam) * (x @ x), "steps": steps, "lead": x[0] > 0}


AXES = {"lam": np.linspace(0.1, 3.0, 5).tolist(), "seed": range(3)}
NAMED = {"dims": {"loss": ("time",)}, "coords": {"time": TIMES}}


def quiet(cell, axes, **options):
    options = {"piece": 4, "progress": False, **options}
    return sweep(cell, axes, **options)


def test_equals_single_runs_with_one_trace():
    traces = []

    def counted(lam, seed):
        traces.append(1)
        return decay(lam, seed)

    ds = quiet(counted, AXES, **NAMED)
    assert len(traces) == 1
    for lam in AXES["lam"]:
        for seed in AXES["seed"]:
            one = decay(jnp.asarray(lam), jnp.asarray(seed))
            at = ds.sel(lam=lam, seed=seed)
            np.testing.assert_allclose(at["loss"], one["loss"], rtol=1e-14)
            assert at["steps"] == one["steps"]
            assert at["lead"] == one["lead"]
    assert ds["loss"].dims == ("lam", "seed", "time")
    np.testing.assert_array_equal(ds["time"], TIMES)
    assert (ds["status"] == Status.ok).all()
    assert ds["status"].dtype == np.int8
    assert list(ds.data_vars) == ["loss", "steps", "lead", "status"]


@pytest.mark.parametrize("chunk_size", [4, 5, 8, 100])
def test_chunks_change_no_bit(chunk_size):
    xr.testing.assert_equal(
        quiet(decay, AXES, **NAMED), quiet(decay, AXES, chunk_size=chunk_size, **NAMED)
    )


def test_a_shorter_sweep_has_the_same_bits():
    whole = quiet(decay, AXES, **NAMED)
    part = quiet(decay, {**AXES, "lam": AXES["lam"][:2]}, **NAMED)
    xr.testing.assert_equal(part, whole.isel(lam=slice(2)))


def test_undeclared_dimensions_are_numbered():
    ds = quiet(lambda x: {"m": jnp.ones((2, 3)) * x, "v": jnp.ones(2)}, {"x": [1.0]})
    assert ds["m"].dims == ("x", "m_dim_0", "m_dim_1")
    assert ds["v"].dims == ("x", "v_dim_0")


def test_one_name_may_be_a_string_and_labels_may_be_strings():
    ds = quiet(
        lambda x: {"m": jnp.ones(2) * x},
        {"x": [1.0]},
        dims={"m": "layer"},
        coords={"layer": ["first", "second"]},
    )
    assert ds["m"].sel(layer="second", x=1.0) == 1.0


def test_outputs_of_every_kind_keep_their_type():
    def cell(x):
        return {
            "half": jnp.asarray(x, jnp.float16),
            "wave": jax.lax.complex(x, x),
            "count": jnp.int32(3),
            "flag": x > 0,
            "python": 2.5,
            "nothing": jnp.zeros((0,)),
        }

    ds = quiet(cell, {"x": [1.0, 2.0]})
    kinds = {name: str(ds[name].dtype) for name in ds.data_vars}
    assert kinds == {
        "half": "float16",
        "wave": "complex128",
        "count": "int32",
        "flag": "bool",
        "python": "float64",
        "nothing": "float64",
        "status": "int8",
    }


def test_a_float_that_is_not_finite_fails_the_cell_alone():
    def cell(x):
        bad = jnp.where(x == 2.0, jnp.nan, x)
        return {"good": x, "bad": jnp.stack([x, bad]), "count": jnp.int32(7)}

    ds = quiet(cell, {"x": [1.0, 2.0, 3.0]})
    assert list(ds["status"].values) == [Status.ok, Status.nonfinite, Status.ok]
    np.testing.assert_array_equal(ds["good"], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(ds["bad"].isel(x=1), [np.nan, np.nan])
    np.testing.assert_array_equal(ds["count"], [7, 7, 7])


def test_a_returned_status_decides_alone():
    def cell(x):
        failed = jnp.int8(Status.step_limit)
        status = jnp.where(x == 2.0, failed, jnp.int8(Status.not_reached))
        return {"never": jnp.nan, "y": x, "status": status}

    ds = quiet(cell, {"x": [1.0, 2.0, 3.0]})
    assert list(ds["status"].values) == [2, 3, 2]
    np.testing.assert_array_equal(ds["y"], [1.0, np.nan, 3.0])


def test_failures_are_listed_and_kept(capsys):
    def cell(x, seed):
        return {"y": jnp.where((x > 1.0) & (seed == 1), jnp.inf, x)}

    ds = quiet(cell, {"x": [1.0, 2.0], "seed": range(2)}, progress=True)
    said = capsys.readouterr().err
    assert "1 of 4 cells failed" in said
    assert "x=2.0, seed=1" in said
    assert Status.nonfinite.remedy in said
    record = json.loads(ds.attrs["lazyrich"])
    assert record["failed"] == 1
    assert record["failures"] == [
        {"labels": {"x": 2.0, "seed": 1}, "status": "nonfinite", "message": ""}
    ]
    assert record["remedies"] == {"nonfinite": Status.nonfinite.remedy}


def test_the_record_says_how_it_was_made():
    record = json.loads(quiet(decay, AXES, **NAMED).attrs["lazyrich"])
    config = record["config"]
    assert config["version"]["jax"] == jax.__version__
    assert config["device"].startswith("cpu")
    assert config["dtype"] == "float64"
    assert config["axis"]["lam"]["size"] == 5
    (run,) = record["runs"]
    assert run["cells"] == 15
    assert run["compile_seconds"] > 0
    assert run["run_seconds"] > 0


def test_progress_changes_no_number_and_quiet_is_silent(capsys):
    shown = quiet(decay, AXES, **NAMED, progress=True, chunk_size=5)
    said = capsys.readouterr().err
    assert "15/15" in said
    assert "chunks of 8 cells" in said
    silent = quiet(decay, AXES, **NAMED, chunk_size=5)
    assert capsys.readouterr() == ("", "")
    xr.testing.assert_equal(shown, silent)


def test_raise_stops_at_the_first_failure():
    def cell(x):
        return {"y": jnp.where(x > 1.0, jnp.nan, x)}

    with pytest.raises(SweepError, match=r"x=2\.0 failed \(nonfinite\)") as caught:
        quiet(cell, {"x": [1.0, 2.0]}, on_error="raise")
    assert caught.value.labels == {"x": 2.0}
    assert caught.value.status == Status.nonfinite


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (1.0, TypeError, "must return a dict"),
        ({}, TypeError, "must return a dict"),
        ({1: 1.0}, ValueError, "name 1"),
        ({"a/b": 1.0}, ValueError, "a/b"),
        ({"x": 1.0}, ValueError, "`x`, which is the name of an axis"),
        ({"done": 1.0}, ValueError, "`done`"),
        ({"y": {"z": 1.0}}, TypeError, "`y` is a dict"),
        ({"y": "text"}, TypeError, "`y` is a str"),
        ({"y": None}, TypeError, "`y` is a NoneType"),
        ({"y": jax.random.key(0)}, TypeError, "key_data"),
        ({"y": jnp.zeros((), jnp.bfloat16)}, TypeError, "cast it"),
        ({"status": 0.0}, TypeError, "one integer"),
        ({"y": 1.0, "status": 9}, ValueError, "status 9"),
    ],
)
def test_outputs_that_cannot_be_kept(out, error, text):
    with pytest.raises(error, match=text):
        quiet(lambda x: out, {"x": [1.0]})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dims": {"z": ("t",)}}, "`z`, which the cell does not return"),
        ({"dims": {"v": ("t", "u")}}, r"2 dimensions of `v`.*\(3,\)"),
        ({"dims": {"v": ("x",)}}, "differ"),
        ({"dims": {"m": ("t", "t")}}, "differ"),
        ({"dims": {"v": ("t",), "m": ("t", "u")}}, "`t` has size 2 in `m`"),
        ({"dims": {"v": ("v",)}}, "rename the output"),
        ({"coords": {"t": [1, 2, 3]}}, "no dimension of an output"),
        ({"dims": {"v": ("t",)}, "coords": {"t": [1, 2]}}, r"shape \(2,\)"),
        ({"coords": {"x": [1.0]}}, "an axis"),
        ({"piece": 0}, "positive integer"),
        ({"chunk_size": 0}, "positive integer"),
        ({"on_error": "ignore"}, "'record' or 'raise'"),
        ({"devices": jax.devices()[:1] * 2}, "named twice"),
        ({"devices": []}, "empty"),
        ({"memory": "much"}, "number of bytes"),
        ({"memory": 10}, "give `store=`"),
        ({"store": "s3://bucket/x"}, "local folder"),
    ],
)
def test_options_that_cannot_be(options, text):
    def cell(x):
        return {"v": jnp.ones(3) * x, "m": jnp.ones((2, 2))}

    with pytest.raises(ValueError, match=text):
        quiet(cell, {"x": [1.0]}, **options)


def test_static_combinations_must_return_the_same():
    with pytest.raises(ValueError, match=r"`y` alike.*n=2.*n=3"):
        quiet(lambda n: {"y": np.ones(n)}, {"n": static([2, 3])})
    with pytest.raises(ValueError, match="same outputs"):
        quiet(lambda n: {n: 1.0}, {"n": ["a", "b"]})
