"""Choose what operations wait for and signal: shared by all rules of the machine."""

from __future__ import annotations

import threading
from typing import ClassVar, NamedTuple

from hypothesis.stateful import RuleBasedStateMachine

from hal_conformance.suite.model.program import Program
from hal_conformance.suite.model.recordings import Recording
from hal_conformance.suite.model.stage import Handle, Record, Stage
from hal_conformance.suite.model.things import DONE, DOOMED, Access, Line, Point, Step, Timeline

__all__ = ["Choices", "Lists"]


class Lists(NamedTuple):
    """On which queue an operation is, what it waits for and signals, and how."""

    queue: int
    how: int
    waits: bytes
    signals: bytes

    @classmethod
    def read(cls, drawn: bytes) -> Lists:
        """Split the choices; one wait is the most likely."""
        waits, signals = (0, 1, 1, 2)[drawn[2] % 4], (0, 0, 1, 1, 2)[drawn[2] // 4 % 5]
        return cls(drawn[0], drawn[1], drawn[3 : 3 + waits], drawn[5 : 5 + signals])


class Choices(RuleBasedStateMachine):
    """A program, and choices of its parts by numbers.

    Attributes
    ----------
    stage
        The device and its queues, which programs share.
    text
        Where the text of the program goes, and its failure.
    """

    stage: ClassVar[Stage]
    text: ClassVar[Record]

    def __init__(self) -> None:
        super().__init__()
        self.text.lines.clear()
        self.program = Program(self.stage, self.text.lines)
        self.world = self.program.world
        self.recordings: list[Recording] = []
        self.lock = threading.Lock()

    def line(self, number: int) -> Line:
        """Choose a queue that is open."""
        lines = [line for line in self.program.queues if not line.closed]
        return lines[number % len(lines)]

    def usable(self, device: int = 0, size: int = 0) -> list[Handle]:
        """Return the buffers that may be used on a device, of a size at the least."""
        fates = self.world.fates()
        return [
            handle
            for handle in self.program.handles
            if handle.memory.device == device
            and handle.size >= size
            and not (
                handle.memory.allocation is not None
                and fates.of(handle.memory.allocation) == DOOMED
            )
        ]

    def step(self, kind: str, lists: Lists, *, mistake: str | None = None) -> Step:
        """Return a step with the waits and signals that were drawn, if they may be."""
        queue, how, waits, signals = lists
        step = Step(self.world.count, self.line(queue), kind)
        step.mistake = mistake
        for number in waits:
            wait = self.choose_wait(number, how)
            if wait is not None:
                step.waits.append(wait)
        for number in signals:
            point = self.signal(number, how, step)
            if point is not None and all(point.timeline is not other for other, _ in step.signals):
                step.signals.append(point)
        return step

    def choose_wait(self, number: int, how: int) -> Point | Step | None:
        """Choose something to wait for: a step, or a value that need not be promised."""
        steps, timelines = self.program.steps, self.world.timelines
        wait: Point | Step
        number %= 16
        if number < 6 or not timelines:
            if number >= len(steps):
                return None
            wait = steps[-1 - number]
        else:
            timeline = timelines[(number - 6) % len(timelines)]
            if timeline.overtaken:
                return None
            wait = Point(timeline, self.value(timeline, how))
        # Otherwise everything fails after a while
        return wait if how % 4 == 3 or self.world.fates().of_wait(wait) != DOOMED else None

    @staticmethod
    def value(timeline: Timeline, how: int) -> int:
        """Choose a value to wait for, promised or not."""
        if timeline.safe:
            return max(0, timeline.reserved + how % 4 - 2)
        return max(1, timeline.reserved + how % 3 - 1)

    def signal(self, number: int, how: int, step: Step) -> Point | None:
        """Choose a value that a step may bring about."""
        timelines = self.world.timelines
        number %= 10
        if number > 7 or not timelines:
            return Point(self.program.add_timeline(safe=False), 1 + how % 5)
        timeline = timelines[number % len(timelines)]
        if timeline.failure is not None or timeline.overtaken:
            return None
        if timeline.safe:
            is_fit = not step.line.closable and step.mistake is None
        else:
            # What fails takes reached values with it: there are none.
            is_fit = not timeline.promises and not timeline.hosted
        return Point(timeline, timeline.reserved + 1 + how % 3) if is_fit else None

    @staticmethod
    def use(step: Step, *accesses: Access) -> None:
        """Note what a step touches, and that it needs the memory; zero bytes need none."""
        step.accesses = [access for access in accesses if access.start < access.stop]
        for access in step.accesses:
            allocation = access.memory.allocation
            if allocation is not None and allocation.state != DONE:
                step.allocations.append(allocation)

    def timeline(self, which: int) -> Timeline | None:
        """Choose a semaphore."""
        timelines = self.world.timelines
        return timelines[which % len(timelines)] if timelines else None
