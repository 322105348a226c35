"""Every test runs in float64, with strict promotion, types checked, warnings fatal."""

import jaxtyping
import matplotlib as mpl
import pytest
from jaxtyping import install_import_hook

mpl.use("Agg")

with install_import_hook("lazyrich", "beartype.beartype"):
    import lazyrich
    import lazyrich.cli
    import lazyrich.dynamics
    import lazyrich.plots
    import lazyrich.sweeps
    import lazyrich.theory  # noqa: F401

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def unchecked(monkeypatch):
    """The library as installed: its own messages, not those of the type checker."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
