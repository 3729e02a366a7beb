"""Check executions of recordings (rule C1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal._buffers.alloca import run_housed, transient
from hal._commands.command_buffer import CommandBuffer
from hal._engine.plan import Payload
from hal._memory import peers
from hal._memory.replay import Housed
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._memory.core import DeviceCore

__all__ = ["check_execution"]


def check_execution(device: DeviceCore, commands: object, bindings: object) -> tuple[Payload, bool]:
    """Check an execution; return its payload, and whether that is a host operation.

    See `Queue.execute`.
    """
    if not isinstance(commands, CommandBuffer):
        message = f"execute takes a command buffer (device.record()), not {type(commands).__name__}"
        raise ArgumentTypeError(message)
    if commands._device is not device:
        message = (
            f"execute: the commands were recorded for {commands.device._name}, and this queue "
            f"belongs to {device._name}"
        )
        raise InvalidArgumentError(message)
    playback = commands._playback
    if playback is None or commands._failed:
        message = "execute: the recording has not ended; call end(), or leave its with block"
        raise InvalidArgumentError(message)
    need = playback.temporaries()
    block = transient(device, need, 0) if need else None
    payload, is_host = playback.payload(bindings, block)
    if device._access:
        payload = peers.guard(device, payload, is_host=is_host)
    if block is None:
        return payload, is_host
    function, arguments, resources = payload
    assert function is not None  # noqa: S101 - it has commands
    if is_host:
        return (run_housed, (block, function, arguments), resources), True
    return (Housed(block, function, arguments), (), resources), False
