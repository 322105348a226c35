"""What the members of a vmapped program, its lanes, do together.

XLA for CPU multiplies the small matrices of a vmapped network one after the other, at
the price of a call and a few scalar operations each. Written out over the lanes, every
operation is a vector operation on as many matrices as a register holds. `product` is a
JAX primitive so that it can be told that it is vmapped, whatever else is done to it:
its derivatives, of any order and in both modes, are products again.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, Float

from ._arrays import matmul

SMALL, LONG = 10, 64
"""A product is written out over the lanes if two of its three sizes (rows, terms in a
sum, columns) are at most SMALL, and the third is at most LONG."""

_product_p = Primitive("lazyrich_product")


def product(a: Float[Array, "... m k"], b: Float[Array, "... k n"]) -> Array:
    """a @ b in full precision; many small ones side by side where they are vmapped."""
    if a.ndim == b.ndim == 2 and a.dtype == b.dtype:
        return _product_p.bind(a, b)
    return matmul(a, b)


def lane_product(
    a: Float[Array, "m k *lanes"], b: Float[Array, "k n *lanes"]
) -> Float[Array, "m n *lanes"]:
    """a @ b where the lanes are the last axes of the arrays, one product for each."""
    return _product_p.bind(a, b)


# The primitive takes a (m, k, *lanes) and b (k, n, *lanes), one product for each lane.


def _one_by_one(a: Array, b: Array) -> Array:
    if a.ndim == 2:
        return matmul(a, b)
    front = (*range(2, a.ndim), 0, 1)
    back = (a.ndim - 2, a.ndim - 1, *range(a.ndim - 2))
    return matmul(a.transpose(front), b.transpose(front)).transpose(back)


def _lanes_minor(x: Array) -> Array:
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def _is_small(a: Sequence[int], b: Sequence[int]) -> bool:
    _, middle, longest = sorted((*a[:2], b[1]))
    return middle <= SMALL and longest <= LONG


def _side_by_side(a: Array, b: Array) -> Array:
    if a.ndim == 2 or not _is_small(a.shape, b.shape):
        return _one_by_one(a, b)
    a, b = _lanes_minor(a), _lanes_minor(b)
    out = a[:, 0, None] * b[0][None]
    for i in range(1, a.shape[1]):
        out = out + a[:, i, None] * b[i][None]
    return _lanes_minor(out)


def _abstract(a: Any, b: Any) -> Any:
    return jax.core.ShapedArray((a.shape[0], b.shape[1], *a.shape[2:]), a.dtype)


def turned(x: Float[Array, "m n *lanes"]) -> Float[Array, "n m *lanes"]:
    """Every lane's transpose."""
    return jnp.swapaxes(x, 0, 1)


def _batch(args: Sequence[Array], dims: Sequence[Any]) -> tuple[Array, int]:
    a, b = args
    if a.ndim + b.ndim == 5 and None in dims:
        # One of two plain matrices is shared by all lanes: a single larger product.
        return jax.vmap(matmul, in_axes=tuple(dims), out_axes=2)(a, b), 2
    plain = [
        [n for k, n in enumerate(x.shape) if k != d]
        for x, d in zip(args, dims, strict=True)
    ]
    if not _is_small(*plain):
        # Lanes stay in front, where a library for large matrices wants them.
        return jax.vmap(_one_by_one, in_axes=tuple(dims), out_axes=0)(a, b), 0
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)

    def last(x: Array, d: int | None) -> Array:
        if d is None:
            return jnp.broadcast_to(x[..., None], (*x.shape, size))
        return jnp.moveaxis(x, d, -1)

    a, b = (last(x, d) for x, d in zip(args, dims, strict=True))
    return _product_p.bind(a, b), a.ndim - 1


_product_p.def_impl(jax.jit(_product_p.bind))
_product_p.def_abstract_eval(_abstract)
for _platform, _rule in (("cpu", _side_by_side), (None, _one_by_one)):
    mlir.register_lowering(
        _product_p, mlir.lower_fun(_rule, multiple_results=False), platform=_platform
    )
ad.defbilinear(
    _product_p,
    lambda slope, a, b: _product_p.bind(slope, turned(b)),
    lambda slope, a, b: _product_p.bind(turned(a), slope),
)
batching.primitive_batchers[_product_p] = _batch


@jax.custom_batching.custom_vmap
def any_lane(x: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether x holds in any lane: the same for all of them, so that a cond on it stays
    a branch under vmap."""
    return x


@any_lane.def_vmap
def _any_lane(size: int, batched: Any, x: Bool[Array, " lanes"]) -> tuple[Array, bool]:
    return any_lane(jnp.any(x)), False
