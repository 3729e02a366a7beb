"""Hold what a part of `multi_gpu.py` is told and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["LIMIT", "Findings", "Settings"]

LIMIT = 60.0
"""Seconds that anything is waited for."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run.

    Attributes
    ----------
    backend, devices
        On what, and on how many.
    quick
        Small and few.
    large
        With a transfer beyond 4 GiB.
    target
        What programs are compiled for; None is the first device's.
    """

    backend: str
    devices: int
    quick: bool = False
    large: bool = False
    target: str | None = None


@dataclass(slots=True)
class Findings:
    """Hold what a part finds.

    Attributes
    ----------
    name
        The part's.
    rows
        Facts, each by name.
    problems
        What is not as it has to be.
    seconds
        How long it took.
    drawn
        What is drawn, and not written.
    """

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    drawn: dict[str, Any] = field(default_factory=dict)

    def row(self, **facts: Any) -> None:
        """Add a row, and say it."""
        self.rows.append(facts)
        told = ", ".join(f"{name} {_shown(value)}" for name, value in facts.items())
        print(f"    {told}", flush=True)  # noqa: T201

    def expect(self, holds: object, what: str) -> bool:
        """Note a problem unless something holds; return whether it does."""
        if not holds:
            self.problems.append(what)
        return bool(holds)

    def record(self) -> dict[str, Any]:
        """Return what is written."""
        return {
            "passed": not self.problems,
            "problems": self.problems,
            "seconds": round(self.seconds, 2),
            "rows": self.rows,
        }

    def table(self) -> str:
        """Return the rows as a table."""
        verdict = "; ".join(self.problems) or "passed"
        lines = [f"{self.name}, {self.seconds:.1f} s: {verdict}"]
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [[_shown(row.get(name, "")) for name in names] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
        lines += [
            "  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in (names, *cells)
        ]
        return "\n".join(lines if self.rows else lines[:1])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
