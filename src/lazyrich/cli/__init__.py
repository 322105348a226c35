"""The command `lazyrich`: arguments in, a sweep, a store and a figure out."""

from ._main import main as main
