"""Exceptions in the cell's own code."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich import Status
from lazyrich.sweeps import SweepError, sweep


def quiet(cell, axes, **options):
    return sweep(cell, axes, piece=4, progress=False, **options)


def picky(mode, x):
    if mode == "broken":
        raise ZeroDivisionError("no such mode\nin two lines")
    return {"y": 2 * x, "n": 3}


def test_one_combination_raises_and_the_others_run(capsys):
    axes = {"x": [1.0, 2.0], "mode": ["broken", "whole"]}
    ds = sweep(picky, axes, piece=4)
    np.testing.assert_array_equal(ds["y"], [[np.nan, 2.0], [np.nan, 4.0]])
    np.testing.assert_array_equal(ds["n"], [[0, 3], [0, 3]])
    assert (ds["status"].sel(mode="broken") == Status.error).all()
    assert (ds["status"].sel(mode="whole") == Status.ok).all()
    said = capsys.readouterr().err
    assert "2 of 4 cells failed" in said
    assert "mode='broken'" in said
    assert "ZeroDivisionError: no such mode" in said


@pytest.mark.parametrize(
    ("modes", "on_error"), [(["broken", "whole"], "raise"), (["broken"], "record")]
)
def test_raised_with_labels_and_cause(modes, on_error):
    with pytest.raises(SweepError, match=r"mode='broken': ZeroDivision") as caught:
        quiet(picky, {"x": [1.0], "mode": modes}, on_error=on_error)
    assert caught.value.labels == {"mode": "broken"}
    assert caught.value.status == Status.error
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "\n" not in str(caught.value)


def test_a_branch_on_a_traced_number_gets_a_hint():
    with pytest.raises(SweepError, match=r"every cell.*lr\.static"):
        quiet(lambda x: {"y": 1.0 if x > 0 else 0.0}, {"x": [1.0]})
    with pytest.raises(SweepError, match=r"lr\.static"):
        quiet(lambda n: {"y": np.ones(n)}, {"n": [1, 2]})


def fragile(x, seed):
    y = eqx.error_if(x, (x > 2.5) & (seed == 1), "x is too large")
    return {"y": y * 2, "n": seed}


@pytest.mark.filterwarnings("ignore")  # JAX's logger may warn about its callback
def test_a_cell_that_raises_while_running_disturbs_nobody(capfd):
    axes = {"x": [1.0, 2.0, 3.0], "seed": range(2)}
    ds = sweep(fragile, axes, piece=4)
    expected = [[2.0, 2.0], [4.0, 4.0], [6.0, np.nan]]
    np.testing.assert_array_equal(ds["y"], expected)
    assert ds["status"].values.tolist() == [[0, 0], [0, 0], [0, 6]]
    said = capfd.readouterr().err
    assert "1 of 6 cells failed" in said
    assert "x=3.0, seed=1" in said
    assert "x is too large" in said


@pytest.mark.filterwarnings("ignore")
def test_raise_names_the_cell_that_raised_while_running():
    axes = {"x": [1.0, 2.0, 3.0], "seed": range(2)}
    with pytest.raises(SweepError, match=r"x=3\.0, seed=1.*too large") as caught:
        quiet(fragile, axes, on_error="raise")
    assert caught.value.labels == {"x": 3.0, "seed": 1}


def test_equal_seeds_share_draws_across_all_axes():
    def cell(lam, seed, mode):
        return {"draw": jax.random.normal(jax.random.key(seed)) + 0 * lam}

    axes = {"lam": jnp.asarray([0.0, 1.0]), "seed": range(3), "mode": ["a", "b"]}
    draw = quiet(cell, axes)["draw"]
    assert (draw == draw.isel(lam=0, mode=0)).all()
    assert len(np.unique(draw)) == 3
