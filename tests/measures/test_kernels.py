"""The tangent kernel against explicit Jacobians, and distances between kernels."""

import functools
from typing import Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from lazyrich.inits import balanced
from lazyrich.measures import kernel_distance, kernel_similarity, ntk
from lazyrich.networks import TwoLayerLinear
from lazyrich.tasks import LinearTask

INPUTS, HIDDEN, OUTPUTS = 5, 6, 3
Layout = Literal["blocks", "matrix", "trace"]


def network(*lead, inputs=INPUTS, hidden=HIDDEN, outputs=OUTPUTS, seed=0):
    rng = np.random.default_rng(seed)
    return TwoLayerLinear(
        rng.normal(size=(*lead, hidden, inputs)),
        rng.normal(size=(*lead, outputs, hidden)),
    )


def inputs_of(n, inputs=INPUTS, seed=1):
    return np.random.default_rng(seed).normal(size=(n, inputs))


def by_jacobian(net, x1, x2):
    """⟨∂f_i(x)/∂θ, ∂f_j(x′)/∂θ⟩ over the weights of both layers."""

    def features(x):
        tree = jax.jit(jax.jacobian(lambda n: n(x)))(net)
        flat = [
            np.asarray(leaf).reshape(*leaf.shape[:2], -1)
            for leaf in jax.tree.leaves(tree)
        ]
        return np.concatenate(flat, axis=-1)

    return np.einsum("aip,bjp->abij", features(x1), features(x2))


def test_ntk_is_the_inner_product_of_jacobians():
    net, x1, x2 = network(), inputs_of(4), inputs_of(2, seed=2)
    kernel = ntk(net, x1, x2)
    chex.assert_shape(kernel, (4, 2, OUTPUTS, OUTPUTS))
    np.testing.assert_allclose(kernel, by_jacobian(net, x1, x2), rtol=1e-11, atol=1e-12)
    own = ntk(net, x1)
    np.testing.assert_allclose(own, by_jacobian(net, x1, x1), rtol=1e-11, atol=1e-12)
    # A Gram matrix: symmetric and positive semi-definite.
    flat = np.asarray(ntk(net, x1, layout="matrix"))
    np.testing.assert_allclose(flat, flat.T, rtol=1e-13)
    assert np.linalg.eigvalsh(flat).min() > -1e-10


def test_layouts_of_four_inputs_and_three_outputs():
    net, x = network(), inputs_of(4)
    blocks = np.asarray(ntk(net, x))
    matrix = np.asarray(ntk(net, x, layout="matrix"))
    trace = np.asarray(ntk(net, x, layout="trace"))
    chex.assert_shape([blocks, matrix, trace], [(4, 4, 3, 3), (12, 12), (4, 4)])
    for a in range(4):
        for b in range(4):
            block = matrix[3 * a : 3 * a + 3, 3 * b : 3 * b + 3]
            np.testing.assert_allclose(block, blocks[a, b], rtol=1e-14)
            np.testing.assert_allclose(trace[a, b], np.trace(block), rtol=1e-12)


@pytest.mark.parametrize(
    ("layout", "lead"), [("blocks", ()), ("matrix", (2,)), ("trace", (2,))]
)
def test_chunks_of_any_size_give_the_same_kernel(layout, lead):
    x1, x2 = inputs_of(4), inputs_of(2, seed=2)
    sizes = (None, 1, 2, 3, 100)

    @jax.jit
    def every(net):
        return [ntk(net, x1, x2, layout=layout, chunk_size=size) for size in sizes]

    whole, *parts = every(network(*lead))
    np.testing.assert_allclose(
        whole, ntk(network(*lead), x1, x2, layout=layout), rtol=1e-12, atol=1e-12
    )
    for part in parts:
        assert part.shape == whole.shape
        np.testing.assert_allclose(part, whole, rtol=1e-12, atol=1e-12)


@functools.cache
def compiled_large(layout, chunk_size):
    net = network(inputs=20, hidden=512)
    x = inputs_of(200, inputs=20)
    f = jax.jit(lambda n, x: ntk(n, x, layout=layout, chunk_size=chunk_size))
    return f.lower(net, x).compile(), net, x


