"""A sweep on disk: written by chunks, resumed, refused when it is another one."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import zarr

import lazyrich.sweeps
from lazyrich import Status
from lazyrich.sweeps import SweepError, sweep
from lazyrich.sweeps._program import Program

TIMES = jnp.linspace(0.0, 2.0, 5)
AXES = {"lam": np.linspace(0.1, 3.0, 7).tolist(), "mode": ["a", "b"], "seed": range(3)}
NAMED = {"dims": {"loss": ("time",)}, "coords": {"time": TIMES}}


def cell(lam, mode, seed):
    x = jnp.sin((1 + seed).astype(lam.dtype)) * lam + float(mode == "b")
    loss = jnp.exp(-TIMES * lam) * x
    return {"loss": loss, "n": seed, "last": jnp.where(lam > 2.9, jnp.nan, x)}


def quiet(cell, axes=AXES, **options):
    return sweep(cell, axes, **{"piece": 4, "progress": False, **NAMED, **options})


@pytest.fixture
def computed(monkeypatch):
    """Cells that are computed, as (combination, start, stop)."""
    calls = []
    run = Program.run

    def counted(self, start, stop, device):
        calls.append((self.combination, start, stop))
        return run(self, start, stop, device)

    monkeypatch.setattr(Program, "run", counted)
    return calls


@pytest.mark.parametrize("chunk_size", [None, 4, 8, 16, 64])
def test_round_trip(tmp_path, chunk_size):
    memory = quiet(cell)
    written = quiet(cell, store=tmp_path / "s.zarr", chunk_size=chunk_size)
    opened = lazyrich.sweeps.open(tmp_path / "s.zarr")
    plain = xr.open_zarr(tmp_path / "s.zarr", consolidated=False, chunks=None)
    for ds in (written, opened, plain.drop_vars("done")):
        xr.testing.assert_equal(ds.load(), memory)
    assert plain["done"].all()
    assert list(opened.data_vars) == list(memory.data_vars)
    assert opened.attrs == written.attrs
    assert opened["status"].attrs["flag_meanings"].split()[4] == "nonfinite"
    record = json.loads(opened.attrs["lazyrich"])
    assert record["config"] == json.loads(memory.attrs["lazyrich"])["config"]
    assert record["failed"] == 6


def test_a_finished_sweep_computes_nothing(tmp_path, computed):
    first = quiet(cell, store=tmp_path / "s.zarr")
    del computed[:]
    again = quiet(cell, store=tmp_path / "s.zarr")
    assert computed == []
    xr.testing.assert_identical(first, again)


def test_resume_computes_only_what_is_missing(tmp_path, computed, capsys):
    path = tmp_path / "s.zarr"
    whole = quiet(cell, store=path, chunk_size=8).load()
    done = zarr.open_array(path / "done", mode="r+")
    for number in (1, 6):
        done[number] = False
    loss = zarr.open_array(path / "loss", mode="r+")
    loss[2:4, 0] = np.nan  # the block of chunk 1: lam 2, 3 of mode a
    del computed[:]
    again = quiet(cell, store=path, progress=True).load()
    assert sorted(computed) == [((0,), 6, 12), ((1,), 12, 18)]
    xr.testing.assert_equal(again, whole)
    assert "6 of 42 cells failed" in capsys.readouterr().err
    assert [run["cells"] for run in json.loads(again.attrs["lazyrich"])["runs"]] == [
        42,
        12,
    ]


def test_interrupted_by_a_failure_keeps_what_is_done(tmp_path, computed):
    path = tmp_path / "s.zarr"
    one_thread = {"chunk_size": 8, "executor": Immediate()}
    with pytest.raises(SweepError, match="lam=3"):
        quiet(cell, store=path, on_error="raise", **one_thread)
    kept = lazyrich.sweeps.open(path)
    assert kept["status"].values[:6, 0].max() == Status.ok
    assert (kept["status"].values[:, 1] == Status.pending).all()
    assert np.isnan(kept["loss"].values[:, 1]).all()
    done = len(computed)
    whole = quiet(cell, store=path)
    assert len(computed) == done + 1 + 4  # the failed one again, and mode b
    xr.testing.assert_equal(whole.load(), quiet(cell))


class Immediate:
    """Runs what is submitted at once, in the caller's thread."""

    def submit(self, function, *arguments):
        return Finished(function(*arguments))


