"""The two-layer linear network: what it computes, as a pytree, and what it refuses."""

from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich.networks import TwoLayerLinear

INPUTS, HIDDEN, OUTPUTS, N = 4, 3, 2, 5


def arrays(*lead, seed=0, dtype: Any = np.float64):
    rng = np.random.default_rng(seed)
    w1 = rng.normal(size=(*lead, HIDDEN, INPUTS)).astype(dtype)
    w2 = rng.normal(size=(*lead, OUTPUTS, HIDDEN)).astype(dtype)
    x = rng.normal(size=(N, INPUTS)).astype(dtype)
    return w1, w2, x


def test_sizes_and_product():
    w1, w2, _ = arrays()
    net = TwoLayerLinear(w1, w2)
    assert (net.inputs, net.hidden, net.outputs) == (INPUTS, HIDDEN, OUTPUTS)
    chex.assert_shape(net.product, (OUTPUTS, INPUTS))
    np.testing.assert_allclose(net.product, w2 @ w1, rtol=1e-14)


def test_call_is_w2_w1_x_for_one_and_for_many_inputs():
    w1, w2, x = arrays()
    net = TwoLayerLinear(w1, w2)
    expected = np.stack([w2 @ (w1 @ row) for row in x])
    chex.assert_shape(net(x), (N, OUTPUTS))
    np.testing.assert_allclose(net(x), expected, rtol=1e-13)
    chex.assert_shape(net(x[1]), (OUTPUTS,))
    np.testing.assert_allclose(net(x[1]), expected[1], rtol=1e-13)


@pytest.mark.parametrize("lead", [(2,), (2, 3)])
def test_a_stack_of_networks_keeps_its_axes_in_front(lead):
    w1, w2, x = arrays(*lead)
    net = TwoLayerLinear(w1, w2)
    expected = np.einsum("...oh,...hi,ni->...no", w2, w1, x)
    assert (net.inputs, net.hidden, net.outputs) == (INPUTS, HIDDEN, OUTPUTS)
    chex.assert_shape(net.product, (*lead, OUTPUTS, INPUTS))
    np.testing.assert_allclose(net.product, np.matmul(w2, w1), rtol=1e-13)
    chex.assert_shape(net(x), (*lead, N, OUTPUTS))
    np.testing.assert_allclose(net(x), expected, rtol=1e-12)
    chex.assert_shape(net(x[0]), (*lead, OUTPUTS))
    np.testing.assert_allclose(net(x[0]), expected[..., 0, :], rtol=1e-12)


def test_leading_axes_of_x_broadcast_against_those_of_the_weights():
    w1, w2, x = arrays(2)
    stack = TwoLayerLinear(w1, w2)
    xs = np.stack([x, 2 * x + 1])
    paired = stack(xs)
    chex.assert_shape(paired, (2, N, OUTPUTS))
    one = TwoLayerLinear(w1[0], w2[0])(xs)
    chex.assert_shape(one, (2, N, OUTPUTS))
    crossed = stack(xs[:, None])
    chex.assert_shape(crossed, (2, 2, N, OUTPUTS))
    for j in range(2):
        alone = w2[j] @ w1[j]
        np.testing.assert_allclose(paired[j], xs[j] @ alone.T, rtol=1e-12)
        np.testing.assert_allclose(one[j], xs[j] @ (w2[0] @ w1[0]).T, rtol=1e-12)
        for i in range(2):
            np.testing.assert_allclose(crossed[i, j], xs[i] @ alone.T, rtol=1e-12)


def test_jit_and_vmap_agree_with_the_plain_call():
    w1, w2, x = arrays(2)
    stack = TwoLayerLinear(w1, w2)
    plain = stack(x)
    np.testing.assert_allclose(jax.jit(lambda n, x: n(x))(stack, x), plain, rtol=1e-13)
    over_nets = jax.vmap(lambda n: n(x))(stack)
    over_inputs = jax.vmap(TwoLayerLinear(w1[0], w2[0]))(x)
    np.testing.assert_allclose(over_nets, plain, rtol=1e-13)
    np.testing.assert_allclose(over_inputs, plain[0], rtol=1e-13)


def test_gradient_is_a_network_with_the_chain_rule_in_it():
    w1, w2, x = arrays()
    c = np.random.default_rng(9).normal(size=(N, OUTPUTS))
    slope = jax.grad(lambda n: jnp.sum(n(x) * c))(TwoLayerLinear(w1, w2))
    assert isinstance(slope, TwoLayerLinear)
    np.testing.assert_allclose(slope.w1, w2.T @ c.T @ x, rtol=1e-12)
    np.testing.assert_allclose(slope.w2, c.T @ x @ w1.T, rtol=1e-12)


