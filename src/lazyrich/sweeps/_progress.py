"""A progress bar on the host, by cells done; never inside a compiled program."""

import sys
from types import TracebackType

from tqdm import tqdm


class Progress:
    """A bar on stderr, and lines above it; silent when not wanted."""

    def __init__(self, cells: int, done: int, show: bool):
        self._show = show
        # A log that is no terminal gets a line every ten seconds, not a hundred.
        self._bar = tqdm(
            total=cells,
            initial=done,
            unit="cell",
            desc="sweep",
            disable=not show,
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
            file=sys.stderr,
        )

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
