"""Zipped axes: several labels that vary together along one dimension."""

import json

import jax.core
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import zarr

import lazyrich as lr
from lazyrich.sweeps import SweepError, sweep
from lazyrich.sweeps._program import Program

LAM, ALPHA, SEEDS = [-1.0, 0.0, 2.0], [0.5, 0.25, 1.0], range(4)
AXES = {"start": lr.zipped(lam=LAM, alpha=ALPHA), "seed": SEEDS}


def cell(lam, alpha, seed):
    return {"y": 100 * lam + 10 * alpha + seed.astype(float), "n": seed}


def quiet(cell=cell, axes=AXES, **options):
    return sweep(cell, axes, **{"piece": 4, "progress": False, **options})


def check(ds):
    """Every value and every coordinate of the sweep over AXES."""
    assert ds["y"].dims == ("start", "seed")
    assert "start" not in ds.coords
    assert (ds["lam"].dims, ds["alpha"].dims) == (("start",), ("start",))
    np.testing.assert_array_equal(ds["lam"], LAM)
    np.testing.assert_array_equal(ds["alpha"], ALPHA)
    lam, alpha, seed = np.array(LAM), np.array(ALPHA), np.arange(4)
    expected = 100 * lam[:, None] + 10 * alpha[:, None] + seed
    np.testing.assert_array_equal(ds["y"], expected)
    assert (ds["status"] == lr.Status.ok).all()


def test_one_axis_has_every_column_as_a_coordinate():
    check(quiet())


def test_a_store_has_the_coordinates_too(tmp_path):
    path = tmp_path / "s.zarr"
    written = quiet(store=path, chunk_size=4)
    plain = xr.open_zarr(path, consolidated=False, chunks=None)
    for ds in (written, lr.open(path), plain):
        check(ds.load())
    xr.testing.assert_equal(written, quiet())


def test_its_place_among_the_axes_is_that_of_the_dimension():
    axes = {"seed": SEEDS, "start": AXES["start"], "mode": ["a", "b"]}

    def moded(mode, **labels):
        out = cell(**labels)
        return {**out, "y": out["y"] + (mode == "b") * 1000.0}

    ds = quiet(moded, axes)
    assert ds["y"].dims == ("seed", "start", "mode")
    both = quiet()["y"].transpose("seed", "start")
    np.testing.assert_array_equal(ds["y"].sel(mode="a"), both)
    np.testing.assert_array_equal(ds["y"].sel(mode="b"), both + 1000)


def test_two_zipped_axes_make_a_product():
    axes = {"a": lr.zipped(lam=LAM, alpha=ALPHA), "b": lr.zipped(seed=SEEDS, x=SEEDS)}

    ds = quiet(lambda x, **labels: {**cell(**labels), "x2": 2 * x}, axes)
    assert ds["y"].dims == ("a", "b")
    np.testing.assert_array_equal(ds["y"], quiet()["y"])
    np.testing.assert_array_equal(ds["x2"], np.tile(2 * np.arange(4), (3, 1)))


def test_a_single_column_of_the_axis_own_name_is_a_plain_axis():
    ds = quiet(lambda x: {"y": x}, {"x": lr.zipped(x=[1.0, 2.0])})
    xr.testing.assert_equal(ds, quiet(lambda x: {"y": x}, {"x": [1.0, 2.0]}))


@pytest.mark.parametrize("stored", [False, True])
def test_a_static_column_compiles_every_point_by_itself(tmp_path, stored):
    seen = []

    def wide(hidden, scale, x):
        seen.append((hidden, scale))
        assert isinstance(x, jax.core.Tracer)
        return {"y": jnp.full(hidden, scale * x).sum()}

    axes = {
        "net": lr.zipped(hidden=lr.static([2, 3]), scale=[10.0, 100.0]),
        "x": [1.0, 2.0, 3.0],
    }
    options = {"store": tmp_path / "s.zarr"} if stored else {}
    ds = quiet(wide, axes, **options)
    assert [hidden for hidden, _ in seen] == [2, 3]
    assert [float(scale) for _, scale in seen] == [10.0, 100.0]
    assert not any(isinstance(scale, jax.core.Tracer) for _, scale in seen)
    np.testing.assert_array_equal(ds["hidden"], [2, 3])
    np.testing.assert_array_equal(ds["scale"], [10.0, 100.0])
    np.testing.assert_array_equal(ds["y"], [[20, 40, 60], [300, 600, 900]])


def test_strings_in_a_column_are_static():
    axes = {"case": lr.zipped(name=["long", "b"], factor=[2.0, 3.0])}
    ds = quiet(lambda name, factor: {"y": factor * len(name)}, axes)
    np.testing.assert_array_equal(ds["y"], [8.0, 3.0])
    assert list(ds["name"].values) == ["long", "b"]


