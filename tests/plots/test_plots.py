"""Pictures from hand-made Datasets: what is drawn, on which Axes, with which words."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from lazyrich import plots

TIMES = np.linspace(0.0, 10.0, 51)
LAM = np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0])


def dataset(methods=("exact", "flow", "sgd"), scales=(0.01, 0.1), seeds=2):
    axes = {"method": list(methods), "lam": LAM, "scale": list(scales)}
    coords = {**axes, "seed": np.arange(seeds), "time": TIMES}
    shape = (len(methods), len(LAM), len(scales), seeds)
    rate = 0.3 + np.abs(LAM)[None, :, None, None] + np.zeros(shape)
    rate += 0.01 * np.arange(seeds)
    excess = 2.0 * np.exp(-rate[..., None] * TIMES)
    dims = ("method", "lam", "scale", "seed")
    return xr.Dataset(
        {
            "excess": ((*dims, "time"), excess),
            "half_time": (dims, np.log(2) / rate),
            "kernel_distance": (dims, 0.2 / rate**2),
        },
        coords,
    )


@pytest.fixture
def axes():
    return Figure().subplots()


def test_loss_curves_tell_methods_apart(axes):
    assert plots.loss_curves(dataset(), axes, lam=[0.0, 1.0], scale=0.1) is axes
    curves = [line for line in axes.lines if len(np.atleast_1d(line.get_xdata()))]
    assert len(curves) == 2 * 3
    marks = {(line.get_linestyle(), line.get_marker()) for line in curves}
    assert marks == {("-", "None"), ("None", "o"), ("None", "x")}
    np.testing.assert_allclose(curves[0].get_ydata(), np.exp(-0.3 * TIMES[1:]))
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[2:] == ["exact", "gradient flow", "SGD"]
    assert "0" in labels[0]
    assert "1" in labels[1]
    assert "1/\\eta" in axes.get_xlabel()
    assert axes.get_title() == "scale 0.1, seed 0"


def test_colours_survive_greyscale(axes):
    plots.loss_curves(dataset(["exact"]), axes, lam=[0.0, 0.5, 1.0, 2.0])
    colours = [line.get_color() for line in axes.lines if len(line.get_xdata())]
    grey = [np.dot(colour[:3], [0.299, 0.587, 0.114]) for colour in colours]
    assert (np.diff(grey) > 0.1).all()


def test_the_default_lam_tell_something(axes):
    """Neither curves that fall before they are seen, nor twins such as ±1."""
    ds = dataset(["exact"])
    fast = ds["excess"].where(abs(ds["lam"]) != 2.0, 1e-9)
    fast[..., 0] = 2.0
    plots.loss_curves(ds.assign(excess=fast), axes)
    labels = [str(line.get_label()) for line in axes.lines]
    assert [x for x in labels if "lambda" in x] == [
        r"$\lambda = 0$",
        r"$\lambda = 0.5$",
        r"$\lambda = 1$",
    ]


@pytest.mark.parametrize("variable", ["half_time", "kernel_distance"])
def test_phase_draws_a_curve_a_scale_with_its_range(axes, variable):
    ds = dataset()
    assert plots.phase(ds, variable, axes) is axes
    curves = [line for line in axes.lines if len(line.get_xdata()) == len(LAM)]
    assert [line.get_label() for line in curves] == ["scale 0.01", "scale 0.1"]
    exact = ds[variable].sel({"method": "exact"}).isel(scale=0)
    np.testing.assert_allclose(curves[0].get_ydata(), exact.mean("seed"))
    assert len(axes.collections) == 2
    assert axes.get_yscale() == "log"
    names = [text.get_text() for text in axes.texts]
    expected = ["lazy", "mixed", "rich"] if variable == "kernel_distance" else []
    assert names == expected


def test_datasets_with_lam_alone():
    ds = dataset(["flow"], [0.1], 1).isel(method=0, scale=0, seed=0, drop=True)
    axes = plots.phase(ds, "half_time")
    assert axes.get_legend() is None
    plots.loss_curves(ds)
    assert isinstance(plots.summary(ds), Figure)


def test_missing_values_leave_gaps_and_warn_nobody(axes):
    ds = dataset()
    ds["kernel_distance"][:, 2] = np.nan
    ds["excess"][:, 2] = np.nan
    plots.phase(ds, "kernel_distance", axes)
    plots.summary(ds).canvas.draw()


def test_summary_has_three_panels(tmp_path):
    figure = plots.summary(dataset())
    left, middle, right = figure.axes
    assert [a.get_title(loc="left") for a in figure.axes] == ["a", "b", "c"]
    assert middle.get_title() == "mean and range over 2 seeds"
    assert right.get_legend() is None
    figure.savefig(tmp_path / "summary.png")
    assert (tmp_path / "summary.png").stat().st_size > 10_000
    assert left.get_ylabel()


def test_what_is_missing_is_named(axes):
    ds = dataset()
    with pytest.raises(ValueError, match="no `excess`: it has half_time"):
        plots.loss_curves(ds.drop_vars("excess"), axes)
    with pytest.raises(ValueError, match="no dimension `lam`"):
        plots.phase(ds.isel(lam=0), "half_time", axes)


def test_a_map_has_logarithmic_axes_and_parts_the_regimes(axes):
    lam, scale = np.linspace(-2.0, 2.0, 9), np.geomspace(1e-3, 1.0, 7)
    values = np.exp(-np.abs(lam[:, None, None])) * np.ones((9, 7, 2))
    values[0, 0] = np.nan
    ds = xr.Dataset(
        {"kernel_distance": (("lam", "scale", "seed"), values)},
        {"lam": lam, "scale": scale, "seed": [0, 1]},
    )
    drawn = plots.phase_diagram(ds, "kernel_distance", axes)
    assert (drawn.get_xscale(), drawn.get_yscale()) == ("linear", "log")
    (mesh,) = [c for c in drawn.collections if isinstance(c, QuadMesh)]
    shown = mesh.get_array()
    assert shown is not None
    assert shown.shape == (7, 9)
    np.testing.assert_allclose(shown[3], values[:, 3, 0])
    assert np.ma.getmaskarray(shown).sum() == 1
    words = {text.get_text() for text in drawn.texts}
    assert words == {"mixed | rich"}  # no distance is below 0.1


@pytest.mark.parametrize(
    ("dims", "panels", "maps"),
    [
        (("lam",), 2, 0),
        (("lam", "scale", "seed"), 2, 2),
        (("width", "seed"), 2, 0),
        (("mode", "rate", "width"), 2, 2),
    ],
)
def test_an_overview_of_any_sweep(dims, panels, maps, tmp_path):
    sizes = {"lam": 5, "scale": 8, "seed": 2, "width": 4, "mode": 2, "rate": 3}
    shape = [sizes[d] for d in dims]
    coords = {d: 1.0 + np.arange(sizes[d]) for d in dims if d != "mode"}
    coords |= {"mode": ["a", "b"]} if "mode" in dims else {}
    y = np.arange(np.prod(shape), dtype=float).reshape(shape)
    ds = xr.Dataset(
        {"y": (dims, y), "z": (dims, y + 1.0), "n": (dims, y.astype(int))}, coords
    )
    figure = plots.overview(ds)
    drawn = [a for a in figure.axes if a.get_xlabel()]
    assert len(drawn) == panels
    kinds = [c for a in drawn for c in a.collections if isinstance(c, QuadMesh)]
    assert len(kinds) == maps
    figure.savefig(tmp_path / "o.png")
    assert len(plots.overview(ds, ["z"]).axes) == (2 if maps else 1)
    with pytest.raises(ValueError, match="no `w`"):
        plots.overview(ds, ["w"])


def test_an_overview_needs_a_number_for_each_run():
    with pytest.raises(ValueError, match="no variable"):
        plots.overview(xr.Dataset({"name": ("lam", ["a"])}))
