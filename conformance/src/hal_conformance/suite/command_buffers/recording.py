"""Shared by the tests of command buffers: ways to record, and to name buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hal
from hal_conformance.suite.support import LIMIT

__all__ = ["OPERANDS", "Recorder", "Target"]

OPERANDS: Final = ("direct", "slots")
"""How a recording names its buffers: themselves, or slots that the execution binds (C3)."""

Target = hal.Buffer | hal.Slot
"""What a command takes."""


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