@pytest.mark.parametrize(
    ("axes", "error", "text"),
    [
        (
            {"start": lr.zipped(lam=[1.0, 2.0], alpha=[1.0]), "seed": SEEDS},
            ValueError,
            "`start` zips columns of different lengths: lam has 2, alpha has 1",
        ),
        ({"start": lr.zipped(lam=LAM), "lam": LAM}, ValueError, "`lam` is named twice"),
        (
            {"a": lr.zipped(lam=LAM), "b": lr.zipped(lam=LAM)},
            ValueError,
            "`lam` is named twice",
        ),
        (
            {"lam": lr.zipped(lam=LAM, alpha=ALPHA)},
            ValueError,
            "`lam` is named twice",
        ),
        (
            {"seed": lr.zipped(lam=LAM, alpha=ALPHA), "a": lr.zipped(seed=SEEDS)},
            ValueError,
            "`seed` is named twice",
        ),
        (
            {"start": lr.zipped(lam=LAM, more=lr.zipped(alpha=ALPHA))},
            TypeError,
            "`more` zips a zipped axis",
        ),
        ({"start": lr.zipped()}, ValueError, "`start` zips nothing"),
        ({"start": lr.zipped(lam=[])}, ValueError, "`lam` has no values"),
        ({"start": lr.zipped(lam=1.0)}, TypeError, "`lam` must be a sequence"),
        ({"start": lr.zipped(status=LAM)}, ValueError, "`status`"),
        ({"start": lr.zipped(lam=LAM, beta=LAM)}, TypeError, "axes lam, beta"),
    ],
)
def test_mistakes_are_one_clear_line(axes, error, text):
    with pytest.raises(error, match=text) as caught:
        quiet(cell, axes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["start", "lam"])
def test_outputs_cannot_have_the_name_of_the_axis_or_a_column(name):
    with pytest.raises(ValueError, match=f"`{name}`, which is the name of an axis"):
        quiet(lambda lam, alpha, seed: {name: lam})
    with pytest.raises(ValueError, match="from the axes"):
        quiet(lambda lam, alpha, seed: {"v": jnp.ones(2)}, dims={"v": (name,)})
    with pytest.raises(ValueError, match="an axis"):
        quiet(lambda lam, alpha, seed: {"v": jnp.ones(2)}, coords={name: [1, 2]})


def failing(lam, alpha, seed):
    return {"y": jnp.where((lam > 1) & (seed == 2), jnp.nan, alpha)}


@pytest.mark.parametrize("stored", [False, True])
def test_failures_are_named_by_the_columns(tmp_path, capsys, stored):
    options = {"store": tmp_path / "s.zarr"} if stored else {}
    ds = quiet(failing, progress=True, **options)
    said = capsys.readouterr().err
    assert "lam=2.0, alpha=1.0, seed=2" in said
    assert "start=" not in said
    (failure,) = json.loads(ds.attrs["lazyrich"])["failures"]
    assert failure["labels"] == {"lam": 2.0, "alpha": 1.0, "seed": 2}
    with pytest.raises(SweepError, match=r"lam=2\.0, alpha=1\.0, seed=2") as caught:
        quiet(failing, on_error="raise")
    assert caught.value.labels == {"lam": 2.0, "alpha": 1.0, "seed": 2}


def test_a_point_whose_code_raises_is_named_by_the_columns():
    def picky(name, factor, x):
        if name == "bad":
            raise ZeroDivisionError("no")
        return {"y": x * factor}

    axes = {"case": lr.zipped(name=["bad", "b"], factor=[2.0, 3.0]), "x": [1.0]}
    ds = quiet(picky, axes)
    np.testing.assert_array_equal(ds["y"], [[np.nan], [3.0]])
    record = json.loads(ds.attrs["lazyrich"])
    (failure,) = record["failures"]
    assert failure["labels"] == {"name": "bad", "factor": 2.0}


def test_a_failed_cell_of_a_static_point_is_named_by_the_columns():
    axes = {"case": lr.zipped(name=["a", "b"], factor=[2.0, 3.0]), "x": [1.0, jnp.inf]}
    ds = quiet(lambda name, factor, x: {"y": x * factor}, axes)
    failures = json.loads(ds.attrs["lazyrich"])["failures"]
    assert [f["labels"]["name"] for f in failures] == ["a", "b"]
    assert [f["labels"]["factor"] for f in failures] == [2.0, 3.0]
    assert {f["status"] for f in failures} == {"nonfinite"}


@pytest.mark.parametrize("fixed", [False, True])
def test_resumed_where_it_was_left(tmp_path, monkeypatch, fixed):
    axes = dict(AXES)
    if fixed:
        axes["start"] = lr.zipped(lam=lr.static(LAM), alpha=ALPHA)

    path = tmp_path / "s.zarr"
    whole = quiet(cell, axes, store=path, chunk_size=4).load()
    zarr.open_array(path / "done", mode="r+")[1] = False
    zarr.open_array(path / "y", mode="r+")[1] = np.nan
    ran = []
    run = Program.run

    def counted(self, start, stop, device):
        ran.append((self.combination, start, stop))
        return run(self, start, stop, device)

    monkeypatch.setattr(Program, "run", counted)
    again = quiet(cell, axes, store=path, chunk_size=4).load()
    assert ran == ([((1,), 0, 4)] if fixed else [((), 4, 8)])
    xr.testing.assert_equal(again, whole)
    check(again)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (lr.zipped(lam=LAM, alpha=[0.5, 0.5, 1.0]), r"axis start alpha values \(chan"),
        (
            lr.zipped(lam=[-1.0, 0.0, 3.0], alpha=ALPHA),
            r"axis start lam last \(2\.0 in",
        ),
        (lr.zipped(alpha=ALPHA, lam=lr.static(LAM)), "axis start lam dtype"),
    ],
)
def test_a_changed_column_is_refused_by_its_name(tmp_path, start, text):
    quiet(store=tmp_path / "s.zarr")
    with pytest.raises(ValueError, match=text) as caught:
        quiet(axes={**AXES, "start": start}, store=tmp_path / "s.zarr")
    other = "alpha" if "start lam" in text else "lam"
    assert f"axis start {other}" not in str(caught.value)
    assert "\n" not in str(caught.value)
