"""Two-layer linear networks."""

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float

from .._arrays import as_floating, transpose
from .._lanes import product


class TwoLayerLinear(eqx.Module):
    """The linear network f(x) = W2 W1 x.

    `w1` has shape (hidden, inputs) and `w2` (outputs, hidden). Leading axes, equal in
    both, hold several networks, for example one per time: calling such a stack, or
    taking its measures, keeps those axes in front.

    Raises `ValueError` if the shapes do not fit together.
    """

    w1: Float[Array, "*batch hidden inputs"]
    w2: Float[Array, "*batch outputs hidden"]

    def __init__(self, w1: ArrayLike, w2: ArrayLike):
        self.w1, self.w2 = as_floating(w1, w2)

    def __check_init__(self):
        s1, s2 = self.w1.shape, self.w2.shape
        if len(s1) < 2 or len(s2) < 2:
            raise ValueError(
                "`w1` must have shape (hidden, inputs) and `w2` (outputs, hidden), "
                f"but they are {s1} and {s2}."
            )
        if s1[:-2] != s2[:-2] or s1[-2] != s2[-1]:
            raise ValueError(
                f"`w1` {s1} and `w2` {s2} do not fit: w1 is (hidden, inputs) and w2 "
                "(outputs, hidden), with equal hidden and equal leading axes."
            )
        if 0 in s1 + s2:
            raise ValueError(f"Empty layer: `w1` is {s1} and `w2` is {s2}.")

    @property
    def inputs(self) -> int:
        """Number of inputs Ni."""
        return self.w1.shape[-1]

    @property
    def hidden(self) -> int:
        """Number of hidden units Nh."""
        return self.w1.shape[-2]

    @property
    def outputs(self) -> int:
        """Number of outputs No."""
        return self.w2.shape[-2]

    @property
    def product(self) -> Float[Array, "*batch outputs inputs"]:
        """The linear map W2 W1 that the network computes."""
        return product(self.w2, self.w1)

    def __call__(self, x: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
        """W2 W1 x for x of shape (inputs,) or (n, inputs).

        Returns (outputs,) or (n, outputs); leading axes of the weights, and of x
        beyond two, broadcast in front.
        """
        (x,) = as_floating(x)
        if x.ndim == 0 or x.shape[-1] != self.inputs:
            raise ValueError(
                f"`x` must have {self.inputs} entries in its last axis (the inputs of "
                f"the network), but its shape is {x.shape}."
            )
        rows = x[None, :] if x.ndim == 1 else x
        out = product(product(rows, transpose(self.w1)), transpose(self.w2))
        return out[..., 0, :] if x.ndim == 1 else out
