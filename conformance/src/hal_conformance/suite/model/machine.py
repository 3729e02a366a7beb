"""Random programs: map and close, make mistakes, and compare everything at the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

import hal
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    DeadlineExceededError,
    HalError,
    InvalidArgumentError,
)
from hal_conformance.suite.model.host import NUMBER, Host
from hal_conformance.suite.model.program import check_bytes
from hal_conformance.suite.model.stage import SIZE, Handle
from hal_conformance.suite.model.things import DONE, Line, Timeline
from hal_conformance.suite.support import LIMIT

__all__ = ["Machine"]

MISTAKES: Final = (
    "beyond",
    "negative",
    "pattern",
    "type",
    "overlap",
    "signal",
    "itself",
    "twice",
    "wait",
    "closed",
    "queue",
    "unended",
    "bindings",
    "one_shot",
    "usage",
    "dealloca",
    "size",
    "value",
)


class Machine(Host):
    """Drives all of hal's public interface, and compares the results with the world."""

    def __init__(self) -> None:
        super().__init__()
        self._handled = sys.exc_info()[1]  # of whoever runs the program again

    # Memory

    def map(self, choices: bytes) -> None:
        """Look at memory in place, and change it."""
        able = [
            handle
            for handle in self.usable()
            if handle.memory.allocation is None and handle.real.memory in self.stage.visible
        ]
        if not able:
            return
        handle = able[choices[0] % len(able)]
        if not self.program.settle():
            return
        view = handle.real.map(wait=())
        content, known = handle.memory.take(handle.offset, handle.size)
        check_bytes(f"the view of b{handle.number}", view, content, known)
        part = bytes(range(7))[: handle.size]
        at = choices[1] % (handle.size + 1 - len(part))
        self.program.log(f"b{handle.number}.map()[{at}:{at + len(part)}] = {part!r}")
        view[at : at + len(part)] = np.frombuffer(part, np.uint8)
        handle.memory.put(handle.offset + at, part)
        if choices[2] % 2:
            self.program.views.append((handle, view))

    def close_buffer(self, choices: bytes) -> None:
        """Close a buffer; what was submitted goes on, and views and subspans stay."""
        handles = [handle for handle in self.program.handles if not handle.is_whole]
        if len(handles) > 3:
            handle = handles[choices[0] % len(handles)]
            self.program.log(f"b{handle.number}.close()")
            handle.real.close()
            self.program.handles.remove(handle)
            self.program.ended.append(handle)

    @rule(
        what=st.sampled_from(
            ["settle", "settle", "settle", "flush", "trim", "statistics", "heaps", "wait_idle"]
        ),
        which=NUMBER,
    )
    def keep_house(self, what: str, which: int) -> None:
        """Wait for all that ends, or do what changes nothing."""
        device = self.stage.device
        if what == "settle":
            self.settle(which)
        elif what == "flush":
            self.line(which).real.flush()
        elif what == "wait_idle":
            with contextlib.suppress(DeadlineExceededError):
                self.line(which).real.wait_idle(0)
        elif what == "trim":
            device.trim()
        elif what == "statistics":
            assert device.statistics().allocations > 0
        else:
            assert {heap.memory for heap in device.heaps} == {"device", "host", "managed"}

    # Queues and devices that are closed

    @rule(kind=NUMBER)
    def open_or_close(self, kind: int) -> None:
        """Open or close a queue, now and then of another device."""
        if kind % 2:
            self.close_queue(kind // 2)
        else:
            self.open_queue(kind // 2 % 8)

    def open_queue(self, kind: int) -> None:
        """Open a queue, now and then of another device."""
        if len(self.program.queues) > 5:
            return
        if kind or len(self.program.devices) > 1:
            real = self.stage.device.create_queue(ordered=kind % 2 == 0)
            self.program.add_queue(real, 0, closable=True)
            return
        device = self.stage.open_device()
        self.program.devices.append(device)
        self.program.log("d1 = <another device>")
        self.program.add_queue(device.create_queue(), 1, closable=True)
        self.program.add_queue(device.create_queue(ordered=False), 1, closable=True)
        self.program.add_memory(SIZE, "device", 1)

    def close_queue(self, which: int) -> None:
        """Close a queue, or its device: what never began is cancelled."""
        lines = [line for line in self.program.queues if line.closable and not line.closed]
        if not lines:
            return
        if not self.program.settle():
            return
        line = lines[which % len(lines)]
        if line.device:
            self.close_device(lines)
            return
        self.program.log(f"q{line.number}.close()")
        assert line.real.close(LIMIT) == ()
        self.world.cancel(line)
        self.program.settle()

    def close_device(self, lines: list[Line]) -> None:
        """Close the other device."""
        self.program.log("d1.close()")
        assert self.program.devices[1].close(LIMIT) == ()
        for line in lines:
            if line.device:
                self.world.cancel(line)
        handles = self.program.handles
        self.program.ended += [handle for handle in handles if handle.memory.device]
        self.program.handles = [handle for handle in handles if not handle.memory.device]
        self.program.settle()

    # Mistakes

    @rule(kind=st.sampled_from(MISTAKES), which=NUMBER, queue=st.integers(0, 7))
    def err(self, kind: str, which: int, queue: int) -> None:
        """Do something wrong, and check that it is refused and changes nothing."""
        line = self.line(queue)
        handles = self.usable(line.device)
        if not handles:
            return
        handle = handles[which % len(handles)]
        found = self.mistake(kind, line, handle, self.timeline(which))
        if found is None:
            return
        expected, function = found
        self.program.log(f"<mistake: {kind}, q{line.number}, b{handle.number}>")
        try:
            function()
        except expected:
            return
        except HalError as error:
            message = f"the mistake {kind!r} raises {error!r}"
            raise AssertionError(message) from error
        message = f"the mistake {kind!r} passes"
        raise AssertionError(message)

    def mistake(  # noqa: PLR0911 - a table of functions
        self, kind: str, line: Line, handle: Handle, timeline: Timeline | None
    ) -> tuple[type[HalError], Callable[[], object]] | None:
        """Return something wrong to do, and what it raises; None if it cannot be done now."""
        queue, buffer, size = line.real, handle.real, handle.size
        device = queue.device
        point = None if timeline is None else timeline.real.at(timeline.value)
        plain: dict[str, tuple[type[HalError], Callable[[], object]]] = {
            "beyond": (
                InvalidArgumentError,
                lambda: queue.update(buffer, bytes(4), offset=size - 3),
            ),
            "negative": (InvalidArgumentError, lambda: queue.fill(buffer, 1, offset=-1)),
            "pattern": (InvalidArgumentError, lambda: queue.fill(buffer, b"abc")),
            "type": (ArgumentTypeError, lambda: queue.copy(buffer, b"abc")),
            "wait": (ArgumentTypeError, lambda: queue.barrier(wait=[1])),
            "usage": (InvalidArgumentError, lambda: device.allocate(8, usage=hal.BufferUsage(0))),
            "size": (InvalidArgumentError, lambda: queue.alloca(-1)),
            "value": (InvalidArgumentError, lambda: hal.create_semaphore(-1)),
        }
        if kind in plain:
            return plain[kind]
        if kind == "overlap" and size > 3:
            return InvalidArgumentError, lambda: queue.copy(buffer, buffer, target_offset=1, size=2)
        if kind == "dealloca" and not handle.is_whole:
            return InvalidArgumentError, lambda: queue.dealloca(buffer)
        if kind in {"signal", "itself", "twice"} and timeline is not None:
            if self.world.fates().of_timeline(timeline) != DONE:
                return None  # to one that has failed any signal may be submitted
            if kind == "itself":
                return InvalidArgumentError, lambda: queue.barrier(wait=point, signal=point)
            if kind == "signal":
                return InvalidArgumentError, lambda: queue.fill(buffer, 1, signal=point)
            return InvalidArgumentError, lambda: queue.barrier(
                signal=[
                    timeline.real.at(timeline.reserved + 1),
                    timeline.real.at(timeline.reserved + 2),
                ]
            )
        ended = [each for each in self.program.ended if each.memory.device == line.device]
        if kind == "closed" and ended:
            return ClosedError, lambda: queue.copy(ended[-1].real, buffer, size=1)
        closed = [each for each in self.program.queues if each.closed]
        if kind == "queue" and closed:
            return ClosedError, closed[-1].real.barrier
        if kind == "unended":
            return InvalidArgumentError, lambda: queue.execute(device.record())
        able = [each for each in self.recordings if each.slots and not line.device]
        if kind == "bindings" and able:
            return InvalidArgumentError, lambda: queue.execute(able[-1].real, bindings=[])
        used = [each for each in self.recordings if each.real.one_shot and each.runs]
        if kind == "one_shot" and used and not used[-1].slots and not line.device:
            return ClosedError, lambda: queue.execute(used[-1].real)
        return None

    def teardown(self) -> None:
        """End the program, and compare everything."""
        error = sys.exc_info()[1]
        failed = False
        try:
            if error is not self._handled and isinstance(error, Exception):
                failed = True
                self.text.note(error)
            elif error is self._handled:
                self.program.finish()
        except Exception as late:
            failed = True
            self.text.note(late)
            raise
        finally:
            self.program.leave(failed=failed)
