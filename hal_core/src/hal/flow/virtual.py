"""Virtual devices: several logical devices on one physical device."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, Self
from weakref import WeakSet

import hal
from hal.arguments import as_int, as_items, shown
from hal.errors import (
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    HalError,
    InvalidArgumentError,
)
from hal.flow.locks import make_lock, refuse_reentrance
from hal.handlers import dropped, own

_MOST: Final = 1024  # the most virtual devices of one call
_NO_LISTS: Final = (str, bytes, bytearray, memoryview)
"""Sequences that are a single value; `hal.create_device` decides which are a valid limit."""


class PhysicalDevice:
    """The hardware that virtual devices share; takes nothing itself.

    `spec` and `parameters` as for `hal.create_device`. Any thread may use it.
    """

    __slots__ = ("_count", "_lock", "_members", "_parameters", "_spec")

    def __init__(self, spec: str = "cpu", **parameters: object) -> None:
        if "name" in parameters:
            message = "virtual devices have names of their own, as in 'cpu:0/virtual 1'; omit name="
            raise InvalidArgumentError(message)
        self._spec = spec
        self._parameters = parameters
        self._lock = make_lock()
        self._members: list[VirtualDevice] = []
        self._count = 0

    @property
    def lost(self) -> HalError | None:
        """Why the hardware is gone, for all of them; None as long as it is there."""
        for member in list(self._members):
            error = member.device.loss
            if error is not None and not _is_given_up(error):
                return DeviceLostError(
                    f"{member.name} is lost, and with it all virtual devices on its hardware; open "
                    f"them again: {error}"
                )
        return None

    def virtual_device(self, *, memory_limit: str | int | None = None) -> VirtualDevice:
        """Open one more virtual device.

        `memory_limit` is how much it may hold, in bytes or as in ``"64M"``; None means that
        only the hardware limits it. Raises the errors of `hal.create_device`, and
        `DeviceLostError` once the hardware is lost.
        """
        self.check()
        refuse_reentrance(self._lock)
        with self._lock:
            number = self._count
            self._count += 1
        given = dict(self._parameters)
        if memory_limit is not None:
            given["memory_limit"] = memory_limit
        device = hal.create_device(self._spec, **given, name=f"virtual {number}")
        try:
            return VirtualDevice(device, self)
        except BaseException:
            device.close()  # nobody else knows it
            raise

    def add(self, member: VirtualDevice) -> None:
        """Add a virtual device, which is lost with the others; for this module."""
        refuse_reentrance(_adding)
        with _adding:
            # A lost one stays: by it, `lost` knows that the hardware is gone.
            self._members = [
                each for each in self._members if each.device.lost or not each.device.closed
            ]
            hardware = _hardware(member)
            # Another's, unless it was lost and the hardware has been opened anew since
            others = [each for each in _members if not each.lost and _hardware(each) == hardware]
            _members.add(member)
            for each in dict.fromkeys((*self._members, *others)):
                # Another thread may close it meanwhile.
                with dropped(ClosedError):
                    each.device.share_loss(member.device)
            self._members.append(member)

    @property
    def devices(self) -> tuple[VirtualDevice, ...]:
        """The virtual devices that are open."""
        return tuple(each for each in self._members if not each.closed)

    def __repr__(self) -> str:
        return f"<PhysicalDevice {shown(self._spec)} with {len(self.devices)} virtual ones>"

    def check(self) -> None:
        """Raise `DeviceLostError` if the hardware is gone."""
        error = self.lost
        if error is not None:
            raise error


class VirtualDevice:
    """One of several logical devices on one physical device; awaitable.

    Made by `virtual_devices` and `PhysicalDevice.virtual_device`. Its `device` is
    a `hal.Device` of its own: with its own queues, each first-in first-out, its own memory
    accounting and limit, and its own failures. Kernels and buffers of one cannot be used on
    another, as on separate devices. Any thread may use it.

    `hal.flow.Flow` takes the virtual device itself, and other work is given to `device`. `name` is
    the name of that in errors, as in ``"cpu:0/virtual 1"``, which no other open one has.
    `physical` is the hardware, which others share.
    """

    __slots__ = ("__weakref__", "device", "name", "physical")

    def __init__(self, device: hal.Device, physical: PhysicalDevice) -> None:
        self.device: Final = device
        self.name: Final = name_of(device)
        self.physical: Final = physical
        physical.add(self)

    @property
    def lost(self) -> bool:
        """Whether it is gone: it alone, or with the hardware, which takes all."""
        return self.device.lost

    @property
    def gave_up(self) -> bool:
        """Whether it is lost alone: a close, also of a queue, had to leave work behind."""
        error = self.device.loss
        return error is not None and _is_given_up(error)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.device.closed

    @property
    def is_idle(self) -> bool:
        """Whether everything submitted so far has ended, successfully or not; never blocks.

        Raises `DeviceLostError` and `ClosedError`.
        """
        self._check()
        try:
            self.device.wait_idle(0)
        except own(DeadlineExceededError):
            return False
        return True

    def statistics(self) -> hal.MemoryStatistics:
        """Return what memory this virtual device has allocated."""
        self._check()
        return self.device.statistics()

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted so far has ended, for at most `timeout` seconds.

        Raises `DeadlineExceededError`, `DeviceLostError` and `ClosedError`, and not
        the work's own errors.
        """
        self._check()
        self.device.wait_idle(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in asyncio for all work on the upload, compute and download queue, failed or not."""
        self._check()
        queues = self.device.queues
        barriers = [queue.barrier() for queue in (queues.upload, queues.compute, queues.download)]
        for barrier in barriers:
            yield from barrier.__await__()

    def close(self, timeout: float = 10.0) -> tuple[str, ...]:
        """Close this virtual device alone, as `hal.Device.close` does.

        If its work does not end in time, it is lost; the others go on.
        """
        return self.device.close(timeout)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "lost" if self.lost else "open"
        return f"<VirtualDevice {self.name} {state}>"

    def _check(self) -> None:
        self.physical.check()
        if self.device.closed:
            raise ClosedError(f"{self.name} is closed; open others with hal.flow.virtual_devices")
        error = self.device.loss
        if error is not None:
            raise error


def name_of(device: hal.Device) -> str:
    """Return a device's name with the number that distinguishes it, as in errors of the core."""
    return device.queue.name.removesuffix("/compute")


_members: Final[WeakSet[VirtualDevice]] = WeakSet()
"""The virtual devices of this process, of every `PhysicalDevice`."""

# One for all: two objects of `PhysicalDevice` may have the same hardware, and of two members that
# are added at once one must find the other.
_adding: Final = make_lock()


def _hardware(member: VirtualDevice) -> tuple[str, int]:
    return member.device.backend, member.device.info.index


def _is_given_up(error: HalError) -> bool:
    return isinstance(error, DeviceLostError) and error.given_up


def virtual_devices(
    spec: str = "cpu",
    count: int = 2,
    *,
    memory_limit: str | int | Sequence[str | int | None] | None = None,
    **parameters: object,
) -> tuple[VirtualDevice, ...]:
    """Open `count` virtual devices on one physical device, 1 or more.

    `spec` and `parameters` as for `hal.create_device`. `memory_limit` is how
    much each may hold, in bytes or as in ``"64M"``, or a list with the limit
    of each; None means that only the device limits it. Raises the errors of
    `hal.create_device`, and `InvalidArgumentError`; nothing is left open
    then.
    """
    number = as_int(count, "count is how many virtual devices to open", 1, _MOST)
    if isinstance(memory_limit, Sequence) and not isinstance(memory_limit, _NO_LISTS):
        limits: Any = as_items(memory_limit, "memory_limit is a limit or a list of limits")
    else:
        limits = [memory_limit] * number
    if len(limits) != number:
        message = f"memory_limit has {len(limits)} limits for {number} virtual devices"
        raise InvalidArgumentError(message)
    physical = PhysicalDevice(spec, **parameters)
    opened: list[VirtualDevice] = []
    try:
        for limit in limits:
            opened.append(physical.virtual_device(memory_limit=limit))  # noqa: PERF401 - to close
    except BaseException:
        for each in opened:
            each.close()
        raise
    return tuple(opened)
