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

    __slots__ = ()

    def devices(self) -> Sequence[DeviceInfo]:
        """Describe every device; the runtime is initialised."""
        return tuple(map(_driver.describe, range(_driver.device_count())))

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:  # noqa: ARG002 - none
        """Open a device, and find out which features work there.

        Raises the runtime's error if the device cannot be used.
        """
        return HipDevice(self, _driver.describe(index), only=_driver.device_count() == 1)
