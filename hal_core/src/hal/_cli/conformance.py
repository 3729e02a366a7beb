"""The command ``hal conformance``: prove a backend with the conformance suite."""

# No deferred annotations in this module: typer reads them, with their options.
import enum
import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

import hal
from hal._cli.terminal import console, progress, write_json
from hal.errors import InvalidArgumentError, NotFoundError

_SUITE: Final = "hal_conformance"
"""The package of the suite; found when the command runs, like a plugin."""

_EXIT: Final = {"conformant": 0, "partial": 0, "failed": 1, "not_run": 3}

_STYLES: Final = {
    "conformant": "bold green",
    "partial": "bold yellow",
    "failed": "bold red",
    "not_run": "bold red",
}

_SHOWN_AT_MOST: Final = 40  # lines about tests of one status; the report has them all


class Mode(enum.StrEnum):
    """A way to lower command buffers (C4)."""

    auto = "auto"
    stream = "stream"
    graph = "graph"


def conformance(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The backend to prove, or one of its devices: cpu, cuda:1."
        ),
    ],
    *,
    mode: Annotated[
        Mode, typer.Option(help="How command buffers are lowered: natively or on the stream.")
    ] = Mode.auto,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the report is written as JSON, and as Markdown beside it.",
            show_default=False,
        ),
    ] = None,
    note: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="A line for the report about where it ran.", show_default=False
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the report to standard output, as JSON.")
    ] = False,
) -> None:
    """Run the conformance suite on a backend and show its verdict.

    conformant: every test that the device's features call for passed. partial: all of them but
    those that the backend's profile lists, with reasons. failed: a test failed, or the profile
    is wrong. not_run: the device cannot be opened here.

    The exit status is 0 for the first two, 1 for failed, 2 for a wrong command line or a backend
    that is not installed, and 3 for not_run.
    """
    if importlib.util.find_spec(_SUITE) is None:
        message = "the suite is not installed; in a clone of hal: pip install ./conformance"
        raise NotFoundError(message)
    installed = [backend.name for backend in hal.backends()]
    kind = name.partition("?")[0].partition(":")[0]
    if kind not in installed and "-" not in kind:  # a UUID has dashes
        there = ", ".join(installed) or "no backend"
        raise NotFoundError(f"asked for {name!r}; installed: {there}")
    if report is not None:
        _check_writable(report)
    runner = importlib.import_module(f"{_SUITE}.runner")
    try:
        with progress() as bar:
            shown = functools.partial(_show_event, bar, bar.add_task("", total=None))
            result: dict[str, Any] = runner.run(
                name, mode=mode.value, note=note, report=report, on_event=shown
            )
    except (ValueError, OSError) as error:
        raise InvalidArgumentError(str(error)) from None
    if as_json:
        write_json(result)
    else:
        _show(console(), result, report)
    raise typer.Exit(_EXIT[result["verdict"]])


def _check_writable(report: Path) -> None:
    """Exit unless the report can be written, so that a run of a minute is not wasted."""
    if not report.name:  # an empty path, this folder, and the root have no name
        raise InvalidArgumentError(f"the report cannot be written: '{report}' is no file")
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        for path in (report, report.with_suffix(".md")):
            existed = path.exists()
            path.open("a").close()
            if not existed:
                path.unlink()
    except OSError as error:
        raise InvalidArgumentError(f"the report cannot be written: {error}") from None


def _show_event(bar: Progress, task: TaskID, event: dict[str, Any]) -> None:
    if bar.disable:
        return
    if "tests" in event:
        bar.update(task, total=len(event["tests"]))
    elif "started" in event:
        area = event["started"].partition("::")[0]
        bar.update(task, description=f"[dim]{escape(area)}[/]")
    elif "ended" in event:
        bar.advance(task)
        if event["status"] == "failed":
            bar.print(f"[red]failed[/] {escape(event['ended'])}", soft_wrap=True)


def _show(out: Console, result: dict[str, Any], path: Path | None) -> None:
    for status in ("failed", "expected_failure", "unsupported"):
        lines = _lines(result["tests"], status)
        for subject, reason in lines[:_SHOWN_AT_MOST]:
            line = f"[bold]{status.replace('_', ' ')}[/] {escape(subject)}"
            out.print(f"{line}: {escape(reason)}", soft_wrap=True)
        if len(lines) > _SHOWN_AT_MOST:
            out.print(f"... and {len(lines) - _SHOWN_AT_MOST} more")
    for problem in result["problems"]:
        out.print(f"[bold red]problem[/] {escape(problem)}", soft_wrap=True)
    device = result["device"]
    if device:
        out.print(f"[dim]device    [/] {escape(device['name'])}", soft_wrap=True)
        out.print(f"[dim]driver    [/] {escape(device['driver'])}", soft_wrap=True)
        features = ", ".join(result["features"]["supported"]) or "none"
        out.print(f"[dim]features  [/] {escape(features)}", soft_wrap=True)
    out.print(f"[dim]engine    [/] {escape(result['engine'])}", soft_wrap=True)
    counts = [
        f"{count} {status.replace('_', ' ')}" for status, count in result["counts"].items() if count
    ]
    out.print(f"[dim]tests     [/] {', '.join(counts) or 'none'}")
    if path is not None:
        out.print(f"[dim]report    [/] {escape(str(path))}", soft_wrap=True)
    verdict = result["verdict"]
    text = f"[{_STYLES[verdict]}]{verdict.replace('_', ' ')}[/]"
    reason = f": {escape(result['reason'])}" if result["reason"] else ""
    out.print(f"[dim]verdict   [/] {text}{reason}", soft_wrap=True)


def _lines(tests: list[dict[str, str]], status: str) -> list[tuple[str, str]]:
    """Return the tests with a status, and why; counts those that one reason kept from running."""
    chosen = [(test["id"], test["reason"]) for test in tests if test["status"] == status]
    if status != "unsupported":
        return chosen
    named: dict[str, list[str]] = {}
    for name, reason in chosen:
        named.setdefault(reason, []).append(name)
    return [
        (names[0] if len(names) == 1 else f"{len(names)} tests", reason)
        for reason, names in named.items()
    ]
