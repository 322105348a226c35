"""The one place where a loss becomes a direction of learning."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from ..networks import TwoLayerLinear


def gradient(
    net: TwoLayerLinear, loss: Callable[[TwoLayerLinear], Float[Array, ""]]
) -> TwoLayerLinear:
    """∇loss at the network, in the network's shape."""
    return jax.grad(loss)(net)
