"""Where learning starts: initial weights with a stated invariant."""

from ._balanced import aligned as aligned
from ._balanced import balanced as balanced
from ._balanced import rebalance as rebalance
from ._gaussian import gaussian as gaussian
