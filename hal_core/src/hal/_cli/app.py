"""Assemble the commands and turn every expected error into one line."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Annotated, TextIO, cast

import typer

from hal._cli.bench import bench
from hal._cli.conformance import conformance
from hal._cli.demo import demo
from hal._cli.devices import devices
from hal._cli.doctor import doctor
from hal._cli.terminal import GuardedOutput, OutputError, write_error
from hal.errors import HalError

app = typer.Typer(
    name="hal",
    help="A backend-neutral runtime for compute accelerators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(devices)
app.command()(doctor)
app.command()(bench)
app.command()(conformance)
app.command()(demo)


def _print_version(requested: bool) -> None:  # noqa: FBT001 - typer's signature
    if requested:
        sys.stdout.write(f"hal {importlib.metadata.version('hal-core')}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit status of `hal._cli.main`."""
    # Python has None for a stream that the shell has closed.
    if cast("TextIO | None", sys.stderr) is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for good
    if cast("TextIO | None", sys.stdout) is None:
        write_error("standard output is closed")
        return 2
    output = GuardedOutput(sys.stdout)
    try:
        with contextlib.redirect_stdout(cast("TextIO", output)):
            status = _run(arguments)
            output.flush()
    except OutputError as error:
        output.discard()
        if error.is_broken_pipe:
            return 141
        write_error(str(error))
        return 2
    return status


def _run(arguments: Sequence[str]) -> int:
    """Run as `run` does, without its handling of standard output."""
    try:
        app(args=list(arguments), prog_name="hal")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except HalError as error:
        write_error(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
