"""`balanced`: its invariant, its three meanings of size, its law, its refusals."""

import functools
from collections import Counter

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lazyrich.inits import balanced

KEY = jax.random.key(0)
Shape = tuple[int, int, int]  # inputs, hidden, outputs
LAMS = (0.0, 1e-9, -1e-9, 0.5, -0.5, 1e3, -1e3)
# (inputs, hidden, outputs): hidden below, at, between and above the other two.
SHAPES = [(3, 3, 3), (4, 2, 3), (2, 3, 4), (4, 3, 2), (2, 4, 2), (1, 1, 1)]
PADDED = SHAPES[2:5]
TRACES: Counter[Shape] = Counter()


def admissible(shape, lam):
    inputs, hidden, outputs = shape
    return not (lam > 0 and hidden > outputs) and not (lam < 0 and hidden > inputs)


def lams_for(shape):
    """As many for every shape (one compilation): 0 for those it does not admit."""
    return np.array([lam if admissible(shape, lam) else 0.0 for lam in LAMS])


def balance_of(net):
    w1, w2 = np.asarray(net.w1), np.asarray(net.w2)
    return np.swapaxes(w2, -1, -2) @ w2 - w1 @ np.swapaxes(w1, -1, -2)


def norm_of(net):
    return np.sum(np.asarray(net.w1) ** 2, (-2, -1)) + np.sum(
        np.asarray(net.w2) ** 2, (-2, -1)
    )


def net_of(key, shape: Shape, lam, name, size):
    return balanced(key, *shape, lam, **{name: size})


@functools.cache
def build(shape):
    """Networks over λ by each meaning of size: one compilation for a shape."""

    def one(key, lam, s, norm, scale):
        TRACES[shape] += 1
        return {
            "singular_values": net_of(key, shape, lam, "singular_values", s),
            "norm": net_of(key, shape, lam, "norm", norm),
            "scale": net_of(key, shape, lam, "scale", scale),
        }

    return jax.jit(jax.vmap(one, in_axes=(None, 0, None, None, None)))


def networks(shape, name, lams, size, key=KEY):
    sizes = {"singular_values": np.ones(min(shape)), "norm": 9.0, "scale": 1.0}
    sizes = [np.asarray(v) for v in (sizes | {name: size}).values()]
    return build(shape)(key, lams, *sizes)[name]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_and_lam_is_balanced_with_the_product_asked_for(shape):
    inputs, hidden, outputs = shape
    lams, k = lams_for(shape), min(shape)
    for s in (np.linspace(2.0, 0.5, k), np.full(k, 0.7), np.full(k, 1e-8)):
        nets = networks(shape, "singular_values", lams, s)
        chex.assert_shape(nets.w1, (len(lams), hidden, inputs))
        chex.assert_shape(nets.w2, (len(lams), outputs, hidden))
        size = norm_of(nets)[:, None, None]
        defect = balance_of(nets) - lams[:, None, None] * np.eye(hidden)
        assert (np.abs(defect) <= 1e-12 * size).all()
        found = np.linalg.svd(nets.product, compute_uv=False)[:, :k]
        np.testing.assert_allclose(found, np.tile(s, (len(lams), 1)), rtol=1e-12)
        # ‖W1‖² + ‖W2‖² = 2Σμ, a padded direction counting |λ|.
        mu = np.sqrt(s[None] ** 2 + lams[:, None] ** 2 / 4)
        total = 2 * mu.sum(axis=1) + (hidden - k) * np.abs(lams)
        np.testing.assert_allclose(norm_of(nets), total, rtol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_extra_hidden_directions_are_in_the_wider_layer_alone(shape):
    k, hidden = min(shape), shape[1]
    lams = lams_for(shape)
    nets = networks(shape, "singular_values", lams, np.linspace(2.0, 0.5, k))
    for lam, w1, w2 in zip(lams, nets.w1, nets.w2, strict=True):
        extra = hidden - k
        gram1, gram2 = np.asarray(w1 @ w1.T), np.asarray(w2.T @ w2)
        # Strengths beyond the modes: √|λ| in one layer where the other has nothing.
        small = np.linalg.eigvalsh(gram1 + gram2)[:extra]
        np.testing.assert_allclose(small, np.full(extra, abs(lam)), atol=1e-12)
        rank1, rank2 = (np.linalg.matrix_rank(w, tol=1e-7) for w in (w1, w2))
        wide = k + (extra if abs(lam) > 1e-3 else 0)
        if abs(lam) != 1e-9:
            assert (rank1, rank2) == ((wide, k) if lam < 0 else (k, wide))


def test_singular_values_of_zero():
    for lam in (0.0, 0.5, -0.5):
        net = balanced(KEY, 3, 3, 3, lam, singular_values=jnp.array([1.0, 0.0, 0.0]))
        np.testing.assert_allclose(balance_of(net), lam * np.eye(3), atol=1e-14)
        found = np.linalg.svd(net.product, compute_uv=False)
        np.testing.assert_allclose(found, [1.0, 0.0, 0.0], atol=1e-14)


@pytest.mark.parametrize("tiny", [np.float32(1e-20), np.float64(1e-170)])
def test_products_whose_squares_underflow(tiny):
    s = np.full(3, tiny)
    for lam in (0 * tiny, 1 + 0 * tiny):
        net = balanced(KEY, 3, 3, 3, lam, singular_values=s)
        assert np.isfinite(net.w1).all()
        assert np.isfinite(net.w2).all()
        large, small = (np.sqrt(tiny), np.sqrt(tiny)) if lam == 0 else (1, tiny)
        for w, strength in ((net.w2, large), (net.w1, small)):
            unit = np.asarray(w, float) / strength
            found = np.linalg.svd(unit, compute_uv=False)
            np.testing.assert_allclose(found, np.ones(3), rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 3, 3), *PADDED])
