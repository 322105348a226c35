"""Cost and accuracy of the closed form, per (cell, time), and of its alternatives.

    python -m benchmarks.exact

Every row of one size computes the same thing: the weights at 200 times for a batch of
starts. Peers that are slow do so for fewer starts. Errors are the largest ‖ΔS‖_F/‖S‖_F
of the whole S = QQᵀ over a few (start, time) points, against arbitrary precision, or
for large networks against exact steps of bounded size. Prints a table and writes it
to benchmarks/RESULTS.md.
"""

import platform
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import lazyrich as lr
from benchmarks.peers import lsoda
from benchmarks.report import write
from benchmarks.timing import Timing, compiled, plain
from lazyrich.dynamics import _riccati
from lazyrich.dynamics._prepare import prepare
from lazyrich.dynamics._solution import solution
from lazyrich.dynamics._spectrum import factorize
from tests.oracle import riccati, steps

TIMES, HORIZON = 200, 20.0
CHECKED_TIMES = (0, 3, 10, 40, 120, 199)


class Case(NamedTuple):
    """A size, and how many starts the fast and the slow methods compute."""

    shape: tuple[int, int, int]
    cells: int
    few: int
    dtype: str = "float64"
    peers: bool = True

    @property
    def name(self) -> str:
        return "-".join(map(str, self.shape)) + (
            ", float32" if self.dtype == "float32" else ""
        )


