"""End everything in order: at interpreter exit, and after a fork (rule Q6)."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from hal._base import process, sync
from hal._engine import explain, progress, timelines
from hal._memory import reaper

if TYPE_CHECKING:
    from hal._devices.device import Device

__all__ = ["add", "devices", "install", "remove"]

devices: dict[Device, None] = {}
"""Every open device of this process; those that are not closed before are closed at exit."""

_EXIT_SECONDS = 10.0
"""How long the exit hook lets the work of all devices end."""

_SPECIAL = frozenset(
    {"__await__", "__enter__", "__getitem__", "__init__", "__iter__", "__len__", "__or__"}
)
"""Methods that refuse in a forked child though their names are not public."""

_opened = False
"""Whether this process, or one that it was forked from, has opened a device."""


def install(public_classes: tuple[type, ...]) -> None:
    """Register the exit hook, and the changes to make in a forked child.

    A child has its parent's handles but none of its threads, and a driver's
    context does not survive the fork. So after a device was opened every call
    in the child raises. Replacing the methods costs nothing without a fork,
    unlike a check in every call. If no device was opened, the child only drops what
    threads of the parent held or were.
    """
    atexit.register(_close_all)
    os.register_at_fork(
        after_in_child=lambda: _disable(public_classes) if _opened else progress.renew()
    )


def add(device: Device) -> None:
    """Note an open device."""
    global _opened  # noqa: PLW0603 - one process, one flag
    _opened = True
    devices[device] = None
    explain.contexts[device._context] = None


def remove(device: Device) -> None:
    """Forget a device that was closed."""
    devices.pop(device, None)
    explain.contexts.pop(device._context, None)


def _close_all() -> None:
    """Close every device, and report abandoned work on standard error."""
    try:
        for device in list(devices):  # devices must not wait for each other's cancelled work
            device._context.cancel()
        _close_by(sync.monotonic() + _EXIT_SECONDS)
    except KeyboardInterrupt:
        _close_by(sync.monotonic())  # Ctrl-C means: do not wait
    finally:
        reaper.process.is_ending = True


def _close_by(deadline: float) -> None:
    """Close the devices that are open; their work ends by `deadline` or is abandoned."""
    for device in list(devices):
        for line in device._end(deadline)[0]:
            with contextlib.suppress(Exception):  # stderr may be gone
                sys.stderr.write(f"hal: abandoned at exit: {line}\n")


def _disable(public_classes: tuple[type, ...]) -> None:
    process.note_fork()
    atexit.unregister(_close_all)
    # A thread that no longer exists may hold the lock: no thread may wait for it.
    timelines.replace_lock(_RefusingLock())
    for kind in {base for each in public_classes for base in each.__mro__[:-1]}:
        for name, member in list(vars(kind).items()):
            if name.startswith("_") and name not in _SPECIAL:
                continue
            if isinstance(member, property):
                setattr(kind, name, property(process.refuse))
            elif callable(member):
                setattr(kind, name, process.refuse)


class _RefusingLock:
    """A substitute for the timeline lock in a forked child, which refuses every call."""

    def __enter__(self) -> None:
        process.refuse()

    def __exit__(self, *_: object) -> None:
        """Never get here."""

    def acquire(self) -> None:
        process.refuse()

    def release(self) -> None:
        """Never get here."""

    def _is_owned(self) -> bool:
        """Refuse every call that would begin a step."""
        process.refuse()
