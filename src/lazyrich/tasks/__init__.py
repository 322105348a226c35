"""What is learned: a task owns its data and its loss."""

from ._generate import hierarchy as hierarchy
from ._generate import random_regression as random_regression
from ._linear import LinearTask as LinearTask
