"""The error of the closed form over λ and t, as a figure: ours, and as printed.

    python -m benchmarks.error_map

One task (4-4-4, singular values 2, 1.3, 0.9, 0.6), product scale 0.1, against
arbitrary precision. Writes docs/figures/error_map.png.
"""

import pathlib

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import lazyrich as lr
from benchmarks.exact import _textbook
from tests.oracle import riccati
from tests.problems import Problem

LAMS = np.concatenate([-np.logspace(2, -8, 11), [0.0], np.logspace(-8, 2, 11)])
TIMES = np.logspace(-3, 1.5, 19)
FLOOR = 1e-16


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    errors = np.full((2, len(TIMES), len(LAMS)), np.nan)
    for column, lam in enumerate(LAMS):
        problem = Problem((4, 4, 4), float(lam), 0.1)
        w1, w2 = problem.weights()
        sigma = problem.sigma()
        net, task, _ = problem.build()
        out = lr.train(net, task, jnp.asarray(TIMES), method=lr.Exact()).networks
        assert out is not None
        with np.errstate(all="ignore"):
            printed = _textbook(w1, w2, sigma, TIMES)
        exact = (np.asarray(out.w1), np.asarray(out.w2))
        for row, blocks in enumerate(riccati.solve(w1, w2, sigma, list(TIMES))):
            s = np.block([[blocks[0], blocks[1].T], [blocks[1], blocks[2]]])
            for k, (first, second) in enumerate((exact, printed)):
                q = np.concatenate([first[row].T, second[row]])
                gap = np.linalg.norm(q @ q.T - s) / np.linalg.norm(s)
                errors[k, row, column] = gap
    draw(errors)


def draw(errors: np.ndarray) -> None:
    figure, axes = plt.subplots(
        1, 2, figsize=(9, 3.6), sharey=True, layout="constrained"
    )
    shown = np.log10(np.maximum(errors, FLOOR))
    mesh = None
    for ax, data, title in zip(axes, shown, ("lr.Exact()", "as printed"), strict=True):
        ax.set_facecolor("white")
        ax.patch.set_hatch("////")
        ax.patch.set_edgecolor("0.6")
        mesh = ax.pcolormesh(
            np.arange(len(LAMS)),
            np.log10(TIMES),
            np.ma.masked_invalid(data),
            cmap="cividis",
            vmin=-16,
            vmax=0,
            shading="nearest",
        )
        middle = len(LAMS) // 2
        ticks = [0, 4, 8, middle, middle + 3, middle + 7, middle + 11]
        names = [r"$-10^{2}$", r"$-10^{-2}$", r"$-10^{-6}$", "0"]
        names += [r"$10^{-6}$", r"$10^{-2}$", r"$10^{2}$"]
        ax.set_xticks(ticks, names)
        ax.set_xlabel(r"balance $\lambda$")
        ax.set_title(title)
    axes[0].set_ylabel(r"$\log_{10}$ time (units of $\tau$)")
    assert mesh is not None
    bar = figure.colorbar(mesh, ax=axes)
    bar.set_label(r"$\log_{10}\ \|\Delta S\|_F/\|S\|_F$")
    path = pathlib.Path(__file__).parents[1] / "docs" / "figures" / "error_map.png"
    figure.savefig(path, dpi=150)
    good = np.nanmax(errors[0])
    print(f"largest error: ours {good:.1e}, as printed {np.nanmax(errors[1]):.1e}, ")
    print(f"failures as printed: {np.isnan(errors[1]).sum()} of {errors[1].size}")


if __name__ == "__main__":
    main()
