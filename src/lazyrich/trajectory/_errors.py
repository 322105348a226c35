"""The error that a failed run raises."""

from typing import TYPE_CHECKING

from ._status import Status

if TYPE_CHECKING:
    from ._trajectory import Trajectory


class TrainingError(RuntimeError):
    """At least one run failed. The message says which, why, and what to change.

    `status` is the first failure's `Status`; `trajectory` holds everything that was
    computed: failed runs are NaN, the others intact.
    """

    def __init__(self, message: str, status: Status, trajectory: "Trajectory"):
        super().__init__(message)
        self.status = status
        self.trajectory = trajectory

    def __reduce__(self):
        return type(self), (str(self), self.status, self.trajectory)
