"""Many runs: named axes in, one labelled Dataset out."""

from ._axes import Static as Static
from ._axes import static as static
from ._outcome import SweepError as SweepError
from ._run import sweep as sweep
from ._store import open_store as open

__all__ = ["Static", "SweepError", "open", "static", "sweep"]
