"""List bugs to plant in copies of the core, each with the case that must find it.

A mutant is a few textual patches. A patch that no longer applies is an error,
so that a mutant cannot rot into a copy of the true core.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mutant_tables import read_mutants

from schedlab.loader import Patch

TABLES = ("order", "waits", "failures", "recordings", "memory")
ANY_LINE = ", at any line"
"""What a case ends with in a table, if its threads may switch at any line of the core."""


@dataclass(frozen=True)
class Mutant:
    """Which bug is planted, and which case must find it."""

    name: str
    case: str
    patches: tuple
    lines: bool  # whether threads may switch at any line of the core


MUTANTS = tuple(
    Mutant(name, case.removesuffix(ANY_LINE), tuple(Patch(*p) for p in patches), ANY_LINE in case)
    for table in TABLES
    for name, (case,), patches in read_mutants(Path(__file__).with_name(f"{table}.txt"))
)
