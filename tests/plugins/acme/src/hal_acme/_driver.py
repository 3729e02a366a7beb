"""Touch the vendor's library, which no other module does, and turn its errors into hal's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    HalError,
    OperationError,
    OutOfMemoryError,
)
from hal_acme._libacme import DEVICE_MEMORY, DEVICES, VERSION, AcmeError, Context, Event, Stream

__all__ = [
    "DEVICES",
    "DEVICE_MEMORY",
    "VERSION",
    "Context",
    "Event",
    "Stream",
    "mapped_errors",
    "probe",
]

_ERRORS: dict[str, type[HalError]] = {
    "ACME_OUT_OF_MEMORY": OutOfMemoryError,
    "ACME_CONTEXT_LOST": DeviceLostError,
}
"""What each of the vendor's errors means; the others fail one operation."""


def probe() -> None:
    """Raise unless a device is here."""
    if DEVICES == 0:
        raise BackendUnavailableError("the Acme driver reports no device")


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Raise hal's error for the vendor's, with the vendor's name and number."""
    try:
        yield
    except AcmeError as error:
        kind = _ERRORS.get(error.name, OperationError)
        raise kind(
            f"Acme reports {error.name}", native_name=error.name, native_code=error.code
        ) from error
