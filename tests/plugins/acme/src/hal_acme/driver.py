"""Enumerate and open Acme devices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hal.errors import InvalidArgumentError
from hal.native import DeviceInfo, NativeDriver
from hal_acme import _driver
from hal_acme.device import AcmeDevice

__all__ = ["AcmeDriver"]


class AcmeDriver(NativeDriver):
    """Enumerate and open Acme devices; their streams can wait for each other's events."""

    __slots__ = ("events", "handles")

    parameters = ("capacity",)

    def __init__(self) -> None:
        self.handles = itertools.count(1)
        self.events: dict[int, _driver.Event] = {}  # of all devices, because they are shared

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices that the vendor's library counts."""
        return [_describe(index) for index in range(_driver.DEVICES)]

    def open_device(self, index: int, parameters: Mapping[str, str]) -> AcmeDevice:
        """Open a device; `capacity` is in bytes."""
        limit = parameters.get("capacity", str(_driver.DEVICE_MEMORY))
        if not limit.isdecimal():
            raise InvalidArgumentError(f"capacity is a number of bytes, not {limit!r}")
        context = _driver.Context(min(int(limit), _driver.DEVICE_MEMORY))
        return AcmeDevice(self, _describe(index), context, self.events, self.handles)


def _describe(index: int) -> DeviceInfo:
    """Return what the vendor's library says of a device."""
    return DeviceInfo(
        index=index,
        name="Acme One",
        uuid=f"ACME-00000000-0000-4000-8000-{index:012x}",
        architecture="acme1",
        total_memory=_driver.DEVICE_MEMORY,
        compute_units=1,
        max_threads_per_block=1,
        max_shared_memory=0,
        warp_size=32,
        driver=f"libacme {_driver.VERSION}",
    )
