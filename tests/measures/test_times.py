"""Half-time: the first time at which half of what there was to learn is learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazyrich.measures import half_time

TIMES = np.array([0.0, 1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("excess", "expected"),
    [
        ([8.0, 6.0, 2.0, 1.0], 1.5),  # between two saves
        ([8.0, 4.0, 2.0, 1.0], 1.0),  # on one
        ([8.0, 2.0, 1.0, 0.5], 2 / 3),  # before the first
        ([8.0, 7.0, 6.0, 3.0], 2 + 2 * 2 / 3),  # uneven saves
        ([8.0, 7.0, 6.0, 4.0], 4.0),  # on the last
        ([8.0, 3.0, 9.0, 1.0], 0.8),  # the first crossing counts
        ([8.0, 0.0, 0.0, 0.0], 0.5),
        ([1e-300, 0.0, 0.0, 0.0], 0.5),
    ],
)
def test_values(excess, expected):
    np.testing.assert_allclose(half_time(TIMES, np.array(excess)), expected, rtol=1e-14)


@pytest.mark.parametrize(
    "excess",
    [
        [8.0, 7.0, 6.0, 5.0],  # never
        [8.0, 8.0, 9.0, 8.0],
        [0.0, 0.0, 0.0, 0.0],  # nothing to learn
        [-1.0, -2.0, -3.0, -4.0],
        [np.nan, 1.0, 0.5, 0.1],
        [8.0, np.nan, 2.0, 1.0],  # not finite before the crossing
        [8.0, np.nan, 7.0, 1.0],
        [8.0, np.inf, 7.0, 1.0],
        [np.inf, 8.0, 2.0, 1.0],
        [np.nan] * 4,
    ],
)
def test_what_has_no_half_time_is_nan(excess):
    value, slopes = jax.value_and_grad(half_time, argnums=(0, 1))(
        TIMES, np.array(excess)
    )
    assert np.isnan(value)
    if np.isfinite(excess).all():  # masked, such a curve must not spoil a batch
        assert np.isfinite(slopes[0]).all()
        assert np.isfinite(slopes[1]).all()


def test_values_after_the_crossing_do_not_matter():
    """A run that stops early leaves NaN behind its stop."""
    excess = np.array([8.0, 6.0, 2.0, np.nan])
    value, slope = jax.value_and_grad(half_time, argnums=1)(TIMES, excess)
    np.testing.assert_allclose(value, 1.5, rtol=1e-14)
    assert np.isfinite(slope).all()


def test_gradient_against_differences():
    excess = np.array([8.0, 6.0, 2.0, 1.0])
    f = jax.jit(half_time)
    slopes = jax.jit(jax.grad(half_time, argnums=(0, 1)))(TIMES, excess)
    h = 1e-6
    for i in range(4):
        step = h * np.eye(4)[i]
        by_time = (f(TIMES + step, excess) - f(TIMES - step, excess)) / (2 * h)
        by_excess = (f(TIMES, excess + step) - f(TIMES, excess - step)) / (2 * h)
        np.testing.assert_allclose(slopes[0][i], by_time, atol=1e-8)
        np.testing.assert_allclose(slopes[1][i], by_excess, atol=1e-8)


def test_vmapped_equals_a_loop_and_units_scale():
    rng = np.random.default_rng(0)
    curves = np.sort(rng.uniform(size=(6, 4)), axis=1)[:, ::-1].copy()
    many = jax.vmap(half_time, in_axes=(None, 0))(TIMES, curves)
    alone = [half_time(TIMES, c) for c in curves]
    np.testing.assert_array_equal(many, np.array(alone))
    assert np.isfinite(many).any()
    np.testing.assert_allclose(
        jax.vmap(half_time, in_axes=(None, 0))(3 * TIMES, 5 * curves),
        3 * many,
        rtol=1e-13,
    )


def test_of_a_learned_mode():
    """One aligned mode at λ = 0: the sigmoid of theory.md §1.3, inverted."""
    target, start = 2.0, 1e-3
    times = np.linspace(0.0, 4.0, 2001)
    grown = np.exp(2 * target * times)
    s = target * grown / (grown - 1 + target / start)
    value = half_time(times, 0.5 * (target - s) ** 2)
    # s̃ − s falls to (s̃ − s0)/√2; then e^{2s̃t} = s (s̃ − s0) / (s0 (s̃ − s)).
    half = target - (target - start) / np.sqrt(2)
    ratio = half * (target - start) / (start * (target - half))
    np.testing.assert_allclose(value, np.log(ratio) / (2 * target), rtol=1e-5)


def test_integer_times_and_dtypes():
    excess = np.array([8.0, 6.0, 2.0, 1.0], np.float32)
    value = half_time(np.array([0, 1, 2, 4]), excess)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, 1.5, rtol=1e-6)


def test_shapes_that_do_not_fit_are_refused(unchecked):
    for times, excess in ((TIMES, TIMES[:3]), (TIMES[None], TIMES[None])):
        with pytest.raises(ValueError) as caught:
            half_time(times, excess)
        for word in ("`times`", "`excess`", f"{times.shape}", f"{excess.shape}"):
            assert word in str(caught.value)


def test_times_must_be_in_order():
    with pytest.raises(ValueError, match="`times` must be non-decreasing"):
        half_time(jnp.array([2.0, 0.5, 0.0]), jnp.array([1.0, 0.6, 0.2]))
    ends = jnp.array([0.0, 1.0, jnp.inf, jnp.inf])
    assert half_time(ends, jnp.array([2.0, 0.5, 0.0, 0.0])) < 1
