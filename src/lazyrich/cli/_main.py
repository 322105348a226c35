"""Entry: parse, set the environment, run, and turn mistakes into one line."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BAD_ARGUMENTS = 2
FAILED = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code.

    0: done (single cells may have failed: they are listed). 1: every cell failed, or
    the results could not be written. 2: bad arguments, in one line on stderr. 130:
    interrupted from the keyboard; what is finished is kept.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        from .. import __version__

        print(f"lazyrich {__version__}")
        return 0
    options = _parse(arguments)
    if isinstance(options, int):
        return options
    set_environment()
    return _run(options)


def _run(options: Any) -> int:
    """Do what was asked for; mistakes are one line, and the exit code."""
    from ..sweeps import SweepError
    from ._options import Plot, Show
    from ._show import plot, show
    from ._sweep import prepare, run

    try:
        if isinstance(options, Show):
            return show(options)
        if isinstance(options, Plot):
            return plot(options)
        plan = prepare(options)
    except (ValueError, OSError) as error:
        return _fail(error, BAD_ARGUMENTS)
    try:
        return run(plan)
    except (ValueError, ImportError, SweepError, OSError) as error:
        bad = isinstance(error, ValueError | ImportError)
        return _fail(error, BAD_ARGUMENTS if bad else FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted: the same command goes on from here.", INTERRUPTED)


def set_environment() -> None:
    """float64, failures as NaN, and compiled programs kept, unless set otherwise.

    JAX and Equinox read these when they are imported: where that has happened already,
    the caller's settings stand.
    """
    if "jax" in sys.modules:
        return
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    # Programs with host callbacks, such as Equinox's own errors, are never cached.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_cache() / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def _cache() -> Path:
    """The folder for lazyrich in the user's cache."""
    home = Path.home()
    if sys.platform == "darwin":
        base = str(home / "Library" / "Caches")
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", str(home / "AppData" / "Local"))
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(home / ".cache")
    return Path(base) / "lazyrich"


def _parse(arguments: list[str]) -> Any:
    """The options of the command, or the exit code if there is nothing to run."""
    try:
        import tyro

        from ._options import Plot, Show, Sweep
    except ImportError:
        return _fail("the command needs more packages: pip install 'lazyrich[cli]'.", 2)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(
                {"sweep": Sweep, "show": Show, "plot": Plot},
                args=arguments,
                prog="lazyrich",
                description=(
                    "Learning dynamics of two-layer networks, from lazy to rich: by "
                    "the exact closed form, gradient flow and SGD."
                ),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as stop:
        if not stop.code:
            return 0
        word = arguments[0] if arguments[:1] in (["show"], ["plot"]) else "sweep"
        return _fail(f"{_body(said.getvalue())} (lazyrich {word} --help)", 2)


def _body(box: str) -> str:
    """The first paragraph of a framed message, as one line."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()[1:]]
    paragraph = lines[: lines.index("")] if "" in lines else lines
    return re.sub(r"\s+", " ", " ".join(paragraph)) or "bad arguments"


def _fail(problem: Exception | str, code: int) -> int:
    text = " ".join(str(problem).split())
    print(f"lazyrich: error: {text}", file=sys.stderr)
    return code
