"""Write to the terminal: results to standard output, one-line errors to standard error."""

from __future__ import annotations

import json
import sys
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["console", "progress", "write_error", "write_json"]

_WIDTH_OF_A_PIPE: Final = 200
"""Columns where there is no terminal: enough that a table is not folded."""


def console() -> Console:
    """Return a console on standard output; it colours only on a terminal (see NO_COLOR)."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    return Console(highlight=False, width=width)


def progress() -> Progress:
    """Return a bar on standard error for long work; it shows nothing where there is no terminal."""
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def write_json(record: object) -> None:
    """Write a record to standard output, for programs."""
    json.dump(record, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def write_error(message: str) -> None:
    """Write one line to standard error, whatever line breaks the message has."""
    line = " ".join(message.split())
    sys.stderr.write(f"hal: {line}\n")
