"""Closed statements to hold simulations and measures against."""

from ._modes import aligned_modes as aligned_modes
