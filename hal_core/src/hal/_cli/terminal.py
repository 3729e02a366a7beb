"""Write to the terminal: results to standard output, one-line errors to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_WIDTH_OF_A_PIPE: Final = 200  # columns without a terminal: enough that a table is not folded


class OutputError(Exception):
    """The error of standard output; not an `OSError`, which the libraries catch."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.is_broken_pipe = isinstance(error, BrokenPipeError)  # no mistake: the reader has gone


class GuardedOutput:
    """Standard output, whose errors are `OutputError`, apart from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write as the stream does."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputError(error) from None

    def flush(self) -> None:
        """Flush as the stream does."""
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputError(error) from None

    def discard(self) -> None:
        """Discard what was not written."""
        _discard(self._stream)


def _discard(stream: TextIO) -> None:
    """Let a stream's unwritten text go nowhere: the interpreter would fail on it at its end."""
    with contextlib.suppress(OSError):  # a stream of another kind has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def console() -> Console:
    """Return a console on standard output; it colours only on a terminal (see NO_COLOR)."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    return Console(highlight=False, width=width)


def progress() -> Progress:
    """Return a bar on standard error for long work; it shows nothing without a terminal."""
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
    try:
        sys.stderr.write(f"hal: {line}\n")
    except OSError:  # the exit status reports it, too
        _discard(sys.stderr)
