"""What comes out: one trajectory type for every method."""

from ._status import Status as Status
