"""Many runs: named axes in, one labelled Dataset out."""

from ._axes import Static as Static
from ._axes import Zipped as Zipped
from ._axes import static as static
from ._axes import zipped as zipped
from ._open import open_store as open
from ._outcome import SweepError as SweepError
from ._run import sweep as sweep

__all__ = ["Static", "SweepError", "Zipped", "open", "static", "sweep", "zipped"]
