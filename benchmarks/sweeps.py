"""Sweeps: SGD and flows against what people write instead, waiting, and memory.

    python -m benchmarks.sweeps            # everything, about ten minutes
    python -m benchmarks.sweeps sgd flow   # some of: sgd, flow, waiting, memory

PyTorch's peers need the extra `lazyrich[bench]` and are left out, with a word, without
it. Every table's rows are timed in one run, on the same starts and samples.
"""

import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import lazyrich as lr
from benchmarks import peers
from benchmarks.report import write
from benchmarks.timing import Timing, compiled, plain
from lazyrich.sweeps import _loops

TORCH = all(importlib.util.find_spec(n) for n in ("torch", "torchdiffeq"))
SIZE, SAMPLES, BATCH, MEMBERS, STEPS, RATE = 5, 100, 10, 1024, 1000, 0.01
FEW, SOME = 2, 20
"""Members of a slow loop that are run, and steps of a slow batch."""


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parts = {"sgd": sgd, "flow": flow, "waiting": waiting, "memory": memory}
    for name in sys.argv[1:] or parts:
        parts[name]()


def sgd() -> None:
    """5-5-5, float32, batches of 10 drawn with replacement from 100 samples."""
    with jax.enable_x64(False):
        task = lr.tasks.random_regression(jax.random.key(1), SIZE, SIZE, SAMPLES)
        assert task.x is not None
        assert task.y is not None
        x, y = task.x, task.y
        seeds = jnp.arange(MEMBERS)

        def start(seed):
            lam = (seed % 32).astype(jnp.float32) / 8 - 2
            key = jax.random.key(seed)
            return lr.inits.balanced(key, SIZE, SIZE, SIZE, lam, 0.1)

        nets = jax.block_until_ready(jax.jit(jax.vmap(start))(seeds))
        times = jnp.asarray([0.0, STEPS * RATE])

        def ours(net, seed):
            method = lr.SGD(RATE, STEPS, BATCH, replace=True, key=jax.random.key(seed))
            traj = lr.train(net, task, times, method=method, throw=False)
            return traj.final.product

        def swept():
            def cell(seed):
                return {"product": ours(start(seed), seed)}

            ds = lr.sweep(cell, {"seed": seeds}, piece=256, progress=False)
            (run,) = json.loads(ds.attrs["lazyrich"])["runs"]
            compiling = run["compile_seconds"] + run["trace_seconds"]
            running = run["wall_seconds"]  # the only program is compiled before
            return Timing(compiling, running, ds["product"].values)

        def draw(seed, k):
            key = jax.random.fold_in(jax.random.key(seed), k)
            return jax.random.randint(key, (BATCH,), 0, SAMPLES)

        def naive(net, seed):
            def loss(weights, chosen):
                first, second = weights
                gap = x[chosen] @ first.T @ second.T - y[chosen]
                return 0.5 * jnp.sum(gap**2) / BATCH

            def step(weights, k):
                slopes = jax.grad(loss)(weights, draw(seed, k))
                return jax.tree.map(lambda w, g: w - RATE * g, weights, slopes), None

            (first, second), _ = jax.lax.scan(step, (net.w1, net.w2), jnp.arange(STEPS))
            return second @ first

        def drawing(seed):
            def step(total, k):
                return total + draw(seed, k).sum(), None

            return jax.lax.scan(step, jnp.zeros((), int), jnp.arange(STEPS))[0]

        rows = [
            ("`lr.SGD`, vmapped `lr.train`", compiled(jax.vmap(ours), nets, seeds), 1),
            ("`lr.sweep` of it, pieces of 256", swept(), 1),
            ("naive vmapped `lax.scan`", compiled(jax.vmap(naive), nets, seeds), 1),
            ("(drawing the samples alone)", compiled(jax.vmap(drawing), seeds), 1),
        ]
        answer = np.asarray(rows[2][1].value)
        if TORCH:
            ks = jnp.arange(STEPS)
            draws = jax.vmap(lambda k: jax.vmap(lambda s: draw(s, k))(seeds))(ks)
            draws, w1, w2 = map(np.asarray, (draws, nets.w1, nets.w2))

            def loop():
                return np.stack(
                    [
                        peers.torch_sgd_loop(w1[i], w2[i], x, y, draws[:, i], RATE)
                        for i in range(FEW)
                    ]
                )

            def batched():
                return peers.torch_sgd_vmapped(w1, w2, x, y, draws[:SOME], RATE)

            rows += [
                ("PyTorch loop", plain(loop, 1), FEW / MEMBERS),
                ("`torch.func.vmap`", plain(batched, 1), SOME / STEPS),
            ]
    us = [1e6 * t.run / (MEMBERS * STEPS * share) for _, t, share in rows]
    lines = [
        "| | µs per member and step | ÷ `lr.SGD` | compile, s | error |",
        "|---|---|---|---|---|",
    ]
    for (name, timing, _), cost in zip(rows, us, strict=True):
        value = np.asarray(timing.value)
        same = value.shape[1:] == answer.shape[1:] and name != "`torch.func.vmap`"
        gap = np.abs(value - answer[: len(value)]).max() if same else None
        lines.append(
            f"| {name} | {cost:.3g} | {cost / us[0]:.3g} | {timing.compile:.1f} | "
            f"{'' if gap is None else format(float(gap), '.0e')} |"
        )
    write(
        "Sweeps: SGD",
        f"`python -m benchmarks.sweeps sgd`: {_machine()}; {SIZE}-{SIZE}-{SIZE}, "
        f"float32, {MEMBERS} members, {STEPS} steps on batches of {BATCH} drawn with "
        f"replacement from {SAMPLES} samples, the same draws everywhere. PyTorch's "
        f"loop runs {FEW} members, `torch.func.vmap` {SOME} steps; both get the draws "
        "for nothing. The error is the largest difference of W2W1 at the end from the "
        f"naive scan's.{_without()}\n\n" + "\n".join(lines),
    )


