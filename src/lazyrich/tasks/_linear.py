"""Linear regression, from its second moments or from samples."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._arrays import as_floating, is_concrete, matmul
from .._lanes import product
from ..networks import TwoLayerLinear


class LinearTask(eqx.Module):
    """Regression of y (outputs) on x (inputs) with the loss L = ½ E‖y − f(x)‖².

    `LinearTask(sigma_yx, sigma_xx=None, yy=None)` states the population by its
    uncentred second moments:

    - `sigma_yx` = E[y xᵀ], shape (outputs, inputs);
    - `sigma_xx` = E[x xᵀ], shape (inputs, inputs), symmetric and positive
      semi-definite; None means the identity (whitened inputs), which `lr.Exact` needs;
    - `yy` = E‖y‖² = tr Σ_yy, a scalar. By default the least that the moments allow
      (‖Σ_yx‖_F² for whitened inputs), so that the task can be solved exactly.

    `LinearTask.from_data` makes one from samples, and keeps them.

    Further fields: `x` (n, inputs) and `y` (n, outputs), the samples in the task's own
    input coordinates, or None; `rank`, the number of input components kept (a static
    int); `transform` (raw inputs, inputs) and `centre` (raw inputs,), which `prepare`
    applies to new data, or None; `solution` (outputs, inputs), the least-norm best
    linear map; `optimum`, the least loss L* over all linear maps of any rank.
    """

    sigma_yx: Float[Array, "outputs inputs"]
    sigma_xx: Float[Array, "inputs inputs"] | None
    yy: Float[Array, ""]
    x: Float[Array, "n inputs"] | None
    y: Float[Array, "n outputs"] | None
    transform: Float[Array, "raw inputs"] | None
    centre: Float[Array, " raw"] | None
    solution: Float[Array, "outputs inputs"]
    optimum: Float[Array, ""]
    rank: int = eqx.field(static=True)

    def __init__(
        self,
        sigma_yx: Float[ArrayLike, "outputs inputs"],
        sigma_xx: Float[ArrayLike, "inputs inputs"] | None = None,
        yy: ArrayLike | None = None,
    ):
        arrays = [a for a in (sigma_yx, sigma_xx, yy) if a is not None]
        arrays = iter(as_floating(*arrays))
        self.sigma_yx = next(arrays)
        self.sigma_xx = None if sigma_xx is None else next(arrays)
        if self.sigma_yx.ndim != 2 or 0 in self.sigma_yx.shape:
            raise ValueError(
                "`sigma_yx` must have shape (outputs, inputs), but its shape is "
                f"{self.sigma_yx.shape}."
            )
        inputs = self.sigma_yx.shape[1]
        if self.sigma_xx is not None:
            _check_second_moment(self.sigma_xx, inputs)
            inverse = jnp.linalg.pinv(self.sigma_xx, hermitian=True)
            self.solution = matmul(self.sigma_yx, inverse)
        else:
            self.solution = self.sigma_yx
        explained = jnp.sum(self.solution * self.sigma_yx)
        self.yy = explained if yy is None else next(arrays)
        self.optimum = self._least_loss(explained)
        self.x = self.y = self.transform = self.centre = None
        self.rank = inputs

    def _least_loss(self, explained: Float[Array, ""]) -> Float[Array, ""]:
        """½(yy − explained), rounding below zero removed and nonsense refused."""
        if self.yy.ndim:
            raise ValueError(
                f"`yy` must be a scalar, but its shape is {self.yy.shape}."
            )
        gap = self.yy - explained
        slack = 1e3 * jnp.finfo(gap.dtype).eps * jnp.abs(explained)
        if is_concrete(gap) and bool(gap < -slack):
            raise ValueError(
                f"`yy` = E‖y‖² must be at least {float(explained):.6g}, which the "
                f"inputs explain, but it is {float(self.yy):.6g}."
            )
        gap = jnp.where(gap < -slack, jnp.nan, gap)
        return 0.5 * jnp.where(gap < 0, 0.0, gap)

    @classmethod
    def from_data(
        cls,
        x: Float[ArrayLike, "n raw"],
        y: Float[ArrayLike, "n outputs"],
        whiten: bool = True,
        center: bool = False,
    ) -> "LinearTask":
        """The task of predicting y (n, outputs) from x (n, raw).

        Moments are means over the n samples (1/n), uncentred unless `center` subtracts
        the mean of x and of y first. With `whiten` (PCA whitening; x must be concrete)
        the task's inputs are the principal components of x whose singular value
        exceeds max(n, raw)·ε times the largest, scaled to unit second moment; their
        number is `rank`. Without it, they are x itself and `sigma_xx` is its moment.

        Raises `ValueError` for shapes that do not fit, for no samples, for values that
        are not finite, and for inputs that are all zero.
        """
        x, y = as_floating(x, y)
        if x.ndim != 2 or y.ndim != 2 or x.shape[0] != y.shape[0] or 0 in x.shape:
            raise ValueError(
                "`x` must have shape (n, inputs) and `y` (n, outputs) with one n ≥ 1, "
                f"but they are {x.shape} and {y.shape}."
            )
        if is_concrete(x, y) and not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError("`x` and `y` must be finite, but they hold NaN or inf.")
        if not whiten:
            x, y, centre = _centred(x, y, center)
            return cls._from_samples(x, y, None, centre, whitened=False)
        if not is_concrete(x):
            raise ValueError(
                "Whitening decides how many components to keep and so needs concrete "
                "data: build the task outside of jit and vmap, or pass whiten=False."
            )
        with jax.ensure_compile_time_eval():
            shifted, _, _ = _centred(x, x, center)
            left, strengths, right = jnp.linalg.svd(shifted, full_matrices=False)
            cut = max(x.shape) * jnp.finfo(x.dtype).eps * strengths[0]
            rank = int(jnp.sum(strengths > cut))
        if rank == 0:
            raise ValueError("`x` is zero everywhere: there is nothing to whiten.")
        root = jnp.sqrt(jnp.asarray(x.shape[0], x.dtype))
        transform = right[:rank].T * (root / strengths[:rank])[None]
        _, y, centre = _centred(x, y, center)
        return cls._from_samples(root * left[:, :rank], y, transform, centre, True)

    @classmethod
    def _from_samples(
        cls,
        x: Float[Array, "n inputs"],
        y: Float[Array, "n outputs"],
        transform: Float[Array, "raw inputs"] | None,
        centre: Float[Array, " raw"] | None,
        whitened: bool,
    ) -> "LinearTask":
        n = x.shape[0]
        sigma_yx = matmul(y.T, x) / n
        sigma_xx = None if whitened else matmul(x.T, x) / n
        task = cls(sigma_yx, sigma_xx)
        # From the samples rather than from moments, which would lose half of the digits
        # of nearly collinear inputs, and cancel in the residual.
        solution = sigma_yx if whitened else matmul(jnp.linalg.pinv(x), y).T
        residual = y - matmul(x, solution.T)
        optimum = 0.5 * jnp.mean(jnp.sum(residual**2, axis=1))
        yy = jnp.mean(jnp.sum(y**2, axis=1))
        return eqx.tree_at(
            lambda t: (t.x, t.y, t.transform, t.centre, t.optimum, t.yy, t.solution),
            task,
            (x, y, transform, centre, optimum, yy, solution),
            is_leaf=lambda leaf: leaf is None,
        )

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.sigma_yx.shape[1]

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.sigma_yx.shape[0]

    @property
    def samples(self) -> int | None:
        """Number of samples n, or None for a population task."""
        return None if self.x is None else self.x.shape[0]

    def reversed(self) -> "LinearTask":
        """The same inputs with y → −y: the task of reversal learning."""
        return eqx.tree_at(
            lambda t: (t.sigma_yx, t.solution, t.y),
            self,
            (-self.sigma_yx, -self.solution, None if self.y is None else -self.y),
            is_leaf=lambda leaf: leaf is None,
        )

    def prepare(self, x: Float[ArrayLike, "*n raw"]) -> Float[Array, "*n inputs"]:
        """Raw inputs (…, raw) in the task's coordinates: centred, then whitened."""
        (x,) = as_floating(x)
        raw = self.inputs if self.transform is None else self.transform.shape[0]
        if x.ndim == 0 or x.shape[-1] != raw:
            raise ValueError(
                f"`x` must have {raw} entries in its last axis, but its shape is "
                f"{x.shape}."
            )
        if self.centre is not None:
            x = x - jnp.broadcast_to(self.centre, x.shape)
        return x if self.transform is None else matmul(x, self.transform)

    def excess(self, net: TwoLayerLinear) -> Float[Array, "*batch"]:
        """L(net) − L* ≥ 0, where L* is `optimum`; free of cancellation near 0.

        A scalar, or one value per leading axis of the network.
        """
        self.check_fits(net)
        gap = net.product
        gap = gap - jnp.broadcast_to(self.solution, gap.shape)
        moved = gap if self.sigma_xx is None else product(gap, self.sigma_xx)
        return 0.5 * jnp.sum(gap * moved, axis=(-2, -1))

    def loss(self, net: TwoLayerLinear) -> Float[Array, "*batch"]:
        """L = ½ E‖y − f(x)‖² over the population or all samples; absolute."""
        return self.excess(net) + self.optimum

    def batch_loss(
        self,
        net: TwoLayerLinear,
        x: Float[Array, "batch inputs"],
        y: Float[Array, "batch outputs"],
    ) -> Float[Array, ""]:
        """½ mean‖y − f(x)‖² over the given samples (task coordinates)."""
        return 0.5 * jnp.mean(jnp.sum((y - net(x)) ** 2, axis=-1))

    def check_fits(self, net: TwoLayerLinear) -> None:
        """`ValueError` if the network does not have the task's inputs and outputs."""
        if (net.inputs, net.outputs) != (self.inputs, self.outputs):
            raise ValueError(
                f"The task has {self.inputs} inputs and {self.outputs} outputs, but "
                f"the network has {net.inputs} inputs and {net.outputs} outputs."
            )


