"""When to stop."""

from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from .._arrays import Scalar, as_floating, is_concrete
from ..networks import TwoLayerLinear
from ..tasks import LinearTask


class UntilLoss(eqx.Module):
    """Stop when a loss has fallen to a level. Made by `until_loss`."""

    level: Float[Array, ""]
    of: Literal["total", "excess"] = eqx.field(static=True)

    def gap(self, net: TwoLayerLinear, task: LinearTask) -> Float[Array, ""]:
        """Loss minus level: the run stops where it is ≤ 0."""
        loss = task.loss(net) if self.of == "total" else task.excess(net)
        return loss - self.level.astype(loss.dtype)


def until_loss(level: Scalar, of: Literal["total", "excess"] = "total") -> UntilLoss:
    """Stop as soon as the loss is at or below `level`.

    `of="total"` is L itself, `of="excess"` is L − L* with L* = `task.optimum`. The
    level may be traced, and the time of the stop is differentiable in it, in the start
    and in the task (`GradientFlow`, `Exact`); `times[-1]` is the horizon.
    """
    (level,) = as_floating(level)
    if of not in ("total", "excess"):
        raise ValueError(f'`of` must be "total" or "excess", but it is {of!r}.')
    if level.ndim:
        raise ValueError(
            f"`level` must be a scalar, but its shape is {level.shape}: use jax.vmap "
            "for several."
        )
    if is_concrete(level) and np.isnan(float(level)):
        raise ValueError("`level` must be a number, but it is NaN.")
    return UntilLoss(level, of)
