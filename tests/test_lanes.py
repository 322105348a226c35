"""Products and branches of vmapped programs, against `jnp.matmul` and plain `cond`."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

import lazyrich as lr
from lazyrich._lanes import LONG, SMALL, any_lane, product

SHAPES = [  # rows, terms in a sum, columns
    (1, 1, 1),
    (2, 3, 4),
    (1, 7, 1),
    (SMALL, 5, LONG),
    (LONG, SMALL, 1),
    (3, LONG, 2),
    (SMALL + 1, SMALL, SMALL + 1),
    (SMALL, LONG + 1, 1),
    (70, 33, 21),
    (1, 40, 17),
]
TOLERANCE = {"float64": 1e-13, "float32": 2e-5}


def matmul(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


FORMS = product, matmul


def draw(*shape, seed=0, dtype="float64"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def close(ours, theirs, dtype="float64"):
    chex.assert_trees_all_equal_shapes_and_dtypes(ours, theirs)
    size = max([1.0, *(np.abs(x).max() for x in jax.tree.leaves(theirs))])
    tolerance = TOLERANCE[str(dtype)] * size
    chex.assert_trees_all_close(ours, theirs, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_alone_and_vmapped(dtype):
    pairs = [
        (draw(3, m, k, dtype=dtype), draw(3, k, n, seed=1, dtype=dtype))
        for m, k, n in (SHAPES if dtype == "float64" else SHAPES[:4])
    ]

    def every(multiply, a, b):
        return {
            "alone": multiply(a[0], b[0]),
            "vmapped": jax.vmap(multiply)(a, b),
            "right shared": jax.vmap(multiply, (0, None))(a, b[0]),
            "left shared": jax.vmap(multiply, (None, 0))(a[0], b),
        }

    @jax.jit
    def both(pairs):
        return [[every(f, *pair) for pair in pairs] for f in (product, matmul)]

    for ours, theirs in zip(*both(pairs), strict=True):
        close(ours, theirs, dtype)
        close(ours["vmapped"][0], ours["alone"], dtype)


def test_nested_vmaps_along_any_axes():
    inner = [(0, 0), (0, None), (None, 0), (2, 1)]
    outer = [(0, 0), (0, None), (None, 0), (-1, 1)]

    def operand(shape, seed, axes):
        for size, axis in zip((4, 3), axes, strict=True):
            if axis is not None:
                where = axis % (len(shape) + 1)
                shape = (*shape[:where], size, *shape[where:])
        return draw(*shape, seed=seed)

    cases = list(itertools.product(inner, outer))
    operands = [
        (operand((2, 5), 0, (i[0], o[0])), operand((5, 3), 1, (i[1], o[1])))
        for i, o in cases
    ]

    @jax.jit
    def both(operands):
        return [
            [
                jax.vmap(jax.vmap(multiply, i), o)(*pair)
                for (i, o), pair in zip(cases, operands, strict=True)
            ]
            for multiply in (product, matmul)
        ]

    for ours, theirs in zip(*both(operands), strict=True):
        close(ours, theirs)


def test_leading_axes_are_those_of_matmul():
    a, b = draw(4, 2, 5), draw(4, 5, 3, seed=1)
    close(product(a[0], b[0]), matmul(a[0], b[0]))
    close(product(a, b), matmul(a, b))
    deep = draw(6, 4, 2, 5, seed=2), draw(6, 4, 5, 3, seed=3)
    close(product(*deep), matmul(*deep))
    close(jax.vmap(product)(*deep), matmul(*deep))
    close(jax.vmap(product, out_axes=1)(a, b), jax.vmap(matmul, out_axes=1)(a, b))


def test_no_lanes_at_all():
    a, b = jnp.zeros((0, 2, 5)), jnp.zeros((0, 5, 3))
    assert jax.vmap(product)(a, b).shape == (0, 2, 3)
    assert jax.vmap(product, (0, None))(a, jnp.ones((5, 3))).shape == (0, 2, 3)


def test_a_value_that_is_not_finite_stays_in_its_lane():
    a, b = draw(4, 2, 3).at[1, 0, 0].set(jnp.inf), draw(4, 3, 2, seed=1)
    out = jax.vmap(product)(a, b.at[2, 1, 1].set(jnp.nan))
    finite = jnp.isfinite(out).all(axis=(1, 2))
    assert finite.tolist() == [True, False, False, True]
    close(out[jnp.array([0, 3])], matmul(a, b)[jnp.array([0, 3])])


def derivatives(multiply, a, b, slope):
    """Every kind of derivative of one product, and of a curved function of it."""

    def curved(a, b):
        return jnp.sum(jnp.tanh(multiply(a, b)) * slope)

    both = (0, 1)
    _, pushed = jax.jvp(multiply, (a, b), (jnp.cos(a), jnp.sin(b)))
    _, pull = jax.vjp(multiply, a, b)
    gradient = jax.grad(curved, both)
    _, along = jax.jvp(gradient, (a, b), (jnp.cos(a), jnp.sin(b)))
    back = jax.grad(lambda a, b: jnp.sum(gradient(a, b)[0] ** 2), both)(a, b)
    third = jax.jvp(lambda a: jax.jvp(gradient, (a, b), (a, b))[1], (a,), (a,))[1]
    return {
        "jvp": pushed,
        "vjp": pull(slope),
        "forward over reverse": along,
        "reverse over reverse": back,
        "third": third,
        "forward over forward": jax.jacfwd(jax.jacfwd(curved, 1), 0)(a, b),
    }


@pytest.mark.parametrize("axes", [None, (0, 0), (None, 0), (0, None)], ids=str)
def test_derivatives_of_every_order(axes):
    slope = draw(2, 4, seed=2)
    lanes = axes or (None, None)
    a, b = (
        draw(*(() if axis is None else (3,)), *size, seed=seed)
        for axis, size, seed in zip(lanes, ((2, 3), (3, 4)), (0, 1), strict=True)
    )

    @jax.jit
    def both(a, b):
        parts = [functools.partial(derivatives, f, slope=slope) for f in FORMS]
        return [(f if axes is None else jax.vmap(f, axes))(a, b) for f in parts]

    ours, theirs = both(a, b)
    for name, value in theirs.items():
        close(ours[name], value)


@pytest.mark.parametrize("shape", [(1, 4, 1), (SMALL + 1, 2, SMALL + 2), (2, 70, 3)])
def test_gradients_of_other_shapes(shape):
    m, k, n = shape
    a, b = draw(3, m, k), draw(3, k, n, seed=1)

    def value(multiply, a, b):
        return jnp.sum(jnp.tanh(multiply(a, b)))

    @jax.jit
    def both(a, b):
        parts = [jax.grad(functools.partial(value, f), (0, 1)) for f in FORMS]
        return [jax.vmap(f)(a, b) for f in parts]

    close(*both(a, b))


def test_gradients_through_a_scan_of_products():
    start, step = draw(4, 3, 3), 0.5 * draw(4, 3, 3, seed=1)

    def final(multiply, start, step):
        def advance(state, _):
            new = jnp.tanh(multiply(multiply(step, state), step.T))
            return new, jnp.sum(new)

        state, sums = jax.lax.scan(advance, start, None, length=6)
        return jnp.sum(state**2) + jnp.sum(sums)

    @jax.jit
    def every(start, step):
        ours, theirs = (functools.partial(final, f) for f in FORMS)
        # vmap of grad is grad of the sum over the vmap.
        total = jax.grad(lambda *x: jax.vmap(ours)(*x).sum(), (0, 1))
        transforms = (jax.grad(ours, (0, 1)), jax.jacfwd(ours, (0, 1)))
        vmapped = (*map(jax.vmap, transforms), total)
        expected = jax.vmap(jax.grad(theirs, (0, 1)))
        return [f(start, step) for f in vmapped], expected(start, step)

    found, expected = every(start, step)
    for value in found:
        close(value, expected)


def primitives(jaxpr):
    """Names of all primitives, those of inner programs included."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation.primitive.name
        for inner in core.jaxprs_in_params(equation.params):
            yield from primitives(inner)


