"""Announce a backend through a hook that does not exist."""

from __future__ import annotations

from hal.plugin import Backend, hookimpl


@hookimpl
def hal_backends() -> list[Backend]:
    """Return records, from a hook whose name has one letter too many."""
    return []