LAM = np.concatenate([-np.geomspace(200, 0.1, 16), np.geomspace(0.1, 200, 16)])
SCALES = np.geomspace(1e-3, 1.0, 8)
TIMES = np.linspace(0.0, 20.0, 21)


def _flow_task():
    return lr.tasks.random_regression(jax.random.key(1), SIZE, SIZE, SAMPLES)


def _flow_start(lam, scale, seed):
    return lr.inits.balanced(jax.random.key(seed), SIZE, SIZE, SIZE, lam, scale)


def flow() -> None:
    """A λ × scale grid of flows at equal measured accuracy."""
    task = _flow_task()
    sigma = task.sigma_yx
    lam, scale = (g.ravel() for g in np.meshgrid(LAM, SCALES, indexing="ij"))
    nets = jax.vmap(lambda a, b: _flow_start(a, b, 0))(lam, scale)
    nets = jax.block_until_ready(nets)
    w1, w2 = np.asarray(nets.w1), np.asarray(nets.w2)
    exact = jax.vmap(lambda n: lr.train(n, task, TIMES, method=lr.Exact()).networks)
    answer = np.asarray(jax.jit(exact)(nets).product)
    count = len(lam)

    def error(value) -> float:
        gap = np.linalg.norm(np.asarray(value) - answer[: len(value)], axis=(-2, -1))
        return float(gap.max() / np.linalg.norm(sigma))

    def ours(rtol):
        def cell(lam, scale):
            net = _flow_start(lam, scale, 0)
            method = lr.GradientFlow(rtol=rtol)
            traj = lr.train(net, task, TIMES, method=method, throw=False)
            return {"product": traj.networks.product, "status": traj.status}

        axes = {"lam": LAM, "scale": SCALES}
        before = time.perf_counter()
        ds = lr.sweep(cell, axes, progress=False)
        whole = time.perf_counter() - before
        (run,) = json.loads(ds.attrs["lazyrich"])["runs"]
        compiling = run["compile_seconds"] + run["trace_seconds"]
        wall = min(run["wall_seconds"], whole - compiling)
        value = ds["product"].values.reshape(answer.shape)
        return Timing(compiling, wall, value)

    def scipy(rtol):
        def loop():
            layers = (
                peers.lsoda(w1[i], w2[i], np.asarray(sigma), TIMES, rtol, rtol / 100)
                for i in range(0, count, 4)
            )
            return np.stack([second @ first for first, second in layers])

        timing = plain(loop, 1)
        whole = np.empty_like(answer)
        whole[:] = answer
        whole[::4] = timing.value
        return Timing(0.0, 4 * timing.run, whole)

    def diffrax(rtol):
        def one(net):
            return peers.diffeqsolve_flow(net, sigma, TIMES, rtol, rtol / 100)

        return compiled(jax.vmap(one), nets, repeats=3)

    def torch(rtol):
        def all_members():
            return peers.torch_flow(w1, w2, sigma, TIMES, rtol, rtol / 100)

        return plain(all_members, 1)

    # Tolerances with which the errors come out alike.
    candidates = [
        ("`lr.sweep` of `lr.GradientFlow`", ours),
        ("plain `jax.vmap(diffeqsolve)`", diffrax),
        ("SciPy LSODA, a loop (every fourth cell)", scipy),
        *([("torchdiffeq dopri5, batched", torch)] if TORCH else []),
    ]
    rows = []
    for name, method in candidates:
        for rtol in (1e-6, 1e-7, 1e-8, 1e-9):
            timing = method(rtol)
            if (gap := error(timing.value)) <= BAR:
                break
        rows.append((name, rtol, timing, gap))
    lines = [
        "| | rtol | seconds | ÷ `lr.sweep` | compile, s | error |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {rtol:.0e} | {t.run:.3g} | {t.run / rows[0][2].run:.3g} | "
            f"{t.compile:.1f} | {gap:.0e} |"
            for name, rtol, t, gap in rows
        ),
    ]
    write(
        "Sweeps: flows",
        f"`python -m benchmarks.sweeps flow`: {_machine()}; {SIZE}-{SIZE}-{SIZE}, "
        f"float64, {len(LAM)} λ from −200 to 200 × {len(SCALES)} scales from 0.001 to "
        f"1, {len(TIMES)} times to 20 τ. Each with the loosest rtol of 1e-6 … 1e-9 "
        f"whose error, the largest ‖ΔW2W1‖/‖Σ‖ from the closed form, is at most "
        f"{BAR:.0e} (the last one, if none is)."
        f"{_without()}\n\n" + "\n".join(lines),
    )