def test_norm_sets_the_sum_of_squares_and_makes_all_modes_equal(shape):
    k, hidden = min(shape), shape[1]
    lams = lams_for(shape)
    norm = hidden * 1e3 + 5.0
    nets = networks(shape, "norm", lams, norm)
    np.testing.assert_allclose(norm_of(nets), norm, rtol=1e-12)
    defect = balance_of(nets) - lams[:, None, None] * np.eye(hidden)
    assert np.abs(defect).max() <= 1e-12 * norm
    mu = (norm - (hidden - k) * np.abs(lams)) / (2 * k)
    expected = np.sqrt(mu**2 - lams**2 / 4)
    found = np.linalg.svd(nets.product, compute_uv=False)[:, :k]
    np.testing.assert_allclose(found, np.tile(expected, (k, 1)).T, rtol=1e-11)


@pytest.mark.parametrize(("shape", "lam"), [((3, 3, 3), -0.3), ((2, 3, 4), 0.7)])
def test_the_least_norm_leaves_no_product(shape: Shape, lam):
    least = shape[1] * abs(lam)
    nets = networks(shape, "norm", np.full(7, lam), least)
    np.testing.assert_allclose(nets.product, np.zeros_like(nets.product), atol=1e-15)
    np.testing.assert_allclose(norm_of(nets), least, rtol=1e-13)
    with pytest.raises(ValueError) as caught:
        balanced(KEY, *shape, lam, norm=0.99 * least)
    for word in ("`norm`", "hidden·|λ|", f"{least:.6g}", f"{0.99 * least:.6g}"):
        assert word in str(caught.value)


@functools.cache
def draws():
    """400 networks by scale 1, and by singular values of 1, at λ = 0."""
    keys, ones = jax.random.split(KEY, 400), np.ones(3)

    def one(key):
        return (
            net_of(key, (3, 3, 3), 0.0, "scale", 1.0),
            net_of(key, (3, 3, 3), 0.0, "singular_values", ones),
        )

    return keys, *jax.jit(jax.vmap(one))(keys)


def test_scale_multiplies_half_normal_singular_values():
    _, nets, _ = draws()
    strengths = np.linalg.svd(nets.product, compute_uv=False)
    assert stats.kstest(strengths.ravel(), "halfnorm").pvalue > 1e-3
    # Drawn independently: squares of different modes are uncorrelated. (The singular
    # values come sorted; sums over all pairs do not care.)
    square = strengths**2
    pairs = np.mean(square.sum(axis=1) ** 2 - (square**2).sum(axis=1)) / 6
    np.testing.assert_allclose(pairs, 1.0, atol=0.25)


