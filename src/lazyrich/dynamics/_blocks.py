"""A function of many independent rows, evaluated in blocks that fit in cache.

XLA for CPU evaluates a vmapped function one operation at a time over the whole batch:
for the small matrices of the closed form nearly all of the time then goes into moving
intermediate results to memory and back. `in_blocks` walks over the batch in blocks of
rows instead. It is a JAX primitive so that it can do so whatever is done to it: under
vmap the new axis joins the rows, and forward and reverse derivatives, of any order,
are blocks again. Reverse mode evaluates a block anew rather than store it, so that the
memory in use is bounded, too.

Accelerators, which hide the traffic by other means, take many blocks at once.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Rows = Callable[..., Sequence[jax.Array]]
"""A function of arrays with a common leading axis, row by row; returns a sequence."""

_AT_ONCE = 1024
"""Blocks that an accelerator takes at once."""

_blocks_p = Primitive("lazyrich_blocks")
_blocks_p.multiple_results = True


def in_blocks(f: Rows, size: int, *args: jax.Array, linear: int = 0) -> list[jax.Array]:
    """f(*args), `size` rows at a time.

    `f` must be a module-level function (programs are found again by its identity),
    work on any number of rows, and treat every row by itself. If it is linear in its
    last arguments, `linear` says in how many: they may then be tangents.
    """
    return _blocks_p.bind(*args, f=f, linear=linear, size=size)


def _run(*args, f: Rows, linear: int, size: int, at_once: int):
    del linear
    rows = args[0].shape[0]
    if rows <= size * at_once:
        return list(f(*args))
    count = math.ceil(rows / (size * at_once))
    size = math.ceil(rows / count)  # blocks of about one size need little padding
    # Padding repeats the first row: any other filling could be out of f's domain.
    pad = count * size - rows

    def cut(x):
        if pad:
            fill = jnp.broadcast_to(x[:1], (pad, *x.shape[1:]))
            x = jnp.concatenate([x, fill])
        return x.reshape(count, size, *x.shape[1:])

    out = jax.lax.map(lambda block: list(f(*block)), [cut(x) for x in args])
    return [x.reshape(count * size, *x.shape[2:])[:rows] for x in out]


@functools.partial(jax.jit, static_argnames=("f", "linear", "size"))
def _eager(*args, f, linear, size):
    return _blocks_p.bind(*args, f=f, linear=linear, size=size)


_blocks_p.def_impl(_eager)


@_blocks_p.def_abstract_eval
def _abstract(*avals, f, linear, size):
    del linear, size
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    out = jax.eval_shape(lambda *args: list(f(*args)), *shapes)
    return [jax.core.ShapedArray(x.shape, x.dtype) for x in out]


for _platform, _many in (("cpu", 1), (None, _AT_ONCE)):
    _rule = mlir.lower_fun(
        functools.partial(_run, at_once=_many), multiple_results=True
    )
    mlir.register_lowering(_blocks_p, _rule, platform=_platform)


def _batch(args, dims, *, f, linear, size):
    pairs = list(zip(args, dims, strict=True))
    number = next(x.shape[d] for x, d in pairs if d is not None)
    rows = [batching.bdim_at_front(x, d, number) for x, d in pairs]
    flat = [x.reshape(-1, *x.shape[2:]) for x in rows]
    out = _blocks_p.bind(*flat, f=f, linear=linear, size=size)
    return [x.reshape(number, -1, *x.shape[1:]) for x in out], [0] * len(out)


batching.primitive_batchers[_blocks_p] = _batch


@functools.cache
def _tangent(f: Rows, moving: tuple[bool, ...]) -> Rows:
    """(*args, *tangents of the moving args) → tangents of f: linear in the latter."""

    def g(*args):
        primals = args[: len(moving)]
        dots = iter(args[len(moving) :])

        def of_moving(*some):
            given = iter(some)
            return list(
                f(
                    *(
                        next(given) if m else x
                        for x, m in zip(primals, moving, strict=True)
                    )
                )
            )

        points = [x for x, m in zip(primals, moving, strict=True) if m]
        return jax.jvp(of_moving, points, list(dots))[1]

    return g


@functools.cache
def _transposed(
    f: Rows, given: int, linear: tuple[tuple[tuple[int, ...], Any], ...]
) -> Rows:
    """(*first `given` args, *cotangents) → cotangents of the further args of f, in
    which f is linear and whose rows have the given shapes and dtypes.
    """

    def g(*args):
        rows, fixed = args[0].shape[0], args[:given]
        shapes = [jax.ShapeDtypeStruct((rows, *s), d) for s, d in linear]
        transpose = jax.linear_transpose(lambda *x: list(f(*fixed, *x)), *shapes)
        return list(transpose(list(args[given:])))

    return g


def _jvp(primals, tangents, *, f, linear, size):
    out = _blocks_p.bind(*primals, f=f, linear=linear, size=size)
    fixed = len(primals) - linear
    parts = []
    moving = tuple(
        k < fixed and not isinstance(t, ad.Zero) for k, t in enumerate(tangents)
    )
    if any(moving):
        dots = [t for t, m in zip(tangents, moving, strict=True) if m]
        parts.append(
            _blocks_p.bind(
                *primals,
                *dots,
                f=_tangent(f, moving),
                linear=len(dots),
                size=max(1, size // 2),
            )
        )
    if any(not isinstance(t, ad.Zero) for t in tangents[fixed:]):
        dots = [ad.instantiate_zeros(t) for t in tangents[fixed:]]
        parts.append(
            _blocks_p.bind(*primals[:fixed], *dots, f=f, linear=linear, size=size)
        )
    if not parts:
        return out, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]
    return out, [functools.reduce(ad.add_jaxvals, x) for x in zip(*parts, strict=True)]


ad.primitive_jvps[_blocks_p] = _jvp


def _transpose(cotangents, *args, f, linear, size):
    fixed, moving = args[: len(args) - linear], args[len(args) - linear :]
    shapes = tuple(
        (v.shape[1:], v.dtype)
        for v in (x.aval if ad.is_undefined_primal(x) else x for x in moving)
    )
    given = [ad.instantiate_zeros(x) for x in cotangents]
    out = _blocks_p.bind(
        *fixed,
        *given,
        f=_transposed(f, len(fixed), shapes),
        linear=len(given),
        size=max(1, size // 2),
    )
    found = [
        x if ad.is_undefined_primal(y) else None
        for x, y in zip(out, moving, strict=True)
    ]
    return [None] * len(fixed) + found


ad.primitive_transposes[_blocks_p] = _transpose
