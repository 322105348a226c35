"""How it learns: `train`, and one method a file."""

from ._exact import Exact as Exact
from ._flow import GradientFlow as GradientFlow
from ._flow import default_rtol as default_rtol
from ._sgd import SGD as SGD
from ._train import train as train
from ._until import UntilLoss as UntilLoss
from ._until import until_loss as until_loss
