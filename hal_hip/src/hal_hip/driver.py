"""Enumerate and open the devices of the HIP runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.errors import BackendUnavailableError, HalError, InvalidArgumentError
from hal.native import DeviceInfo, NativeDevice, NativeDriver
from hal_hip import _driver
from hal_hip._host import HostMemory
from hal_hip.device import HipDevice

__all__ = ["HipDriver"]


class HipDriver(NativeDriver):
    """Present the devices that the runtime shows, in its own order.

    Devices can wait for each other's events: the driver is their domain.

    Attributes
    ----------
    host
        What is pinned of other libraries' host memory, for all devices.
    """

    __slots__ = ("_infos", "host")

    def __init__(self) -> None:
        """Describe every device; the runtime is initialised."""
        self._infos = tuple(map(_driver.describe, range(_driver.device_count())))
        self.host = HostMemory()

    def devices(self) -> Sequence[DeviceInfo]:
        """Return what was found when the driver was opened."""
        return self._infos

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:
        """Open a device, and find out what works there.

        The backend has no parameters of its own. Raises
        `InvalidArgumentError` for one, and `BackendUnavailableError` with the
        native reason if the device cannot be used.
        """
        for name in parameters:
            message = f"the hip backend has no parameter {name!r}, and none of its own"
            raise InvalidArgumentError(message)
        info = self._infos[index]
        try:
            return HipDevice(self, info, only=len(self._infos) == 1)
        except HalError as error:
            raise BackendUnavailableError(
                f"hip:{index} ({info.name}) cannot be opened: {error}",
                native_name=error.native_name,
                native_code=error.native_code,
            ) from error
