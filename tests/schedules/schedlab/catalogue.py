"""Find a case by its name."""

from __future__ import annotations

import functools

from schedlab.cases import programs, random_program
from schedlab.faults import BY_HAND, FaultCase
from schedlab.world import ProgramCase


@functools.lru_cache(maxsize=1)
def _programs():
    return programs()


def names():
    """Return the names of all programs but the random ones.

    Further cases are ``"random/<seed>"``, ``"fault/<seed>"`` and those of `BY_HAND`.
    """
    return list(_programs())


def find(name, **settings):
    """Return a case; `settings` are those of its class."""
    if name in BY_HAND:
        return BY_HAND[name](**settings)
    if name.startswith("fault/"):
        return FaultCase(int(name.split("/")[1]), **settings)
    if name.startswith("random/"):
        program = random_program(int(name.split("/")[1]))
        return ProgramCase(program, **settings)
    return ProgramCase(_programs()[name], **settings)