def branching(x):
    return jax.lax.cond(any_lane(x > 0), jnp.sin, jnp.cos, x)


def test_any_lane_alone_is_its_argument():
    for x in (-1.0, 1.0):
        assert bool(any_lane(jnp.asarray(x > 0))) == (x > 0)
        assert bool(jax.jit(any_lane)(jnp.asarray(x > 0))) == (x > 0)
        assert branching(x) == (jnp.sin(x) if x > 0 else jnp.cos(x))


def test_any_lane_is_the_same_for_all_lanes():
    for values in ([-1.0, -2.0, -3.0], [-1.0, 2.0, -3.0], [1.0, 2.0, 3.0]):
        x = jnp.array(values)
        both = jnp.stack([x, x - 1])
        expected = (jnp.sin if max(values) > 0 else jnp.cos)(both)
        for f in (jax.vmap(branching), jax.jit(jax.vmap(branching))):
            np.testing.assert_array_equal(f(x), expected[0])
        deep = jax.vmap(jax.vmap(branching), 1)
        np.testing.assert_array_equal(deep(both), expected.T)
    shared = jax.vmap(lambda x, flag: jnp.where(any_lane(flag), x, 0.0), (0, None))
    assert shared(jnp.ones(2), jnp.asarray(True)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.grad, jax.jit], ids=["plain", "grad", "jit"]
)
def test_a_cond_on_any_lane_stays_a_branch(depth, wrap):
    f, plain = wrap(branching), wrap(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x))
    for _ in range(depth):
        f, plain = jax.vmap(f), jax.vmap(plain)
    x = draw(*(3,) * depth)
    found, without = (set(primitives(jax.make_jaxpr(g)(x))) for g in (f, plain))
    assert "cond" in found
    assert "select_n" not in found
    assert "select_n" in without


