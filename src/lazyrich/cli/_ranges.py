"""Axes written as text: `0:8`, `-8:8:33`, `0.001:1:16:log`, `0.001,0.1`."""

import math


def parse_axis(option: str, text: str) -> list[int] | list[float]:
    """The values of an axis.

    `a:b` is the integers a … b − 1, `a:b:n` is n values from a to b inclusive, evenly
    spaced, `a:b:n:log` the same evenly spaced in the logarithm, and commas separate
    explicit values. Integers stay integers except in `a:b:n`. A text that is none of
    these is a `ValueError` that names the option.
    """
    parts = text.strip().split(":")
    try:
        if len(parts) == 1:
            return _numbers(text)
        if len(parts) == 2:
            values: list[int] | list[float] = list(range(int(parts[0]), int(parts[1])))
        elif len(parts) == 3:
            values = _linear(float(parts[0]), float(parts[1]), int(parts[2]))
        elif len(parts) == 4 and parts[3].strip() == "log":
            values = _logarithmic(float(parts[0]), float(parts[1]), int(parts[2]))
        else:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{option}: {text!r} is no axis: write a:b (integers, b not included), "
            "a:b:n (n ≥ 2 values from a to b inclusive), a:b:n:log (the same, evenly "
            "spaced in the logarithm; a, b > 0) or values separated by commas."
        ) from None
    if not values:
        raise ValueError(f"{option}: {text!r} has no values: a:b needs a < b.")
    return values


def parse_integers(option: str, text: str) -> list[int]:
    """The values of an axis that must be integers."""
    values = parse_axis(option, text)
    integers = [value for value in values if isinstance(value, int)]
    if len(integers) < len(values):
        raise ValueError(f"{option}: {text!r} must be integers, such as 0:8 or 1,5,7.")
    return integers


def _numbers(text: str) -> list[int] | list[float]:
    words = [word.strip() for word in text.split(",")]
    try:
        return [int(word) for word in words]
    except ValueError:
        values = [float(word) for word in words]
    if not all(map(math.isfinite, values)):
        raise ValueError
    return values


def _linear(first: float, last: float, count: int) -> list[float]:
    if count < 2 or not (math.isfinite(first) and math.isfinite(last)):
        raise ValueError
    step = (last - first) / (count - 1)
    # From both ends, so that the last value is exact and a symmetric axis stays so.
    half = (count - 1) / 2
    return [
        first + i * step if i < half else last - (count - 1 - i) * step
        for i in range(count)
    ]


def _logarithmic(first: float, last: float, count: int) -> list[float]:
    if not (first > 0 and last > 0):
        raise ValueError
    middle = _linear(math.log(first), math.log(last), count)[1:-1]
    return [first, *map(math.exp, middle), last]
