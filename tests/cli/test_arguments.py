"""Arguments: what is understood, and one clear line for what is not."""

import re
import subprocess
import sys

import numpy as np
import pytest

from lazyrich.cli import main
from lazyrich.cli._options import Sweep
from lazyrich.cli._problem import make_task, read_data
from lazyrich.cli._ranges import parse_axis, parse_integers


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0:4", [0, 1, 2, 3]),
        ("-2:1", [-2, -1, 0]),
        ("-1:1:5", [-1.0, -0.5, 0.0, 0.5, 1.0]),
        ("0:0.3:4", [0.0, 0.1, 0.2, 0.3]),
        ("0.001,0.1", [0.001, 0.1]),
        ("3", [3]),
        ("-2.5, 1e-3", [-2.5, 1e-3]),
        ("1,2.5", [1.0, 2.5]),
    ],
)
def test_axes(text, values):
    parsed = parse_axis("--lam", text)
    np.testing.assert_allclose(parsed, values, rtol=1e-15)
    assert [type(v) for v in parsed] == [type(v) for v in values]


@pytest.mark.parametrize("count", [2, 3, 33, 34, 101])
def test_symmetric_axes_are_symmetric_to_the_bit(count):
    values = np.asarray(parse_axis("--lam", f"-7.3:7.3:{count}"))
    np.testing.assert_array_equal(values, -values[::-1])
    assert values[-1] == 7.3


@pytest.mark.parametrize(
    "text", ["", "a", "1:b", "1:2:3:4", "0:1:1", "0:1:2.5", "1,,2", "nan", "0:inf:3"]
)
def test_what_is_no_axis(text):
    with pytest.raises(ValueError, match=r"--lam: .* is no axis: write a:b") as caught:
        parse_axis("--lam", text)
    assert "\n" not in str(caught.value)


def test_empty_axes_and_seeds_that_are_no_integers():
    with pytest.raises(ValueError, match="has no values"):
        parse_axis("--seed", "5:5")
    with pytest.raises(ValueError, match="must be integers"):
        parse_integers("--seed", "0:1:3")


