"""Accuracy and speed of the three ways of learning, and of what people write instead.

    python -m benchmarks.methods

One task (the semantic hierarchy, 8-8-8), 64 starts (λ from −8 to 8, product scale
0.1), 201 times from 0 to 40 τ, float64. Errors are against an arbitrary-precision
evaluation of the closed form on the same weights, for four of the starts and nine of
the times. Prints a table and writes it to benchmarks/RESULTS.md.
"""

import platform

import jax
import jax.numpy as jnp
import numpy as np

import lazyrich as lr
from benchmarks.peers import lsoda
from benchmarks.report import write
from benchmarks.timing import Timing, compiled, plain
from tests.oracle import riccati

TASK_LEVELS, CELLS, HORIZON, RATE = 3, 64, 40.0, 0.01
CHECKED_CELLS, CHECKED_TIMES = (0, 20, 40, 63), (0, 2, 5, 8, 10, 15, 25, 50, 200)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    task = lr.tasks.hierarchy(TASK_LEVELS)
    sigma = np.asarray(task.sigma_yx)
    times = np.linspace(0.0, HORIZON, 201)
    size = sigma.shape[0]

    def start(lam):
        return lr.inits.balanced(jax.random.key(0), size, size, size, lam, 0.1)

    nets = jax.block_until_ready(jax.vmap(start)(jnp.linspace(-8.0, 8.0, CELLS)))
    w1s, w2s = np.asarray(nets.w1), np.asarray(nets.w2)
    late = [float(times[k]) for k in CHECKED_TIMES]
    answers = [
        [block[1] for block in riccati.solve(w1s[i], w2s[i], sigma, late)]
        for i in CHECKED_CELLS
    ]

    def learn(method):
        def one(net):
            traj = lr.train(net, task, times, method=method, throw=False)
            return traj.networks.product

        return compiled(jax.vmap(one), nets)

    def error(products) -> float:
        gaps = [
            np.linalg.norm(products[i][k] - answer) / np.linalg.norm(sigma)
            for i, row in zip(CHECKED_CELLS, answers, strict=True)
            for k, answer in zip(CHECKED_TIMES, row, strict=True)
        ]
        return float(np.max(gaps))  # NaN if any is

    def loop(function):
        return plain(
            lambda: np.stack(
                [function(w1, w2) for w1, w2 in zip(w1s, w2s, strict=True)]
            ),
            repeats=1,
        )

    rows: list[tuple[str, Timing]] = [
        ("`lr.Exact()`", learn(lr.Exact())),
        ("`lr.GradientFlow(rtol=1e-4)`", learn(lr.GradientFlow(rtol=1e-4))),
        ("`lr.GradientFlow()` (rtol 1e-6)", learn(lr.GradientFlow())),
        ("`lr.GradientFlow(rtol=1e-9)`", learn(lr.GradientFlow(rtol=1e-9))),
        (
            "`lr.SGD(0.01)`, full batch, 4,000 steps",
            learn(lr.SGD(RATE, steps=round(HORIZON / RATE))),
        ),
        (
            "SciPy LSODA (rtol 1e-6), loop over cells",
            loop(lambda w1, w2: _scipy(w1, w2, sigma, times)),
        ),
        (
            "NumPy gradient descent, 4,000 steps, loop over cells",
            loop(lambda w1, w2: _descent(w1, w2, sigma, times)),
        ),
        (
            "NumPy closed form as printed, loop over cells and times",
            loop(lambda w1, w2: _textbook(w1, w2, sigma, times)),
        ),
    ]
    base = rows[0][1].run
    lines = [
        "| method | compile, s | run, ms per cell | × Exact | largest error |",
        "|---|---|---|---|---|",
    ]
    for name, timing in rows:
        products = np.asarray(timing.value)
        shown = f"{error(products):.1e}"
        if lost := int(np.isnan(products).any(axis=(1, 2, 3)).sum()):
            shown += f"; fails in {lost} of {CELLS} cells"
        spent = f"{timing.compile:.1f}" if timing.compile else "—"
        lines.append(
            f"| {name} | {spent} | {1e3 * timing.run / CELLS:.3g} "
            f"| {timing.run / base:.2g} | {shown} |"
        )
    _write("\n".join(lines))


def _scipy(w1, w2, sigma, times):
    first, second = lsoda(w1, w2, sigma, times, rtol=1e-6, atol=1e-9)
    return second @ first


def _descent(w1, w2, sigma, times):
    shown = np.rint(times / RATE).astype(int)
    products, k = [], 0
    for target in shown:
        while k < target:
            gap = sigma - w2 @ w1
            w1, w2 = w1 + RATE * w2.T @ gap, w2 + RATE * gap @ w1.T
            k += 1
        products.append(w2 @ w1)
    return np.stack(products)


def _textbook(w1, w2, sigma, times):
    """S(t) = e^{Ft}Q0 (I + Q0ᵀ(∫e^{2Fs})Q0)⁻¹ Q0ᵀe^{Ft}, evaluated as it stands."""
    inputs, outputs = w1.shape[1], w2.shape[0]
    lam = (np.sum(w2**2) - np.sum(w1**2)) / w1.shape[0]
    f = np.block(
        [
            [-lam / 2 * np.eye(inputs), sigma.T],
            [sigma, lam / 2 * np.eye(outputs)],
        ]
    )
    q0 = np.concatenate([w1.T, w2])
    products = []
    for t in times:
        rates, basis = np.linalg.eigh(f)
        grown = basis * np.exp(rates * t) @ basis.T @ q0
        area = basis * (np.expm1(2 * rates * t) / (2 * rates)) @ basis.T
        inner = np.eye(q0.shape[1]) + q0.T @ area @ q0
        try:
            s = grown @ np.linalg.inv(inner) @ grown.T
        except np.linalg.LinAlgError:  # singular once the exponentials have parted
            s = np.full((inputs + outputs,) * 2, np.nan)
        products.append(s[inputs:, :inputs])
    return np.stack(products)


def _write(table: str) -> None:
    text = (
        f"`python -m benchmarks.methods`, {platform.machine()}, 2 cores, float64, "
        f"jax {jax.__version__}: the semantic hierarchy (8-8-8), {CELLS} starts with λ "
        "from −8 to 8, 201 times from 0 to 40 τ. The error is the largest "
        "‖ΔW2W1‖_F/‖Σ‖_F against arbitrary precision over 36 (start, time) points. "
        "SGD's distance from gradient flow is real, and of order η.\n"
        f"\n{table}\n"
    )
    write("The three ways of learning", text)


if __name__ == "__main__":
    main()
