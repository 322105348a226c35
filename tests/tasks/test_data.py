"""Tasks from samples: whitening, centring, the loss over samples, real digits."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

from lazyrich.networks import TwoLayerLinear
from lazyrich.tasks import LinearTask

N, RAW, OUTPUTS = 30, 5, 2
rng = np.random.default_rng(0)
FULL = rng.normal(size=(N, RAW)) @ rng.normal(size=(RAW, RAW)) + 1.5
LOW = FULL[:, :3] @ rng.normal(size=(3, RAW))  # rank 3
WIDE = rng.normal(size=(RAW, 8))  # fewer samples than inputs
Y = rng.normal(size=(N, OUTPUTS)) + 0.5
DATA = {"full": (FULL, 5), "low rank": (LOW, 3), "wide": (WIDE, 5)}


def data(name):
    x, rank = DATA[name]
    return x, Y[: len(x)], rank


def network(inputs, outputs=OUTPUTS, seed=1):
    rng = np.random.default_rng(seed)
    return TwoLayerLinear(rng.normal(size=(3, inputs)), rng.normal(size=(outputs, 3)))


def samples(task):
    """The task's own inputs and targets, which a task from data has."""
    assert task.x is not None
    assert task.y is not None
    return np.asarray(task.x), np.asarray(task.y)


def sample_loss(w, x, y):
    """½ mean‖y − Wx‖², sample by sample."""
    return np.mean([0.5 * np.sum((b - w @ a) ** 2) for a, b in zip(x, y, strict=True)])


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_whitened_inputs_have_unit_second_moment_and_keep_what_was_there(name, center):
    x, y, rank = data(name)
    task = LinearTask.from_data(x, y, center=center)
    rank -= center and name == "wide"  # centring takes one direction from n = 5
    n = len(x)
    if center:
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    assert (task.rank, task.inputs, task.outputs) == (rank, rank, OUTPUTS)
    assert isinstance(task.rank, int)
    assert task.samples == n
    assert task.sigma_xx is None
    white = np.asarray(task.x)
    np.testing.assert_allclose(white.T @ white / n, np.eye(rank), atol=1e-12)
    # The same column space, whatever the signs and order of the components.
    left = np.linalg.svd(x, full_matrices=False)[0][:, :rank]
    np.testing.assert_allclose(white @ white.T / n, left @ left.T, atol=1e-11)
    np.testing.assert_allclose(samples(task)[1], y, atol=1e-15)
    np.testing.assert_allclose(task.sigma_yx, y.T @ white / n, atol=1e-13)
    np.testing.assert_allclose(task.yy, np.mean(np.sum(y**2, axis=1)), rtol=1e-13)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_prepare_maps_the_raw_data_to_the_tasks_own(name, whiten, center):
    x, y, _ = data(name)
    task = LinearTask.from_data(x, y, whiten=whiten, center=center)
    own, _ = samples(task)
    np.testing.assert_allclose(task.prepare(x), own, atol=1e-11)
    np.testing.assert_allclose(task.prepare(x[1]), own[1], atol=1e-11)
    np.testing.assert_allclose(task.prepare(x[None, :2])[0], own[:2], atol=1e-11)
    shape = (x.shape[1], task.rank) if whiten else None
    assert (None if task.transform is None else task.transform.shape) == shape
    # New data take the same affine map: midpoints go to midpoints.
    middle = task.prepare((x[:1] + x[1:2]) / 2)
    np.testing.assert_allclose(middle, (own[:1] + own[1:2]) / 2, atol=1e-11)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_optimum_is_that_of_least_squares(name, whiten, center):
    x, y, _ = data(name)
    task = LinearTask.from_data(x, y, whiten=whiten, center=center)
    if center:
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    least = 0.5 * np.mean(np.sum((y - x @ best) ** 2, axis=1))
    np.testing.assert_allclose(task.optimum, least, rtol=1e-10, atol=1e-20)
    fitted = np.asarray(task.x) @ np.asarray(task.solution).T
    np.testing.assert_allclose(fitted, x @ best, atol=1e-9)
    solved = TwoLayerLinear(task.solution, np.eye(OUTPUTS))
    np.testing.assert_allclose(task.loss(solved), least, rtol=1e-10, atol=1e-20)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_loss_and_gradient_are_those_over_the_samples(name, whiten):
    x, y, _ = data(name)
    task = LinearTask.from_data(x, y, whiten=whiten)
    net = network(task.inputs)
    w = np.asarray(net.w2 @ net.w1)
    (own, _), n = samples(task), len(x)
    np.testing.assert_allclose(task.loss(net), sample_loss(w, own, y), rtol=1e-10)
    np.testing.assert_allclose(
        task.batch_loss(net, jnp.asarray(own), jnp.asarray(y)),
        sample_loss(w, own, y),
        rtol=1e-12,
    )
    part = task.batch_loss(net, jnp.asarray(own[1:4]), jnp.asarray(y[1:4]))
    np.testing.assert_allclose(part, sample_loss(w, own[1:4], y[1:4]), rtol=1e-12)
    mean = (own @ w.T - y).T @ own / n  # mean (ŷ − y)xᵀ
    slope = jax.grad(task.loss)(net)
    np.testing.assert_allclose(slope.w1, net.w2.T @ mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(slope.w2, mean @ net.w1.T, rtol=1e-9, atol=1e-11)


def test_a_population_task_of_the_same_moments_has_the_same_loss():
    for whiten in (True, False):
        data = LinearTask.from_data(FULL, Y, whiten=whiten)
        moments = LinearTask(data.sigma_yx, data.sigma_xx, data.yy)
        net = network(RAW)
        np.testing.assert_allclose(data.loss(net), moments.loss(net), rtol=1e-11)
        np.testing.assert_allclose(data.optimum, moments.optimum, rtol=1e-11)
        np.testing.assert_allclose(data.excess(net), moments.excess(net), rtol=1e-11)


def test_whitening_does_not_change_what_can_be_predicted():
    """Every linear predictor on raw inputs is one on the whitened, and conversely."""
    white = LinearTask.from_data(LOW, Y)
    raw = LinearTask.from_data(LOW, Y, whiten=False)
    np.testing.assert_allclose(white.optimum, raw.optimum, rtol=1e-10)
    net = network(white.inputs)
    assert white.transform is not None
    lifted = TwoLayerLinear(net.w1 @ white.transform.T, net.w2)
    np.testing.assert_allclose(white.loss(net), raw.loss(lifted), rtol=1e-10)
    # Rotating the raw coordinates changes nothing that does not depend on a basis.
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(RAW, RAW)))[0]
    turned = LinearTask.from_data(LOW @ turn, Y)
    assert turned.rank == white.rank
    np.testing.assert_allclose(turned.optimum, white.optimum, rtol=1e-10)
    np.testing.assert_allclose(
        np.linalg.svd(turned.sigma_yx)[1], np.linalg.svd(white.sigma_yx)[1], rtol=1e-10
    )


