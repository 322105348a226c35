"""Learning dynamics of two-layer networks, from lazy to rich, on JAX.

Networks, tasks and trajectories are pytrees; everything jits, vmaps and
differentiates. Importing this package changes no global JAX setting (on a machine with
fewer than eight cores it sets NPROC=8, see below); its rooms are imported when they are
first used.
"""

import importlib
import os
from typing import TYPE_CHECKING

from ._cores import cores

if TYPE_CHECKING:
    from . import inits as inits
    from . import measures as measures
    from . import networks as networks
    from . import plots as plots
    from . import tasks as tasks
    from . import theory as theory
    from .dynamics import SGD as SGD
    from .dynamics import Exact as Exact
    from .dynamics import GradientFlow as GradientFlow
    from .dynamics import train as train
    from .dynamics import until_loss as until_loss
    from .sweeps import SweepError as SweepError
    from .sweeps import open as open
    from .sweeps import static as static
    from .sweeps import sweep as sweep
    from .sweeps import zipped as zipped
    from .trajectory import Status as Status
    from .trajectory import TrainingError as TrainingError
    from .trajectory import Trajectory as Trajectory
    from .trajectory import where_ok as where_ok

__version__ = "0.1.0"

if cores() < 8:
    # Batched LAPACK calls that run side by side (two closed forms in one vmapped cell)
    # wait for each other for ever when they hold all threads of XLA's CPU pool, by
    # default one for each core (jaxlib 0.10). Idle threads cost nothing. NPROC is read
    # when JAX first computes; a user's own stands.
    os.environ.setdefault("NPROC", "8")

_ROOMS = ["inits", "measures", "networks", "plots", "tasks", "theory"]
_HOMES = {
    "SGD": "dynamics",
    "Exact": "dynamics",
    "GradientFlow": "dynamics",
    "train": "dynamics",
    "until_loss": "dynamics",
    "SweepError": "sweeps",
    "open": "sweeps",
    "static": "sweeps",
    "zipped": "sweeps",
    "sweep": "sweeps",
    "Status": "trajectory",
    "TrainingError": "trajectory",
    "Trajectory": "trajectory",
    "where_ok": "trajectory",
}


def __getattr__(name: str):
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_HOMES})
