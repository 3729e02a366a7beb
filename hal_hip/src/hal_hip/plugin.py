"""Announce the HIP backend; nothing of it is implemented in this version."""

from __future__ import annotations

from typing import NoReturn

from hal.errors import BackendUnavailableError
from hal.plugin import Backend, hookimpl

__all__ = ["hal_backend"]


@hookimpl
def hal_backend() -> Backend:
    """Return the record of the HIP backend."""
    return Backend(
        name="hip",
        summary="AMD GPUs through HIP (registration only, not implemented)",
        probe=_not_implemented,
        open=_not_implemented,
    )


def _not_implemented() -> NoReturn:
    """Say that there is no backend behind the name yet."""
    raise BackendUnavailableError(
        "this version of hal-hip holds the backend's registration only; no device can be opened"
    )