BAD = {
    "--lam=1:2:x": "--lam: '1:2:x' is no axis",
    "--lam=-1,0 --hidden=9": "`lam` must be ≥ 0 when hidden > inputs",
    "--lam=0,1 --hidden=9": "`lam` must be ≤ 0 when hidden > outputs",
    "--scale=-1": "--scale must be ≥ 0",
    "--seed=0.5": "must be integers",
    "--method=exact,magic": "--method: 'exact,magic'",
    "--method=exact,exact": "each once",
    "--task=digits": "--task: 'digits' is unknown",
    "--task=random --data=x.npz": "not both",
    "--data=missing.npz": "there is no file missing.npz",
    "--levels=2 --task=random": "--levels belongs to --task=hierarchy",
    "--samples=2": "--samples belongs to --task=random",
    "--targets=1": "--targets belongs to --data",
    "--task=random --samples=2": "`samples` must be at least `inputs`",
    "--levels=0": "--levels must be from 1",
    "--hidden=0": "--hidden must be ≥ 1",
    "--times=1:5": "--times must begin at 0",
    "--times=0,2,1": "--times must begin at 0",
    "--rtol=2": "--rtol must be between",
    "--rtol=1e-3 --method=exact": "--rtol needs flow",
    "--learning-rate=0": "--learning-rate must be > 0",
    "--learning-rate=fast": "--learning-rate",
    "--batch-size=9": "number of samples, 8",
    "--batch-size=2 --method=flow": "--batch-size needs sgd",
    "--figure=a.bmp": "must end in .png",
    "--nope=1": "Unrecognized options: --nope=1",
    "--lam": "Missing value for argument '--lam'",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lazyrich: error: ")
    assert err.count("\n") == 1
    assert BAD[arguments] in err
    assert list(tmp_path.iterdir()) == []


def test_no_command_is_a_bad_argument(capsys):
    assert main([]) == 2
    assert "sweep" in capsys.readouterr().err


def test_npz_and_csv_hold_the_same_data(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    np.savez(tmp_path / "d.npz", x=x, y=y)
    table = np.concatenate([x, y], axis=1)
    np.savetxt(tmp_path / "bare.csv", table, delimiter=",", fmt="%.18e")
    header = "a,b,c,first,second"
    np.savetxt(
        tmp_path / "named.csv",
        table,
        delimiter=",",
        fmt="%.18e",
        header=header,
        comments="",
    )
    for name, targets in (
        ("d.npz", None),
        ("bare.csv", "2"),
        ("named.csv", "first,second"),
    ):
        found_x, found_y = read_data(tmp_path / name, targets)
        np.testing.assert_array_equal(found_x, x)
        np.testing.assert_array_equal(found_y, y)
    _, last = read_data(tmp_path / "named.csv", None)
    np.testing.assert_array_equal(last, y[:, 1:])


def test_messages_name_the_file_or_the_option(tmp_path, capsys):
    fake, zeros, table = (tmp_path / n for n in ("fake.npz", "zeros.npz", "t.csv"))
    fake.write_text("hi")
    np.savez(zeros, x=np.zeros((3, 2)), y=np.ones((3, 1)))
    table.write_text("1,2\n3,4\n")
    for words, told in (
        ([f"--data={fake}"], "fake.npz cannot be read: it is no .npz file."),
        ([f"--data={zeros}"], f"--data: {zeros}: `x` is zero everywhere"),
        ([f"--data={table}", "--targets=-1"], "--targets must be a count ≥ 1"),
    ):
        assert main(["sweep", *words, f"--store={tmp_path}/s.zarr"]) == 2
        assert told in capsys.readouterr().err


def test_one_target_may_be_a_vector(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.eye(3), y=np.arange(3))
    task, name = make_task(Sweep(data=str(tmp_path / "d.npz")))
    assert (task.inputs, task.outputs, task.samples) == (3, 1, 3)
    assert name.endswith("d.npz")


def test_data_that_cannot_be_used(tmp_path, capsys):
    np.savez(tmp_path / "no_y.npz", x=np.eye(3), z=np.eye(3))
    np.savez(tmp_path / "text.npz", x=np.array(["a"]), y=np.eye(1))
    np.savez(tmp_path / "lengths.npz", x=np.eye(3), y=np.ones((2, 1)))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 2), np.nan), y=np.ones((3, 1)))
    (tmp_path / "broken.npz").write_text("nothing")
    (tmp_path / "d.txt").write_text("1,2")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "empty.csv").write_text("a,b\n")
    (tmp_path / "good.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "bare.csv").write_text("1,2\n3,4\n")
    cases = {
        "no_y.npz": "has no array `y`: it must hold x and y, but it holds x, z",
        "text.npz": "no number",
        "lengths.npz": "with one n",
        "nan.npz": "must be finite",
        "broken.npz": "cannot be read",
        "d.txt": "must be a .npz or a .csv",
        "ragged.csv": "line 3",
        "empty.csv": "no samples",
        "good.csv --targets=2": "leaves no inputs",
        "good.csv --targets=3": "has 2 columns",
        "good.csv --targets=c": "no column 'c': it has a, b",
        "bare.csv --targets=a": "no header",
        "no_y.npz --targets=1": "--targets belongs to a .csv",
    }
    for case, text in cases.items():
        name, *rest = case.split()
        assert main(["sweep", f"--data={tmp_path / name}", *rest]) == 2
        err = capsys.readouterr().err
        assert text in err, case
        assert err.count("\n") == 1, case


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


def test_help_imports_nothing_heavy():
    done = run(
        "import sys\n"
        "from lazyrich.cli import main\n"
        "assert main(['sweep', '--help']) == 0\n"
        "assert main(['--version']) == 0\n"
        "heavy = {'jax', 'numpy', 'xarray', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert done.returncode == 0, done.stderr
    assert "--batch-size" in done.stdout
    assert "-8:8:33" in done.stdout


def test_the_environment_is_set_before_jax_and_not_overridden():
    done = run(
        "import os\n"
        "os.environ['EQX_ON_ERROR'] = 'raise'\n"
        "os.environ['XDG_CACHE_HOME'] = '/somewhere'\n"
        "from lazyrich.cli._main import set_environment\n"
        "set_environment()\n"
        "import jax, jax.numpy as jnp\n"
        "assert os.environ['EQX_ON_ERROR'] == 'raise'\n"
        "assert jnp.zeros(()).dtype == 'float64'\n"
        "print(jax.config.jax_compilation_cache_dir)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "lazyrich" in done.stdout


def test_logarithmic_axes_keep_their_ends():
    values = parse_axis("--scale", "0.001:10:5:log")
    np.testing.assert_allclose(values, [1e-3, 1e-2, 1e-1, 1.0, 10.0], rtol=1e-14)
    assert (values[0], values[-1]) == (0.001, 10.0)
    for text in ("0:1:5:log", "-1:1:5:log", "1:2:1:log", "1:2:3:lin", "1:2:3:log:4"):
        with pytest.raises(ValueError, match="a:b:n:log"):
            parse_axis("--scale", text)


def test_it_is_a_module_too():
    done = subprocess.run(
        [sys.executable, "-m", "lazyrich", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"lazyrich \d+\.\d+\.\d+\n", done.stdout)
