"""Values that would give a plausible but wrong result are refused by name."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lazyrich as lr
from lazyrich.cli import main

KEY = jax.random.key(0)


def test_half_time_needs_times_in_order():
    with pytest.raises(ValueError, match="`times` must be non-decreasing"):
        lr.measures.half_time(jnp.array([2.0, 0.5, 0.0]), jnp.array([1.0, 0.6, 0.2]))
    ends = jnp.array([0.0, 1.0, jnp.inf, jnp.inf])
    assert lr.measures.half_time(ends, jnp.array([2.0, 0.5, 0.0, 0.0])) < 1


@pytest.mark.parametrize("stds", [(-1.0, 1.0), (1.0, -1.0), (np.nan, 1.0)])
def test_gaussian_layers_need_a_standard_deviation(stds):
    with pytest.raises(ValueError, match=r"`std[12]` must be ≥ 0"):
        lr.inits.gaussian(KEY, 2, 2, 2, *stds)


@pytest.mark.parametrize("noise", [-0.1, np.nan])
def test_label_noise_is_a_standard_deviation(noise):
    with pytest.raises(ValueError, match="`label_noise` must be ≥ 0"):
        lr.SGD(0.01, label_noise=noise, key=KEY)


def test_complex_weights_are_refused():
    imaginary: Any = np.eye(2) * 1j
    with pytest.raises(ValueError, match="must be real"):
        lr.networks.TwoLayerLinear(imaginary, np.eye(2))


@pytest.mark.parametrize("name", ["solver", "adjoint"])
def test_the_flow_names_a_setting_that_is_not_diffrax(name):
    # Without the type checker of the tests, which would refuse it first.
    program = f"""
import lazyrich as lr
try:
    lr.GradientFlow({name}="x")
except ValueError as error:
    assert str(error) == "`{name}` must be a diffrax {name}, but it is 'x'.", error
else:
    raise AssertionError("accepted")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_no_npz_is_said_to_be_none(tmp_path, capsys):
    path = tmp_path / "fake.npz"
    path.write_text("hi")
    with pytest.raises(SystemExit) as caught:
        raise SystemExit(
            main(["sweep", f"--data={path}", f"--store={tmp_path}/s.zarr"])
        )
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "it is no .npz file" in error
    assert "pickle" not in error
