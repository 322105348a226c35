"""Where results are written: one section a benchmark, in benchmarks/RESULTS.md."""

import pathlib
import re

_PATH = pathlib.Path(__file__).parent / "RESULTS.md"
_HEAD = """# Results

Times are from one machine and one run each; compare within a table.
"""


def write(title: str, text: str) -> None:
    """Print the section and put it in place of the one of the same title."""
    section = f"## {title}\n\n{text.strip()}\n"
    print(section)
    old = _PATH.read_text(encoding="utf-8") if _PATH.exists() else _HEAD
    parts = re.split(r"(?m)^(?=## )", old)
    kept = [p.strip() for p in parts[1:] if not p.startswith(f"## {title}\n")]
    sections = "\n\n".join(sorted([*kept, section.strip()]))
    _PATH.write_text(f"{_HEAD}\n{sections}\n", encoding="utf-8")
