"""The memory budget: what it may say, what it picks, and that it changes no result."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import lazyrich as lr
from lazyrich.sweeps import _budget, sweep
from lazyrich.sweeps._budget import make_plan, parse_memory
from lazyrich.sweeps._program import Program

AXES = {"x": np.linspace(-1.0, 1.0, 50), "seed": range(4)}
FACTS = {"chunk", "workers", "budget", "held", "piece", "cell"}


def cell(x, seed):
    return {"v": jnp.full(100, x) + jnp.arange(100.0), "n": seed}


def quiet(cell=cell, axes=AXES, **options):
    return sweep(cell, axes, **{"piece": 4, "progress": False, **options})


def memory_of(ds):
    return json.loads(ds.attrs["lazyrich"])["memory"]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (None, None),
        (1, 1),
        (123456789, 123456789),
        (np.int64(5000), 5000),
        ("1", 1),
        ("512", 512),
        ("512 B", 512),
        ("500kB", 500 * 2**10),
        ("500MB", 500 * 2**20),
        ("4GB", 4 * 2**30),
        ("4 GiB", 4 * 2**30),
        (" 4 gib ", 4 * 2**30),
        ("4g", 4 * 2**30),
        ("2T", 2 * 2**40),
        ("0.5GB", 2**29),
        (".5 GB", 2**29),
        ("1.5k", 1536),
    ],
)
def test_amounts(unchecked, given, count):
    assert parse_memory(given) == count


@pytest.mark.parametrize(
    "given",
    [
        *("", "much", "GB", "4 XB", "4 GB more", "-4GB", "4,5GB", "1.2.3GB", "4. GB"),
        *("nan", "inf", "0", "0GB", "0.1B"),
        *(0, -5, True, float("nan"), float("inf"), b"4GB"),
    ],
)
def test_what_is_no_amount(unchecked, given):
    with pytest.raises(ValueError, match="`memory` must be a number of bytes") as told:
        parse_memory(given)
    assert repr(given) in str(told.value)
    assert "\n" not in str(told.value)


def test_the_default_is_half_of_what_is_available_and_says_what_it_picked(
    monkeypatch, capsys
):
    # Where there is plenty, and where there is little.
    for amount in (2**30, 2**19):
        monkeypatch.setattr(_budget, "available", lambda amount=amount: amount)
        ds = quiet(progress=True)
        said = capsys.readouterr().err
        facts = memory_of(ds)
        assert facts["budget"] == amount // 2
        assert f"chunks of {facts['chunk']} cells" in said
        assert "a piece takes" in said
        assert f"results {_budget.size(facts['held'])}" in said
        assert f"of {_budget.size(amount // 2)}." in said
    quiet()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory": "1kB"}, "results take .* 1 kB of memory stated: give `store=`"),
        ({"memory": "200kB"}, r"One piece of 64 cells takes .*smaller `piece`"),
        ({"memory": "1kB", "store": True}, "One piece of 64 cells.*smaller `piece`"),
        (
            {"memory": "1MB", "store": True, "piece": 4, "chunk_size": 10_000},
            "Chunks of 10000 cells do not fit into 1 MB.*smaller `chunk_size`",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    tmp_path, monkeypatch, options, text
):
    def never(*_):
        raise AssertionError("a piece was run")

    monkeypatch.setattr(Program, "_call", never)
    options = {"piece": 64, **options}
    if options.get("store"):
        options["store"] = tmp_path / "s.zarr"
    with pytest.raises(ValueError, match=text) as caught:
        quiet(**options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_chunk_size_that_is_advised_works(tmp_path):
    options = {"memory": "1MB", "store": tmp_path / "s.zarr", "piece": 4}
    with pytest.raises(ValueError, match="at most") as caught:
        quiet(chunk_size=10_000, **options)
    most = int(str(caught.value).split("at most ")[1].split(")")[0])
    ds = quiet(chunk_size=most, **options)
    assert memory_of(ds)["chunk"] == most
    xr.testing.assert_equal(ds.load(), quiet())


def test_when_available_memory_is_short_it_says_so(monkeypatch):
    monkeypatch.setattr(_budget, "available", lambda: 2000)
    with pytest.raises(ValueError, match="1000 B of memory available: give `store=`"):
        quiet()


def test_results_that_a_budget_cannot_hold_fit_with_a_store(tmp_path):
    reference = quiet()
    options = {"memory": memory_of(reference)["held"] - 1}
    with pytest.raises(ValueError, match="give `store=`"):
        quiet(**options)
    ds = quiet(**options, store=tmp_path / "s.zarr")
    assert memory_of(ds)["held"] == 0
    xr.testing.assert_equal(ds.load(), reference)


@given(
    cells=st.integers(1, 10**6),
    piece=st.sampled_from([1, 4, 64, 4096]),
    piece_bytes=st.integers(1, 10**8),
    cell=st.integers(2, 10**5),
    memory=st.integers(1, 10**11),
    stored=st.booleans(),
    platform=st.sampled_from(["cpu", "gpu"]),
    pieces=st.none() | st.integers(1, 64),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_plan_needs_no_more_than_its_budget(
    cells, piece, piece_bytes, cell, memory, stored, platform, pieces
):
    chunk = None if pieces is None else pieces * piece
    given = {"piece_bytes": piece_bytes, "cell": cell, "memory": memory}
    rest = {"stored": stored, "chunk": chunk, "platform": platform}
    running = piece_bytes if platform == "cpu" else 0
    held = 0 if stored else cells * cell
    # Refused only if one worker with the smallest chunk does not fit.
    if held + running + 4 * (chunk or piece) * cell > memory:
        with pytest.raises(ValueError, match="give"):
            make_plan(cells, piece, **given, **rest)
        return
    plan = make_plan(cells, piece, **given, **rest)
    assert plan.chunk >= piece
    assert plan.chunk % piece == 0
    assert plan.chunk == (chunk or plan.chunk)
    assert plan.workers >= 1
    assert (plan.held, plan.budget) == (held, memory)
    # Two chunks for each worker are on their way, and put together.
    need = plan.held + plan.workers * (running + 4 * plan.chunk * cell)
    assert need <= memory


@given(st.integers(10**6, 10**9), st.integers(1, 50))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_less_memory_never_makes_larger_chunks(memory, factor):
    options = {"piece_bytes": 10**5, "cell": 100, "chunk": None, "platform": "cpu"}
    small, large = (
        make_plan(10**5, 64, memory=m, stored=True, **options)
        for m in (memory, memory * factor)
    )
    assert small.chunk * small.workers <= large.chunk * large.workers
    assert small.workers <= large.workers


@pytest.mark.parametrize("stored", [False, True])
def test_a_budget_shrinks_chunks_and_changes_no_bit(tmp_path, stored):
    reference = quiet()
    piece = memory_of(reference)["piece"]
    results = 0 if stored else memory_of(reference)["held"]
    least = results + piece + 16 * memory_of(reference)["cell"]
    chunks = []
    for number, extra in enumerate((0, 15_000, 10**7)):
        options = {"store": tmp_path / f"{number}.zarr"} if stored else {}
        ds = quiet(memory=least + extra, **options)
        chunks.append(memory_of(ds)["chunk"])
        assert memory_of(ds)["budget"] == least + extra
        xr.testing.assert_equal(ds.load(), reference)
    assert chunks[0] == 4
    assert chunks == sorted(chunks)
    options = {"store": tmp_path / "none.zarr"} if stored else {}
    with pytest.raises(ValueError, match="smaller `piece`"):
        quiet(memory=least - 1, **options)


@pytest.mark.parametrize("stored", [False, True])
def test_the_record_tells_the_plan(tmp_path, stored):
    options = {"store": tmp_path / "s.zarr"} if stored else {}
    ds = quiet(memory="100MB", **options)
    facts = memory_of(ds)
    assert set(facts) == FACTS
    assert facts["budget"] == 100 * 2**20
    assert facts["cell"] == 100 * 8 + 8 + 1
    assert facts["held"] == (0 if stored else 200 * facts["cell"])
    assert facts["piece"] > 4 * facts["cell"]
    if stored:
        assert memory_of(lr.open(options["store"])) == facts
        assert set(memory_of(quiet(memory="1GB", **options))) == FACTS