def test_singular_vectors_are_haar_distributed():
    # At λ = 0 with s = 1 both layers and the product are orthogonal, and so Haar: an
    # entry is uniform on [−1, 1], and half of the determinants are negative.
    _, _, nets = draws()
    for matrices in (nets.w1, nets.w2, nets.product):
        m = np.asarray(matrices)
        np.testing.assert_allclose(
            m @ np.swapaxes(m, 1, 2), np.tile(np.eye(3), (400, 1, 1)), atol=1e-12
        )
        for i, j in ((0, 0), (1, 2), (2, 1)):
            assert stats.kstest(m[:, i, j], stats.uniform(-1, 2).cdf).pvalue > 1e-3
        assert 150 < (np.linalg.det(m) < 0).sum() < 250


def test_equal_keys_share_all_draws_across_lam_and_scale():
    def make(scale, key=KEY):
        return networks((3, 3, 3), "scale", np.arange(-3.0, 4.0), scale, key)

    product = np.asarray(make(0.1).product)
    np.testing.assert_allclose(product, product[:1].repeat(7, 0), rtol=1e-8)
    np.testing.assert_allclose(make(0.3).product, 3 * product, rtol=1e-8)
    other = make(0.1, jax.random.key(1))
    assert np.abs(other.product - product).min() > 1e-9


def test_lam_may_be_python_numpy_or_jax_and_all_agree():
    nets = [
        balanced(KEY, 3, 3, 3, lam, 0.1)
        for lam in (2, 2.0, np.float64(2), np.array(2.0), jnp.array(2.0), jnp.array(2))
    ]
    for net in nets[1:]:
        chex.assert_trees_all_equal(net, nets[0])


def test_jit_and_vmap_equal_single_calls():
    lams = np.array([0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    many = networks((3, 3, 3), "scale", lams, 0.1)
    keys, by_key, _ = draws()
    for stack, i, alone in (
        (many, 0, balanced(KEY, 3, 3, 3, 0.5, 0.1)),
        (many, 1, balanced(KEY, 3, 3, 3, -0.5, 0.1)),
        (by_key, 7, balanced(keys[7], 3, 3, 3, 0.0, 1.0)),
    ):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], stack)
        chex.assert_trees_all_close(one, alone, rtol=1e-12, atol=1e-15)
    assert np.abs(by_key.w1[0] - by_key.w1[1]).min() > 0


def test_lam_scale_and_key_do_not_compile_anew():
    for seed, lam in enumerate((-1.5, 0.0, 2.0)):
        key = jax.random.key(seed)
        nets = networks((3, 3, 3), "scale", np.full(7, lam), 0.1 + seed, key)
        expected = np.tile(lam * np.eye(3), (7, 1, 1))
        np.testing.assert_allclose(balance_of(nets), expected, atol=1e-13)
    assert TRACES[3, 3, 3] == 1


def test_dtype_follows_the_arrays_and_stays_single():
    one = np.float32(1.0)
    for kwargs in (
        {"lam": one, "scale": 0.1},
        {"lam": 1.0, "scale": one},
        {"lam": 1, "singular_values": np.ones(3, np.float32)},
        {"lam": 0.5, "norm": jnp.float32(9.0)},
    ):
        net = balanced(KEY, 3, 3, 3, **kwargs)
        assert net.w1.dtype == net.w2.dtype == jnp.float32
        lam = float(kwargs["lam"])
        np.testing.assert_allclose(balance_of(net), lam * np.eye(3), atol=5e-6)
    assert balanced(KEY, 3, 3, 3, 1, 1).w1.dtype == jnp.float64
    mixed = balanced(KEY, 3, 3, 3, one, jnp.array(0.1))
    assert mixed.w1.dtype == jnp.float64


