"""Define command buffers: operations recorded once and submitted together (rules C1 to C4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from hal import _transfers
from hal._dispatch import check_dispatch
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError

if TYPE_CHECKING:
    from types import TracebackType

    from hal._buffer import Buffer
    from hal._device import Device
    from hal._executable import Kernel

__all__ = ["CommandBuffer", "execute"]


class CommandBuffer:
    """Record operations, and replay them on a queue's stream as often as wanted.

    Made by `Device.record`. After `end`, which leaving the ``with`` block
    calls, it is immutable and may be submitted from any thread, many times at
    once. While it records, one thread uses it. It keeps alive what it uses.

    Commands between two barriers may run concurrently, and a barrier orders
    all before it with all after it (C2); on one stream all run in order.
    """

    __slots__ = ("_commands", "_device", "_ended", "_failed", "_resources")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._commands: list[tuple[Any, tuple[Any, ...]]] = []
        self._resources: list[object] = []
        self._ended = False
        self._failed = False

    @property
    def device(self) -> Device:
        """Return the device that it records for."""
        return self._device

    def __len__(self) -> int:
        """Return how many commands were recorded, barriers and no-ops left out."""
        return len(self._commands)

    def __enter__(self) -> Self:
        self._recording()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.end()
        else:
            self._failed = True

    def fill(
        self, buffer: Buffer, value: object, *, offset: int = 0, size: int | None = None
    ) -> None:
        """Record what `Queue.fill` does."""
        self._recording()
        self._add(_transfers.fill(self._device, buffer, value, offset, size))

    def update(self, buffer: Buffer, data: object, *, offset: int = 0) -> None:
        """Record what `Queue.update` does; the bytes are taken now."""
        self._recording()
        self._add(_transfers.update(self._device, buffer, data, offset))

    def copy(
        self,
        source: Buffer,
        target: Buffer,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
    ) -> None:
        """Record what `Queue.copy` does."""
        self._recording()
        self._add(_transfers.copy(self._device, source, target, source_offset, target_offset, size))

    def dispatch(
        self,
        kernel: Kernel,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int = 0,
    ) -> None:
        """Record what `Queue.dispatch` does; the arguments are packed now, once."""
        self._recording()
        self._add(check_dispatch(self._device, kernel, grid, block, args, shared_memory))

    def barrier(self) -> None:
        """Order all commands before it with all after it."""
        # A stream runs them in order as it is.
        self._recording()

    def end(self) -> None:
        """End the recording; raises `InvalidArgumentError` if it has ended."""
        self._recording()
        self._ended = True

    def _add(self, payload: _transfers.Payload) -> None:
        function, arguments, resources = payload
        if payload is not _transfers.NOTHING:
            self._commands.append((function, arguments))
            self._resources.append(resources)

    def _recording(self) -> None:
        if self._failed:
            message = "the recording was left by an error; record another with device.record()"
            raise ClosedError(message)
        if self._ended:
            message = "the recording has ended and is immutable; record another"
            raise InvalidArgumentError(message)

    def _replay(self, stream: int) -> None:
        """Make the native calls on a stream."""
        for function, arguments in self._commands:
            function(stream, *arguments)


def execute(device: Device, commands: CommandBuffer) -> _transfers.Payload:
    """Check an execution and return its payload; see `Queue.execute`."""
    if not isinstance(commands, CommandBuffer):
        message = f"execute takes a command buffer (device.record()), not {type(commands).__name__}"
        raise ArgumentTypeError(message)
    if commands.device is not device:
        message = (
            f"execute: the commands were recorded for {commands.device.name}, and this queue "
            f"belongs to {device.name}"
        )
        raise InvalidArgumentError(message)
    if not commands._ended:
        message = "execute: the recording has not ended; call end(), or leave its with block"
        raise InvalidArgumentError(message)
    return commands._replay, (), commands
