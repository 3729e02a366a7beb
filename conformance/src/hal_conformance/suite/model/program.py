"""Apply each step to hal and to the model, log it as text, and compare."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import hal
from hal.errors import CancelledError, HalError, InvalidArgumentError, OperationError
from hal_conformance.suite.model.stage import SIZE, Handle, Stage
from hal_conformance.suite.model.things import (
    CANCELLED,
    DONE,
    FAILED,
    OPEN,
    STUCK,
    UNSURE,
    Line,
    Memory,
    Point,
    Step,
    Timeline,
)
from hal_conformance.suite.model.world import World
from hal_conformance.suite.support import LIMIT, callbacks_done

__all__ = ["Program", "check_bytes", "run_call"]

CLASSES: Final = {
    "cancelled": CancelledError,
    "overtaken": InvalidArgumentError,
    "too": InvalidArgumentError,
    "failure": OperationError,
    "step": OperationError,
    "raised": hal.errors.SemaphoreFailedError,
}
"""What a reason is an instance of, by its first word; the others' text is the reason."""


class Program:
    """One program: its objects in hal and in the model."""

    def __init__(self, stage: Stage, lines: list[str]) -> None:
        self.stage = stage
        self.lines = lines
        self.world = World()
        self.queues: list[Line] = []
        self.handles: list[Handle] = []
        self.ended: list[Handle] = []  # after a close or a dealloca
        self.steps: list[Step] = []
        self.devices: list[hal.Device] = [stage.device]
        self.reads: list[tuple[Step, NDArray[np.uint8], NDArray[np.uint8], NDArray[np.bool_]]] = []
        self.views: list[tuple[Handle, Any]] = []
        self.called: list[int] = []  # in hal
        self.calls: list[int] = []  # in the model
        self.callbacks: list[tuple[Timeline, list[Any], list[Any], Any]] = []
        self._count = 0
        for queue in stage.queues:
            self.add_queue(queue, 0)
        for kind in ("device", "host", "managed"):
            self.add_memory(SIZE, kind)

    def log(self, text: str) -> None:
        """Note what is done, as it would stand in a program."""
        self.lines.append(text)

    # What a program makes

    def add_queue(self, real: hal.Queue, device: int, *, closable: bool = False) -> Line:
        """Add a queue."""
        line = Line(len(self.queues), device, ordered=real.ordered, closable=closable)
        line.real = real
        self.queues.append(line)
        self.log(f"q{line.number} = {real!r}")
        return line

    def add_memory(self, size: int, kind: str = "device", device: int = 0) -> Handle:
        """Allocate memory."""
        real = self.devices[device].allocate(size, memory=kind)
        handle = self.add_handle(Memory(size, device), 0, size, real)
        self.log(f"b{handle.number} = d{device}.allocate({size}, memory={kind!r})")
        return handle

    def add_handle(self, memory: Memory, offset: int, size: int, real: Any) -> Handle:  # noqa: ANN401
        """Add a buffer."""
        self._count += 1
        handle = Handle(self._count, memory, offset, size, real)
        self.handles.append(handle)
        return handle

    def add_timeline(self, *, safe: bool, value: int = 0) -> Timeline:
        """Create a semaphore."""
        timeline = Timeline(len(self.world.timelines), safe=safe, value=value)
        timeline.real = hal.create_semaphore(value, name=f"s{timeline.number}")
        self.world.timelines.append(timeline)
        self.log(f"s{timeline.number} = create_semaphore({value})")
        return timeline

    def submit(
        self,
        step: Step,
        text: str,
        function: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401 - as the queue's
        how: int,
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 - a submission or a buffer
        """Submit a step, which the world completes; returns what the queue's method does."""
        self.world.admit(step, how)
        self.steps.append(step)
        waits = [_real(each) for each in step.waits]
        signals = [_real(each) for each in step.signals]
        self.log(
            f"op{step.number} = q{step.line.number}.{step.kind}({text}, "
            f"wait=[{_names(step.waits)}], signal=[{_names(step.signals)}])"
        )
        wait: Any = waits
        if how % 4 == 1:
            wait = hal.Fence(waits)
        elif how % 4 == 2 and len(waits) == 1:
            wait = waits[0]
        elif how % 4 == 3:
            wait = (hal.Fence(waits[:1]), *waits[1:])
        found = function(*arguments, wait=wait, signal=tuple(signals), **named)
        step.real = found if isinstance(found, hal.Submission) else found.allocation
        return found

    @staticmethod
    def describe(waits: list[Point | Step]) -> str:
        """Return what is waited for as text."""
        return _names(waits)

    @staticmethod
    def real_waits(waits: list[Point | Step]) -> list[Any]:
        """Return what is waited for, in hal."""
        return [_real(each) for each in waits]

    # What ends

    def settle(self) -> bool:
        """Wait for everything that ends by itself, and compare it.

        Returns whether it is sure that nothing else runs.
        """
        ending = self.world.ending()
        fates = self.world.fates()
        for step in ending:
            self._wait_for(step, fates.of(step) == DONE)
        for step in ending:
            self.world.end(step)
            self.check(step)
        self.check_stuck()
        return self.world.is_sure()

    def note(self, steps: Iterable[Step]) -> None:
        """Note the steps that a wait has shown to be over."""
        for each in steps:
            self.world.end(each)
            self.check(each)

    def _wait_for(self, step: Step, is_done: bool) -> None:  # noqa: FBT001
        try:
            step.real.wait(LIMIT)
        except hal.errors.DeadlineExceededError as error:
            message = f"op{step.number} does not end: {error}"
            raise AssertionError(message) from None
        except HalError as error:
            if is_done:
                message = f"op{step.number} failed: {error!r}"
                raise AssertionError(message) from error
        else:
            assert is_done, f"op{step.number} did not fail"

    def check(self, step: Step) -> None:
        """Compare a step that has ended, with its signals."""
        state, error = step.real.state, step.real.error
        where = f"op{step.number} is {state} with {error!r}"
        if step.state == DONE:
            assert state == "done", where
            assert error is None, where
            return
        assert state in {CANCELLED: {"cancelled", "failed"}}.get(step.state, {FAILED}), where
        if step.reasons == {"cancelled"} and step.state == CANCELLED and not step.waits:
            assert state == "cancelled", where
        self.check_error(error, step.reasons, where)

    def check_stuck(self) -> None:
        """Check that operations that cannot run have not."""
        fates = self.world.fates()
        for step in self.world.open.values():
            state = step.real.state
            if fates.of(step) == UNSURE:
                continue
            allowed = {"pending"} if fates.of(step) == STUCK else {"pending", "failed"}
            if step.deferred:
                allowed.add("issued")
            where = f"op{step.number} is {state} with {step.real.error!r}"
            assert state in allowed, f"{where}, not {allowed}"

    @staticmethod
    def check_error(error: BaseException | None, reasons: frozenset[str], where: str) -> None:
        """See that an error is one of those that the model has."""
        message = f"{where}, not with one of {sorted(reasons)}"
        for reason in reasons:
            word = reason.split()[0]
            if isinstance(error, CLASSES[word]) and (
                word in {"cancelled", "overtaken", "too"} or reason in str(error)
            ):
                return
        raise AssertionError(message)

    def check_timeline(self, timeline: Timeline) -> None:
        """Compare the value or the failure of a semaphore, as far as it is certain."""
        fates = self.world.fates()
        where = f"s{timeline.number}"
        if timeline.failure is not None:
            for function in (timeline.real.query, lambda: timeline.real.wait(0, 0)):
                try:
                    found = function()
                except HalError as error:
                    self.check_error(error, timeline.failure, f"{where} failed with {error!r}")
                else:
                    message = f"{where} has {found}, and should have failed"
                    raise AssertionError(message)
            return
        coming = [
            (value, fates.of(step)) for value, step in timeline.promises if step.state == OPEN
        ]
        if any(fate not in {DONE, STUCK} for _, fate in coming):
            return
        found = timeline.real.query()
        possible = {timeline.value, *(value for value, fate in coming if fate == DONE)}
        assert found in possible, f"{where} has {found}, not one of {sorted(possible)}"
        assert timeline.real.poll(timeline.value)
        assert not timeline.real.poll(max(possible) + 1)

    def compare(self, handle: Handle) -> None:
        """Compare a buffer's bytes; nothing that runs may touch them."""
        allocation = handle.memory.allocation
        if handle.memory.device or not handle.size or (allocation and allocation.state != DONE):
            return
        array = np.zeros(handle.size, np.uint8)
        self.stage.reader.read(handle.real, array).wait(LIMIT)
        content, known = handle.memory.take(handle.offset, handle.size)
        check_bytes(f"b{handle.number}", array, content, known)

    # The end

    def finish(self) -> None:
        """Signal every awaited value until everything has ended, and compare everything."""
        self.settle()
        while self.world.open:
            for timeline in self.world.timelines:
                self.release(timeline)
            count = len(self.world.open)
            self.settle()
            assert len(self.world.open) < count, "the model does not end"
        for line in self.queues:
            if not line.closed:
                line.real.wait_idle(LIMIT)
        for timeline in self.world.timelines:
            self.check_timeline(timeline)
        for step in self.steps:
            self.check(step)
        for handle in self.handles:
            self.compare(handle)
        for step, array, content, known in self.reads:
            if step.state == DONE:
                check_bytes(f"what op{step.number} read", array, content, known)
        for handle, view in self.views:
            content, known = handle.memory.take(handle.offset, handle.size)
            check_bytes(f"the view of b{handle.number}", view, content, known)
        assert sorted(self.called) == sorted(self.calls), "the calls are others"
        self.check_callbacks()

    def release(self, timeline: Timeline) -> None:
        """Signal the highest awaited value of a semaphore whose steps have ended."""
        steps = self.world.open.values()
        if timeline.failure is not None or any(step in steps for _, step in timeline.promises):
            return
        wanted = [
            value
            for step in steps
            for other, value in (each for each in step.needs() if isinstance(each, Point))
            if other is timeline and value > timeline.value
        ]
        if wanted:
            self.log(f"s{timeline.number}.signal({max(wanted)})")
            timeline.real.signal(max(wanted))
            timeline.hosted = True
            timeline.advance(max(wanted))

    def check_callbacks(self) -> None:
        """Compare what callbacks were given."""
        callbacks_done()
        for timeline, expected, given, _ in self.callbacks:
            where = f"the callback of s{timeline.number}@{expected[0]}"
            if expected[1] is None:
                assert not given, f"{where} came with {given}"
                continue
            assert len(given) == 1, f"{where} came {len(given)} times"
            if expected[1] is True:
                assert given == [None], f"{where} came with {given}"
            else:
                self.check_error(given[0], expected[1], f"{where} came with {given}")

    def leave(self, *, failed: bool) -> None:
        """Drop everything; after a failure also the device."""
        for timeline in self.world.timelines:
            timeline.real.fail(OperationError("the program is over"))
        self.views.clear()
        limit = 0.0 if failed else LIMIT
        left = [line.real.close(limit) for line in self.queues[3:] if not line.closed]
        left += [device.close(limit) for device in self.devices[1:]]
        for handle in (*self.handles, *self.ended):
            handle.real.close()
        self.steps.clear()
        if failed:
            self.stage.replace()
        else:
            assert not any(left), f"something is left: {left}"


def _real(wait: Point | Step) -> Any:  # noqa: ANN401 - what hal waits for
    """Return what the model waits for, in hal."""
    return wait.real if isinstance(wait, Step) else wait.timeline.real.at(wait.value)


def _names(waits: Iterable[Point | Step]) -> str:
    """Return what is waited for, or signalled, as text."""
    return ", ".join(
        f"op{wait.number}" if isinstance(wait, Step) else f"s{wait.timeline.number}@{wait.value}"
        for wait in waits
    )


def check_bytes(
    what: str, found: NDArray[np.uint8], content: NDArray[np.uint8], known: NDArray[np.bool_]
) -> None:
    """Compare bytes where the model knows them."""
    wrong = np.flatnonzero((found != content) & known)
    if len(wrong):
        at = int(wrong[0])
        message = f"{what} has {found[at]} at {at}, not {content[at]}; {len(wrong)} bytes differ"
        raise AssertionError(message)


def run_call(
    mistake: str | None, number: int, called: list[int], deferred: list[Any], lock: threading.Lock
) -> list[Any]:
    """Act as a host function: note the call, and raise or return as told."""
    with lock:
        called.append(number)
    if mistake is not None:
        raise OperationError(mistake) if mistake.startswith("step") else ValueError(mistake)
    return deferred