def test_chunked_equals_whole_at_200_inputs_and_width_512():
    whole, net, x = compiled_large("blocks", None)
    expected = np.asarray(whole(net, x))
    chex.assert_shape(expected, (200, 200, 3, 3))
    for chunk_size in (7, 50):  # one that divides, and one that does not
        parts, _, _ = compiled_large("blocks", chunk_size)
        gap = np.abs(np.asarray(parts(net, x)) - expected).max()
        assert gap <= 1e-10 * np.abs(expected).max()
    # And it is the kernel: some entries by hand.
    w1, w2 = np.asarray(net.w1), np.asarray(net.w2)
    for a, b in ((0, 0), (3, 199), (150, 42)):
        by_hand = (x[a] @ w1.T @ w1 @ x[b]) * np.eye(3) + (x[a] @ x[b]) * (w2 @ w2.T)
        np.testing.assert_allclose(expected[a, b], by_hand, rtol=1e-11)


@pytest.mark.parametrize("layout", ["blocks", "matrix", "trace"])
def test_chunks_bound_the_memory(layout):
    """Besides the result: one chunk of it, n2 · hidden numbers, and the weights."""
    n2, hidden, inputs, chunk_size = 200, 512, 20, 10
    program, _, _ = compiled_large(layout, chunk_size)
    used = program.memory_analysis()
    assert used is not None
    per_pair = 1 if layout == "trace" else OUTPUTS**2
    chunk = chunk_size * (n2 * per_pair + hidden + inputs)
    held = n2 * (hidden + inputs) + hidden * (inputs + OUTPUTS)
    assert used.output_size_in_bytes == 8 * n2 * n2 * per_pair
    assert used.temp_size_in_bytes <= 8 * (2 * chunk + held)


def test_a_duplicated_input_is_finite():
    x = inputs_of(4)
    x[2] = x[0]
    net = network()
    kernel = ntk(net, x)
    assert np.isfinite(kernel).all()
    np.testing.assert_array_equal(kernel[2], kernel[0])
    np.testing.assert_array_equal(kernel[:, 2], kernel[:, 0])
    slope = jax.jit(jax.grad(lambda n: jnp.sum(ntk(n, x) ** 2)))(net)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def test_ntk_of_a_stack_under_jit_vmap_and_grad():
    stack, x = network(2, 3), inputs_of(4)
    one = jax.tree.map(lambda w: w[1, 2], stack)
    layouts: tuple[Layout, ...] = ("blocks", "matrix", "trace")

    def every(net):
        return [ntk(net, x, layout=layout) for layout in layouts]

    whole, alone = jax.jit(every)(stack), jax.jit(every)(one)
    mapped = jax.jit(jax.vmap(jax.vmap(every)))(stack)
    for a, b, c in zip(whole, alone, mapped, strict=True):
        assert a.shape == (2, 3, *b.shape)
        np.testing.assert_allclose(a[1, 2], b, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(c, a, rtol=1e-12, atol=1e-13)


def test_gradient_of_the_kernel():
    net, x, c = network(), inputs_of(4), inputs_of(4, inputs=4, seed=3)

    @jax.jit
    @jax.grad
    def slope(w1):
        return jnp.sum(c * ntk(TwoLayerLinear(w1, net.w2), x, layout="trace"))

    # Σ c_ab · outputs · x_aᵀW1ᵀW1x_b, a quadratic form in W1.
    moment = x.T @ (c + c.T) @ x
    np.testing.assert_allclose(slope(net.w1), OUTPUTS * net.w1 @ moment, rtol=1e-10)


def test_identity_inputs_and_whitened_data_give_the_same_distance():
    data = LinearTask.from_data(inputs_of(40) + 0.3, inputs_of(40, OUTPUTS, seed=4))
    assert data.x is not None
    inputs = (data.x, np.eye(INPUTS))

    @jax.jit
    def distances(a, b):
        return [kernel_distance(ntk(a, x), ntk(b, x)) for x in inputs]

    for seed in (1, 2):
        on_data, on_identity = distances(network(), network(seed=seed))
        assert on_identity > 0.05
        np.testing.assert_allclose(on_data, on_identity, rtol=1e-11)


def cosine_distance(a, b):
    return 1 - np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.mark.parametrize("shape", [(4, 4), (3, 2, 2, 2), (7,)])
def test_distance_is_one_minus_the_cosine(shape):
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, *shape))
    expected = cosine_distance(a.ravel(), b.ravel())
    np.testing.assert_allclose(kernel_distance(a, b), expected, rtol=1e-13)
    np.testing.assert_allclose(kernel_distance(b, a), expected, rtol=1e-13)
    np.testing.assert_allclose(kernel_similarity(a, b), 1 - expected, rtol=1e-13)
    np.testing.assert_allclose(kernel_distance(a, -a), 2.0, rtol=1e-14)
    for factor in (1e-200, 1e-8, 3.0, 1e150):
        np.testing.assert_allclose(kernel_distance(a, factor * b), expected, rtol=1e-12)


