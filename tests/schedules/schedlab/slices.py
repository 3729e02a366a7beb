"""Tell the sleeps of the core that may end by their time-out alone, with what waits for that.

A thread that sleeps in the core is woken by what it sleeps for. Most sleeps are bounded all
the same; a run that goes on only since such a bound was reached has lost a wake-up.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 0.1
"""Seconds of the longest bound: a longer sleep is that of an idle thread, or the user's."""

SHORTEST = 0.01
"""A sleep of fewer seconds is a way to poll."""

NEAR = 0.02
"""How far from the end of a time-out that the user gave a slice may end that is cut to it."""


def is_slice(seconds):
    """Return whether a sleep of so many seconds is bounded by the core's own will."""
    return SHORTEST <= seconds <= LONGEST + 1e-9


@dataclass(frozen=True)
class Known:
    """Name a place where a time slice may save somebody, and why.

    Attributes
    ----------
    module, function
        Of the core, where it sleeps.
    broken
        Whether it may do so only while a device is lost, or work on it hangs.
    """

    module: str
    function: str
    reason: str
    broken: bool = False


KNOWN = (
    Known(
        "_buffers.alloca",
        "_grow_late",
        "the thread that retires the last use of memory may hold it for a moment, and tells nobody",
    ),
    Known("_engine.progress", "_run", "a lost device calls no host function", broken=True),
    Known("_engine.waiting", "_sleep", "a lost device calls no host function", broken=True),
)


def place_of(frame):
    """Return the module and the function of the core in which a thread sleeps."""
    while frame is not None:
        name = frame.f_code.co_filename
        if "schedlab" not in name and "greenlet" not in name:
            return ".".join(name.removesuffix(".py").split("/")[-2:]), frame.f_code.co_name
        frame = frame.f_back
    return "", ""


def is_known(place, *, is_broken):
    """Return whether a slice may save somebody here."""
    return any(
        place == (known.module, known.function) and (is_broken or not known.broken)
        for known in KNOWN
    )
