"""Enumerate and open the devices of the CUDA driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.errors import InvalidArgumentError
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

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:
        """Retain the primary context of a device.

        The backend has no parameters of its own. Raises
        `InvalidArgumentError` for any, and the driver's error if there can be
        no context.
        """
        for name in parameters:
            message = f"the cuda backend has no parameter {name!r}, and none of its own"
            raise InvalidArgumentError(message)
        return CudaDevice(self, self._infos[index])
