"""How similar inputs, or outputs, look to the hidden layer."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._arrays import as_floating, matmul, transpose
from ..networks import TwoLayerLinear


def input_similarity(
    net: TwoLayerLinear, x: Float[ArrayLike, "n inputs"] | None = None
) -> Float[Array, "*batch n n"]:
    """Representational similarity of inputs: W1ᵀW1, or x W1ᵀW1 xᵀ for x (n, inputs)."""
    if x is None:
        return matmul(transpose(net.w1), net.w1)
    (x,) = as_floating(x)
    if x.ndim != 2 or x.shape[1] != net.inputs:
        raise ValueError(
            f"`x` must have shape (n, {net.inputs}), but its shape is {x.shape}."
        )
    hidden = matmul(x, transpose(net.w1))
    return matmul(hidden, transpose(hidden))


def output_similarity(
    net: TwoLayerLinear, y: Float[ArrayLike, "n outputs"] | None = None
) -> Float[Array, "*batch n n"]:
    """Representational similarity on the output side.

    W2W2ᵀ (outputs, outputs), or, for targets y (n, outputs), y (W2W2ᵀ)⁺ yᵀ: the inner
    products of the least-norm hidden vectors that produce them. Directions whose
    singular value is below 10·max(shape)·ε of the largest count as absent.
    """
    if y is None:
        return matmul(net.w2, transpose(net.w2))
    (y,) = as_floating(y)
    if y.ndim != 2 or y.shape[1] != net.outputs:
        raise ValueError(
            f"`y` must have shape (n, {net.outputs}), but its shape is {y.shape}."
        )
    # Through W2⁺, not (W2W2ᵀ)⁺: the square would lose half of the digits.
    hidden = matmul(y, transpose(jnp.linalg.pinv(net.w2)))
    return matmul(hidden, transpose(hidden))
