"""Tasks that are made, not measured."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._arrays import Scalar, matmul
from ._linear import LinearTask, whitened


def random_regression(
    key: PRNGKeyArray,
    inputs: int,
    outputs: int,
    samples: int,
    noise: Scalar = 0.0,
) -> LinearTask:
    """Whitened Gaussian inputs and a random linear teacher.

    x is standard normal, then whitened exactly with all inputs kept (samples ≥
    inputs); y = A x + noise·N(0, I), the entries of A normal with variance 1/inputs,
    so that each output has about unit variance. Traces under jit and vmap over `key`
    and `noise`.
    """
    if inputs < 1 or outputs < 1:
        raise ValueError(
            f"`inputs` and `outputs` must be ≥ 1, but they are {inputs} and {outputs}."
        )
    if samples < inputs:
        raise ValueError(
            f"`samples` must be at least `inputs` = {inputs} so that all inputs can be "
            f"whitened, but it is {samples}."
        )
    key_x, key_a, key_e = jax.random.split(key, 3)
    noise = jnp.asarray(noise, jnp.result_type(float))
    x = whitened(jax.random.normal(key_x, (samples, inputs)))
    teacher = jax.random.normal(key_a, (outputs, inputs)) / np.sqrt(inputs)
    clean = matmul(x, teacher.T)
    y = clean + noise * jax.random.normal(key_e, (samples, outputs))
    return LinearTask._from_samples(x, y, None, None, whitened=True)


def hierarchy(levels: int = 3) -> LinearTask:
    """The semantic hierarchy: 2^levels items in a binary tree, and their features.

    Items are one-hot inputs scaled to unit second moment, x = √n·I with n = 2^levels.
    Features are one that all items have (+1) and one per split of the tree: +1 for
    items in the left branch, −1 in the right one, 0 for items not under the split.
    The task is square; its singular values fall by 1/√2 a level: for 3 levels 1, 1,
    0.707 (twice), 0.5 (four times).
    """
    if levels < 1:
        raise ValueError(f"`levels` must be ≥ 1, but it is {levels}.")
    n = 2**levels
    features = [np.ones(n)]
    for level in range(levels):
        half = n >> (level + 1)
        for start in range(0, n, 2 * half):
            feature = np.zeros(n)
            feature[start : start + half] = 1.0
            feature[start + half : start + 2 * half] = -1.0
            features.append(feature)
    x = np.sqrt(n) * np.eye(n)
    y = np.stack(features, axis=1)
    dtype = jnp.result_type(float)
    return LinearTask._from_samples(
        jnp.asarray(x, dtype), jnp.asarray(y, dtype), None, None, whitened=True
    )