def test_it_is_a_pytree_of_two_arrays_and_nothing_else():
    w1, w2, _ = arrays()
    net = TwoLayerLinear(w1, w2)
    leaves, structure = jax.tree.flatten(net)
    assert len(leaves) == 2
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    np.testing.assert_array_equal(leaves[0], w1)
    np.testing.assert_array_equal(leaves[1], w2)
    # No static fields: networks of other values and shapes share the structure, so
    # that a learning step needs no filtering and two networks can be subtracted.
    other = TwoLayerLinear(*arrays(2, seed=1)[:2])
    assert jax.tree.structure(other) == structure
    moved = jax.tree.map(lambda a, b: a - b, net, net)
    chex.assert_trees_all_equal(moved, jax.tree.map(jnp.zeros_like, net))
    through = jax.jit(lambda n: n)(net)
    chex.assert_trees_all_equal(through, net)
    assert eqx.tree_equal(eqx.filter(net, eqx.is_inexact_array), net)


def test_a_new_value_does_not_compile_anew():
    apply = jax.jit(chex.assert_max_traces(lambda n, x: n(x), n=1))
    for seed in range(3):
        w1, w2, x = arrays(seed=seed)
        np.testing.assert_allclose(
            apply(TwoLayerLinear(w1, w2), x), x @ (w2 @ w1).T, rtol=1e-12
        )


def test_dtype_follows_the_weights():
    w1, w2, x = arrays(dtype=np.float32)
    net = TwoLayerLinear(w1, w2)
    assert {net.w1.dtype, net.w2.dtype} == {jnp.dtype("float32")}
    assert net(x).dtype == net(x[0]).dtype == net.product.dtype == jnp.float32
    wide = TwoLayerLinear(w1, w2.astype(np.float64))
    assert wide.w1.dtype == wide.w2.dtype == jnp.float64
    whole = TwoLayerLinear(np.arange(4).reshape(2, 2), np.ones((1, 2), int))
    assert whole.w1.dtype == jnp.float64
    np.testing.assert_array_equal(whole.product, [[2.0, 4.0]])


def test_products_ask_for_full_precision():
    w1, w2, x = arrays(dtype=np.float32)
    net = TwoLayerLinear(w1, w2)
    for f in (lambda n: n(x), lambda n: n.product):
        lines = jax.jit(f).lower(net).as_text().split("dot_general")[1:]
        assert lines
        assert all("HIGHEST" in line for line in lines)


@pytest.mark.parametrize(
    ("s1", "s2", "words"),
    [
        ((3,), (2, 3), ["(hidden, inputs)", "(3,)", "(2, 3)"]),
        ((3, 4), (3,), ["(outputs, hidden)", "(3, 4)", "(3,)"]),
        ((3, 4), (2, 4), ["equal hidden", "(3, 4)", "(2, 4)"]),
        ((2, 3, 4), (3, 2, 3), ["leading axes", "(2, 3, 4)", "(3, 2, 3)"]),
        ((3, 4), (1, 2, 3), ["leading axes", "(3, 4)", "(1, 2, 3)"]),
        ((0, 4), (2, 0), ["Empty", "(0, 4)", "(2, 0)"]),
        ((3, 0), (2, 3), ["Empty", "(3, 0)", "(2, 3)"]),
    ],
)
def test_layers_that_do_not_fit_are_refused(s1, s2, words):
    with pytest.raises(ValueError) as caught:
        TwoLayerLinear(jnp.ones(s1), jnp.ones(s2))
    message = str(caught.value)
    assert "\n" not in message
    for word in ["`w1`", "`w2`", *words]:
        assert word in message


@pytest.mark.parametrize("shape", [(N, INPUTS - 1), (INPUTS + 1,), (INPUTS, N), ()])
def test_inputs_of_the_wrong_width_are_refused_in_one_line(shape):
    w1, w2, _ = arrays()
    net = TwoLayerLinear(w1, w2)
    with pytest.raises(ValueError) as caught:
        net(jnp.ones(shape))
    message = str(caught.value)
    assert "\n" not in message
    for word in ("`x`", str(INPUTS), str(shape)):
        assert word in message
    with pytest.raises(ValueError, match="`x`"):
        jax.jit(lambda n, x: n(x))(net, jnp.ones(shape))


def test_complex_weights_are_refused(unchecked):
    imaginary: Any = np.eye(2) * 1j
    with pytest.raises(ValueError, match="must be real"):
        TwoLayerLinear(imaginary, np.eye(2))
