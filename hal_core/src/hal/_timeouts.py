"""Check the time-outs that users give (rule S6)."""

from __future__ import annotations

from typing import Final, SupportsFloat

import numpy as np

from hal._arguments import ask, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError

__all__ = ["check_timeout"]

_LONGEST: Final = 1e9
"""Seconds, thirty years: what is longer, infinity too, is that, which every clock takes."""


def check_timeout(timeout: SupportsFloat) -> float:
    """Return a time-out in seconds as a float, or raise what is wrong with it."""
    kind = type(timeout)
    if kind is float or kind is int:  # the short way
        given: SupportsFloat = timeout
    elif _is_real(timeout):
        given = ask(float, timeout, _RULE)
    else:
        message = f"{_RULE}, not {kind.__name__}"
        raise ArgumentTypeError(message)
    if given > _LONGEST:  # type: ignore[operator]
        return _LONGEST
    if not given >= 0:  # type: ignore[operator] # a NaN is not either
        message = f"a timeout is 0 or more seconds, or None for ever; {shown(timeout)} was given"
        raise InvalidArgumentError(message)
    return float(given)


_RULE: Final = "a timeout is seconds as a number, or None"


def _is_real(value: object) -> bool:
    """Return whether a value is one real number: numpy gives ``__float__`` to others, too."""
    if isinstance(value, np.generic):
        return isinstance(value, (np.integer, np.floating))
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and not value.ndim and value.dtype.kind in "iuf"
    is_number = hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    return is_number and not isinstance(value, (bool, str, bytes))
