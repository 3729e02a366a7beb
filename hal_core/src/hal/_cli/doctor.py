"""The command ``hal doctor``: check whether the installed backends work here."""

# No deferred annotations in this module: typer reads them, with their options.
import dataclasses
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

import hal
from hal._base import speedups
from hal._cli.device_checks import CheckOutcome, examine
from hal._cli.terminal import console, progress, write_json

_STYLES: Final = {"passed": "green", "failed": "bold red", "absent": "dim", "skipped": "yellow"}
_REINSTALL: Final = "install it again, in another version, or not at all: pip uninstall {}"


def doctor(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DEVICE",
            help="What to check: backends or devices, such as cpu or cuda:1; by default all that "
            "are here.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON: every check with its time.")
    ] = False,
) -> None:
    """Check that every device works: fill, copy, wait, kernel, graph.

    Each check moves real data and compares it. A check of what a device does not declare, such as
    kernels or graphs, is left out. A failure is shown with its reason and the next step.

    The exit status is 1 if a check failed, a plugin is broken, or a device asked for by name
    cannot be opened, 2 for an unknown device, and otherwise 0. A backend that has no device here
    is listed, and is no failure.

    The first line says whether hal runs with its C extension, and if not, why.
    """
    found = {device.spec: device.info.name for device in hal.devices()}
    backends = hal.backends(probe=True)  # after hal.devices(), which finds out more
    if specs:
        backends, wanted = (), list(dict.fromkeys(specs))
    else:
        present = {spec.partition(":")[0] for spec in found}
        wanted = [*found]
        # It is available, and yet cannot list its devices: opening one tells why.
        wanted += [b.name for b in backends if b.state == "available" and b.name not in present]
    out = console()
    if not as_json:
        out.print(f"engine: {escape(speedups.engine())}", soft_wrap=True)
    records: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("", total=len(wanted))
        for spec in wanted:

            def note(check: str, spec: str = spec) -> None:
                bar.update(task, description=f"[dim]{escape(spec)}: {check}[/]")

            outcomes = list(examine(spec, note))
            bar.advance(task)
            title = found.get(spec, found.get(f"{spec}:0", ""))
            if not as_json:
                _show_device(out, spec, title, outcomes)
            records.append({"device": spec, "name": title, "checks": outcomes})
    broken = [backend for backend in backends if backend.state == "broken"]
    failed = [
        record["device"]
        for record in records
        if any(outcome.status == "failed" for outcome in record["checks"])
    ]
    passed = not (failed or broken)
    if as_json:
        for record in records:
            record["checks"] = [dataclasses.asdict(outcome) for outcome in record["checks"]]
        write_json(
            {
                "passed": passed,
                "engine": speedups.engine(),
                "backends": [backend._asdict() for backend in backends],
                "devices": records,
            }
        )
    else:
        _show_backends(out, backends)
        if not wanted:
            cure = "; pip install ./hal_cpu, in a clone of hal, brings one for every machine"
            has_cpu = any(backend.name == "cpu" for backend in backends)
            out.print(f"No device{'' if has_cpu else cure}.")
        elif passed:
            plural = "s" if len(wanted) > 1 else ""
            out.print(f"[bold green]passed[/]: {len(wanted)} device{plural} checked")
        else:
            names = [*failed, *(backend.name for backend in broken)]
            out.print(f"[bold red]failed[/]: {escape(', '.join(names))}")
    if not passed:
        raise typer.Exit(1)


def _show_device(out: Console, spec: str, title: str, outcomes: list[CheckOutcome]) -> None:
    out.print(f"[bold]{escape(spec)}[/] {escape(title)}".rstrip(), soft_wrap=True)
    for outcome in outcomes:
        status = f"[{_STYLES[outcome.status]}]{outcome.status:<8}[/]"
        time = f"{1e3 * outcome.seconds:8.1f} ms" if outcome.seconds else ""
        text = escape(outcome.reason) or time
        out.print(f"  {outcome.check:<7}{status}{text}", soft_wrap=True)
        if outcome.next_step:
            out.print(f"  {'':<7}[bold]next:[/]   {escape(outcome.next_step)}", soft_wrap=True)
    out.print()


def _show_backends(out: Console, backends: tuple[hal.BackendStatus, ...]) -> None:
    """Report the backends whose devices could not be checked."""
    told = False
    for backend in backends:
        if backend.state not in {"broken", "unavailable"}:
            continue
        told = True
        style = "bold red" if backend.state == "broken" else "yellow"
        reason = escape(" ".join(backend.reason.split()))
        out.print(
            f"[bold]{escape(backend.name)}[/] [{style}]{backend.state}[/]: {reason}", soft_wrap=True
        )
        if backend.state == "broken":
            step = _REINSTALL.format(backend.distribution or backend.name)
            out.print(f"  [bold]next:[/] {escape(step)}", soft_wrap=True)
    if told:
        out.print()
