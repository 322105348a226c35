"""Every Python block of the README and of the documentation runs as it stands."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def _program(page: pathlib.Path) -> str:
    """All blocks of a page as one program, each at its own line numbers."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * len(text.splitlines())
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        body = block[1].splitlines()
        lines[first : first + len(body)] = body
    return "\n".join(lines)


WITH_CODE = [page for page in PAGES if _program(page).strip()]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page, tmp_path):
    program = tmp_path / f"{page.stem}.py"
    program.write_text(_program(page), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        # Compiling is nearly all of the time, and the programs are small.
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            path = page.parent / target.split("#")[0]
            assert path.exists(), f"{page.name} links to {target}"


def test_the_reference_names_every_public_name():
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "lazyrich"
    tree = ast.parse((source / "__init__.py").read_text(encoding="utf-8"))
    exported = {
        f"lr.{alias.asname}": node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    names = {name for name, module in exported.items() if module}
    for name in (name for name, module in exported.items() if not module):
        room = source / name.removeprefix("lr.") / "__init__.py"
        for node in ast.walk(ast.parse(room.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names |= {f"{name}.{alias.asname}" for alias in node.names}
    assert not [n for n in sorted(names) if n not in text]
