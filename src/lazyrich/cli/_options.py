"""The arguments of the command. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro


def _option(metavar: str, text: str, default: str = "") -> Any:
    """Help for one option; `default` in words where the value itself is None."""
    hint = f"(default: {default})" if default else None
    return tyro.conf.arg(metavar=metavar, help=text, help_behavior_hint=hint)


@dataclass(frozen=True)
class Sweep:
    """Train λ-balanced networks over a grid of λ, scale and seeds, by several methods.

    An AXIS is written as a:b (the integers from a to b, b not included), as a:b:n (n
    values from a to b, both included), as a:b:n:log (the same, evenly spaced in the
    logarithm) or as values separated by commas. Negative ones need an equals sign, as
    in --lam=-8:8:33.

    Results go to a zarr store, which lr.open reads, and into a figure. The same command
    again computes only what is missing.
    """

    lam: Annotated[
        str, _option("AXIS", "λ of the start, where W2ᵀW2 − W1W1ᵀ = λI.")
    ] = "-8:8:33"
    scale: Annotated[
        str,
        _option("AXIS", "Singular values of W2W1 at the start are scale·|N(0, 1)|."),
    ] = "0.001,0.1"
    seed: Annotated[
        str, _option("AXIS", "Integer seeds of the start, and of minibatches.")
    ] = "0:8"
    method: Annotated[
        str, _option("NAMES", "Some of exact, flow (gradient flow) and sgd.")
    ] = "exact,flow,sgd"
    task: Annotated[
        str | None,
        _option(
            "NAME",
            "hierarchy, or random: a random linear teacher of whitened inputs.",
            "hierarchy",
        ),
    ] = None
    data: Annotated[
        str | None,
        _option(
            "FILE",
            "Your own data in place of a task: an .npz file with the arrays x (n, "
            "inputs) and y (n, outputs) or (n,), or a .csv file with one sample a row. "
            "Inputs are PCA-whitened.",
            "no file",
        ),
    ] = None
    targets: Annotated[
        str | None,
        _option(
            "COLUMNS",
            "Columns of a .csv file that are y: a number k for the last k of them, or "
            "names from its header, separated by commas.",
            "1",
        ),
    ] = None
    levels: Annotated[
        int | None,
        _option("INT", "Levels of the hierarchy, which has 2^levels items.", "3"),
    ] = None
    inputs: Annotated[int | None, _option("INT", "Inputs of the random task.", "5")] = (
        None
    )
    outputs: Annotated[
        int | None, _option("INT", "Outputs of the random task.", "5")
    ] = None
    samples: Annotated[
        int | None, _option("INT", "Samples of the random task.", "100")
    ] = None
    hidden: Annotated[
        int | None,
        _option("INT", "Hidden width.", "the smaller of inputs and outputs"),
    ] = None
    times: Annotated[
        str,
        _option("AXIS", "Times to look at, from 0 on, in units of τ = 1/η."),
    ] = "0:40:201"
    learning_rate: Annotated[
        float | None,
        _option("FLOAT", "η of sgd, one step of which takes a time η.", "0.01"),
    ] = None
    batch_size: Annotated[
        int | None, _option("INT", "Samples in a step of sgd.", "all, full batch")
    ] = None
    rtol: Annotated[
        float | None, _option("FLOAT", "Relative tolerance of flow.", "1e-6")
    ] = None
    store: Annotated[str, _option("PATH", "Where the results go.")] = "phase.zarr"
    figure: Annotated[
        str | None,
        _option(
            "PATH",
            "Where the figure goes: a .png, .pdf or .svg file, or none for no figure.",
            "beside the store, .png",
        ),
    ] = None
    overwrite: Annotated[
        bool, tyro.conf.arg(help="Start anew, whatever sweep the store holds.")
    ] = False
    chunk: Annotated[
        int | None,
        _option(
            "INT",
            "Cells that are computed and written together.",
            "about a twentieth of them, as many as fit into memory",
        ),
    ] = None
    piece: Annotated[
        int | None,
        _option(
            "INT",
            "Cells in a batch: what the last bits of results depend on.",
            "64 on CPU, 4096 elsewhere",
        ),
    ] = None
    memory: Annotated[
        str | None,
        _option(
            "SIZE", "What the sweep may take, such as 4GB.", "half of what is available"
        ),
    ] = None
    devices: Annotated[
        int | None, _option("INT", "Local devices to use.", "all there are")
    ] = None
    executor: Annotated[
        str | None,
        _option(
            "ADDRESS",
            "What runs the chunks: threads://N, dask://host:port (a scheduler), or "
            "dask://local (a process for each core).",
            "a thread for each core",
        ),
    ] = None
    quiet: Annotated[
        bool, tyro.conf.arg(help="Print nothing but errors and failures.")
    ] = False


@dataclass(frozen=True)
class Show:
    """Say what a store holds: axes, progress, failures, timings and a small table."""

    store: Annotated[
        tyro.conf.Positional[str], _option("STORE", "What a sweep has written.")
    ]


@dataclass(frozen=True)
class Plot:
    """Draw what a store holds, finished or not."""

    store: Annotated[
        tyro.conf.Positional[str], _option("STORE", "What a sweep has written.")
    ]
    variables: Annotated[
        str | None,
        _option(
            "NAMES",
            "Variables to draw, separated by commas.",
            "the summary of a sweep by this command, or up to three variables",
        ),
    ] = None
    figure: Annotated[
        str | None,
        _option(
            "PATH",
            "Where the figure goes: a .png, .pdf or .svg file.",
            "beside the store, .png",
        ),
    ] = None
