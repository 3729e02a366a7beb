"""The fates of operations, and which have ended when another begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hal_conformance.suite.model.things import (
    DONE,
    DOOMED,
    OPEN,
    STUCK,
    UNSURE,
    Point,
    Step,
    Timeline,
)

__all__ = ["Fates", "Starts", "bits"]


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Starts:
    """Which open steps have ended whenever a step begins, as masks of numbers."""

    def __init__(self) -> None:
        self._starts: dict[Step, int] = {}

    def of(self, step: Step) -> int:
        """Return what has ended before it begins, given that it does."""
        mask = self._starts.get(step)
        if mask is None:
            mask = 0
            for wait in step.waits:
                mask |= self._wait(wait)
            if step.previous is not None:
                mask |= self._inherited(step.previous)
            self._starts[step] = mask
        return mask

    def ended(self, step: Step) -> int:
        """Return what has ended once it is done, itself included."""
        mask = self.of(step) | 1 << step.number
        for wait in step.deferred:
            mask |= self._wait(wait)
        return mask

    def _wait(self, wait: Point | Step) -> int:
        step = wait if isinstance(wait, Step) else None
        if isinstance(wait, Point) and wait.value > wait.timeline.value:
            step = wait.timeline.covering(wait.value)
        return self.ended(step) if step is not None and step.state == OPEN else 0

    def _inherited(self, step: Step | None) -> int:
        """Return what has ended once a step of an ordered queue has, well or not."""
        mask = 0
        # One that fails ends early: what it waits for need not have ended.
        while step is not None and step.state != DONE:
            if step.state == OPEN:
                mask |= self.ended(step) if step.immune else 1 << step.number
            step = step.previous
        return mask


class Fates:
    """The fates of open steps if the host does nothing more; cached."""

    def __init__(self) -> None:
        self._fates: dict[Step, str] = {}
        self._ends: dict[Step, bool] = {}

    def of(self, step: Step) -> str:
        """Return `DONE`, `DOOMED`, `STUCK` or `UNSURE`."""
        if step.state != OPEN:
            return DONE if step.state == DONE else DOOMED
        fate = self._fates.get(step)
        if fate is None:
            fate = self._fates[step] = self._find(step)
        return fate

    def _find(self, step: Step) -> str:
        fate = self._join(step.waits)
        if fate != DONE:
            return fate
        if step.previous is not None and not self.ends(step.previous):
            return UNSURE if self._may_be_gone(step.previous) else STUCK
        # That there is no memory is noticed when it would begin.
        if step.mistake is not None or self._join(step.allocations) == DOOMED:
            return DOOMED
        return self._join(step.deferred)

    def _join(self, waits: Iterable[Point | Step]) -> str:
        found = {self.of_wait(wait) for wait in waits}
        return next((fate for fate in (DOOMED, UNSURE, STUCK) if fate in found), DONE)

    def _may_be_gone(self, step: Step | None) -> bool:
        while step is not None and step.state != DONE:
            if self.of(step) == STUCK:
                return False
            step = step.previous
        return True

    def of_wait(self, wait: Point | Step) -> str:
        """Return the fate of a wait."""
        if isinstance(wait, Step):
            return self.of(wait)
        timeline, value = wait
        fate = self.of_timeline(timeline)
        if fate != DONE:
            return fate
        if timeline.value >= value:
            return DONE
        step = timeline.covering(value)
        return STUCK if step is None else self.of(step)

    def of_timeline(self, timeline: Timeline) -> str:
        """Return `DOOMED` if it has failed or can only fail, `UNSURE` if it may, else `DONE`."""
        if timeline.failure is not None:
            return DOOMED
        found = {self.of(step) for _, step in (() if timeline.safe else timeline.promises)}
        return next((fate for fate in (DOOMED, UNSURE) if fate in found), DONE)

    def ends(self, step: Step) -> bool:
        """Return whether it has ended, or ends without the host."""
        if step.state != OPEN:
            return True
        found = self._ends.get(step)
        if found is None:
            found = self._ends[step] = self._find_end(step)
        return found

    def _find_end(self, step: Step) -> bool:
        fate = self.of(step)
        if fate != DOOMED:
            return fate == DONE
        if step.previous is not None and not self.ends(step.previous):
            return False
        waits = step.waits
        if self._join(waits) != DOOMED:
            waits = step.deferred
        # A failure ends the wait for a value that is not reached; another one is
        # found when everything else that is waited for has come.
        return any(map(self._fails, waits)) or all(map(self._comes, waits))

    def _fails(self, wait: Point | Step) -> bool:
        if isinstance(wait, Step):
            return self.of(wait) == DOOMED and self.ends(wait)
        return wait.value > wait.timeline.value and self._has_failed(wait.timeline)

    def _comes(self, wait: Point | Step) -> bool:
        fate = self.of_wait(wait)
        if fate == DOOMED and isinstance(wait, Point):
            return self._has_failed(wait.timeline)
        return fate == DONE or (isinstance(wait, Step) and self._fails(wait))

    def _has_failed(self, timeline: Timeline) -> bool:
        """Return whether a timeline has failed, or fails without the host."""
        return timeline.failure is not None or any(
            self.of(step) == DOOMED and self.ends(step)
            for _, step in (() if timeline.safe else timeline.promises)
        )

    def waits_are_met(self, step: Step) -> bool:
        """Return whether it begins, or has begun."""
        met = self._join(step.waits) == DONE
        return met and (step.previous is None or self.ends(step.previous))

    def reasons(self, step: Step) -> frozenset[str]:
        """Return the possible errors of a step that can only fail."""
        if step.state != OPEN:
            return step.reasons
        found: set[str] = set()
        for wait in step.waits:
            found |= self.wait_reasons(wait)
        if not found and step.mistake is not None:
            found.add(step.mistake)
        elif not found:
            for wait in (*step.allocations, *step.deferred):
                found |= self.wait_reasons(wait)
        return frozenset(found)

    def wait_reasons(self, wait: Point | Step) -> frozenset[str]:
        """Return why a wait can only fail; nothing if it need not."""
        if isinstance(wait, Step):
            return self.reasons(wait) if self.of(wait) == DOOMED else frozenset()
        if wait.timeline.failure is not None:
            return wait.timeline.failure
        found: frozenset[str] = frozenset()
        for _, step in () if wait.timeline.safe else wait.timeline.promises:
            if self.of(step) == DOOMED:
                found |= self.reasons(step)
        return found
