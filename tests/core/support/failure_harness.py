"""Inject errors, and check how operations have failed."""

import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeviceLostError, OperationError, OutOfMemoryError


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
