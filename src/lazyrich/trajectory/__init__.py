"""What comes out: one trajectory type for every method."""

from ._errors import TrainingError as TrainingError
from ._status import Status as Status
from ._trajectory import Trajectory as Trajectory
from ._trajectory import where_ok as where_ok