BAR = 3e-6


def waiting() -> None:
    """What members of a batch lose by waiting for each other, and what is won back."""
    task = _flow_task()

    def cell(lam, scale, seed):
        net = _flow_start(lam, scale, seed)
        traj = lr.train(net, task, TIMES, method=lr.GradientFlow(), throw=False)
        return {
            "excess": task.excess(traj.final),
            "half": lr.measures.half_time(TIMES, traj.map(task.excess)),
            "status": traj.status,
        }

    values = {"lam": LAM, "scale": SCALES, "seed": np.arange(2)}
    rows, answers = [], []
    for order in (("lam", "scale", "seed"), ("seed", "scale", "lam")):
        for name, group, trial in (
            ("pieces of 64 in lock-step", 64, 10**9),
            ("groups of 16", 16, 10**9),
            ("groups of 16 of alike cells (the default)", 16, 8),
        ):
            _set(group, trial)
            ds = lr.sweep(cell, {k: values[k] for k in order}, progress=False)
            record = json.loads(ds.attrs["lazyrich"])
            (run,) = record["runs"]
            rows.append((order, name, run["run_seconds"], run["wall_seconds"]))
            answers.append(ds.transpose("lam", "scale", "seed")["excess"].values)
    _set(16, 8)
    spread = max(float(np.nanmax(np.abs(a - answers[0]))) for a in answers)
    lines = [
        "| axes, the last one fastest | | seconds, both threads | ÷ default |",
        "|---|---|---|---|",
    ]
    for i, (order, name, seconds, _) in enumerate(rows):
        default = rows[3 * (i // 3) + 2][2]
        lines.append(
            f"| {', '.join(order)} | {name} | {seconds:.3g} | {seconds / default:.2f} |"
        )
    write(
        "Sweeps: waiting",
        f"`python -m benchmarks.sweeps waiting`: {_machine()}; gradient flows "
        f"{SIZE}-{SIZE}-{SIZE}, {len(LAM)} λ from −200 to 200 × {len(SCALES)} scales × "
        "2 seeds, pieces of 64. Seconds are those of the chunks, without compiling. "
        f"The results of all rows differ by at most {spread:.0e}.\n\n"
        + "\n".join(lines),
    )


def _set(group: int, trial: int) -> None:
    """Turn grouping and ordering off, or on again, as no user can."""
    from lazyrich.sweeps import _run

    _loops.GROUP = group
    _run.TRIAL = trial


def memory() -> None:
    """Peak memory of a sweep by the closed form, in processes of its own."""
    lines = [
        "| cells | peak, MB | of which before the sweep | store, MB | seconds |",
        "|---|---|---|---|---|",
    ]
    for cells in (10_000, 100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            out = subprocess.run(
                [sys.executable, "-c", _MEMORY, str(cells), folder],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "JAX_ENABLE_X64": "1"},
            ).stdout.splitlines()[-1]
        found = json.loads(out)
        lines.append(
            f"| {cells:,} | {found['peak']:.0f} | {found['before']:.0f} | "
            f"{found['store']:.0f} | {found['seconds']:.0f} |"
        )
    write(
        "Sweeps: memory",
        f"`python -m benchmarks.sweeps memory`: {_machine()}; `lr.Exact`, "
        f"{SIZE}-{SIZE}-{SIZE}, 50 times, float64, three measures of each cell (half-"
        'time, final excess, kernel distance) to a store, `memory="1GB"`. Peak '
        "resident memory of the whole process, with what imports and a first small "
        "sweep had taken before.\n\n" + "\n".join(lines),
    )


_MEMORY = """
import json, pathlib, re, sys, time
import jax, numpy as np
import lazyrich as lr

def peak():
    # Of this program alone: getrusage also counts the process that started it.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) / 1024

task = lr.tasks.random_regression(jax.random.key(1), 5, 5, 100)
times = np.linspace(0.0, 20.0, 50)

def cell(lam, scale, seed):
    net = lr.inits.balanced(jax.random.key(seed), 5, 5, 5, lam, scale)
    traj = lr.train(net, task, times, method=lr.Exact(), save=task.excess, throw=False)
    probe = np.eye(5)
    ntk = lr.measures.ntk
    return {
        "half_time": lr.measures.half_time(times, traj.saved),
        "final_excess": traj.saved[-1],
        "kernel_distance": lr.measures.kernel_distance(
            ntk(net, probe), ntk(traj.final, probe)
        ),
        "status": traj.status,
    }

def run(cells, name):
    axes = {
        "lam": np.linspace(-5.0, 5.0, 100),
        "scale": np.geomspace(1e-3, 1.0, 10),
        "seed": np.arange(cells // 1000),
    }
    store = pathlib.Path(sys.argv[2]) / name
    lr.sweep(cell, axes, store=store, memory="1GB", progress=False)
    return sum(p.stat().st_size for p in store.rglob("*") if p.is_file()) / 2**20

run(1000, "small.zarr")
before, start = peak(), time.perf_counter()
store = run(int(sys.argv[1]), "large.zarr")
seconds = time.perf_counter() - start
found = {"before": before, "peak": peak(), "store": store, "seconds": seconds}
print(json.dumps(found))
"""


def _machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), jax {jax.__version__}"


def _without() -> str:
    return "" if TORCH else " PyTorch is not installed here, and left out."


if __name__ == "__main__":
    main()
