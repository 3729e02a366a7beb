"""Find a case by its name."""

from __future__ import annotations

import functools

from schedlab.cases import programs, random_program
from schedlab.world import ProgramCase


@functools.lru_cache(maxsize=1)
def _programs():
    return programs()


def names():
    """Return the names of all cases but the random ones (``"random/<seed>"``)."""
    return list(_programs())


def find(name, **settings):
    """Return a case; `settings` are those of its class."""
    if name.startswith("random/"):
        program = random_program(int(name.split("/")[1]))
        return ProgramCase(program, **settings)
    return ProgramCase(_programs()[name], **settings)
