"""End everything in order: at interpreter exit, and after a fork (rule Q6)."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from hal._base import process, sync
from hal._base import sharing_watch as watching
from hal._base.failures import told
from hal._engine import closing, explain, progress, steps, timelines
from hal._memory import blocking, peers, reaper
from hal.handlers import dropped, own

if TYPE_CHECKING:
    from hal._devices.device import Device
    from hal._engine.steps import CallStep


devices: dict[Device, None] = {}
"""Every open device of this process; those that are not closed before are closed at exit."""

_EXIT_SECONDS = 10.0  # how long the exit hook lets the work of all devices end

_SPECIAL = frozenset(
    {"__await__", "__enter__", "__getitem__", "__init__", "__iter__", "__len__", "__or__"}
)
"""Methods that refuse in a forked child though their names are not public."""

_opened = False  # whether this process, or one that it was forked from, has opened a device


def install(public_classes: tuple[type, ...]) -> None:
    """Register the exit hook, and the changes to make in a forked child."""
    atexit.register(close_all)
    # A child has its parent's handles but none of its threads, and a driver's context does not
    # survive the fork. So after a device was opened every call in the child raises: its methods are
    # replaced, which costs nothing without a fork, unlike a check in every call. If none was
    # opened, the child only drops what threads of the parent held or were.
    os.register_at_fork(
        after_in_child=lambda: _disable(public_classes) if _opened else progress.renew()
    )


_names: Final[WeakValueDictionary[str, Device]] = WeakValueDictionary()
"""Open devices, and those that are being opened, by their names."""

_naming: Final = sync.OwnedLock()


def take_name(device: Device, name: str) -> str:
    """Return a name that no other open device has."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    with steps.unheld(_naming):
        taken = next(each for each in itertools.chain((name,), numbered) if each not in _names)
        _names[taken] = device
    return taken


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
    _names.pop(device._name, None)
    for context in list(explain.contexts):
        context.guests.pop(device._context, None)


def end(
    step: CallStep, device: Device, deadline: float
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Close a device; None if another thread is about to. See `Device.close`.

    Each call in here has a step of its own, and can be repeated: another close
    completes what an interrupt leaves.
    """
    step.calm = True
    if steps.is_mine(device._closer):
        return (), ()  # called by a finaliser, in the middle of our own close
    closer = steps.Closer()
    with closer.mark:
        with timelines.lock:
            if device not in devices:
                return (), ()
            if steps.is_another(device._closer, closer):
                return None
            device._closed = True
            device._closer = closer
        return _free(device, deadline)


def _free(device: Device, deadline: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Close a device's queues, and free what it has; for `end`."""
    context = device._context
    abandoned = closing.close_queues(list(context.queues), deadline)
    abandoned += peers.end_visits(context, deadline)
    unclosed = [queue.name for queue in context.queues if not queue._gone]
    if unclosed and not abandoned:
        # Another thread closes them, and their work has not ended in time.
        abandoned = tuple(f"{name}, which is still being closed" for name in unclosed)
        closing.give_up(context, abandoned)
    if not abandoned and not closing.wait_for_calls(context, deadline):
        abandoned = (closing.call_on(device._name),)
        closing.give_up(context, abandoned)
    if context.lost is None:
        closing.close_events(context)
    # The heap comes last: it closes the native device, unless a view still shows memory of it.
    device._timers.close()
    device._external.close()
    blocking.close(device)
    # Work that goes on after a time-out keeps its context: it is left behind.
    left = device._heap.close(release_context=not abandoned)
    with timelines.lock:
        context.keep_loss()
    remove(device)
    return abandoned, left


def close_all() -> None:
    """Close every device, and report abandoned work on standard error."""
    try:
        for device in list(devices):  # devices must not wait for each other's cancelled work
            closing.cancel(device._context)
        _close_by(sync.monotonic() + _EXIT_SECONDS)
    except KeyboardInterrupt:
        _close_by(sync.monotonic())  # Ctrl-C means: do not wait
    finally:
        watching.watch.leave()  # after the closes, whose failures others are to hear of
        reaper.process.is_ending = True


def _close_by(deadline: float) -> None:
    """Close the devices that are open; their work ends by `deadline` or is abandoned."""
    for device in list(devices):
        try:
            lines = device._end(deadline)[0]
        except own(Exception) as error:  # as of a driver that refuses: the others are to be closed
            lines = (f"{device._name}, whose close failed: {told(error)}",)
        for line in lines:
            with dropped(Exception):  # stderr may be gone
                sys.stderr.write(f"hal: abandoned at exit: {line}\n")


def _disable(public_classes: tuple[type, ...]) -> None:
    process.note_fork()
    atexit.unregister(close_all)
    reaper.process.is_ending = True  # finalisers have nothing to give back here
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

    # The last one is asked before a step begins.
    __enter__ = __exit__ = acquire = release = _is_owned = process.refuse
