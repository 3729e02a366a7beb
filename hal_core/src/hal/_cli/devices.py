"""Implement ``hal devices``: what is installed, and what is here."""

# No deferred annotations in this module: typer reads them, with their options.
import dataclasses
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hal
from hal._cli.output import console, write_json

__all__ = ["devices"]

_STATE_STYLES = {"available": "green", "unavailable": "yellow", "broken": "red"}


def devices(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON: everything that is known.")
    ] = False,
) -> None:
    """List the installed backends with their state, and every device that can be opened.

    A backend that is broken or has no device here is listed with the reason; the exit status is 0
    all the same.
    """
    backends = hal.backends(probe=True)
    found = hal.devices()
    if as_json:
        record = {
            "backends": [dataclasses.asdict(backend) for backend in backends],
            "devices": [
                {"spec": device.spec, "backend": device.backend} | _info_record(device)
                for device in found
            ],
        }
        write_json(record)
        return
    out = console()
    _show_backends(out, backends)
    if found:
        _show_devices(out, found)
    else:
        out.print("No device.")


def _info_record(device: hal.DeviceDescription) -> dict[str, object]:
    return dataclasses.asdict(device.info) | {"properties": dict(device.info.properties)}


def _show_backends(out: Console, backends: tuple[hal.BackendStatus, ...]) -> None:
    if not backends:
        out.print("No backend is installed; pip install hal-cpu brings one that works everywhere.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("backend", "state", "from", "what it is, or why not"):
        table.add_column(heading, overflow="fold")
    for backend in backends:
        style = _STATE_STYLES.get(backend.state, "")
        table.add_row(
            f"[bold]{escape(backend.name)}[/]",
            f"[{style}]{backend.state}[/]" if style else backend.state,
            escape(f"{backend.distribution} {backend.version}".strip()),
            escape(" ".join((backend.reason or backend.summary).split())),
        )
    out.print(table)


def _show_devices(out: Console, found: tuple[hal.DeviceDescription, ...]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("device", style="bold")
    table.add_column("name", overflow="fold")
    table.add_column("architecture")
    table.add_column("units", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("driver", overflow="fold")
    table.add_column("UUID", overflow="fold")
    for device in found:
        info = device.info
        table.add_row(
            device.spec,
            escape(info.name),
            escape(info.architecture),
            str(info.compute_units),
            f"{info.total_memory / 2**30:.1f} GiB",
            escape(info.driver),
            escape(info.uuid),
        )
    out.print(table)
