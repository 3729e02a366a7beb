"""Announce the provider; nothing of MPI's is loaded before it is used."""

from __future__ import annotations

import importlib
import importlib.util
from typing import cast

from hal.native_collectives import Join, NativeGroup, Provider
from hal.plugin import hookimpl

__all__ = ["hal_collectives"]


@hookimpl
def hal_collectives() -> Provider:
    """Return the record."""
    return Provider(
        name="mpi",
        summary="any device, over MPI by mpi4py",
        suits=_suits,
        join=_join,
        priority=10,
    )


def _suits(request: Join) -> str:
    place = request.place
    if place.launcher not in {"mpi", "slurm"}:
        return "the process was not started by mpiexec or srun"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install mpi4py, or './hal_mpi[mpich]' in a clone"
    return ""


def _join(request: Join) -> NativeGroup:
    return cast("NativeGroup", importlib.import_module("hal_mpi.group").join(request))
