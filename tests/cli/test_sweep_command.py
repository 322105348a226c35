"""`lazyrich sweep` at a tiny size: table, store, figure, exit codes."""

import json

import numpy as np
import pytest

import lazyrich as lr
from lazyrich.cli import main

TINY = [
    "sweep",
    "--lam=-1:1:3",
    "--scale=0.01,0.5",
    "--seed=0:2",
    "--levels=1",
    "--times=0:6:31",
    "--learning-rate=0.05",
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The command, run twice: folder, outputs of both, and the Dataset."""
    folder = tmp_path_factory.mktemp("sweep")
    store = folder / "tiny.zarr"
    arguments = [*TINY, f"--store={store}"]
    with pytest.MonkeyPatch.context() as patch:
        outputs = []
        for _ in range(2):
            printed = Printed()
            patch.setattr("builtins.print", printed)
            assert main(arguments) == 0
            outputs.append("\n".join(printed.lines))
    return folder, outputs, lr.open(store).load()


class Printed:
    """What was printed to stdout."""

    def __init__(self):
        self.lines = []

    def __call__(self, *words, file=None):
        if file is None:
            self.lines.append(" ".join(map(str, words)))


def test_it_prints_set_up_table_and_how_to_go_on(ran):
    folder, (first, _), _ = ran
    assert "36 cells in float64" in first
    assert "hierarchy of 1 levels: 2 inputs, 2 outputs" in first
    assert "SGD (η = 0.05, full batch)" in first
    rows = [line.split() for line in first.splitlines()]
    table = [row for row in rows if row and row[0] in ("-1", "0", "1")]
    assert len(table) == 3
    assert {row[4] for row in table} <= {"lazy", "mixed", "rich"}
    assert f'ds = lr.open("{folder / "tiny.zarr"}")' in first


def test_the_store_holds_every_measure(ran):
    _, _, ds = ran
    assert dict(ds.sizes) == {
        "method": 3,
        "lam": 3,
        "scale": 2,
        "seed": 2,
        "time": 31,
    }
    assert (ds["status"] == 0).all()
    for name in ("excess", "half_time", "final_excess", "kernel_distance"):
        assert np.isfinite(ds[name]).all(), name
    assert ds["balance_drift"].sel({"method": "exact"}).max() < 1e-12
    assert ds["balance_drift"].sel({"method": "sgd"}).max() > 1e-4
    command = json.loads(ds.attrs["command"])
    assert command["learning_rate"] == 0.05
    assert command["hidden"] == 2
    assert json.loads(ds.attrs["lazyrich"])["config"]["axis"]["lam"]["size"] == 3


def test_disagreement_is_what_it_says(ran):
    _, _, ds = ran
    exact = ds["excess"].sel({"method": "exact"}, drop=True)
    for method in ("exact", "flow", "sgd"):
        gap = np.abs(ds["excess"].sel({"method": method}) - exact).max("time")
        found = ds["disagreement"].sel({"method": method})
        np.testing.assert_allclose(found, gap / exact.isel(time=0), rtol=1e-9)
    away = ds["disagreement"].where(ds["lam"] != 0)
    assert away.sel({"method": "exact"}).max() == 0
    assert away.sel({"method": "flow"}).max() < 1e-5
    assert 1e-4 < away.sel({"method": "sgd"}).max() < 0.1


def test_a_cell_is_what_the_library_gives(ran):
    _, _, ds = ran
    import jax

    task = lr.tasks.hierarchy(1)
    net = lr.inits.balanced(jax.random.key(1), 2, 2, 2, -1.0, 0.5)
    traj = lr.train(net, task, ds["time"].values, method=lr.Exact())
    at = ds.sel({"method": "exact", "lam": -1.0, "scale": 0.5, "seed": 1})
    excess = traj.map(task.excess)
    half = lr.until_loss(0.5 * excess[0], of="excess")
    short = lr.train(net, task, traj.times[-1], method=lr.Exact(), until=half)
    np.testing.assert_allclose(at["excess"], excess, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(at["half_time"], short.stop_time, rtol=1e-10)


def test_the_second_call_computes_nothing(ran):
    _, (first, second), ds = ran
    assert first == second
    assert [run["cells"] for run in json.loads(ds.attrs["lazyrich"])["runs"]] == [36]


def test_the_figure_is_drawn_beside_the_store(ran):
    folder, _, _ = ran
    assert (folder / "tiny.png").stat().st_size > 10_000


def test_another_sweep_in_the_same_store_is_refused(ran, capsys):
    folder, _, _ = ran
    arguments = [*TINY, f"--store={folder / 'tiny.zarr'}", "--method=sgd"]
    assert main(arguments) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "holds another sweep" in err
    assert "axis method size (3 in the store, 1 now)" in err


def test_own_data_minibatches_and_quiet(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "my.npz", x=rng.normal(size=(20, 3)), y=rng.normal(size=20))
    arguments = (
        f"sweep --data={tmp_path}/my.npz --method=sgd --batch-size=5 --lam=0 --seed=3 "
        f"--scale=0.1 --times=0:1:3 --store={tmp_path}/s.zarr --figure=none --quiet"
    )
    assert main(arguments.split()) == 0
    assert capsys.readouterr() == ("", "")
    ds = lr.open(tmp_path / "s.zarr")
    assert "disagreement" not in ds
    assert ds["final_excess"].item() > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.npz", "s.zarr"]


def test_exit_code_1_when_every_cell_failed(tmp_path, capsys):
    arguments = (
        "sweep --method=sgd --learning-rate=100 --lam=1,2 --seed=0:1 --scale=1 "
        f"--times=0:50000:2 --levels=1 --store={tmp_path}/s.zarr"
    )
    assert main(arguments.split()) == 1
    err = capsys.readouterr().err
    assert "2 of 2 cells failed" in err
    assert "method='sgd', lam=1.0, scale=1.0, seed=0" in err
    assert lr.Status.nonfinite.remedy in err
    assert "every cell failed" in err