def test_concrete_arrays_inside_a_jitted_function():
    """What a function closes over is checked, and used, as outside of it."""
    sizes = {"singular_values": jnp.ones(3), "norm": jnp.array(9.0)}
    lam = jnp.array(0.5)

    @jax.jit
    def inside(key):
        return {k: net_of(key, (3, 3, 3), lam, k, v) for k, v in sizes.items()}

    nets = inside(KEY)
    for name, size in sizes.items():
        outside = networks((3, 3, 3), name, np.full(7, 0.5), size)
        one = jax.tree.map(lambda w: w[0], outside)
        chex.assert_trees_all_close(nets[name], one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [*PADDED, (2, 4, 3), (3, 4, 2), (4, 4, 3)])
def test_inadmissible_lam_is_refused_with_the_reason(shape: Shape):
    inputs, hidden, outputs = shape
    for lam in (2.0, -2.0, 1e-9, -1e-9):
        if admissible(shape, lam):
            continue
        with pytest.raises(ValueError) as caught:
            balanced(KEY, *shape, lam, 0.1)
        message = str(caught.value)
        other, bound = ("outputs", "≤") if lam > 0 else ("inputs", "≥")
        width = outputs if lam > 0 else inputs
        start = f"`lam` must be {bound} 0 when hidden > {other}, but it is {lam:g}"
        assert message.startswith(start)
        assert f"hidden = {hidden}" in message
        assert f"{other} = {width}" in message
        assert "\n" not in message


def test_inadmissible_values_are_nan_when_traced_and_spare_the_others():
    lams = np.array([-1.0, 0.0, 1.0, np.nan, 0.0, -3.0, 3.0])
    cases = [
        ((4, 3, 2), "norm", 9.5, [0, 0, 1, 1, 0, 0, 1]),
        ((2, 3, 4), "norm", 9.5, [1, 0, 0, 1, 0, 1, 0]),
        ((2, 4, 2), "norm", 9.5, [1, 0, 1, 1, 0, 1, 1]),
        ((3, 3, 3), "norm", 3.5, [0, 0, 0, 1, 0, 1, 1]),
        ((3, 3, 3), "scale", 0.1, [0, 0, 0, 1, 0, 0, 0]),
        ((3, 3, 3), "scale", -0.1, [1] * 7),
    ]
    for shape, name, size, refused in cases:
        nets = networks(shape, name, lams, size)
        for w in (nets.w1, nets.w2):
            lost = np.isnan(w).all(axis=(1, 2))
            kept = np.isfinite(w).all(axis=(1, 2))
            np.testing.assert_array_equal(lost, np.array(refused, bool))
            np.testing.assert_array_equal(kept, ~lost)
    negative = networks(
        (3, 3, 3), "singular_values", np.zeros(7), np.array([1.0, -1.0, 1.0])
    )
    assert np.isnan(negative.w1).all()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({}, ["exactly one", "`scale`", "`singular_values`", "`norm`", "none"]),
        ({"scale": 0.1, "norm": 9.0}, ["exactly one", "scale, norm"]),
        ({"scale": 0.1, "singular_values": np.ones(3)}, ["exactly one"]),
        ({"singular_values": np.ones(2)}, ["`singular_values`", "(3,)", "(2,)"]),
        ({"singular_values": -np.ones(3)}, ["`singular_values`", "≥ 0", "-1"]),
        ({"scale": -0.1}, ["`scale`", "≥ 0", "-0.1"]),
        ({"scale": np.nan}, ["`scale`", "nan"]),
        ({"scale": np.ones(3)}, ["`scale`", "scalar", "(3,)", "vmap"]),
        ({"norm": np.ones(3)}, ["`norm`", "scalar", "(3,)", "vmap"]),
        ({"scale": 0.1, "lam": np.ones(2)}, ["`lam`", "scalar", "(2,)", "vmap"]),
        ({"scale": 0.1, "lam": np.nan}, ["`lam`", "finite", "nan"]),
        ({"scale": 0.1, "lam": np.inf}, ["`lam`", "finite", "inf"]),
        ({"scale": 0.1, "hidden": 0}, ["`hidden`", "≥ 1", "0"]),
    ],
)
def test_bad_arguments_are_refused_in_words(unchecked, kwargs, words):
    arguments = {"inputs": 3, "hidden": 3, "outputs": 3, "lam": 1.0, **kwargs}
    with pytest.raises(ValueError) as caught:
        balanced(KEY, **arguments)
    for word in words:
        assert word in str(caught.value)