def test_self_similarity_is_exactly_one():
    for seed in range(20):
        kernel = ntk(network(seed=seed), inputs_of(4, seed=seed))
        assert float(kernel_distance(kernel, kernel)) == 0.0
        assert float(kernel_similarity(kernel, kernel)) == 1.0


def test_small_distances_keep_their_digits():
    rng = np.random.default_rng(6)
    a, step = rng.normal(size=(2, 5, 5))
    step -= a * np.sum(a * step) / np.sum(a**2)  # orthogonal to a
    for size in (1e-4, 1e-8):
        # tan of the angle is size‖step‖/‖a‖, so that 1 − cos is half its square.
        angle = np.arctan(size * np.linalg.norm(step) / np.linalg.norm(a))
        expected = 2 * np.sin(angle / 2) ** 2
        np.testing.assert_allclose(
            kernel_distance(a, a + size * step), expected, rtol=1e-6
        )


def test_gradient_of_the_distance():
    rng = np.random.default_rng(7)
    a, b, step = rng.normal(size=(3, 4, 4))
    f = jax.jit(jax.value_and_grad(lambda k: kernel_distance(a, k)))
    value, slope = f(a)
    assert abs(value) < 1e-30
    np.testing.assert_allclose(slope, np.zeros((4, 4)), atol=1e-15)
    _, slope = f(b)
    h = 1e-5
    up, down = (cosine_distance(a, b + d * step) for d in (h, -h))
    np.testing.assert_allclose(np.sum(slope * step), (up - down) / (2 * h), rtol=1e-7)
    # No change along the kernel itself.
    np.testing.assert_allclose(np.sum(slope * b), 0.0, atol=1e-14)


def test_distance_along_a_vmapped_family():
    lams = jnp.array([0.0, 1.0, -1.0])

    @jax.jit
    @jax.vmap
    def moved(lam):
        net = balanced(jax.random.key(0), 3, 3, 3, lam, 0.1)
        start = ntk(net, jnp.eye(3))
        return kernel_distance(start, start), kernel_distance(
            start, jnp.ones_like(start)
        )

    same, other = moved(lams)
    np.testing.assert_array_equal(same, np.zeros(3))
    assert (other > 0.1).all()
    assert (other < 2).all()


def test_a_zero_kernel_has_no_direction():
    a = np.ones((2, 2))
    assert np.isnan(kernel_distance(a, 0 * a))
    assert np.isnan(kernel_similarity(0 * a, a))


def products(jaxpr):
    """Every matrix product in a program, with what it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from products(inner)


@pytest.mark.parametrize("layout", ["blocks", "matrix", "trace"])
def test_precision_and_dtype(layout):
    """Products, outer ones too, are rounded by accelerators unless they ask not to."""
    net = jax.tree.map(lambda w: w.astype(jnp.float32), network())
    x = inputs_of(4).astype(np.float32)
    kernel = jax.eval_shape(lambda n: ntk(n, x, layout=layout), net)
    distance = jax.eval_shape(kernel_distance, kernel, kernel)
    assert kernel.dtype == distance.dtype == jnp.float32
    program = jax.make_jaxpr(lambda n: ntk(n, x, layout=layout, chunk_size=2))(net)
    found = list(products(program.jaxpr))
    assert found
    for product in found:
        assert "HIGHEST" in str(product.params["precision"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x1": np.ones((4, 3))}, ["`x1`", "(n, 5)", "(4, 3)"]),
        ({"x1": np.ones(5)}, ["`x1`", "(n, 5)", "(5,)"]),
        ({"x1": np.ones((4, 5)), "x2": np.ones((2, 6))}, ["`x2`", "(n, 5)", "(2, 6)"]),
        ({"x1": np.ones((4, 5)), "layout": "rows"}, ["`layout`", "'rows'", "matrix"]),
        ({"x1": np.ones((4, 5)), "chunk_size": 0}, ["`chunk_size`", "≥ 1", "0"]),
    ],
)
def test_bad_arguments_are_refused(unchecked, arguments, words):
    with pytest.raises(ValueError) as caught:
        ntk(network(), **arguments)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_kernels_of_different_shapes_are_refused():
    for f in (kernel_distance, kernel_similarity):
        with pytest.raises(ValueError, match=r"shapes.*\(2, 2\).*\(3, 3\)"):
            f(np.ones((2, 2)), np.ones((3, 3)))
