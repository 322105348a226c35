"""Functions evaluated in blocks: as the function itself, whatever is done to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import lazyrich as lr
from lazyrich.dynamics._blocks import in_blocks


def plain(x, y):
    return [jnp.sin(x) * jnp.sum(y**2, axis=-1, keepdims=True), x[:, :1] * jnp.exp(y)]


def blocked(x, y):
    # Of 7 rows: the last block is padded.
    return in_blocks(plain, 2, jnp.asarray(x), jnp.asarray(y))


def total(f):
    return lambda x, y: sum(jnp.sum(z**3) for z in f(x, y))


ROWS = (
    jax.random.normal(jax.random.key(0), (7, 3)),
    jax.random.normal(jax.random.key(1), (7, 2)),
)
MANY = jax.random.normal(jax.random.key(2), (4, 7, 3))


def same(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12),
        found,
        expected,
    )


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_values_and_batches(wrap):
    same(wrap(blocked)(*ROWS), plain(*ROWS))
    one, two = (jax.vmap(f, (0, None)) for f in (blocked, plain))
    same(wrap(one)(MANY, ROWS[1]), two(MANY, ROWS[1]))
    last, ahead = (jax.vmap(f, (2, None), 1) for f in (blocked, plain))
    stack = jnp.moveaxis(MANY, 0, 2)
    same(wrap(last)(stack, ROWS[1]), ahead(stack, ROWS[1]))


def test_derivatives_of_three_orders():
    check_grads(blocked, ROWS, order=3)


def test_derivatives_in_every_order_of_modes():
    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            found, expected = (
                outer(inner(total(f), (0, 1)), (0, 1))(*ROWS) for f in (blocked, plain)
            )
            same(found, expected)


def test_a_batch_of_gradients():
    found, expected = (
        jax.vmap(jax.grad(total(f), (0, 1)), (0, None))(MANY, ROWS[1])
        for f in (blocked, plain)
    )
    same(found, expected)


@pytest.mark.parametrize("count", [1, 463])
def test_exact_is_the_same_however_it_is_cut(count):
    """Many starts and times take many blocks; alone a start takes few, a time one."""
    task = lr.tasks.LinearTask(jnp.diag(jnp.array([2.0, 1.0, 0.5, 0.3, 0.2])))
    times = jnp.linspace(0.0, 9.0, count)

    def learn(lam, times):
        net = lr.inits.balanced(jax.random.key(0), 5, 5, 5, lam, 0.1)
        return lr.train(net, task, times, method=lr.Exact()).networks

    lams = jnp.linspace(-2.0, 2.0, 5)
    batch = jax.jit(jax.vmap(learn, (0, None)))(lams, times)
    alone = jax.jit(learn)
    for i in (0, 4):
        for k in (0, count // 2, count - 1):
            one = alone(lams[i], times[k])
            same([one.w1, one.w2], [batch.w1[i, k], batch.w2[i, k]])
