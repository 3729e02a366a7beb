"""Programs on a device that is short of memory: submit them, and judge the result."""

from __future__ import annotations

import contextlib
import gc
import time
from typing import Any, Final

import hal
from hal.errors import OutOfMemoryError
from hal_conformance.suite.model.shortage import Judge, Operation, Piece
from hal_conformance.suite.support import LIMIT

__all__ = ["LENGTH", "OUT", "SLACK", "TOTAL", "Script", "settle"]

UNIT: Final = 1 << 21
ROOM: Final = 4
"""Units of memory that there are; all pieces of a program have one, two or three of them."""

SLACK: Final = UNIT // 2
"""Bytes for what the host reads, and for what a driver needs itself."""

TOTAL: Final = ROOM * UNIT + SLACK
"""Bytes that the device has."""

LENGTH: Final = 24
"""Operations of a program, at the most."""

SAMPLE: Final = 16
"""Bytes that are looked at, at each end of a piece."""

OUT: Final = 2 * SAMPLE * LENGTH
"""Bytes of the buffer that a program's operations write to, each to a place of its own."""

KINDS: Final = (*("alloca",) * 5, *("use",) * 4, *("dealloca",) * 4, *("execute",) * 2, "barrier")


class Place:
    """A buffer of a program: its memory, and what has written it last."""

    def __init__(self, piece: Piece, real: hal.Buffer) -> None:
        self.piece = piece
        self.real = real
        self.last = piece.allocation