def test_derivatives_past_any_lane():
    x = jnp.array([-1.0, 2.0, -3.0])
    for mode in (jax.grad, jax.jacfwd):
        np.testing.assert_array_equal(jax.vmap(mode(branching))(x), jnp.cos(x))
        np.testing.assert_array_equal(
            jax.vmap(mode(branching))(-abs(x)), -jnp.sin(-abs(x))
        )
    total = jax.grad(lambda x: jax.vmap(branching)(x).sum())
    np.testing.assert_array_equal(total(x), jnp.cos(x))
    curve = jax.vmap(jax.grad(jax.grad(branching)))(x)
    np.testing.assert_allclose(curve, -jnp.sin(x), rtol=1e-15)


TASK = lr.tasks.LinearTask(jnp.diag(jnp.array([1.0, 0.5])))
SCALES, RATES = jnp.array([0.3, 0.5, 0.9]), jnp.array([0.1, 0.11, 0.12])


def descend(scale, rate):
    """A loss over several times of SGD, of which one repeats and one is the start."""
    net = lr.networks.TwoLayerLinear(scale * draw(3, 2), scale * draw(2, 3, seed=1))
    times = jnp.array([0.0, 0.3, 0.3, 1.0, 2.0])
    traj = lr.train(net, TASK, times, method=lr.SGD(rate, steps=20))
    weights = jnp.array([0.5, 1.0, 2.0, 3.0, 4.0])
    return jnp.sum(weights * traj.map(TASK.loss)) + TASK.loss(traj.final)


def test_gradients_of_sgd_match_differences_and_a_loop():
    def slopes(scale, rate):
        value = descend(scale, rate)
        return value, jax.grad(descend)(scale, rate), jax.jacfwd(descend)(scale, rate)

    together, h = jax.jit(jax.vmap(slopes)), 1e-5
    batch = together(SCALES, RATES)
    rise = together(SCALES + h, RATES)[0] - together(SCALES - h, RATES)[0]
    for mode in (1, 2):
        np.testing.assert_allclose(batch[mode], rise / (2 * h), rtol=1e-7)
    single = jax.jit(slopes)
    for i in range(3):
        alone = single(SCALES[i], RATES[i])
        np.testing.assert_allclose([x[i] for x in batch], alone, rtol=1e-12)
