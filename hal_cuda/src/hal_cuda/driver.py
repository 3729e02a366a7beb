"""Enumerate and open the devices of the CUDA driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.errors import BackendUnavailableError, HalError, InvalidArgumentError
from hal.native import DeviceInfo, NativeDevice, NativeDriver
from hal_cuda import _driver
from hal_cuda.device import CudaDevice

__all__ = ["CudaDriver"]


class CudaDriver(NativeDriver):
    """Present the devices that the driver shows, in its own order.

    Devices can wait for each other's events: the driver is their domain.
    """

    __slots__ = ("_infos",)

    def __init__(self) -> None:
        """Describe every device; the driver is initialised."""
        self._infos = tuple(map(_driver.describe, range(_driver.device_count())))

    def devices(self) -> Sequence[DeviceInfo]:
        """Return what was found when the driver was opened."""
        return self._infos

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:
        """Retain the primary context of a device.

        The backend has no parameters of its own. Raises
        `InvalidArgumentError` for one, and `BackendUnavailableError` with the
        native reason if there can be no context.
        """
        for name in parameters:
            message = f"the cuda backend has no parameter {name!r}, and none of its own"
            raise InvalidArgumentError(message)
        info = self._infos[index]
        try:
            return CudaDevice(self, info)
        except HalError as error:
            raise BackendUnavailableError(
                f"cuda:{index} ({info.name}) cannot be opened: {error}",
                native_name=error.native_name,
                native_code=error.native_code,
            ) from error