class Script:
    """Submits a program, waits for its end, and judges it.

    All its pieces have the same size, so that no gap is too small for any of them.

    Attributes
    ----------
    text
        What it does, a line for each operation.
    """

    def __init__(self, queues: list[hal.Queue], out: hal.Buffer, how: int) -> None:
        self._queues = queues
        self._out = out
        self._size = (UNIT, 2 * UNIT, 3 * UNIT)[how % 3]
        self._together = how // 3 % 4 != 0
        self._gate, self._late = hal.create_semaphore(), hal.create_semaphore()
        self._operations: list[Operation] = []
        self._real: list[hal.Submission] = []
        self._pieces: list[Piece] = []
        self._places: list[Place] = []
        self._last: dict[hal.Queue, Operation] = {}
        self._users: dict[Operation, Piece] = {}
        self._writers: list[Operation] = []
        self.text = [f"pieces of {self._size} bytes, {'together' if self._together else 'at once'}"]
        if not self._together:
            self._gate.signal(1)

    def submit(self, drawn: bytes) -> None:
        """Submit an operation; the bytes are choices."""
        kind, which, wait = KINDS[drawn[0] % len(KINDS)], drawn[2], drawn[3]
        queue = self._queues[drawn[1] % len(self._queues)]
        if kind in {"use", "dealloca"} and not self._places:
            kind = "alloca"
        step = Operation(len(self._operations), self._last.get(queue) if queue.ordered else None)
        step.is_late = wait % 16 == 15
        if wait % 3 == 1 and self._operations:
            step.waits.append(self._operations[wait // 3 % len(self._operations)])
        place = None
        if kind in {"use", "dealloca"}:
            place = self._places[which % len(self._places)]
            # A dealloca need not wait for the last use: the memory does.
            step.waits.append(place.piece.allocation if kind == "dealloca" else place.last)
            if kind == "dealloca" and drawn[4] % 2:
                step.waits.append(place.last)
            place.piece.uses.append(step)
        waits: list[Any] = [self._real[each.number] for each in step.waits]
        waits += [self._gate.at(1), *([self._late.at(1)] if step.is_late else [])]
        text = f"op{step.number}: q{self._queues.index(queue)}.{kind}"
        if place is not None:
            text += f" of op{place.piece.allocation.number}"
        self.text.append(
            f"{text}, waits for {[f'op{each.number}' for each in step.waits]}"
            + (", late" if step.is_late else "")
        )
        self._operations.append(step)
        self._last[queue] = step
        if kind == "alloca":
            self._alloca(step, queue, waits)
        elif kind == "execute":
            self._execute(step, queue, waits)
        elif place is None:
            self._real.append(queue.barrier(wait=waits))
        elif kind == "use":
            self._use(step, queue, waits, place)
        else:
            self._real.append(queue.dealloca(place.real, wait=waits))
            place.piece.given = True
            self._places.remove(place)

    def _alloca(self, step: Operation, queue: hal.Queue, waits: list[Any]) -> None:
        step.units = self._size // UNIT
        real = queue.alloca(self._size, wait=waits)
        assert real.allocation is not None
        self._real.append(real.allocation)
        self._pieces.append(Piece(step))
        self._places.append(Place(self._pieces[-1], real))

    def _use(self, step: Operation, queue: hal.Queue, waits: list[Any], place: Place) -> None:
        """Fill memory, and look at its ends."""
        with queue.device.record(slots=2) as recording:
            self._write(recording, recording.slots[0], recording.slots[1], step)
        bindings = [place.real, self._sample(step)]
        self._real.append(queue.execute(recording, bindings=bindings, wait=waits))
        self._users[step] = place.piece
        place.last = step

    def _execute(self, step: Operation, queue: hal.Queue, waits: list[Any]) -> None:
        """Do the same with memory that the recording allocates."""
        step.units = self._size // UNIT
        with queue.device.record(slots=1, one_shot=step.number % 2 == 1) as recording:
            temporary = recording.alloca(self._size)
            self._write(recording, temporary, recording.slots[0], step)
        bindings = [self._sample(step)]
        self._real.append(queue.execute(recording, bindings=bindings, wait=waits))

    def _write(self, recording: hal.CommandBuffer, memory: Any, out: Any, step: Operation) -> None:  # noqa: ANN401
        recording.fill(memory, step.number + 1, size=self._size)
        recording.barrier()
        end = self._size - SAMPLE
        recording.copy(memory, out, size=SAMPLE)
        recording.copy(memory, out, source_offset=end, target_offset=SAMPLE, size=SAMPLE)

    def _sample(self, step: Operation) -> hal.Buffer:
        self._writers.append(step)
        return self._out.subspan(2 * SAMPLE * step.number, 2 * SAMPLE)

    def failed(self) -> int:
        """Return how many operations have failed."""
        return sum(each.has_failed for each in self._operations)

    def close(self) -> None:
        """Drop everything, whatever happened."""
        for semaphore in (self._gate, self._late):
            if not semaphore.poll(1):
                semaphore.signal(1)
        for queue in self._queues:
            queue.wait_idle(LIMIT)
        for place in self._places:
            place.real.close()

    def finish(self, *, is_fair: bool = True) -> None:
        """Have everything end, and compare; judge who found memory only if the order was fair."""
        if self._together:
            self._gate.signal(1)
        self._late.signal(1)
        for step, real in zip(self._operations, self._real, strict=True):
            try:
                real.wait(LIMIT)
            except OutOfMemoryError:
                step.has_failed = True
            step.place()
            piece = self._users.get(step)
            fails = step.inherits or (piece is not None and piece.allocation.has_failed)
            if fails or not step.units:
                assert step.has_failed == fails, f"op{step.number} is {real.state}"
        judge = Judge(self._operations, self._pieces, ROOM, self._together)
        told = [f"op{each.number}" for each in judge.too_little()] if is_fair else []
        assert not told, f"{told} should have found memory"
        told = [f"op{each.number}" for each in judge.too_much()] if is_fair else []
        assert not told, f"{told} should have found none"
        seen = self._out.numpy(timeout=LIMIT).reshape(-1, 2 * SAMPLE)
        for step in self._writers:
            expected = 0 if step.has_failed else step.number + 1
            found = set(seen[step.number].tolist())
            assert found == {expected}, f"op{step.number} has written {found}, not {expected}"


def settle(device: hal.Device, allocations: int) -> None:
    """Wait until no more than so many allocations are left, and free all memory that is unused.

    Any thread may be the last to let go of what has ended, or still look for memory for it. The
    next program's room depends on both: no gap is left over between pieces of another size.
    """
    deadline = time.monotonic() + LIMIT
    while device.statistics().allocations > allocations:
        assert time.monotonic() < deadline, "memory is left"
        gc.collect()
    with contextlib.suppress(OutOfMemoryError):  # behind every other search
        device.queue.fill(device.queue.alloca(TOTAL), 0).wait(LIMIT)
    device.trim()
