"""Files of a store that are damaged or lost: never believed, and mended if possible."""

import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import lazyrich as lr
from lazyrich.sweeps import sweep
from lazyrich.sweeps._program import Program

AXES = {"lam": np.linspace(0.0, 2.0, 8).tolist(), "seed": range(4)}
"""Eight chunks of four cells."""


def cell(lam, seed):
    return {"y": jnp.sin(lam * (1 + seed).astype(lam.dtype)), "n": seed}


def quiet(store, **options):
    fixed = {"piece": 4, "chunk_size": 4, "progress": False}
    return sweep(cell, AXES, store=store, **fixed | options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "s.zarr"
    return path, quiet(path).load()


@pytest.fixture
def store(undisturbed, tmp_path):
    """A finished store, to be damaged."""
    return shutil.copytree(undisturbed[0], tmp_path / "s.zarr")


@pytest.fixture
def whole(undisturbed):
    return undisturbed[1]


@pytest.fixture
def computed(monkeypatch, undisturbed):
    """The first cell of every chunk that is computed."""
    starts = []
    run = Program.run

    def counted(self, start, stop, device):
        starts.append(start)
        return run(self, start, stop, device)

    monkeypatch.setattr(Program, "run", counted)
    return starts


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-3])


def garble(path):
    path.write_bytes(b"\xff}")


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip, shorten, remove])
@pytest.mark.parametrize("name", ["y", "n", "status"])
def test_a_damaged_chunk_alone_is_computed_anew(
    store, whole, computed, capsys, damage, name
):
    damage(store / name / "c" / "3" / "0")
    if damage is not remove:
        with pytest.raises((ValueError, RuntimeError)):
            lr.open(store).load()
    ds = quiet(store, progress=True).load()
    assert computed == [12]
    assert "1 chunk was damaged" in capsys.readouterr().err
    xr.testing.assert_equal(ds, whole)


def test_a_damaged_mark_is_said(store, whole, computed, capsys):
    flip(store / "done" / "c" / "5")
    xr.testing.assert_equal(quiet(store, progress=True).load(), whole)
    assert computed == [20]
    assert "1 chunk was damaged" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["lam/c/0", "seed/c/0", "seed/zarr.json"])
@pytest.mark.parametrize("damage", [flip, shorten, garble, remove])
def test_labels_are_restored(store, whole, computed, capsys, file, damage):
    damage(store / file)
    if damage is remove or "zarr.json" in file:
        with pytest.raises(ValueError, match=re.escape(str(store))):
            lr.open(store)
    ds = quiet(store, progress=True).load()
    assert not computed
    name = file.partition("/")[0]
    assert f"labels {name} were damaged" in capsys.readouterr().err
    xr.testing.assert_identical(ds, whole)


@pytest.mark.parametrize("array", ["y", "status", "done"])
@pytest.mark.parametrize("damage", [shorten, garble, remove])
def test_a_lost_description_is_refused_and_costs_nothing(
    store, whole, computed, array, damage
):
    file = store / array / "zarr.json"
    before = file.read_bytes()
    damage(file)
    for call in (quiet, lr.open):
        with pytest.raises(ValueError, match=re.escape(str(file))):
            call(store)
    file.write_bytes(before)
    xr.testing.assert_equal(quiet(store).load(), whole)
    assert not computed
    damage(file)
    xr.testing.assert_equal(quiet(store, overwrite=True).load(), whole)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]"])
def test_a_store_without_its_description_waits_for_overwrite(store, whole, text):
    (store / "zarr.json").write_bytes(text)
    for call in (quiet, lr.open):
        with pytest.raises(ValueError, match="overwrite=True"):
            call(store)
    assert (store / "zarr.json").read_bytes() == text
    xr.testing.assert_equal(quiet(store, overwrite=True).load(), whole)


@pytest.mark.parametrize("record", ["}", "{}", "[]", '{"config": {}}', None, 1])
def test_a_record_of_another_form_is_refused(store, computed, record):
    content = json.loads((store / "zarr.json").read_text())
    content["attributes"]["lazyrich"] = record
    (store / "zarr.json").write_text(json.dumps(content))
    for call in (quiet, lr.open):
        with pytest.raises(ValueError, match=re.escape(str(store))):
            call(store)
    assert not computed
