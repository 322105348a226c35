"""Pictures of sweeps, drawn on the Axes that are passed in (extra: `plots`).

Each function takes the Dataset of a sweep, draws on `axes` (new ones, if none are
given) and returns them; `summary` and `overview` lay out a whole figure. matplotlib is
imported only when something is drawn. Colours fall monotonically in lightness, so they
survive greyscale; methods differ by their marks, scales by line style and marker.
"""

from ._curves import loss_curves as loss_curves
from ._diagram import phase_diagram as phase_diagram
from ._overview import overview as overview
from ._phase import REGIMES as REGIMES
from ._phase import phase as phase
from ._summary import summary as summary

__all__ = [
    "REGIMES",
    "loss_curves",
    "overview",
    "phase",
    "phase_diagram",
    "summary",
]