CASES = (
    Case((5, 5, 5), 1024, 4),
    Case((5, 5, 5), 1024, 4, "float32"),
    Case((2, 2, 2), 1024, 4),
    Case((8, 8, 8), 256, 4),
    Case((32, 32, 32), 16, 1),
    Case((100, 100, 100), 1, 1, peers=False),
    Case((100, 10, 10), 64, 1),
    Case((1000, 10, 10), 4, 1, peers=False),
)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    lines = [
        "| size | method | compile, s | µs per cell and time | × closed form | error |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        lines += _rows(case)
    text = (
        f"`python -m benchmarks.exact`, {platform.machine()}, 2 cores, jax "
        f"{jax.__version__}: {TIMES} times from 0 to {HORIZON:g} τ, starts with λ from "
        "−8 to 8 (λ = 0 where no other is admissible for all), product scale 0.1. "
        "Up to hidden 10 the closed form runs on one core; LAPACK and NumPy use both. "
        "`lr.train` adds its checks and the record. The gradient is that of "
        "the mean loss in the weights, beside the loss alone. The error is the largest "
        "‖ΔS‖_F/‖S‖_F.\n\n" + "\n".join(lines)
    )
    write("The closed form", text)


def _rows(case: Case) -> list[str]:
    inputs, hidden, outputs = case.shape
    dtype = jnp.dtype(case.dtype)
    rng = np.random.default_rng(0)
    sigma = jnp.asarray(rng.normal(size=(outputs, inputs)) * 2 / inputs**0.5, dtype)
    task = lr.tasks.LinearTask(sigma)
    times = jnp.linspace(0.0, HORIZON, TIMES, dtype=dtype)
    reach = (-8.0 if hidden <= inputs else 0.0, 8.0 if hidden <= outputs else 0.0)
    lams = jnp.linspace(*reach, case.cells, dtype=dtype)
    nets = jax.block_until_ready(
        jax.jit(
            jax.vmap(
                lambda lam: lr.inits.balanced(jax.random.key(0), *case.shape, lam, 0.1)
            )
        )(lams)
    )
    checked = sorted({0, case.cells // 3, case.cells - 1})
    answers = _answers(case, nets, sigma, times, checked)

    def learn(method) -> Callable:
        def one(net):
            return lr.train(net, task, times, method=method, throw=False).networks

        return jax.vmap(one)

    def error(networks, cells: int) -> float:
        w1, w2 = (np.asarray(w, float) for w in (networks.w1, networks.w2))
        worst = 0.0
        for cell, row in answers.items():
            if cell < cells:
                for k, s in zip(CHECKED_TIMES, row, strict=True):
                    q = np.concatenate([w1[cell, k].T, w2[cell, k]])
                    gap = np.linalg.norm(q @ q.T - s) / np.linalg.norm(s)
                    worst = float(np.maximum(worst, gap))  # NaN if any is
        return worst

    def loss(net):
        out = lr.train(net, task, times, method=lr.Exact()).networks
        return jnp.mean(jax.vmap(task.loss)(out))

    def closed(net):
        q0, lam = jnp.concatenate([net.w1.T, net.w2]), lr.measures.lam(net)
        w1, w2 = solution(q0, sigma, lam, factorize(sigma), times)
        return lr.networks.TwoLayerLinear(w1, w2)

    exact = compiled(jax.vmap(closed), nets)
    train = compiled(learn(lr.Exact()), nets)
    value = compiled(jax.vmap(loss), nets)
    slope = compiled(jax.vmap(jax.value_and_grad(loss)), nets)
    found: list[tuple[str, Timing, int, str]] = [
        ("closed form of `Exact`", exact, case.cells, _shown(error, exact, case.cells)),
    ]
    lapack = compiled(jax.vmap(lambda net: _lapack(net, sigma, times)), nets)
    found += [
        ("LAPACK QR per matrix", lapack, case.cells, _shown(error, lapack, case.cells))
    ]
    if case.peers and case.dtype == "float64":
        some = jax.tree.map(lambda x: x[: 16 * case.few], nets)
        count = some.w1.shape[0]
        flow = compiled(learn(lr.GradientFlow(rtol=1e-9)), some, repeats=3)
        found.append(
            ("`GradientFlow(rtol=1e-9)`", flow, count, _shown(error, flow, count))
        )
        w1, w2, s = (np.asarray(x) for x in (nets.w1, nets.w2, sigma))
        for name, f in (
            ("SciPy LSODA, rtol 1e-9", _scipy),
            ("NumPy, textbook formula", _textbook),
        ):
            timing = plain(
                lambda f=f: _stacked(
                    [f(w1[i], w2[i], s, np.asarray(times)) for i in range(case.few)]
                ),
                repeats=1,
            )
            found.append((name, timing, case.few, _shown(error, timing, case.few)))
    found += [
        ("`lr.train`, `Exact`", train, case.cells, _shown(error, train, case.cells)),
        ("`lr.train`, loss", value, case.cells, ""),
        ("`lr.train`, loss and gradient", slope, case.cells, ""),
    ]
    base = exact.run / case.cells
    rows = []
    for name, timing, cells, shown in found:
        spent = f"{timing.compile:.1f}" if timing.compile else "—"
        per = timing.run / cells
        note = (
            f"{slope.run / value.run:.1f} × the loss" if "gradient" in name else shown
        )
        rows.append(
            f"| {case.name} | {name} | {spent} | {1e6 * per / TIMES:.3g} "
            f"| {per / base:.2g} | {note} |"
        )
    print("\n".join(rows), flush=True)
    return rows


def _shown(error, timing: Timing, cells: int) -> str:
    found = error(timing.value, cells)
    return "fails" if np.isnan(found) else f"{found:.1e}"


def _answers(case: Case, nets, sigma, times, checked) -> dict[int, list[np.ndarray]]:
    late = [float(times[k]) for k in CHECKED_TIMES]
    target = np.asarray(sigma, float)
    out = {}
    for cell in checked:
        w1, w2 = (np.asarray(w[cell], float) for w in (nets.w1, nets.w2))
        if sum(case.shape) <= 24:
            blocks = riccati.solve(w1, w2, target, late)
        elif sum(case.shape) <= 300:
            blocks = [steps.solve(w1, w2, target, t) for t in late]
        else:
            blocks = _by_rows(w1, w2, target, late)
        out[cell] = [np.block([[b[0], b[1].T], [b[1], b[2]]]) for b in blocks]
    return out


def _by_rows(w1, w2, target, late):
    """S of a wide network, solved in the rows' span of Σ and the start."""
    basis = np.linalg.qr(np.concatenate([target, w1]).T)[0]
    small = [steps.solve(w1 @ basis, w2, target @ basis, t) for t in late]
    return [(basis @ a @ basis.T, b @ basis.T, c) for a, b, c in small]


def _lapack(net, sigma, times):
    """The same closed form with one LAPACK QR for every start and time."""
    q0 = jnp.concatenate([net.w1.T, net.w2])
    factors = factorize(sigma)
    form = prepare(factors, q0, lr.measures.lam(net)).form
    m = form.lower.shape[0]

    def at(t):
        fade = form.places @ _riccati.decay(form.sizes, t)
        area = form.places @ _riccati.integral(form.sizes, t)
        shown = jnp.where(form.falls > 0, fade[:m], 1.0)
        shrink = jnp.where(form.grows > 0, fade[m:] ** 2, 1.0)
        unit = jnp.where(form.filled > 0, shrink + area[m:], 1.0)
        x = _riccati.decay(form.gaps, t) / jnp.sqrt(unit) * form.lower
        top = jnp.diag(jnp.sqrt(jnp.where(form.filled > 0, shrink / unit, 1.0)))
        stack = jnp.concatenate([top, jnp.sqrt(area[:m])[:, None] * x])
        r = jnp.linalg.qr(stack, mode="r")
        r = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)[:, None] * r
        y = jax.scipy.linalg.solve_triangular(r, (shown[:, None] * x).T, trans="T").T
        basis = form.basis
        if m < q0.shape[0]:
            basis = prepare(factors, q0, lr.measures.lam(net)).spectrum.basis
        q = basis @ (y @ form.rotation.T)
        return lr.networks.TwoLayerLinear(q[: net.inputs].T, q[net.inputs :])

    return jax.vmap(at)(times)


def _stacked(products):
    w1, w2 = zip(*products, strict=True)
    return lr.networks.TwoLayerLinear(
        jnp.asarray(np.stack(w1)), jnp.asarray(np.stack(w2))
    )


def _scipy(w1, w2, sigma, times):
    return lsoda(w1, w2, sigma, times, rtol=1e-9, atol=1e-12)


def _textbook(w1, w2, sigma, times):
    """e^{Ft}Q0 (I + Q0ᵀ(∫e^{2Fs})Q0)^−½ as it stands: Q up to a hidden rotation."""
    inputs, outputs = w1.shape[1], w2.shape[0]
    lam = (np.sum(w2**2) - np.sum(w1**2)) / w1.shape[0]
    f = np.block(
        [[-lam / 2 * np.eye(inputs), sigma.T], [sigma, lam / 2 * np.eye(outputs)]]
    )
    q0 = np.concatenate([w1.T, w2])
    first, second = [], []
    for t in times:
        rates, basis = np.linalg.eigh(f)
        grown = basis * np.exp(rates * t) @ basis.T @ q0
        area = basis * (np.expm1(2 * rates * t) / (2 * rates)) @ basis.T
        inner = np.eye(q0.shape[1]) + q0.T @ area @ q0
        try:
            q = np.linalg.solve(np.linalg.cholesky(inner), grown.T).T
        except np.linalg.LinAlgError:
            q = np.full(q0.shape, np.nan)
        first.append(q[:inputs].T)
        second.append(q[inputs:])
    return np.stack(first), np.stack(second)


if __name__ == "__main__":
    main()