@pytest.mark.parametrize("whiten", [False, True])
def test_nearly_collinear_inputs_are_accepted_and_keep_their_optimum(whiten):
    """Correlated columns are ordinary in real data, exact targets in teachers."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(N, 1))
        x = np.concatenate([x, x + 1e-3 * rng.normal(size=(N, 1))], axis=1)
        clean = x @ np.array([[1.0], [2.0]])
        task = LinearTask.from_data(x, clean, whiten=whiten)
        np.testing.assert_allclose(task.optimum, 0.0, atol=1e-12)
        y = clean + 0.1 * rng.normal(size=(N, 1))
        task = LinearTask.from_data(x, y, whiten=whiten)
        best = np.linalg.lstsq(x, y, rcond=None)[0]
        least = 0.5 * np.mean((y - x @ best) ** 2)
        np.testing.assert_allclose(task.optimum, least, rtol=1e-8)
        net = network(2, outputs=1)
        brute = sample_loss(np.asarray(net.w2 @ net.w1), np.asarray(task.x), y)
        np.testing.assert_allclose(task.loss(net), brute, rtol=1e-8)


def test_digits_as_they_come():
    digits: Any = load_digits()
    images, labels = digits.data, digits.target
    y = np.eye(10)[labels]
    task = LinearTask.from_data(images, y)
    assert task.rank == np.linalg.matrix_rank(images) == 61
    assert (task.inputs, task.outputs, task.samples) == (61, 10, len(images))
    own = np.asarray(task.x)
    np.testing.assert_allclose(own.T @ own / len(own), np.eye(61), atol=1e-11)
    np.testing.assert_allclose(task.prepare(images), own, atol=1e-9)
    best = np.linalg.lstsq(images, y, rcond=None)[0]
    least = 0.5 * np.mean(np.sum((y - images @ best) ** 2, axis=1))
    np.testing.assert_allclose(task.optimum, least, rtol=1e-11)
    zero = TwoLayerLinear(jnp.zeros((10, 61)), jnp.zeros((10, 10)))
    np.testing.assert_allclose(task.loss(zero), 0.5, rtol=1e-13)
    np.testing.assert_allclose(task.optimum / task.loss(zero), 0.31, atol=0.005)
    # Unwhitened, 64 inputs with a singular moment: the same optimum and loss.
    raw = LinearTask.from_data(images, y, whiten=False)
    assert (raw.inputs, raw.rank) == (64, 64)
    np.testing.assert_allclose(raw.optimum, least, rtol=1e-8)
    net = network(64, outputs=10)
    w = np.asarray(net.w2 @ net.w1)
    brute = 0.5 * np.mean(np.sum((images @ w.T - y) ** 2, axis=1))
    np.testing.assert_allclose(raw.loss(net), brute, rtol=1e-9)


def test_reversal_turns_the_samples_round_too():
    task = LinearTask.from_data(FULL, Y)
    turned = task.reversed()
    other = LinearTask.from_data(FULL, -Y)
    chex.assert_trees_all_close(turned, other, rtol=1e-12)
    chex.assert_trees_all_equal(turned.x, task.x)
    chex.assert_trees_all_equal(turned.reversed(), task)
    net = network(RAW)
    np.testing.assert_allclose(turned.loss(net), other.loss(net), rtol=1e-12)


def test_without_whitening_everything_traces():
    def f(x, y):
        task = LinearTask.from_data(x, y, whiten=False)
        return task.loss(network(RAW)), task.optimum

    xs = np.stack([FULL, 2 * FULL])
    ys = np.stack([Y, -Y])
    many = jax.jit(jax.vmap(f))(xs, ys)
    alone = jax.tree.map(lambda *v: jnp.stack(v), f(FULL, Y), f(2 * FULL, -Y))
    chex.assert_trees_all_close(many, alone, rtol=1e-10)
    # The gradient in the data, against a difference.
    slope = jax.jit(jax.grad(lambda x: f(x, Y)[0]))(FULL)
    step = np.zeros_like(FULL)
    step[2, 3] = 1e-5
    w = np.asarray(network(RAW).w2 @ network(RAW).w1)
    up, down = sample_loss(w, FULL + step, Y), sample_loss(w, FULL - step, Y)
    np.testing.assert_allclose(slope[2, 3], (up - down) / 2e-5, rtol=1e-6)


def test_whitening_traced_data_is_refused():
    def f(x):
        return LinearTask.from_data(x, Y).optimum

    with pytest.raises(ValueError, match=r"concrete.*whiten=False"):
        jax.jit(f)(FULL)
    with pytest.raises(ValueError, match=r"concrete.*whiten=False"):
        jax.vmap(f)(FULL[None])


def test_whitening_data_that_a_jitted_function_closes_over():
    """Refused with the same message, or done; never an error of JAX's own."""
    x = jnp.asarray(FULL)
    for f in (
        lambda y: LinearTask.from_data(x, y).optimum,
        lambda y: LinearTask.from_data(x, jnp.asarray(Y)).optimum * y.sum(),
    ):
        try:
            value = jax.jit(f)(Y)
        except ValueError as error:
            assert "`x`" in str(error) or "concrete" in str(error)  # noqa: PT017
        else:
            assert jnp.isfinite(value)


