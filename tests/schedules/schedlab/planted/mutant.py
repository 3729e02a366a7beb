"""Define a planted bug."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mutant:
    """Which bug is planted, and which case must find it."""

    name: str
    case: str
    patches: tuple
    lines: bool = field(default=False)  # whether threads may switch at any line of the core
