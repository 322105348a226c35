"""The neural tangent kernel and distances between kernels."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._arrays import as_floating, matmul, transpose
from ..networks import TwoLayerLinear


def ntk(
    net: TwoLayerLinear,
    x1: Float[ArrayLike, "n1 inputs"],
    x2: Float[ArrayLike, "n2 inputs"] | None = None,
    *,
    layout: Literal["blocks", "matrix", "trace"] = "blocks",
    chunk_size: int | None = None,
) -> Float[Array, "..."]:
    """The tangent kernel Θ(x, x′) = (xᵀW1ᵀW1x′) I + (xᵀx′) W2W2ᵀ (Theorem C.5).

    `x1` is (n1, inputs), `x2` (n2, inputs), by default x1. The result is, by `layout`:

    - "blocks": (n1, n2, outputs, outputs);
    - "matrix": (n1·outputs, n2·outputs), outputs running fastest;
    - "trace": (n1, n2), the trace over the outputs (a sum, not a mean).

    `chunk_size` rows of x1 are done at a time, so that beyond the result and the
    weights only chunk_size·n2·outputs² + n2·hidden numbers are held; the values do not
    change. No factor 1/n enters. On whitened inputs, kernels on the identity (x1 = I)
    have the same `kernel_distance` as kernels on the data.
    """
    x1, x2 = as_floating(x1, x1 if x2 is None else x2)
    for name, x in (("x1", x1), ("x2", x2)):
        if x.ndim != 2 or x.shape[1] != net.inputs:
            raise ValueError(
                f"`{name}` must have shape (n, {net.inputs}), but its shape is "
                f"{x.shape}."
            )
    if layout not in ("blocks", "matrix", "trace"):
        raise ValueError(
            f'`layout` must be "blocks", "matrix" or "trace", but it is {layout!r}.'
        )
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"`chunk_size` must be ≥ 1, but it is {chunk_size}.")
    output = matmul(net.w2, transpose(net.w2))
    right = matmul(x2, transpose(net.w1))

    def rows(x: Float[Array, "n inputs"]) -> Float[Array, "..."]:
        hidden = matmul(matmul(x, transpose(net.w1)), transpose(right))
        plain = matmul(x, x2.T)
        if layout == "trace":
            traces = jnp.trace(output, axis1=-2, axis2=-1)[..., None, None]
            return net.outputs * hidden + traces * jnp.broadcast_to(plain, hidden.shape)
        identity = jnp.eye(net.outputs, dtype=output.dtype)
        order = "aibj" if layout == "matrix" else "abij"
        blocks = _outer(f"...ab,ij->...{order}", hidden, identity)
        blocks = blocks + _outer(f"ab,...ij->...{order}", plain, output)
        if layout == "blocks":
            return blocks
        sizes = (x.shape[0] * net.outputs, x2.shape[0] * net.outputs)
        return blocks.reshape(*blocks.shape[:-4], *sizes)

    if chunk_size is None or chunk_size >= x1.shape[0]:
        return rows(x1)
    return _by_chunks(rows, x1, chunk_size, output.ndim - 2)


def _outer(subscripts: str, a: Array, b: Array) -> Array:
    return jnp.einsum(subscripts, a, b, precision=jax.lax.Precision.HIGHEST)


def _by_chunks(rows, x: Array, chunk_size: int, axis: int) -> Array:
    """rows(x) evaluated `chunk_size` rows at a time and joined along `axis`."""
    whole = x.shape[0] // chunk_size * chunk_size
    stacked = jax.lax.map(rows, x[:whole].reshape(-1, chunk_size, x.shape[1]))
    joined = jnp.moveaxis(stacked, 0, axis)
    shape = joined.shape
    joined = joined.reshape(*shape[:axis], -1, *shape[axis + 2 :])
    if whole == x.shape[0]:
        return joined
    return jnp.concatenate([joined, rows(x[whole:])], axis=axis)


def kernel_distance(
    k0: Float[ArrayLike, "..."], k1: Float[ArrayLike, "..."]
) -> Float[Array, ""]:
    """1 − ⟨K0, K1⟩ / (‖K0‖‖K1‖), between 0 (same direction) and 2.

    Any two arrays of equal shape. Computed as ½‖K0/‖K0‖ − K1/‖K1‖‖², which is exactly 0
    for equal kernels and keeps its digits near 0. NaN if a kernel is zero.
    """
    k0, k1 = as_floating(k0, k1)
    if k0.shape != k1.shape:
        raise ValueError(
            f"The kernels must have equal shapes, but they are {k0.shape} and "
            f"{k1.shape}."
        )
    return 0.5 * jnp.sum((k0 / _norm(k0) - k1 / _norm(k1)) ** 2)


def kernel_similarity(
    k0: Float[ArrayLike, "..."], k1: Float[ArrayLike, "..."]
) -> Float[Array, ""]:
    """The cosine ⟨K0, K1⟩/(‖K0‖‖K1‖) = 1 − `kernel_distance`; exactly 1 for itself."""
    return 1 - kernel_distance(k0, k1)


def _norm(k: Array) -> Array:
    # Scaled by the largest entry: squares of tiny kernels would underflow.
    top = jax.lax.stop_gradient(jnp.max(jnp.abs(k)))
    return top * jnp.sqrt(jnp.sum((k / top) ** 2))
