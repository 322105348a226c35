"""`lazyrich show` and `lazyrich plot`, and how a sweep is run by the command."""

import json

import jax.numpy as jnp
import pytest
import zarr

import lazyrich as lr
from lazyrich.cli import main

TINY = "sweep --lam=-1:1:3 --scale=0.1:1:8:log --seed=0:2 --levels=1 --times=0:6:31"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A sweep by the command, by the closed form alone."""
    path = tmp_path_factory.mktemp("show") / "s.zarr"
    options = (
        f"--method=exact --figure=none --quiet --chunk=16 --piece=8 --store={path}"
    )
    assert main([*TINY.split(), *options.split()]) == 0
    return path


def test_show_says_what_a_store_holds(store, capsys):
    assert main(["show", str(store)]) == 0
    text = capsys.readouterr().out
    for words in (
        "48 cells in float64",
        "lam      -1.0 … 1.0 (3)",
        "scale    0.1 … 1.0 (8)",
        "seed     0, 1 (2)",
        "excess (time), half_time",
        "48 of 48 cells (100%), in chunks of 16 and pieces of 8",
        "failed   none",
        "Means over method, scale, seed",
    ):
        assert words in text
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows[-5:-1]] == ["lam", "-1", "0", "1"]


def test_show_counts_what_is_missing_and_lists_failures(tmp_path, capsys):
    def cell(lam, alpha, seed):
        status = jnp.where(lam > 1.5, int(lr.Status.nonfinite), int(lr.Status.ok))
        return {"y": lam * alpha, "status": status}

    axes = {"start": lr.zipped(lam=[1.0, 2.0], alpha=[0.1, 0.3]), "seed": range(4)}
    path = tmp_path / "s.zarr"
    lr.sweep(cell, axes, store=path, piece=2, chunk_size=2, progress=False)
    group = zarr.open_group(path, mode="r+")
    status = group["status"]
    assert isinstance(status, zarr.Array)
    status[0, :2] = lr.Status.pending
    assert main(["show", str(path)]) == 0
    text = capsys.readouterr().out
    assert "alpha    0.1, 0.3 (2) (along start)" in text
    assert "6 of 8 cells (75%)" in text
    assert "failed   4 (4 nonfinite)" in text
    assert "lam=2.0, alpha=0.3, seed=3: nonfinite" in text
    assert lr.Status.nonfinite.remedy in text


def test_plot_draws_maps_beside_the_store(store, capsys):
    assert main(["plot", str(store)]) == 0
    figure = store.with_suffix(".png")
    assert capsys.readouterr().out == f"Figure: {figure}.\n"
    assert figure.stat().st_size > 10_000
    other = store.parent / "deep" / "one.pdf"
    words = ["--variables=half_time", f"--figure={other}"]
    assert main(["plot", str(store), *words]) == 0
    assert other.stat().st_size > 1_000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show"], "STORE"),
        (["show", "nowhere.zarr"], "no store at nowhere.zarr"),
        (["plot", "nowhere.zarr"], "no store at nowhere.zarr"),
        (["plot", "{store}", "--variables=foo"], "no `foo`"),
        (["plot", "{store}", "--figure=x.txt"], "--figure"),
        (["plot", "{store}", "--figure=none"], "--figure"),
    ],
)
def test_mistakes_are_one_line(store, arguments, text, capsys):
    assert main([a.format(store=store) for a in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--chunk=0", "--chunk"),
        ("--piece=-1", "--piece"),
        ("--devices=99", "--devices"),
        ("--memory=lots", "memory"),
        ("--executor=dusk://x", "executor"),
    ],
)
def test_how_it_runs_is_checked(tmp_path, option, text, capsys):
    store = f"--store={tmp_path / 's.zarr'}"
    assert main([*TINY.split(), "--method=exact", "--quiet", store, option]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert not list(tmp_path.iterdir())


def test_overwrite_starts_anew_and_options_change_no_bit(store, tmp_path):
    options = f"--method=exact --quiet --figure=none --store={tmp_path / 's.zarr'}"
    more = "--executor=threads://1 --devices=1 --memory=1GB --piece=8 --chunk=24"
    assert main([*TINY.replace("8:log", "4:log").split(), *options.split()]) == 0
    again = [*TINY.split(), *options.split(), *more.split()]
    assert main(again) == 2
    assert main([*again, "--overwrite"]) == 0
    ds, same = (lr.open(path).load() for path in (tmp_path / "s.zarr", store))
    for name in same.data_vars:
        assert (ds[name].values == same[name].values).all()
    assert json.loads(ds.attrs["lazyrich"])["chunk_size"] == 24
