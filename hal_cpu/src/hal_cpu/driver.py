"""Enumerate and open the CPU backend's devices."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Final

from hal.errors import BackendUnavailableError, InvalidArgumentError
from hal.handlers import own
from hal.native import DeviceInfo, NativeDevice, NativeDriver
from hal_cpu import _build, _driver, _events, _image, _system
from hal_cpu.device import CpuDevice

__all__ = ["CpuDriver"]

_THREADS_AT_MOST: Final = 1024
_SEED_AT_MOST: Final = 2**32 - 1
_DEVICES_AT_MOST: Final = 64


class CpuDriver(NativeDriver):
    """The machine's processors, presented as one device.

    With ``HAL_CPU_DEVICES=N`` in the environment there are N devices that
    share the processors and the memory, to test programs that need several.

    Attributes
    ----------
    runtime
        The loaded C runtime.
    events
        The events of all devices, which can wait for each other.
    """

    __slots__ = ("_infos", "events", "runtime")

    parameters = ("threads", "graph_seed")

    def __init__(self) -> None:
        """Build the runtime or find it in the cache, and load it.

        Raises `BackendUnavailableError` if there is no compiler.
        """
        self.runtime = _driver.load_runtime()
        self.events = _events.load_events()
        count = _device_count()
        self._infos = tuple(_describe(index, self.runtime.description) for index in range(count))

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the one device, or as many as ``HAL_CPU_DEVICES`` asks for."""
        return self._infos

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:
        """Open a device.

        The parameters are ``threads``: how many threads, the stream's own
        included, work on one kernel, fill, copy or graph; by default as many
        as there are processors. And ``graph_seed``: a number that decides the
        order of a graph's nodes where its dependencies leave it open, the
        same each time on one thread. Raises `InvalidArgumentError` for a value
        that is not a number from 1 to 1024, or from 0 to 2**32 - 1.
        """
        info = self._infos[index]
        threads, seed = info.compute_units, 0
        if "threads" in parameters:
            threads = _number("threads", parameters["threads"], 1, _THREADS_AT_MOST)
        if "graph_seed" in parameters:
            seed = _number("graph_seed", parameters["graph_seed"], 0, _SEED_AT_MOST) + 1
        return CpuDevice(self, info, threads, seed)


def _number(name: str, value: str, least: int, most: int) -> int:
    """Return a parameter's value; raises `InvalidArgumentError` if it is not such a number."""
    number = int(value) if value.isascii() and value.isdigit() else -1
    if not least <= number <= most:
        message = f"{name}={value!r} is no number from {least} to {most}"
        raise InvalidArgumentError(message)
    return number


def _device_count() -> int:
    """Return how many devices the environment asks for."""
    text = os.environ.get("HAL_CPU_DEVICES", "1")
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= count <= _DEVICES_AT_MOST:
        message = f"HAL_CPU_DEVICES={text!r} is no number from 1 to {_DEVICES_AT_MOST}"
        raise BackendUnavailableError(message)
    return count


def _describe(index: int, compiler: str) -> DeviceInfo:
    """Describe device `index`."""
    page = os.sysconf("SC_PAGE_SIZE")
    return DeviceInfo(
        index=index,
        name=_system.processor_name(),
        uuid=_uuid(index),
        architecture=platform.machine(),
        total_memory=_system.total_memory(),
        compute_units=_system.processor_count(),
        max_threads_per_block=1024,
        max_shared_memory=_image.MAX_SHARED_MEMORY,
        warp_size=32,
        driver=compiler,
        properties={"page_size": page},
    )


@functools.cache
def _machine() -> str:
    """Return an identifier of this machine."""
    text = platform.node()
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            with open(name, encoding="utf-8") as file:
                text = file.read().strip() or text
            break
        except own(OSError, ValueError):
            continue
    return text


def _uuid(index: int) -> str:
    """Return a UUID of version 8, of a hash: it tells nothing else about this machine."""
    key = _build.CACHE.key("hal-cpu", _machine(), str(index))
    return f"{key[:8]}-{key[8:12]}-8{key[13:16]}-a{key[17:20]}-{key[20:32]}"
