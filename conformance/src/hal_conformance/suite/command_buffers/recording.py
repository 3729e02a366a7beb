"""Ways to have commands run: submitted one by one, or recorded in each way, and executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hal
from hal_conformance.suite.support import LIMIT

__all__ = ["OPERANDS", "Direct", "Recorder", "Target", "scale"]

OPERANDS: Final = ("direct", "slots")
"""How a recording names its buffers: themselves, or slots that the execution binds (C3)."""

Target = hal.Buffer | hal.Slot
"""What a command takes."""


def scale(
    to: hal.Queue | hal.CommandBuffer,
    program: hal.Executable,
    source: Target,
    target: Target,
    factor: int,
    offset: int,
    n: int = 4,
    **lists: Any,  # noqa: ANN401 - as the queue's
) -> Any:  # noqa: ANN401 - a queue's submission
    """Dispatch ``target[i] = source[i] * factor + offset``, or record it."""
    kernel, arguments = program["scale_and_offset"], (source, target, factor, offset, n)
    return to.dispatch(kernel, grid=-(-n // 64), block=min(n, 64), args=arguments, **lists)


class Direct:
    """Submit commands one by one, where a `Recorder` records and executes them."""

    def __init__(self, queue: hal.Queue) -> None:
        self._queue = queue

    def run(self, commands: Callable[..., object], *buffers: hal.Buffer) -> None:
        """Call ``commands(queue, *buffers)``, and wait."""
        commands(self._queue, *buffers)
        self._queue.wait_idle(LIMIT)


class Recorder:
    """Record commands over buffers, and execute them.

    Attributes
    ----------
    operands
        One of `OPERANDS`.
    lowering
        How the recordings are run, as `hal.Device.record` takes it; None is the
        device's default.
    """

    def __init__(self, queue: hal.Queue, operands: str, lowering: str | None) -> None:
        self.operands = operands
        self.lowering = lowering
        self._queue = queue

    def record(
        self,
        commands: Callable[..., object],
        *buffers: hal.Buffer,
        **options: Any,  # noqa: ANN401 - as the device's
    ) -> hal.CommandBuffer:
        """Call ``commands(recording, *buffers)``, or with slots of the buffers' types and sizes."""
        slots = []
        if self.operands == "slots":
            slots = [(buffer.dtype, buffer.size) for buffer in buffers]
        device = self._queue.device
        with device.record(slots=slots, command_buffer=self.lowering, **options) as recording:
            commands(recording, *(recording.slots if slots else buffers))
        return recording

    def execute(
        self,
        recording: hal.CommandBuffer,
        *buffers: hal.Buffer,
        **lists: Any,  # noqa: ANN401 - as the queue's
    ) -> hal.Submission:
        """Execute a recording of `record`, which binds the buffers if it has slots for them."""
        bindings = buffers if recording.slots else None
        return self._queue.execute(recording, bindings=bindings, **lists)

    def run(
        self,
        commands: Callable[..., object],
        *buffers: hal.Buffer,
        **options: Any,  # noqa: ANN401 - as the device's
    ) -> None:
        """Record, execute and wait."""
        recording = self.record(commands, *buffers, **options)
        self.execute(recording, *buffers).wait(LIMIT)
