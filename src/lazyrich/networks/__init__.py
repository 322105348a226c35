"""What learns: two-layer networks as Equinox modules that hold arrays only."""

from ._linear import TwoLayerLinear as TwoLayerLinear
