"""The two providers, and where their libraries are; nothing is loaded before it is used."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from hal.handlers import own
from hal.native_collectives import Join, NativeGroup, Provider

__all__ = ["NCCL", "RCCL", "Flavour", "find_library", "record"]


@dataclass(frozen=True, slots=True)
class Flavour:
    """A library with NCCL's interface: its names, where wheels have it, and the backend."""

    name: str
    backend: str
    files: tuple[str, ...]
    wheels: tuple[str, ...]
    variable: str
    advice: str


NCCL: Final = Flavour(
    "nccl",
    "cuda",
    ("libnccl.so.2",),
    ("nvidia.nccl",),
    "HAL_NCCL_LIBRARY",
    "pip install nvidia-nccl-cu12 (or -cu13)",
)
RCCL: Final = Flavour(
    "rccl",
    "hip",
    ("librccl.so.1", "librccl.so"),
    (),
    "HAL_RCCL_LIBRARY",
    "install ROCm's rccl",
)


def record(flavour: Flavour) -> Provider:
    """Return a provider's record."""
    return Provider(
        name=flavour.name,
        summary=f"{flavour.backend} devices, over {flavour.name.upper()}",
        suits=partial(_suits, flavour),
        join=partial(_join, flavour),
        backends=(flavour.backend,),
        priority=20,
    )


def find_library(flavour: Flavour) -> str | None:
    """Return the library's path or name: the variable's, a wheel's, or the system's."""
    given = os.environ.get(flavour.variable)
    if given:
        return given
    for wheel in flavour.wheels:
        try:
            spec = importlib.util.find_spec(wheel)
        except own(ModuleNotFoundError):
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for file in flavour.files:
                path = Path(folder, "lib", file)
                if path.is_file():
                    return str(path)
    found = ctypes.util.find_library(flavour.name)
    if found is None and Path("/opt/rocm/lib", flavour.files[0]).is_file():
        found = str(Path("/opt/rocm/lib", flavour.files[0]))
    return found


def _suits(flavour: Flavour, request: Join) -> str:
    if find_library(flavour) is None:
        return f"its library, {flavour.files[0]}, is not here: {flavour.advice}"
    place = request.place
    if place.size == 1 or request.exchange is not None or place.rendezvous is not None:
        return ""
    if place.launcher in {"mpi", "slurm"} and importlib.util.find_spec("mpi4py") is not None:
        return ""
    return (
        "the ranks have no way to meet: give join() a rendezvous, 'tcp://HOST:PORT' or "
        "'file:///PATH', or install mpi4py where mpiexec starts them"
    )


def _join(flavour: Flavour, request: Join) -> NativeGroup:
    return cast("NativeGroup", import_module("hal_nccl.group").join(flavour, request))
