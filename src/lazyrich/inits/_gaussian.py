"""Independent Gaussian layers."""

import jax
from jaxtyping import PRNGKeyArray

from .._arrays import Scalar, as_floating, is_concrete
from ..networks import TwoLayerLinear
from ._sizes import check_key, check_sizes


def gaussian(
    key: PRNGKeyArray,
    inputs: int,
    hidden: int,
    outputs: int,
    std1: Scalar,
    std2: Scalar,
) -> TwoLayerLinear:
    """Layers with independent N(0, std1²) and N(0, std2²) entries.

    Balanced only in expectation: E[W2ᵀW2 − W1W1ᵀ] = (outputs·std2² − inputs·std1²) I.
    """
    check_key(key)
    check_sizes(inputs, hidden, outputs)
    std1, std2 = as_floating(std1, std2)
    for name, std in (("std1", std1), ("std2", std2)):
        if is_concrete(std) and not float(std) >= 0:
            raise ValueError(f"`{name}` must be ≥ 0, but it is {float(std)}.")
    key1, key2 = jax.random.split(key)
    return TwoLayerLinear(
        std1 * jax.random.normal(key1, (hidden, inputs), std1.dtype),
        std2 * jax.random.normal(key2, (outputs, hidden), std2.dtype),
    )
