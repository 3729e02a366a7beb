"""The model of programs of queue operations: a graph, ints and arrays of bytes.

Shares no code with hal. The world claims only what the rules promise. So it
admits no program whose end depends on when things happen:

- Of two operations that touch the same bytes, one of them writing, one comes
  after the other by a path of waits and of places in ordered queues (`World.admit`).
- A timeline that may fail is signalled by one operation, or by the host, which
  fails it only while nothing runs that is not stuck. Others are *safe*: whatever
  signals them cannot fail, and each of their values is promised in order.
"""

from __future__ import annotations

from hal_conformance.suite.model.fates import Fates, Starts, bits
from hal_conformance.suite.model.things import (
    CANCELLED,
    DONE,
    DOOMED,
    FAILED,
    OPEN,
    UNSURE,
    Line,
    Point,
    Step,
    Timeline,
    meet,
)

__all__ = ["World"]


class World:
    """The steps and the timelines of a program, and their fates."""

    def __init__(self) -> None:
        self.count = 0
        self.open: dict[int, Step] = {}
        self.timelines: list[Timeline] = []

    # What becomes of a step

    def fates(self) -> Fates:
        """Return what is certain now."""
        return Fates()

    def is_sure(self) -> bool:
        """Return whether it is known of every open step whether it can have begun."""
        fates = self.fates()
        return all(fates.of(step) != UNSURE for step in self.open.values())

    def ending(self) -> list[Step]:
        """Return the open steps that end without the host, in the order of their starts."""
        fates = self.fates()
        wanted = [step for step in self.open.values() if fates.ends(step)]
        order: dict[int, Step] = {}
        starts = Starts()

        def put(step: Step) -> None:
            if step.number not in order:
                if fates.of(step) == DONE:
                    for number in bits(starts.of(step)):
                        put(self.open[number])
                order[step.number] = step

        for step in wanted:
            put(step)
        return [step for step in order.values() if fates.ends(step)]

    def before(self, step: Step) -> list[Step]:
        """Return what has ended once a step that is to be done has ended, itself last."""
        starts = Starts()
        fates = self.fates()
        mask, found = 0, [step]
        for each in found:
            if fates.of(each) == DONE:
                new = starts.ended(each) & ~(mask | 1 << step.number)
                mask |= new
                found += [self.open[number] for number in bits(new)]
        return [each for each in self.ending() if each in found]

    def end(self, step: Step, fates: Fates | None = None) -> None:
        """Note that a step has ended, by its fate."""
        fates = fates or self.fates()
        fate = fates.of(step)
        assert fate in {DONE, DOOMED}
        began = fates.waits_are_met(step)
        step.reasons = fates.reasons(step)
        if began and step.effect is not None and (fate == DONE or step.kind == "call"):
            step.effect()
        self.put_away(step, DONE if fate == DONE else FAILED)

    def put_away(self, step: Step, state: str) -> None:
        """Set the state of a step that has ended, and signal or fail its points."""
        step.state = state
        del self.open[step.number]
        for timeline, value in step.signals:
            if state == DONE:
                timeline.advance(value)
            else:
                timeline.fail(step.reasons)

    def cancel(self, line: Line) -> None:
        """Close a queue; what ends has ended before."""
        line.closed = True
        for step in [step for step in self.open.values() if step.line is line]:
            step.reasons = self.fates().reasons(step) | {"cancelled"}
            self.put_away(step, CANCELLED)

    # What may be added

    def admit(self, step: Step, how: int = 0) -> None:
        """Add a step, with the waits that it needs, and without forbidden signals.

        `how` says whether a wait for another step is one for its handle, or for
        a point that it signals.
        """
        waits = list(step.waits)
        for signals in (step.signals, []):
            step.waits, step.signals = list(waits), list(signals)
            if self._attach(step, how):
                break
            self._detach(step)
        step.line.last = step
        self.count += 1

    def _attach(self, step: Step, how: int) -> bool:
        self.open[step.number] = step
        for timeline, value in step.signals:
            timeline.promises.append((value, step))
        while not (step.signals and self.is_circular(step)):
            needed = self._needed(step, Starts())
            if needed is None:
                break
            points = [
                point
                for point in needed.signals
                if point.timeline.failure is None and point.value > point.timeline.value
            ]
            step.waits.append(points[how % len(points)] if how % 3 and points else needed)
        else:
            return False
        step.immune = (
            not step.line.closable
            and step.mistake is None
            and all(map(_is_immune, [*step.waits, *step.deferred, *step.allocations]))
        )
        return step.immune or not any(timeline.safe for timeline, _ in step.signals)

    def _detach(self, step: Step) -> None:
        del self.open[step.number]
        for timeline, _ in step.signals:
            timeline.promises.pop()

    def _needed(self, step: Step, starts: Starts) -> Step | None:
        """Return a step that must precede this one, and does not yet."""
        before = starts.of(step)
        for each in step.allocations:
            if each.state == OPEN and not before >> each.number & 1:
                return each
        for timeline, _ in step.signals:
            if len(timeline.promises) > 1:
                each = timeline.promises[-2][1]
                if each.state == OPEN and not before >> each.number & 1:
                    return each
        fates = self.fates()
        bit = 1 << step.number
        # The latest first: a wait for it is often one for those before it, too.
        for each in reversed(self.open.values()):
            if (
                each is not step
                and not before >> each.number & 1
                and meet(step.accesses, each.accesses)
                and not starts.of(each) & bit
                and fates.of(each) != DOOMED
            ):
                return each
        return None

    def is_circular(self, step: Step) -> bool:
        """Return whether what a step waits for waits for what it signals."""
        signalled = {timeline for timeline, _ in step.signals}
        seen: set[Step] = set()
        found = [step]
        while found:
            each = found.pop()
            for need in each.needs():
                others: list[Step] = []
                if isinstance(need, Step):
                    others = [need]
                elif need.value > need.timeline.value:
                    covering = need.timeline.covering(need.value)
                    if need.timeline in signalled and covering in {None, step}:
                        return True
                    # The host signals the rest once what is promised has come.
                    promises = need.timeline.promises
                    others = [covering] if covering else [other for _, other in promises]
                if step in others:
                    return True
                for other in others:
                    if other.state == OPEN and other not in seen:
                        seen.add(other)
                        found.append(other)
        return False


def _is_immune(wait: Point | Step) -> bool:
    if isinstance(wait, Step):
        return wait.immune or wait.state == DONE
    return wait.timeline.safe