class Finished:
    def __init__(self, value):
        self.value = value

    def done(self):
        return True

    def result(self):
        return self.value


def test_a_repaired_combination_is_run_and_the_rest_kept(tmp_path, computed):
    def broken(lam, mode, seed):
        if mode == "b":
            raise ZeroDivisionError("not yet")
        return cell(lam, mode, seed)

    path = tmp_path / "s.zarr"
    ds = quiet(broken, store=path)
    assert (ds["status"].sel(mode="b") == Status.error).all()
    del computed[:]
    mended = quiet(cell, store=path)
    assert {combination for combination, *_ in computed} == {(1,)}
    xr.testing.assert_equal(mended.load(), quiet(cell))


def scaled(lam, mode, seed):
    return {name: 2 * value for name, value in cell(lam, mode, seed).items()}


DATA = np.arange(5.0)


def with_data(data):
    def of_data(lam, mode, seed):
        out = cell(lam, mode, seed)
        return {**out, "loss": out["loss"] * jnp.asarray(data)}

    return of_data


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"axes": {**AXES, "lam": [0.1, 3.0]}}, r"axis lam size \(7 in the store, 2"),
        ({"axes": {**AXES, "seed": [0, 5, 2]}}, r"axis seed values \(changed\)"),
        ({"axes": {**AXES, "mode": ["a", "c"]}}, r"axis mode last \(b in the store"),
        (
            {"axes": {k: AXES[k] for k in ("seed", "mode", "lam")}},
            r"axes \(\['lam', 'mode', 'seed'\] in the store",
        ),
        ({"cell": scaled}, r"cell mode='a' \(changed\); cell mode='b' \(changed\)"),
        ({"cell": with_data(DATA + 1)}, r"cell mode='a' \(changed\)"),
        ({"dims": {"loss": ("t",)}, "coords": {}}, "output loss dims"),
        ({"coords": {"time": 2 * TIMES}}, r"coordinate time \(changed\)"),
        ({"piece": 8}, "laid out with 4, not 8"),
        ({"chunk_size": 40}, "`chunk_size`.*not 40"),
    ],
)
def test_a_changed_sweep_is_refused(tmp_path, changed, text):
    original = with_data(DATA)
    quiet(original, store=tmp_path / "s.zarr")
    options = {"cell": original, **changed}
    with pytest.raises(ValueError, match=text) as caught:
        quiet(**options, store=tmp_path / "s.zarr")
    assert "\n" not in str(caught.value)


def test_another_version_is_refused(tmp_path):
    path = tmp_path / "s.zarr"
    quiet(cell, store=path)
    group = zarr.open_group(path, mode="r+")
    record = json.loads(str(group.attrs["lazyrich"]))
    record["config"]["version"]["jax"] = "0.0.1"
    group.attrs["lazyrich"] = json.dumps(record)
    with pytest.raises(ValueError, match=r"version jax \(0\.0\.1 in the store"):
        quiet(cell, store=path)


def test_another_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("data")
    with pytest.raises(ValueError, match=r"not written by `lr\.sweep`"):
        quiet(cell, store=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["precious.txt"]
    with pytest.raises(ValueError, match=r"not written by `lr\.sweep`"):
        lazyrich.sweeps.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="no store"):
        lazyrich.sweeps.open(tmp_path / "nowhere")


def test_a_mistake_lays_out_nothing(tmp_path):
    with pytest.raises(ValueError, match="no dimension"):
        quiet(cell, coords={"nothing": [1]}, store=tmp_path / "s.zarr")
    assert list(tmp_path.iterdir()) == []


def test_messages_of_cells_that_raised_survive(tmp_path):
    import equinox as eqx

    def fragile(x):
        return {"y": eqx.error_if(x, x > 1.5, "x is too large")}

    options = {"piece": 2, "progress": False, "store": tmp_path / "s.zarr"}
    sweep(fragile, {"x": [1.0, 2.0]}, **options)
    again = sweep(fragile, {"x": [1.0, 2.0]}, **options)
    (failure,) = json.loads(again.attrs["lazyrich"])["failures"]
    assert failure["labels"] == {"x": 2.0}
    assert "too large" in failure["message"]
