"""How many cores there are. Imports nothing heavy: it decides before jax is loaded."""

import os


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