def test_optimum_is_differentiable_in_the_targets_when_whitened():
    slope = jax.grad(lambda y: LinearTask.from_data(FULL, y).optimum)(Y)
    best = np.linalg.lstsq(FULL, Y, rcond=None)[0]
    np.testing.assert_allclose(slope, (Y - FULL @ best) / N, atol=1e-12)


def test_dtype_follows_the_data():
    task = LinearTask.from_data(FULL.astype(np.float32), Y.astype(np.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(task)} == {jnp.dtype("float32")}
    assert task.rank == RAW
    low = LinearTask.from_data(LOW.astype(np.float32), Y.astype(np.float32))
    assert low.rank == 3
    own = np.asarray(low.x)
    np.testing.assert_allclose(own.T @ own / N, np.eye(3), atol=1e-4)


@pytest.mark.parametrize("whiten", [False, True])
def test_values_that_are_not_finite_are_refused(whiten):
    for bad in (np.nan, np.inf):
        for x, y in ((FULL.copy(), Y), (FULL, Y.copy())):
            (x if x is not FULL else y)[3, 1] = bad
            with pytest.raises(ValueError, match="finite"):
                LinearTask.from_data(x, y, whiten=whiten)


@pytest.mark.parametrize(
    ("x", "y"),
    [(FULL, Y[:-1]), (FULL[:, 0], Y), (FULL, Y[:, 0]), (FULL[:0], Y[:0])],
)
def test_shapes_that_do_not_fit_are_refused(unchecked, x, y):
    with pytest.raises(ValueError) as caught:
        LinearTask.from_data(x, y)
    for word in ("`x`", "(n, inputs)", "`y`", "(n, outputs)", f"{x.shape}"):
        assert word in str(caught.value)
    assert f"{y.shape}" in str(caught.value)


def test_nothing_to_whiten_is_refused():
    with pytest.raises(ValueError, match="zero everywhere"):
        LinearTask.from_data(0 * FULL, Y)
    with pytest.raises(ValueError, match="zero everywhere"):
        LinearTask.from_data(np.ones((N, 1)), Y, center=True)


def test_new_data_of_the_wrong_width_are_refused():
    task = LinearTask.from_data(LOW, Y)
    with pytest.raises(ValueError, match=r"`x` must have 5 entries.*\(7, 3\)"):
        task.prepare(np.ones((7, 3)))
