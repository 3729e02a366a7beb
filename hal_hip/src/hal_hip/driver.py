"""Enumerate and open the devices of the HIP runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.native import DeviceInfo, NativeDevice, NativeDriver
from hal_hip import _driver
from hal_hip.device import HipDevice

__all__ = ["HipDriver"]


class HipDriver(NativeDriver):
    """The devices of the runtime, in its own order.

    Devices can wait for each other's events: the driver is their domain.
    """

    __slots__ = ("_infos",)

    def __init__(self) -> None:
        """Describe every device; the runtime is initialised."""
        self._infos = tuple(map(_driver.describe, range(_driver.device_count())))

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices found when the driver was opened."""
        return self._infos

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:  # noqa: ARG002 - none
        """Open a device, and find out which features work there.

        Raises the runtime's error if the device cannot be used.
        """
        return HipDevice(self, self._infos[index], only=len(self._infos) == 1)
