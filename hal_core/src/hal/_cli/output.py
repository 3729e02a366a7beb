"""Write to the terminal: results to standard output, one-line errors to standard error."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

__all__ = ["console", "write_error"]

_WIDTH_OF_A_PIPE: Final = 200
"""Columns where there is no terminal: enough that a table is not folded."""


def console() -> Console:
    """Return a console on standard output; it colours only on a terminal (see NO_COLOR)."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    return Console(highlight=False, width=width)


def write_error(message: str) -> None:
    """Write one line to standard error, whatever line breaks the message has."""
    line = " ".join(message.split())
    sys.stderr.write(f"hal: {line}\n")
