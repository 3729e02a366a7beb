"""Submit every kind of operation, inject errors, and check how operations have failed."""

from __future__ import annotations

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeviceLostError, OperationError, OutOfMemoryError


class Operations:
    """Submit each kind of operation on a device, with what it needs."""

    KINDS = ("fill", "update", "copy", "write", "read", "call", "execute", "barrier")

    def __init__(self, device):
        self.device = device
        self.buffer = device.upload(np.zeros(16, np.uint8))
        self.other = device.upload(np.zeros(16, np.uint8))
        self.array = np.full(16, 7, np.uint8)
        self.out = np.zeros(16, np.uint8)
        with device.record() as self.commands:
            self.commands.fill(self.buffer, 7)
            self.commands.barrier()
            self.commands.copy(self.buffer, self.other)

    def submit(self, kind, queue=None, **lists):
        queue = queue or self.device.queue
        arguments = {
            "fill": (self.buffer, 7),
            "update": (self.buffer, self.array),
            "copy": (self.other, self.buffer),
            "write": (self.buffer, self.array),
            "read": (self.buffer, self.out),
            "call": (list,),
            "execute": (self.commands,),
            "barrier": (),
        }[kind]
        return getattr(queue, kind)(*arguments, **lists)


def assert_broken(waitable, original, kind=OperationError):
    """The failure is the original's class and text, fresh, with the original as its cause."""
    with pytest.raises(kind, match=str(original)) as caught:
        hal.wait_all([waitable], LIMIT)
    assert caught.value is not original
    assert caught.value.__cause__ is original


FAULTS = {
    "operation": lambda: OperationError("injected", native_code=7),
    "memory": lambda: OutOfMemoryError("injected"),
    "foreign": lambda: RuntimeError("injected"),
    "lost": lambda: DeviceLostError("injected"),
}
