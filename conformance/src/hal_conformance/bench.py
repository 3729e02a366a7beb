"""The devices that the tests share; checks that each test leaves them as they were."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Final

import hal
from hal_conformance.kernels import FILENAME, SIGNATURES, SOURCE
from hal_conformance.profile import Profile

__all__ = ["Bench"]

_SECONDS: Final = 5.0
"""How long a device may take, after a test, to end its work and to free what nobody uses."""


class Bench:
    """Open the devices of a run.

    Attributes
    ----------
    spec
        The device specification that the run was started with.
    profile
        The backend's profile.
    """

    def __init__(self, spec: str, profile: Profile, parameters: Mapping[str, str]) -> None:
        self.spec = spec
        self.profile = profile
        self._parameters = {**profile.parameters, **parameters}
        self._devices: dict[int, hal.Device] = {}
        self._programs: dict[hal.Device, hal.Executable] = {}

    @property
    def full_spec(self) -> str:
        """Return the specification with the run's parameters, for a process of its own."""
        parameters = "&".join(f"{key}={value}" for key, value in self._parameters.items())
        if not parameters:
            return self.spec
        return f"{self.spec}{'&' if '?' in self.spec else '?'}{parameters}"

    def open(self, **parameters: object) -> hal.Device:
        """Open a device of the backend; the caller closes it."""
        return hal.create_device(self.spec, **{**self._parameters, **parameters})

    def device(self, number: int = 0) -> hal.Device:
        """Return one of the devices that live as long as the run, opened on first use.

        Where the backend has several, and the specification names none of them, they take turns.
        """
        device = self._devices.get(number)
        if device is None:
            spec = self.spec
            if number:  # the first is found without the drivers of other backends
                backend, mark, given = spec.partition("?")
                count = sum(each.backend == backend for each in hal.devices())
                spec = f"{backend}:{number % count}{mark}{given}" if count else spec
            device = self._devices[number] = hal.create_device(spec, **self._parameters)
        return device

    def features(self) -> frozenset[str]:
        """Return the device's features, and ``kernels`` if it can run the suite's."""
        features = self.device().features
        if "compile" in features or self.profile.image is not None:
            features |= {"kernels"}
        return features

    def program(self, device: hal.Device) -> hal.Executable:
        """Return the suite's kernels on a device; those of a shared device are loaded once."""
        program = self._programs.get(device)
        if program is None:
            if "compile" in device.features:
                program = device.compile(SOURCE, filename=FILENAME)
            else:
                assert self.profile.image is not None  # noqa: S101 - the feature "kernels"
                program = device.load(self.profile.image, signatures=SIGNATURES)
            if device in self._devices.values():
                self._programs[device] = program
        return program

    def allocations(self) -> dict[hal.Device, int]:
        """Count the native allocations of each shared device."""
        return {
            device: device.statistics().allocations
            for device in self._devices.values()
            if not device.closed
        }

    def open_queues(self) -> list[str]:
        """Return the names of queues that a test created on a shared device and left open."""
        # A device has no list of its queues, so the collector is asked; that takes a while.
        return sorted(
            each.name
            for each in gc.get_objects()
            if issubclass(type(each), hal.Queue)
            and not each.closed
            and each.device in self._devices.values()
            and each not in (each.device.queues.compute, each.device.queues.upload)
            and each is not each.device.queues.download
        )

    def repair(self) -> str:
        """Replace every shared device that is lost or has stuck work; return their names."""
        told = []
        for number, device in list(self._devices.items()):
            why = _unfit(device)
            if why:
                told.append(f"{device.name} {why}")
                del self._devices[number]
                self._programs.pop(device, None)
                device.close(0.0)
        return "; ".join(told)

    def leaks(self, before: Mapping[hal.Device, int]) -> str:
        """Return the new allocations that are left once they had time to be freed."""
        deadline = time.monotonic() + _SECONDS
        while True:
            told = [
                f"{count - before.get(device, 0)} allocations of {device.name}"
                for device, count in self.allocations().items()
                if count > before.get(device, 0)
            ]
            if not told or time.monotonic() > deadline:
                return " and ".join(told)
            gc.collect()
            time.sleep(0.001)

    def close(self) -> tuple[str, ...]:
        """Close the shared devices; return a line for each thing that they left behind."""
        self._programs.clear()
        devices, self._devices = self._devices, {}
        gc.collect()
        return tuple(line for device in devices.values() for line in device.close(_SECONDS))


def _unfit(device: hal.Device) -> str:
    if device.lost:
        return "was lost"
    if device.closed:
        return "was closed"
    try:
        device.wait_idle(_SECONDS)
    except hal.errors.DeadlineExceededError as error:
        return f"was left with work that does not end: {error}"
    return ""
