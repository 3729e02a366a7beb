"""What machine and what software the numbers come from; no names and no paths of it."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
from pathlib import Path

import native

import hal
from hal._base import speedups

__all__ = ["facts"]

_DISTRIBUTIONS = (
    *("hal-core", "hal-cpu", "hal-cuda", "hal-hip", "iree-base-runtime", "numpy"),
    *("cuda-bindings", "cuda-core", "torch", "cupy-cuda12x", "cupy-cuda13x"),
)


def facts(
    device: hal.Device, second: hal.Device | None = None, note: str | None = None
) -> dict[str, object]:
    """Return what the reader of a result must know of the machine."""
    compiler = native.find_compiler()
    beside = {"beside": f"{second.info.name}, {second.info.driver}"} if second else {}
    return ({"note": note} if note else {}) | {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / 2**30, 1),
        "load_at_start": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "engine": speedups.engine(),
        "device": device.info.name,
        "driver": device.info.driver,
        **beside,
        "compiler": native.compiler_version(compiler) if compiler else "none",
        "versions": _versions(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
