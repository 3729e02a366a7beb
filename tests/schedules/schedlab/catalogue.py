"""Find a case by its name."""

import functools

from schedlab.cases import programs, random_program
from schedlab.faults import FAULTS, FaultCase
from schedlab.memory import MEMORY
from schedlab.parts import PARTS
from schedlab.program_case import ProgramCase
from schedlab.refusals import REFUSALS
from schedlab.shortage import SHORTAGE

BY_HAND = {**FAULTS, **REFUSALS, **MEMORY, **PARTS, **SHORTAGE}
"""Factories of the cases without a model, by name."""


@functools.lru_cache(maxsize=1)
def _programs():
    return programs()


def names():
    """Return the names of all programs but the random ones.

    Further cases are ``"random/<seed>"``, ``"fault/<seed>"`` and those of `BY_HAND`.
    """
    return list(_programs())


def find(name, **settings):
    """Return a case; `settings` are those of its class.

    Raises `LookupError` for a name of none, and for a seed that makes no program.
    """
    if name in BY_HAND:
        return BY_HAND[name](**settings)
    if name.startswith("fault/"):
        return FaultCase(int(name.split("/")[1]), **settings)
    if name.startswith("random/"):
        program = random_program(int(name.split("/")[1]))
        if program is None:
            message = f"{name} is no case: it could wait for ever"
            raise LookupError(message)
        return ProgramCase(program, **settings)
    return ProgramCase(_programs()[name], **settings)
