"""The first thing that a worker process runs. Imports nothing but the standard library:
JAX and Equinox read the environment when they are imported, which comes after."""

import os
import pickle
import sys
from typing import Any

ENVIRONMENT = (
    "EQX_ON_ERROR",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)
"""Variables that a worker takes over, unless it has its own or has imported JAX."""


def call(environment: dict[str, str], task: bytes) -> Any:
    """Take over the environment, then run a pickled function with its arguments."""
    if "jax" not in sys.modules:
        for name, value in environment.items():
            os.environ.setdefault(name, value)
    function, arguments = pickle.loads(task)
    return function(*arguments)
