"""Enumerate and open the devices of the CUDA driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.native import DeviceInfo, NativeDevice, NativeDriver
from hal_cuda import _driver
from hal_cuda.device import CudaDevice

__all__ = ["CudaDriver"]


class CudaDriver(NativeDriver):
    """The devices of the driver, in its own order.

    Devices can wait for each other's events: the driver is their domain.
    """

    __slots__ = ("_infos",)

    def __init__(self) -> None:
        """Describe every device; the driver is initialised."""
        self._infos = tuple(map(_driver.describe, range(_driver.device_count())))

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices found when the driver was opened."""
        return self._infos

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:  # noqa: ARG002 - none
        """Retain the primary context of a device; raises the driver's error without one."""
        return CudaDevice(self, self._infos[index])
