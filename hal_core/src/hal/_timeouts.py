"""Check the time-outs that users give (rule S6)."""

from __future__ import annotations

import math
from typing import SupportsFloat

from hal.errors import ArgumentTypeError, InvalidArgumentError

__all__ = ["check_timeout"]


def check_timeout(timeout: SupportsFloat) -> float:
    """Return a time-out in seconds as a float, or raise what is wrong with it."""
    try:
        if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
            raise TypeError  # noqa: TRY301 - as float() does of an array
        seconds = float(timeout)
    except (TypeError, OverflowError):
        message = f"a timeout is seconds as a number, or None; not {type(timeout).__name__}"
        raise ArgumentTypeError(message) from None
    if math.isnan(seconds) or seconds < 0:
        message = f"a timeout is 0 or more seconds, or None for ever; {timeout} was given"
        raise InvalidArgumentError(message)
    return seconds
