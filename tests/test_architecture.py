"""The house: one direction of imports, files of readable size, quiet imports."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lazyrich"
ROOMS = ["networks", "tasks", "measures", "inits", "trajectory", "dynamics", "theory"]
ROOMS += ["sweeps", "tuning", "plots", "deep", "studies", "cli"]


def _imported_rooms(path: pathlib.Path) -> set[str]:
    """Rooms of the package that a file imports, however it spells it."""
    package = ("lazyrich", *path.relative_to(SOURCE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            names = [f"{stem}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "lazyrich" and len(parts) > 1 and parts[1] in ROOMS:
                found.add(parts[1])
    return found


@pytest.mark.parametrize("room", [r for r in ROOMS if (SOURCE / r).exists()])
def test_a_room_imports_only_from_rooms_before_it(room):
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in (SOURCE / room).rglob("*.py"):
        assert _imported_rooms(path) <= allowed, path


def test_files_stay_short():
    files = [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    long = {str(p): n for p in files if (n := len(p.read_text().splitlines())) > 420}
    assert not long


def test_import_is_quiet_lazy_and_changes_no_setting():
    program = """
import sys
import lazyrich as lr
assert "jax" not in sys.modules, "the package itself must not import jax"
lr.Status
import jax
before = dict(jax.config.values)
for name in ("Exact", "GradientFlow", "SGD", "train", "sweep", "tasks", "inits",
             "measures", "theory", "networks", "TrainingError", "where_ok"):
    getattr(lr, name)
assert dict(jax.config.values) == before, "importing changed a global setting"
assert "matplotlib" not in sys.modules, "plots are an extra"
try:
    lr.nonsense
except AttributeError as error:
    assert "nonsense" in str(error)
else:
    raise AssertionError
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_independent_closed_forms_in_one_program_do_not_wait_for_each_other():
    """On two cores, batched LAPACK calls of one program once waited for ever."""
    program = """
import jax, jax.numpy as jnp
import lazyrich as lr

task = lr.tasks.LinearTask(jax.random.normal(jax.random.key(1), (5, 5)))

def cell(seed):
    net = lr.inits.balanced(jax.random.key(seed), 5, 5, 5, 1.0, 0.1)
    ends = [lr.train(net, t, 1.0, method=lr.Exact()).final.product
            for t in (task, task.reversed())]
    return jnp.isfinite(ends[0] + ends[1]).all()

assert jax.jit(jax.vmap(cell))(jnp.arange(20_000)).all()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_ci_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^python3\.11 -m venv .*$", readme, flags=re.MULTILINE)
    assert len(commands) == 2
    test_command = next(c for c in commands if "pytest" in c)
    inner = test_command.split(" && ", 2)[2]
    assert inner in (ROOT / ".ci" / "run").read_text()
