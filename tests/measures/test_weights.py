"""Measures of the weights and of what they represent, against numpy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich import measures
from lazyrich.inits import aligned, balanced
from lazyrich.networks import TwoLayerLinear
from lazyrich.tasks import LinearTask

INPUTS, HIDDEN, OUTPUTS = 4, 3, 2
SIGMA = np.random.default_rng(5).normal(size=(OUTPUTS, INPUTS))
TASK = LinearTask(SIGMA)
X = np.random.default_rng(6).normal(size=(5, INPUTS))
Y = np.random.default_rng(7).normal(size=(6, OUTPUTS))


def network(*lead, seed=0):
    rng = np.random.default_rng(seed)
    return TwoLayerLinear(
        rng.normal(size=(*lead, HIDDEN, INPUTS)),
        rng.normal(size=(*lead, OUTPUTS, HIDDEN)),
    )


def balance(w1, w2):
    return w2.T @ w2 - w1 @ w1.T


def lam(w1, w2):
    return np.trace(balance(w1, w2)) / HIDDEN


def defect(w1, w2):
    return np.abs(balance(w1, w2) - lam(w1, w2) * np.eye(HIDDEN)).max()


def mode_strengths(w1, w2):
    u, _, vt = np.linalg.svd(SIGMA, full_matrices=False)
    return np.array([u[:, k] @ w2 @ w1 @ vt[k] for k in range(OUTPUTS)])


def norms(w1, w2):
    a, b = np.sum(w1**2), np.sum(w2**2)
    return np.array([a, b, a + b])


MEASURES = {
    "balance": (measures.balance, balance),
    "lam": (measures.lam, lam),
    "balance_defect": (measures.balance_defect, defect),
    "weight_norms": (
        lambda net: jnp.stack(measures.weight_norms(net), axis=-1),
        norms,
    ),
    "mode_strengths": (lambda net: measures.mode_strengths(net, TASK), mode_strengths),
    "input_similarity": (measures.input_similarity, lambda w1, w2: w1.T @ w1),
    "input_similarity of x": (
        lambda net: measures.input_similarity(net, X),
        lambda w1, w2: X @ w1.T @ w1 @ X.T,
    ),
    "output_similarity": (measures.output_similarity, lambda w1, w2: w2 @ w2.T),
    "output_similarity of y": (
        lambda net: measures.output_similarity(net, Y),
        lambda w1, w2: Y @ np.linalg.pinv(w2 @ w2.T) @ Y.T,
    ),
}


@pytest.mark.parametrize("name", MEASURES)
def test_one_network_a_stack_jit_and_vmap(name):
    measure, brute = MEASURES[name]
    stack = network(2, 3)
    whole = measure(stack)
    expected = np.stack(
        [
            [
                brute(np.asarray(stack.w1[i, j]), np.asarray(stack.w2[i, j]))
                for j in range(3)
            ]
            for i in range(2)
        ]
    )
    assert whole.shape == expected.shape
    np.testing.assert_allclose(whole, expected, rtol=1e-10, atol=1e-12)
    mapped = jax.jit(jax.vmap(jax.vmap(measure)))(stack)
    np.testing.assert_allclose(mapped, whole, rtol=1e-10, atol=1e-12)
    one = jax.tree.map(lambda w: w[1, 2], stack)
    np.testing.assert_allclose(measure(one), expected[1, 2], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MEASURES)
def test_gradient_against_differences(name):
    measure, brute = MEASURES[name]
    net, step = network(), network(seed=9)
    a1, a2, d1, d2 = (np.asarray(w) for w in (net.w1, net.w2, step.w1, step.w2))
    c = np.random.default_rng(8).normal(size=np.shape(brute(a1, a2)))
    slope = jax.jit(jax.grad(lambda n: jnp.sum(c * measure(n))))(net)
    found = np.sum(slope.w1 * d1) + np.sum(slope.w2 * d2)
    h = 1e-5
    up, down = (np.sum(c * brute(a1 + t * d1, a2 + t * d2)) for t in (h, -h))
    np.testing.assert_allclose(found, (up - down) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("name", MEASURES)
def test_single_precision_stays(name):
    net = jax.tree.map(lambda w: w.astype(jnp.float32), network())
    if name == "mode_strengths":
        task = LinearTask(SIGMA.astype(np.float32))
        out = jax.eval_shape(measures.mode_strengths, net, task)
    elif " of " in name:
        f = getattr(measures, name.split()[0])
        data = X if name.endswith("x") else Y
        out = jax.eval_shape(f, net, data.astype(np.float32))
    else:
        out = jax.eval_shape(MEASURES[name][0], net)
    assert out.dtype == jnp.float32


@pytest.mark.parametrize("name", MEASURES)
def test_products_ask_for_full_precision(name):
    text = str(jax.make_jaxpr(MEASURES[name][0])(network()))
    for product in text.split("dot_general[")[1:]:
        assert "HIGHEST" in product.split("preferred_element_type")[0]


def test_weight_norms_have_names():
    net = network()
    norms = measures.weight_norms(net)
    np.testing.assert_allclose(norms.w1, np.sum(np.square(net.w1)), rtol=1e-14)
    np.testing.assert_allclose(norms.w2, np.sum(np.square(net.w2)), rtol=1e-14)
    np.testing.assert_allclose(norms.total, norms.w1 + norms.w2, rtol=1e-15)
    sized = balanced(jax.random.key(0), INPUTS, 2, OUTPUTS, 0.5, norm=7.0)
    np.testing.assert_allclose(measures.weight_norms(sized).total, 7.0, rtol=1e-13)


@pytest.mark.parametrize("value", [0.0, 0.7, -30.0])
def test_lam_and_defect_of_balanced_weights(value):
    net = balanced(jax.random.key(0), INPUTS, 2, OUTPUTS, value, 0.5)
    np.testing.assert_allclose(measures.lam(net), value, atol=1e-13 * 30)
    assert measures.balance_defect(net) < 1e-13 * 60
    moved = TwoLayerLinear(net.w1, net.w2.at[0, 0].add(0.1))
    assert measures.balance_defect(moved) > 1e-3


def test_defect_is_the_largest_deviation():
    net = TwoLayerLinear(np.diag([1.0, 2.0]), np.array([[2.0, 1.0], [0.0, 2.0]]))
    # B = [[4, 2], [2, 5]] − diag(1, 4) = [[3, 2], [2, 1]], λ = 2.
    assert float(measures.lam(net)) == 2.0
    np.testing.assert_array_equal(measures.balance(net), [[3.0, 2.0], [2.0, 1.0]])
    assert float(measures.balance_defect(net)) == 2.0
    assert float(measures.balance_defect(TwoLayerLinear(net.w1, 2 * net.w1))) == 4.5


def test_mode_strengths_of_learned_and_of_aligned_networks():
    strengths = np.linalg.svd(SIGMA, compute_uv=False)
    learned = TwoLayerLinear(SIGMA, np.eye(OUTPUTS))
    np.testing.assert_allclose(
        measures.mode_strengths(learned, TASK), strengths, rtol=1e-13
    )
    start = np.array([0.3, -0.1])
    net = aligned(TASK, 0.5, start)
    np.testing.assert_allclose(measures.mode_strengths(net, TASK), start, atol=1e-14)
    np.testing.assert_allclose(
        measures.mode_strengths(learned, TASK.reversed()), -strengths, rtol=1e-13
    )


def test_mode_strengths_of_unwhitened_inputs_are_those_of_the_solution():
    root = np.random.default_rng(3).normal(size=(INPUTS, INPUTS))
    task = LinearTask(SIGMA, root @ root.T)
    learned = TwoLayerLinear(task.solution, np.eye(OUTPUTS))
    expected = np.linalg.svd(SIGMA @ np.linalg.inv(root @ root.T), compute_uv=False)
    np.testing.assert_allclose(
        measures.mode_strengths(learned, task), expected, rtol=1e-9
    )


def test_output_similarity_of_narrow_layers_is_finite():
    """A layer that cannot reach some outputs: they count as absent, not as infinite."""
    w2 = np.outer([1.0, 2.0], [3.0, 0.0, 4.0])  # rank 1
    net = TwoLayerLinear(np.ones((HIDDEN, INPUTS)), w2)
    out = measures.output_similarity(net, np.eye(2))
    np.testing.assert_allclose(out, np.linalg.pinv(w2 @ w2.T), rtol=1e-10, atol=1e-14)
    zero = TwoLayerLinear(np.ones((HIDDEN, INPUTS)), 0 * w2)
    np.testing.assert_array_equal(measures.output_similarity(zero, Y), np.zeros((6, 6)))


def test_output_similarity_keeps_digits_of_weak_directions():
    w2 = np.diag([1.0, 1e-7]) @ np.eye(2, HIDDEN)
    net = TwoLayerLinear(np.ones((HIDDEN, INPUTS)), w2)
    out = measures.output_similarity(net, np.eye(2))
    np.testing.assert_allclose(np.diag(out), [1.0, 1e14], rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda n: measures.input_similarity(n, np.ones((5, 3))),
            ["`x`", "(n, 4)", "(5, 3)"],
        ),
        (lambda n: measures.input_similarity(n, np.ones(4)), ["`x`", "(n, 4)", "(4,)"]),
        (
            lambda n: measures.output_similarity(n, np.ones((5, 3))),
            ["`y`", "(n, 2)", "(5, 3)"],
        ),
        (
            lambda n: measures.mode_strengths(n, LinearTask(np.ones((2, 3)))),
            ["3 inputs", "2 outputs", "4 inputs"],
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(unchecked, call, words):
    with pytest.raises(ValueError) as caught:
        call(network())
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_every_measure_is_public():
    documented = {
        "balance",
        "balance_defect",
        "half_time",
        "input_similarity",
        "kernel_distance",
        "kernel_similarity",
        "lam",
        "mode_strengths",
        "ntk",
        "output_similarity",
        "weight_norms",
    }
    for name in documented:
        assert callable(getattr(measures, name))
        assert getattr(measures, name).__doc__
    chex.assert_equal(documented <= set(dir(measures)), True)
