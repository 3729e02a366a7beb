"""Measure memory: allocation, and transfers beside a plain memory copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import numpy as np
from harness import Row, Sample
from numpy.typing import NDArray

import hal
from hal.native import MemoryType

__all__ = ["rows"]

_ALLOCATIONS: Final = (("256 B", 256), ("1 MiB", 1 << 20), ("64 MiB", 64 << 20))
_TRANSFERS: Final = (
    ("4 KiB", 4 << 10),
    ("64 KiB", 64 << 10),
    ("1 MiB", 1 << 20),
    ("16 MiB", 16 << 20),
    ("256 MiB", 256 << 20),
    ("1 GiB", 1 << 30),
)
_REPEATS: Final = 100
_LIMIT: Final = 60.0

_clock = time.perf_counter


class DriverCopies(Protocol):
    """Copy between host memory and the device's by the driver's own calls."""

    def upload(self) -> None:
        """Enqueue a copy from pinned memory to the device."""

    def download(self) -> None:
        """Enqueue a copy to pinned memory."""

    def finish(self) -> None:
        """Wait for all of them."""

    def upload_now(self, source: NDArray[np.uint8]) -> None:
        """Copy an array to the device, and wait until its bytes were taken."""

    def upload_to_end(self, source: NDArray[np.uint8]) -> None:
        """Copy an array to the device, and wait until it is there for every stream."""

    def download_now(self, target: NDArray[np.uint8]) -> None:
        """Copy to an array, and wait."""


def rows(
    device: hal.Device, copies: Callable[[int], DriverCopies] | None, *, quick: bool
) -> list[Row]:
    """Return the rows of allocation, in microseconds, and of transfers, in GB/s.

    `copies` makes the driver's own side for a size, where there is one.
    """
    found = [_allocation_row(device, name, size) for name, size in _ALLOCATIONS]
    for name, size in _TRANSFERS[:4] if quick else _TRANSFERS:
        found += _transfer_rows(device, name, size)
        raw = copies(size) if copies is not None else None
        found += _blocking_rows(device, name, size, raw)
        found += _pinned_rows(device, name, size, raw)
    return found


def _allocation_row(device: hal.Device, name: str, size: int) -> Row:
    """Allocate and close, again and again: from the cache, and from the driver."""

    def cached() -> Mapping[str, float]:
        start = _clock()
        for _ in range(_REPEATS):
            device.allocate(size).close()
        return {"": 1e6 * (_clock() - start) / _REPEATS}

    native = device._native  # noqa: SLF001 - what the cache saves

    def uncached() -> Mapping[str, float]:
        start = _clock()
        for _ in range(_REPEATS):
            native.free(native.allocate(size, MemoryType.DEVICE), MemoryType.DEVICE)
        return {"": 1e6 * (_clock() - start) / _REPEATS}

    return Row(f"allocate and close {name}", "us", {"hal": cached, "driver": uncached})


def _transfer_rows(device: hal.Device, name: str, size: int) -> list[Row]:
    """Move `size` bytes into a buffer and out of it, until they are there."""
    host, other = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    buffer = device.allocate(size)
    upload, download = device.queues.upload, device.queues.download
    repeats = max(1, min(_REPEATS, (256 << 20) // size))
    upload.write(buffer, host).wait()
    copy = _rate(lambda: np.copyto(other, host), size, repeats)
    return [
        Row(
            f"{what} {name}",
            "GB/s",
            {
                "hal": _rate(partial(work, None), size, repeats),
                # Such a wait leaves the copy to a thread of the pool
                "hal, with a time-out": _rate(partial(work, _LIMIT), size, repeats),
                "numpy.copyto": copy,
            },
            higher_is_better=True,
        )
        for what, work in (
            ("write", lambda limit: upload.write(buffer, host).wait(limit)),
            ("read", lambda limit: download.read(buffer, other).wait(limit)),
        )
    ]


def _blocking_rows(device: hal.Device, name: str, size: int, raw: DriverCopies | None) -> list[Row]:
    """Copy `size` bytes to a new array or a new buffer, by calls that block."""
    host, buffer = np.ones(size, np.uint8), device.allocate(size)
    pinned = device.allocate(size, memory="host").map("discard")
    pinned[:] = 1
    repeats = max(1, min(_REPEATS, (256 << 20) // size))

    bare: dict[str, dict[str, Callable[[], object]]] = {}
    if raw is not None:
        bare = {
            "numpy()": {"raw": lambda: raw.download_now(np.empty(size, np.uint8))},
            "device.upload": {
                "raw": lambda: raw.upload_now(host),
                "raw, to its end": lambda: raw.upload_to_end(host),
            },
            "device.upload, pinned": {
                "raw": lambda: raw.upload_now(pinned),
                "raw, to its end": lambda: raw.upload_to_end(pinned),
            },
        }
    found = []
    for what, work in (
        ("numpy()", buffer.numpy),
        ("device.upload", lambda: device.upload(host)),
        ("device.upload, pinned", lambda: device.upload(pinned)),
    ):
        sides = {"hal": _rate(work, size, repeats)}
        sides |= {side: _rate(each, size, repeats) for side, each in bare.get(what, {}).items()}
        sides["numpy.copy"] = _rate(host.copy, size, repeats)
        found.append(Row(f"{what} {name}", "GB/s", sides, higher_is_better=True))
    return found


def _pinned_rows(device: hal.Device, name: str, size: int, raw: DriverCopies | None) -> list[Row]:
    """Copy `size` bytes between a pinned buffer and one of the device, many times in a row."""
    host, buffer = device.allocate(size, memory="host"), device.allocate(size)
    upload, download = device.queues.upload, device.queues.download
    repeats = max(4, min(_REPEATS, (4 << 30) // size))
    found = []
    for what, work, queue, bare in (
        ("upload", lambda: upload.copy(host, buffer), upload, raw and raw.upload),
        ("download", lambda: download.copy(buffer, host), download, raw and raw.download),
    ):
        sides = {"hal": _rate(work, size, repeats, queue.wait_idle)}
        if raw is not None and bare is not None:
            sides["raw"] = _rate(bare, size, repeats, raw.finish)
        found.append(Row(f"pinned {what} {name}", "GB/s", sides, higher_is_better=True))
    return found


def _rate(
    work: Callable[[], object],
    size: int,
    repeats: int,
    finish: Callable[[], object] = lambda: None,
) -> Sample:
    """Do the work over and over, then finish it; in GB/s."""

    def sample() -> Mapping[str, float]:
        start = _clock()
        for _ in range(repeats):
            work()
        finish()
        return {"": 1e-9 * size * repeats / (_clock() - start)}

    return sample
