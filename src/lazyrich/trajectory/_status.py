"""How a run ended."""

from enum import IntEnum


class Status(IntEnum):
    """How one run ended, stored as an `int8` (one per batch member).

    The values 0, 1 and 2 are successes; everything else is a failure, and a failed
    run's floats are NaN.
    """

    ok = 0
    """Reached the horizon (no `until` was asked for)."""
    stopped = 1
    """Reached the level asked for by `until`."""
    not_reached = 2
    """Reached the horizon without meeting the level asked for by `until`."""
    step_limit = 3
    """Ran out of solver steps or SGD steps before the horizon."""
    nonfinite = 4
    """A weight, the task or a time was NaN or infinite, or the run diverged."""
    not_balanced = 5
    """The start is not λ-balanced, which `Exact` needs."""
    error = 6
    """User code raised an exception."""
    pending = 7
    """Not run yet."""

    @property
    def is_success(self) -> bool:
        """Whether the run's values may be used."""
        return self <= Status.not_reached

    @property
    def remedy(self) -> str:
        """What to change, in one sentence; empty for successes."""
        return _REMEDIES.get(self, "")


_REMEDIES = {
    Status.step_limit: (
        "The step limit came before the horizon: raise `max_steps` (`steps` for SGD), "
        "shorten `times`, loosen `rtol`, or, if the problem is stiff, use an implicit "
        "solver: `GradientFlow(solver=diffrax.Kvaerno5())`."
    ),
    Status.nonfinite: (
        "A value is not finite: check the start for NaN (an inadmissible λ or norm "
        "under jit or vmap gives NaN weights: λ > 0 needs hidden ≤ outputs, λ < 0 "
        "needs hidden ≤ inputs, norm needs ≥ hidden·|λ|), the task's data and `times`, "
        "and lower the learning rate if the run diverged."
    ),
    Status.not_balanced: (
        "`Exact` needs W2ᵀW2 − W1W1ᵀ = λI: start from `lr.inits.balanced`, pass the "
        "network through `lr.inits.rebalance`, raise `balance_tol`, or use "
        "`lr.GradientFlow()`."
    ),
    Status.error: "User code raised an exception: see the recorded message.",
    Status.pending: "Not computed yet: run the same sweep again to finish it.",
}
