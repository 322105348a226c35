"""`lazyrich sweep`: options to public API to store, table and figure."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from ..dynamics import SGD, Exact, GradientFlow, train, until_loss
from ..inits import balanced
from ..measures import balance, kernel_distance, ntk
from ..sweeps import open as open_store
from ..sweeps import sweep
from ..tasks import LinearTask
from . import _report
from ._options import Sweep
from ._problem import make_task
from ._ranges import parse_axis, parse_integers

METHODS = ("exact", "flow", "sgd")


@dataclass(frozen=True)
class Plan:
    """A command whose arguments have been checked."""

    options: Sweep
    task: LinearTask
    name: str
    hidden: int
    axes: dict[str, list[Any]]
    times: np.ndarray
    learning_rate: float
    figure: Path | None


def prepare(options: Sweep) -> Plan:
    """Check all arguments; `ValueError` or `OSError` with one clear line."""
    methods = [word.strip() for word in options.method.split(",")]
    for method in methods:
        if method not in METHODS or methods.count(method) > 1:
            raise ValueError(
                f"--method: {options.method!r} must be some of {', '.join(METHODS)}, "
                "each once."
            )
    for name, method in (
        ("learning_rate", "sgd"),
        ("batch_size", "sgd"),
        ("rtol", "flow"),
    ):
        if getattr(options, name) is not None and method not in methods:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} needs {method} among --method.")
    axes: dict[str, list[Any]] = {
        "method": methods,
        "lam": [float(v) for v in parse_axis("--lam", options.lam)],
        "scale": [float(v) for v in parse_axis("--scale", options.scale)],
        "seed": parse_integers("--seed", options.seed),
    }
    if min(axes["scale"]) < 0:
        raise ValueError(f"--scale must be ≥ 0, but it is {options.scale}.")
    times = np.asarray(parse_axis("--times", options.times), dtype=np.float64)
    if times[0] != 0 or (np.diff(times) <= 0).any():
        raise ValueError(
            f"--times must begin at 0, where learning starts, and increase, but it is "
            f"{options.times}."
        )
    rate = 0.01 if options.learning_rate is None else options.learning_rate
    if not 0 < rate < np.inf:
        raise ValueError(f"--learning-rate must be > 0, but it is {rate}.")
    if options.rtol is not None and not 0 < options.rtol < 1:
        raise ValueError(f"--rtol must be between 0 and 1, but it is {options.rtol}.")
    for name in ("chunk", "piece", "devices"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be ≥ 1, but it is {value}.")
    figure = figure_path(options.figure, options.store)
    task, name = make_task(options)
    _check_batch(options, task)
    narrow = min(task.inputs, task.outputs)
    hidden = narrow if options.hidden is None else options.hidden
    _check_lam(task, hidden, axes["lam"])
    return Plan(options, task, name, hidden, axes, times, rate, figure)


def figure_path(figure: str | None, store: str) -> Path | None:
    """Where the figure goes: as asked for, or beside the store; None for none."""
    if figure == "none":
        return None
    path = Path(figure) if figure else Path(store).with_suffix(".png")
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--figure: {path} must end in .png, .pdf or .svg.")
    return path


def _devices(count: int | None) -> list[Any] | None:
    """The first `count` local devices."""
    if count is None:
        return None
    there = jax.local_devices()
    if count > len(there):
        raise ValueError(f"--devices: {count} were asked for, but {len(there)} exist.")
    return there[:count]


def _check_batch(options: Sweep, task: LinearTask) -> None:
    size, samples = options.batch_size, task.samples or 0
    if size is not None and not 1 <= size <= samples:
        raise ValueError(
            f"--batch-size must be from 1 to the number of samples, {samples}, but it "
            f"is {size}."
        )


def _check_lam(task: LinearTask, hidden: int, lam: list[float]) -> None:
    """Refuse λ that the shape does not admit, in the words of the init itself."""
    if hidden < 1:
        raise ValueError(f"--hidden must be ≥ 1, but it is {hidden}.")
    if hidden <= min(task.inputs, task.outputs):
        return
    for value in (min(lam), max(lam)):
        try:
            balanced(jax.random.key(0), task.inputs, hidden, task.outputs, value, 1.0)
        except ValueError as error:
            raise ValueError(f"--lam: {error}") from None


def make_cell(plan: Plan) -> Callable[..., dict[str, jax.Array]]:
    """One run: the measures of one network, learning by one method."""
    task, options = plan.task, plan.options
    times = jnp.asarray(plan.times)
    # Steps are counted here, where the times are numbers.
    steps = round(float(plan.times[-1]) / plan.learning_rate)
    # On whitened inputs, kernels on the identity have the distance of those on data.
    probe = jnp.eye(task.inputs)

    learners = {
        "exact": Exact(),
        "flow": GradientFlow(rtol=options.rtol),
        "sgd": SGD(
            plan.learning_rate,
            steps=steps,
            batch_size=options.batch_size,
            key=jax.random.key(0) if options.batch_size else None,
        ),
    }

    def cell(
        method: str, lam: jax.Array, scale: jax.Array, seed: jax.Array
    ) -> dict[str, jax.Array]:
        key = jax.random.key(seed)
        net = balanced(key, task.inputs, plan.hidden, task.outputs, lam, scale)
        learner = learners[method]
        if isinstance(learner, SGD) and options.batch_size:
            batches = jax.random.fold_in(key, 1)
            learner = eqx.tree_at(lambda sgd: sgd.key, learner, batches)
        traj = train(net, task, times, method=learner, save=task.excess, throw=False)
        excess = jnp.asarray(traj.saved)
        # Located, not interpolated between times: for large |λ| half of the loss is
        # gone before the second of them.
        half = until_loss(0.5 * excess[0], of="excess")
        short = train(net, task, times[-1], method=learner, until=half, throw=False)
        return {
            "excess": excess,
            "half_time": jnp.where(excess[0] > 0, short.stop_time, jnp.nan),
            "final_excess": excess[-1],
            "kernel_distance": kernel_distance(ntk(net, probe), ntk(traj.final, probe)),
            "balance_drift": jnp.abs(balance(traj.final) - balance(net)).max(),
            "status": traj.status,
        }

    return cell


def run(plan: Plan) -> int:
    """Sweep, store, compare, print and draw; the exit code."""
    options = plan.options
    show = not options.quiet
    if show:
        print(_report.setup(plan))
    ds = sweep(
        make_cell(plan),
        plan.axes,
        dims={"excess": ("time",)},
        coords={"time": plan.times},
        store=options.store,
        chunk_size=options.chunk,
        piece=options.piece,
        devices=_devices(options.devices),
        executor=options.executor,
        memory=options.memory,
        overwrite=options.overwrite,
        progress=show,
    )
    ds = _add_disagreement(ds, plan)
    failed = json.loads(ds.attrs["lazyrich"])["failed"]
    if options.quiet and failed:
        _report.warn(
            f"{failed} of {ds['status'].size} cells failed: see {options.store}."
        )
    if failed == ds["status"].size:
        _report.warn("every cell failed: there is nothing to show.")
        return 1
    if show:
        print(_report.table(ds))
    if plan.figure is not None:
        from ..plots import overview

        plan.figure.parent.mkdir(parents=True, exist_ok=True)
        overview(ds).savefig(plan.figure, dpi=200)
    if show:
        print(_report.ending(plan))
    return 0


def _add_disagreement(ds: xr.Dataset, plan: Plan) -> xr.Dataset:
    """Add max_t |L − L_exact|/L(0) to the store, if `exact` was run.

    Also add the command's own settings, as the attribute `command`.
    """
    added: dict[str, Any] = {}
    if "exact" in plan.axes["method"]:
        # `method=` is an option of `sel`, so this axis goes in a dict.
        exact = ds["excess"].sel({"method": "exact"}, drop=True)
        start = exact.isel(time=0) + float(plan.task.optimum)
        gap = abs(ds["excess"] - exact).max(dim="time", skipna=False) / start
        added["disagreement"] = gap.drop_vars(list(gap.coords)).assign_attrs(
            long_name="max over time of |loss − exact loss|, over the loss at t = 0"
        )
    command = {**asdict(plan.options), "hidden": plan.hidden, "task_name": plan.name}
    attrs = {**ds.attrs, "command": json.dumps(command)}
    extra = xr.Dataset(added, attrs=attrs)
    extra.to_zarr(plan.options.store, mode="a", consolidated=False)
    return open_store(plan.options.store).load()
