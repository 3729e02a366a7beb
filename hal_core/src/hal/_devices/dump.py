"""A report of what every operation of the process waits for (rule S9)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final, Protocol

from hal._devices import lifecycle
from hal._devices.device import Device
from hal._engine import explain, timelines
from hal._engine.operation import Operation
from hal._engine.stream import StreamQueue
from hal.arguments import ask, shown
from hal.errors import ArgumentTypeError

_DEVICES: Final = 16
"""The most devices reported, queues of each, and operations of each kind in a queue."""
_QUEUES: Final = 16
_OPERATIONS: Final = 3


class _Writable(Protocol):
    def write(self, text: str, /) -> object: ...


def dump(file: _Writable | None = None) -> str:
    """Return what the operations of all open devices do and wait for; also write it to `file`.

    Each busy queue is listed with its oldest operations,
    and who has promised what they wait for, or "nobody". For people to read:
    the text may change between versions. It is shortened where there is too much
    of a kind. Never waits for a device. Any thread may call it, also while
    others hang. Raises `ArgumentTypeError` for an object without ``write``.
    """
    if file is not None and not callable(getattr(file, "write", None)):
        message = f"dump writes to a text stream, as sys.stderr is one, not to {shown(file)}"
        raise ArgumentTypeError(message)
    devices = list(lifecycle.devices)
    lines = [f"hal in process {os.getpid()}: {_number(len(devices), 'open device')}"]
    for device in devices[:_DEVICES]:
        lines += _of_device(device)
    lines += _more(len(devices) - _DEVICES, "devices", "")
    text = "\n".join(lines) + "\n"
    if file is not None:
        ask(file.write, text, "dump writes to a text stream")
    return text


def _of_device(device: Device) -> Iterator[str]:
    with timelines.lock:
        counts = [(queue, _counts(queue)) for queue in device._context.queues]
    busy = [(queue, kinds) for queue, kinds in counts if any(kinds.values())]
    yield f"{device!r}: {_number(len(busy), 'busy queue')}, {len(counts) - len(busy)} idle"
    for queue, kinds in busy[:_QUEUES]:
        told = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items() if found)
        yield f"  {queue.name}: {told}"
        for kind, found in kinds.items():
            for operation in itertools.islice(found, _OPERATIONS):
                story = explain.describe_operation(operation)
                if story:  # else it has ended meanwhile
                    yield f"    {story}"
            yield from _more(len(found) - _OPERATIONS, kind, "    ")
    yield from _more(len(busy) - _QUEUES, "busy queues", "  ")


def _counts(queue: StreamQueue) -> dict[str, list[Operation]]:
    """Return the operations of a queue by their state; under the lock."""
    issuing = [] if queue._issuing is None else [queue._issuing]
    return {
        "issued": [*queue._ring, *issuing],
        "on the host": list(queue._hosts),
        "not issued": queue._unissued(),
    }


def _more(count: int, kind: str, indent: str) -> list[str]:
    return [f"{indent}{count} more {kind}"] if count > 0 else []


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