def _centred(x: Array, y: Array, center: bool) -> tuple[Array, Array, Array | None]:
    """x and y without their means, and the mean of x; or as they are, and None."""
    if not center:
        return x, y, None
    mean_x, mean_y = jnp.mean(x, axis=0), jnp.mean(y, axis=0)
    return x - mean_x[None], y - mean_y[None], mean_x


def _check_second_moment(sigma_xx: Float[Array, "a b"], inputs: int) -> None:
    if sigma_xx.shape != (inputs, inputs):
        raise ValueError(
            f"`sigma_xx` must have shape (inputs, inputs) = ({inputs}, {inputs}), but "
            f"its shape is {sigma_xx.shape}."
        )
    if not is_concrete(sigma_xx) or not np.isfinite(sigma_xx).all():
        return
    moment = np.asarray(sigma_xx)
    slack = 1e2 * np.finfo(moment.dtype).eps * np.abs(moment).max()
    if np.abs(moment - moment.T).max() > slack:
        raise ValueError("`sigma_xx` must be symmetric, but it is not.")
    if np.linalg.eigvalsh(moment)[0] < -slack * inputs:
        raise ValueError(
            "`sigma_xx` must be positive semi-definite, but it has a negative "
            "eigenvalue."
        )


@jax.jit
def whitened(x: Float[Array, "n inputs"]) -> Float[Array, "n inputs"]:
    """x (n, inputs) of full column rank, mapped to unit second moment: x(xᵀx/n)^−½."""
    left, _, right = jnp.linalg.svd(x, full_matrices=False)
    return matmul(left, right) * jnp.sqrt(jnp.asarray(x.shape[0], x.dtype))
