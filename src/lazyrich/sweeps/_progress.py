"""A progress bar on the host, by cells done; never inside a compiled program."""

import sys
import time
from types import TracebackType

from tqdm import tqdm


class Progress:
    """A bar on stderr, and lines above it; silent when not wanted."""

    def __init__(self, cells: int, show: bool):
        self._show = show
        # A log that is no terminal gets a line every ten seconds, not a hundred.
        self._bar = tqdm(
            total=cells,
            unit="cell",
            desc="sweep",
            disable=not show,
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
            file=sys.stderr,
        )

    def begin(self, done: int) -> None:
        """Count from here on, with what an earlier call has done already."""
        self._bar.initial = done
        self._bar.n = done
        self._bar.unpause()
        self._bar.start_t = self._bar.last_print_t = time.time()
        self._bar.refresh()

    def advance(self, cells: int, failed: int) -> None:
        """Count finished cells, and show how many have failed so far."""
        if failed:
            self._bar.set_postfix(failed=failed, refresh=False)
        self._bar.update(cells)

    def say(self, text: str) -> None:
        """Write lines that do not disturb the bar."""
        if self._show:
            self._bar.write(text, file=sys.stderr)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
