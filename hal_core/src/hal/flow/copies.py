"""Copies between buffers, of one device or of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

import hal
from hal.arguments import as_flag, as_int
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.scheduler import AnyDevice, QueueName, TraceFunction, index_of
from hal.flow.tracking import collect, note, part_of
from hal.flow.transfers import Transfers
from hal.protocols import Signals, Waits

_SLOTS: Final = 4
"""The pieces of pinned memory for a copy from device to device through the host."""


class Copies(Transfers):
    """Direct copies, and copies through the host; base of `hal.flow.Flow`."""

    def __init__(
        self,
        devices: Sequence[AnyDevice],
        trace: TraceFunction | None,
        chunk: int,
        snapshot: int,
        *,
        peers: bool,
    ) -> None:
        super().__init__(devices, trace, snapshot)
        self._chunk = as_int(chunk, "chunk is a number of bytes", 1)
        self._peers = as_flag(peers, "Flow: peers")
        self._connected: dict[tuple[hal.Device, hal.Device], bool] = {}

    def device_to_device(
        self,
        source: TrackedBuffer,
        target: TrackedBuffer | AnyDevice,
        *,
        wait: Waits = (),
    ) -> TrackedBuffer:
        """Copy a buffer to another, or to a new one on a device; return that at once.

        The copy is on the source's download queue if that device reaches the other's
        memory (`hal.Device.can_access`). Elsewhere, and between backends, it goes in
        pieces through pinned memory of the host, up to four of them: the
        source's download queue and the target's upload queue work at once.
        """
        self.check(source, "device_to_device: the source")
        if target is None:
            message = "device_to_device: the target is a tracked buffer or a device, not None"
            raise ArgumentTypeError(message)
        if not isinstance(target, TrackedBuffer):
            lanes = self.lanes_of(target)
            target = self._new(lanes, source.size, source.dtype, source.shape)
        self.copy(source, target, wait=wait)
        return target

    def copy(
        self,
        source: TrackedBuffer,
        target: TrackedBuffer,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy `size` bytes between buffers of any devices; None means all of the source's rest.

        On one device it is `hal.Queue.copy`, on the compute queue, and the
        ranges must not overlap. Between devices see `device_to_device`, which
        chooses the queues: ``queue=`` is refused.
        """
        self.check(source, "copy: the source")
        self.check(target, "copy: the target")
        lanes = source.history.lanes
        source_offset = index_of(source_offset, "copy: source_offset")
        target_offset = index_of(target_offset, "copy: target_offset")
        is_whole = size is None and not source_offset and not target_offset
        target.check_copy(source, is_whole=is_whole)
        size = None if size is None else index_of(size, "copy: size")
        length = source.size - source_offset if size is None else size
        start, place = source.start + source_offset, target.start + target_offset
        if lanes is target.history.lanes:
            lane = lanes.compute if queue is None else self.queue_of(queue, lanes)
        elif queue is not None:
            message = "copy: between devices the flow chooses the queues; leave queue= out"
            raise InvalidArgumentError(message)
        elif self.reaches(lanes.device, target.device):
            lane = lanes.download
        else:
            return self._relay(source, target, source_offset, target_offset, length, wait, signal)
        return self.run(
            (
                (source.history, part_of(source.history, start, start + length), False),
                (target.history, part_of(target.history, place, place + length), True),
            ),
            lambda waits: lane.copy(
                source.raw,
                target.raw,
                source_offset=source_offset,
                target_offset=target_offset,
                size=size,
                wait=waits,
                signal=signal,
            ),
            wait,
        )

    def reaches(self, device: hal.Device, other: hal.Device) -> bool:
        """Return whether a device reaches another's memory in place; enable that if it does."""
        if device is other:
            return True
        if not self._peers:
            return False
        known = self._connected.get((device, other))
        if known is None:
            known = device.can_access(other)
            if known:
                # Until then a driver may itself stage copies through the host.
                device.enable_access(other)
            self._connected[device, other] = known
        return known

    def _relay(
        self,
        source: TrackedBuffer,
        target: TrackedBuffer,
        source_offset: int,
        target_offset: int,
        size: int,
        wait: Waits,
        signal: Signals,
    ) -> hal.Submission:
        """Copy between devices, piece by piece through the host."""
        # Raises for ranges outside the buffers.
        part = source.raw.subspan(source_offset, size, dtype=np.uint8)
        room = target.raw.subspan(target_offset, size, dtype=np.uint8)
        history, start = source.history, source.start + source_offset
        other, place = target.history, target.start + target_offset
        reading = (history, part_of(history, start, start + size), False)
        writing = (other, part_of(other, place, place + size), True)
        with self._lock:
            try:
                found = collect((reading,), self.look, wait)
                found_there = collect((writing,), self.look)
                read, written = self._pieces(part, found, room, found_there, signal)
                note((reading,), read)
                note((writing,), written)
            except BaseException:
                # Whatever was raised, some pieces may have been submitted.
                history.doubt()
                other.doubt()
                raise
        if self.trace is not None:
            self.trace(written, [*found, *found_there])
        return written

    def _pieces(
        self,
        part: hal.Buffer,
        found: list[Any],
        room: hal.Buffer,
        found_there: list[Any],
        signal: Signals,
    ) -> tuple[hal.Submission, hal.Submission]:
        """Submit the pieces of a relay; return its last read and its last write.

        Each write comes after the one before, so that the last one fails if
        any piece has.
        """
        download, upload = part.device.queues.download, room.device.queues.upload
        size, step = part.size, self._chunk
        blocks: list[hal.Buffer] = []
        writes: list[hal.Submission] = []
        read = download.barrier(wait=found)
        for index, begin in enumerate(range(0, size, step)):
            length = min(step, size - begin)
            if index < _SLOTS:
                blocks.append(room.device.allocate(length, memory=hal.MemoryType.HOST))
            block = blocks[index % _SLOTS]
            before = [read] if index < _SLOTS else [read, writes[index - _SLOTS]]
            array = block.map(wait=())[:length]
            read = download.read(part, array, offset=begin, wait=before)
            is_last = begin + length == size
            writes.append(
                upload.copy(
                    block,
                    room,
                    size=length,
                    target_offset=begin,
                    wait=[read, *(writes[-1:] or found_there)],
                    signal=signal if is_last else (),
                )
            )
        if not writes:
            writes.append(upload.barrier(wait=[read, *found_there], signal=signal))
        return read, writes[-1]
