"""Announce the provider for NVIDIA GPUs."""

from __future__ import annotations

from hal.native_collectives import Provider
from hal.plugin import hookimpl
from hal_nccl.provider import NCCL, record

__all__ = ["hal_collectives"]


@hookimpl
def hal_collectives() -> Provider:
    """Return the record."""
    return record(NCCL)
