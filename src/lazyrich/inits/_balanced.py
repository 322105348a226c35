"""λ-balanced weights: W2ᵀW2 − W1W1ᵀ = λI."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from .._arrays import Scalar, as_floating, is_concrete, matmul
from ..networks import TwoLayerLinear
from ..tasks import LinearTask
from ._sizes import check_key, check_sizes


def _admissible(
    lam: Float[Array, ""], inputs: int, hidden: int, outputs: int
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """A λ to compute with, and whether it is the one asked for.

    `ValueError` if the wider layer is too narrow for it. A traced λ cannot be refused:
    the weights are then computed with 0 and made NaN at the end (`_marked`), so that
    the gradients of the other members of a batch stay finite.
    """
    if lam.ndim:
        raise ValueError(
            f"`lam` must be a scalar, but its shape is {lam.shape}: use jax.vmap for "
            "several."
        )
    if is_concrete(lam):
        value = float(lam)
        if hidden > outputs and value > 0:
            raise ValueError(
                f"`lam` must be ≤ 0 when hidden > outputs, but it is {value:.6g}. "
                f"(Here hidden = {hidden}, outputs = {outputs}: the output side must "
                "be at least as wide as the hidden layer.)"
            )
        if hidden > inputs and value < 0:
            raise ValueError(
                f"`lam` must be ≥ 0 when hidden > inputs, but it is {value:.6g}. "
                f"(Here hidden = {hidden}, inputs = {inputs}: the input side must be "
                "at least as wide as the hidden layer.)"
            )
        if not np.isfinite(value):
            raise ValueError(f"`lam` must be finite, but it is {value}.")
    refused = jnp.zeros((), bool)
    if hidden > outputs:
        refused |= lam > 0
    if hidden > inputs:
        refused |= lam < 0
    ok = ~refused & jnp.isfinite(lam)
    return jnp.where(ok, lam, 0.0), ok


def _marked(net: TwoLayerLinear, ok: Bool[Array, ""]) -> TwoLayerLinear:
    """The network, NaN where the request could not be met."""
    return jax.tree.map(lambda w: jnp.where(ok, w, jnp.nan), net)


def _layer_strengths(
    s: Float[Array, " modes"], lam: Float[Array, ""]
) -> tuple[Float[Array, " modes"], Float[Array, " modes"]]:
    """Singular values of W1 and W2 from those of W2W1 (theory: Theorem 5.2).

    The larger layer has √(μ + |λ|/2) with μ = √(s² + λ²/4), and the smaller one the
    quotient: √(μ − |λ|/2) would cancel, and its gradient would be NaN.
    """
    size = jnp.where(lam >= 0, lam, -lam)
    zero = (s == 0) & (lam == 0)
    # hypot has no derivative at (0, 0) or, in λ, at s = 0; there μ is |λ|/2. Scaled,
    # for the square of a tiny s underflows.
    safe = jnp.where(s == 0, jnp.ones_like(s), s)
    unit = jax.lax.stop_gradient(jnp.maximum(jnp.abs(safe), size / 2))
    hypot = unit * jnp.sqrt((safe / unit) ** 2 + (size / (2 * unit)) ** 2)
    mu = jnp.where(s == 0, size / 2, hypot)
    large = jnp.sqrt(mu + size / 2)
    small = jnp.where(zero, 0.0, s / jnp.where(zero, 1.0, large))
    wide2 = lam >= 0
    return jnp.where(wide2, small, large), jnp.where(wide2, large, small)


def _root(surplus: Float[Array, ""]) -> Float[Array, ""]:
    """√max(surplus, 0); its slope at 0 is infinite, and is left so."""
    inside = jnp.where(surplus >= 0, surplus, 1.0)
    return jnp.where(surplus >= 0, jnp.sqrt(inside), 0.0)


@jax.jit
def _assemble(
    u: Float[Array, "outputs p2"],
    v: Float[Array, "inputs p1"],
    r: Float[Array, "hidden hidden"],
    s: Float[Array, " modes"],
    lam: Float[Array, ""],
) -> TwoLayerLinear:
    """W1 = R S1 Vᵀ and W2 = U S2 Rᵀ, the extra hidden directions padded with √|λ|."""
    s1, s2 = _layer_strengths(s, lam)

    def padded(strengths: Array, columns: int, surplus: Array) -> Array:
        extra = columns - s.shape[0]
        if extra == 0:
            return strengths
        pad = jnp.broadcast_to(_root(surplus), (extra,))
        return jnp.concatenate([strengths, pad])

    s1 = padded(s1, v.shape[1], -lam)
    s2 = padded(s2, u.shape[1], lam)
    w1 = matmul(r[:, : v.shape[1]] * s1[None], v.T)
    w2 = matmul(u * s2[None], r[:, : u.shape[1]].T)
    return TwoLayerLinear(w1, w2)


def balanced(
    key: PRNGKeyArray,
    inputs: int,
    hidden: int,
    outputs: int,
    lam: Scalar,
    scale: Scalar | None = None,
    *,
    singular_values: Float[ArrayLike, " modes"] | None = None,
    norm: Scalar | None = None,
) -> TwoLayerLinear:
    """Random λ-balanced weights: W2ᵀW2 − W1W1ᵀ = λI, with a stated size.

    The singular vectors are Haar-distributed. Exactly one of three says how large the
    weights are, k = min(inputs, hidden, outputs) being the number of modes:

    - `scale`: the singular values of W2W1 are scale·|N(0, 1)|, drawn independently;
    - `singular_values`: they are these, shape (k,), all ≥ 0;
    - `norm`: they are all equal, such that ‖W1‖_F² + ‖W2‖_F² = norm. The norm is at
      least hidden·|λ|.

    λ > 0 needs hidden ≤ outputs and λ < 0 needs hidden ≤ inputs. Breaking a condition
    raises `ValueError` when the values are concrete and gives NaN weights when they
    are traced (a run from there ends with the status `nonfinite`). Where hidden exceeds
    k, the extra directions hold √|λ|, whose slope at λ = 0 is infinite: there the
    derivative of the weights in λ is not finite.
    """
    check_key(key)
    check_sizes(inputs, hidden, outputs)
    sizes = {"scale": scale, "singular_values": singular_values, "norm": norm}
    given = {name: value for name, value in sizes.items() if value is not None}
    if len(given) != 1:
        raise ValueError(
            "Give exactly one of `scale`, `singular_values` and `norm`, but "
            f"{'none' if not given else ', '.join(given)} was given."
        )
    ((name, size),) = given.items()
    lam, size = as_floating(lam, size)
    lam, ok = _admissible(lam, inputs, hidden, outputs)
    modes = min(inputs, hidden, outputs)
    u, v, r, normals = _draw(key, inputs, hidden, outputs, str(lam.dtype))
    if name == "scale":
        _check_scalar(name, size)
        size, sized = _nonnegative(size, "scale")
        s = size * jnp.abs(normals)
    elif name == "singular_values":
        if size.shape != (modes,):
            raise ValueError(
                f"`singular_values` must have shape ({modes},) = (min(inputs, hidden, "
                f"outputs),), but its shape is {size.shape}."
            )
        s, sized = _nonnegative(size, "singular_values")
    else:
        _check_scalar(name, size)
        s, sized = _from_norm(size, lam, hidden, modes)
    return _marked(_assemble(u, v, r, s, lam), ok & sized)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _draw(
    key: PRNGKeyArray, inputs: int, hidden: int, outputs: int, dtype: str
) -> tuple[Array, Array, Array, Array]:
    """Singular vectors u, v, the hidden basis r, and a normal number for each mode.

    Only as many singular vectors as the hidden layer can reach are ever used.
    """
    key_r, key_u, key_v, key_s = jax.random.split(key, 4)
    kind = jnp.dtype(dtype)
    u = _orthogonal(key_u, outputs, min(hidden, outputs), jnp.zeros((), kind))
    v = _orthogonal(key_v, inputs, min(hidden, inputs), u[0, 0])
    r = _orthogonal(key_r, hidden, hidden, v[0, 0])
    return u, v, r, jax.random.normal(key_s, (min(inputs, hidden, outputs),), kind)


SMALL = 16
"""Rows up to which columns are made orthogonal without LAPACK."""


def _orthogonal(key: PRNGKeyArray, rows: int, columns: int, after: Array) -> Array:
    """Haar-distributed orthonormal columns, computed once `after` is known.

    Batched LAPACK calls that run side by side can wait for each other for ever on a
    CPU with few threads (jaxlib 0.10): a dependence in name keeps them in a row, and
    small matrices do without, so that two sweeps' pieces can run at a time.
    """
    normal = jax.random.normal(key, (rows, columns), after.dtype)
    if rows <= SMALL:
        return _gram_schmidt(normal)
    q, r = jnp.linalg.qr(normal + 0 * after)
    # With the signs of R's diagonal taken out, Q is uniform.
    return q * jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)[None]


def _gram_schmidt(x: Array) -> Array:
    """Orthonormal columns with the span of the first ones of x, each made twice."""

    def column(i: Array, q: Array) -> Array:
        v = x[:, i]
        for _ in range(2):
            # Between the passes, so that what is left is not lost to underflow.
            v = v / jnp.sqrt(jnp.sum(v * v))
            v = v - matmul(q, matmul(v, q))
        return q.at[:, i].set(v / jnp.sqrt(jnp.sum(v * v)))

    return jax.lax.fori_loop(0, x.shape[1], column, jnp.zeros_like(x))


def _check_scalar(name: str, value: Array) -> None:
    if value.ndim:
        raise ValueError(
            f"`{name}` must be a scalar, but its shape is {value.shape}: use jax.vmap "
            "for several."
        )


def _nonnegative(s: Array, name: str) -> tuple[Array, Array]:
    """Values to compute with, and whether they are those asked for."""
    if is_concrete(s) and not np.all(np.asarray(s) >= 0):
        raise ValueError(f"`{name}` must be ≥ 0, but it is {s}.")
    ok = (s >= 0).all()
    return jnp.where(ok, s, 0.0), ok


def _from_norm(norm: Array, lam: Array, hidden: int, modes: int) -> tuple[Array, Array]:
    """Equal singular values s with 2Σμ = norm, padded directions counting |λ|/2.

    And whether that is possible.
    """
    size = jnp.where(lam >= 0, lam, -lam)
    least = hidden * size
    # A request of exactly the least norm may miss it by rounding.
    ulps = 8 * float(jnp.finfo(norm.dtype).eps)
    if is_concrete(norm, lam):
        bound = hidden * abs(float(lam))
        if not float(norm) >= bound * (1 - ulps):
            raise ValueError(
                f"`norm` must be at least hidden·|λ| = {bound:.6g}, but it is "
                f"{float(norm):.6g}."
            )
    ok = norm >= least * (1 - ulps)
    # s² = (μ − |λ|/2)(μ + |λ|/2) with μ = (norm − (hidden − modes)|λ|)/2·modes.
    spare = (norm - least) / (2 * modes)
    some = spare > 0
    s = jnp.sqrt(jnp.where(some, spare * (spare + size), 1.0))
    return jnp.broadcast_to(jnp.where(some, s, 0.0), (modes,)), ok


def aligned(
    task: LinearTask,
    lam: Scalar,
    scale: Float[ArrayLike, "*modes"],
    hidden: int | None = None,
) -> TwoLayerLinear:
    """λ-balanced weights whose singular vectors are the task's own (Theorem 5.1).

    Every mode of W2W1 starts at `scale`: a scalar, or one value per mode, k =
    min(inputs, hidden, outputs) of them, in the order of the task's singular values.
    A negative value starts a mode with the wrong sign. `hidden` defaults to
    min(inputs, outputs). λ is subject to the same conditions as in `balanced`.
    """
    narrow = min(task.inputs, task.outputs)
    hidden = narrow if hidden is None else hidden
    check_sizes(task.inputs, hidden, task.outputs)
    lam, scale, sigma = as_floating(lam, scale, task.sigma_yx)
    lam, ok = _admissible(lam, task.inputs, hidden, task.outputs)
    modes = min(narrow, hidden)
    if scale.shape not in ((), (modes,)):
        raise ValueError(
            f"`scale` must be a scalar or have shape ({modes},), but its shape is "
            f"{scale.shape}."
        )
    s = jnp.broadcast_to(scale, (modes,))
    u, _, vt = jnp.linalg.svd(sigma, full_matrices=hidden > narrow)
    u, v = u[:, : min(hidden, task.outputs)], vt.T[:, : min(hidden, task.inputs)]
    return _marked(_assemble(u, v, jnp.eye(hidden, dtype=s.dtype), s, lam), ok)


def rebalance(net: TwoLayerLinear, lam: Scalar) -> TwoLayerLinear:
    """A λ-balanced network with the same W2W1, in the hidden basis nearest to `net`'s.

    Nearest in ‖ΔW1‖_F² + ‖ΔW2‖_F² for the modes of W2W1, and then for the padded
    directions if hidden > min(inputs, outputs); so rebalancing a network to the λ it
    has returns it. The conditions on λ are those of `balanced`. One network, no leading
    axes.
    Derivatives exist where the singular values of W2W1 are distinct and not zero.
    """
    if net.w1.ndim != 2:
        raise ValueError("`rebalance` takes one network: use jax.vmap for several.")
    lam, w1, w2 = as_floating(lam, net.w1, net.w2)
    inputs, hidden, outputs = net.inputs, net.hidden, net.outputs
    lam, ok = _admissible(lam, inputs, hidden, outputs)
    modes = min(inputs, hidden, outputs)
    u, s, vt = jnp.linalg.svd(net.product, full_matrices=False)
    u, s, v = u[:, :modes], s[:modes], vt.T[:, :modes]
    s1, s2 = _layer_strengths(s, lam)
    # Orthogonal Procrustes for the hidden directions of the modes.
    pull = matmul(w1, v) * s1[None] + matmul(w2.T, u) * s2[None]
    r = _polar(pull)
    base = TwoLayerLinear(matmul(r * s1[None], v.T), matmul(u * s2[None], r.T))
    if hidden == modes:
        return _marked(base, ok)
    # The padded directions: √|λ| times a partial isometry of the wider layer, chosen
    # nearest to what that layer holds outside of the modes.
    extra = hidden - modes
    if hidden <= inputs:
        iso = _outside(w1, r, v, extra)
        base = eqx.tree_at(lambda n: n.w1, base, base.w1 + _root(-lam) * iso)
    if hidden <= outputs:
        iso = _outside(w2, u, r, extra)
        base = eqx.tree_at(lambda n: n.w2, base, base.w2 + _root(lam) * iso)
    return _marked(base, ok)


def _polar(a: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    left, _, right = jnp.linalg.svd(a, full_matrices=False)
    return matmul(left, right)


def _outside(w: Array, left: Array, right: Array, rank: int) -> Array:
    """The rank-`rank` partial isometry nearest to w, orthogonal to `left`, `right`.

    Where w has nothing outside, any such isometry serves; the completion is one.
    """
    rest = w - matmul(left, matmul(left.T, w))
    rest = rest - matmul(matmul(rest, right), right.T)
    basis_l = jnp.linalg.qr(left, mode="complete")[0][:, left.shape[1] :]
    basis_r = jnp.linalg.qr(right, mode="complete")[0][:, right.shape[1] :]
    core = matmul(matmul(basis_l.T, rest), basis_r)
    p, _, q = jnp.linalg.svd(core, full_matrices=False)
    p, q = p[:, :rank], q[:rank]
    return matmul(matmul(basis_l, p), matmul(q, basis_r.T))
