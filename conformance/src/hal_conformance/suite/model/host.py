"""The host's use of semaphores in random programs: signal, fail, query, wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

import hal
from hal.errors import DeadlineExceededError, HalError, OperationError
from hal_conformance.suite.model.operations import Operations
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
from hal_conformance.suite.support import LIMIT, callbacks_done

__all__ = ["NUMBER", "Host"]

NUMBER: Final = st.integers(0, 255)

HOST: Final = st.sampled_from(
    [
        "create",
        "signal_from_host",
        "signal_from_host",
        "fail_from_host",
        "release",
        "release",
        "overtake",
        "wait_for_value",
        "look",
        "call_back",
        "cancel",
    ]
)
"""What a host does with a semaphore."""


class Host(Operations):
    """Rules that use semaphores from the host, and wait."""

    # Semaphores

    @rule(what=HOST, which=NUMBER, value=st.integers(0, 8))
    def use_a_semaphore(self, what: str, which: int, value: int) -> None:
        """Do something with a semaphore."""
        if what == "create":
            if len(self.world.timelines) < 8:
                self.program.add_timeline(safe=which % 2 == 1, value=value % 3)
        elif self.world.timelines:
            timeline = self.world.timelines[which % len(self.world.timelines)]
            getattr(self, what)(timeline, value)

    def signal_from_host(self, timeline: Timeline, more: int) -> None:
        """Signal values from the host that no operation signals, sometimes too low."""
        if any(step.state == OPEN for _, step in timeline.promises):
            return
        value = timeline.value + more % 6 - 1
        self.program.log(f"s{timeline.number}.signal({value})")
        if timeline.failure is None and value > timeline.value:
            timeline.real.signal(value)
            timeline.hosted = True
            timeline.advance(value)
            return
        try:
            timeline.real.signal(max(0, value))
        except HalError as error:
            reasons = timeline.failure or frozenset({"too low"})
            self.program.check_error(error, reasons, f"a signal failed with {error!r}")
        else:
            message = f"s{timeline.number} took the signal {value}"
            raise AssertionError(message)

    def fail_from_host(self, timeline: Timeline, _: int) -> None:
        """Fail a semaphore while only stuck operations run."""
        if timeline.safe:
            return
        sure, fates = self.program.settle(), self.world.fates()
        if not sure or any(
            step.state == OPEN and fates.of(step) != STUCK for _, step in timeline.promises
        ):
            return
        if any(
            step.deferred
            and any(isinstance(wait, Point) and wait.timeline is timeline for wait in step.waits)
            for step in self.world.open.values()
        ):
            return  # such a call may have been issued, which a failure does not recall (S5)
        reason = f"failure {len(self.text.lines)}."
        self.program.log(f"s{timeline.number}.fail(OperationError({reason!r}))")
        timeline.real.fail(OperationError(reason))
        timeline.fail(frozenset({reason}))

    def release(self, timeline: Timeline, _: int) -> None:
        """Signal the highest value that anything waits for."""
        self.program.release(timeline)

    def overtake(self, timeline: Timeline, _: int) -> None:
        """Signal more than an operation promises that is not issued: it will fail (S1)."""
        if timeline.safe or timeline.failure is not None:
            return
        sure = self.program.settle()
        waits = [need for step in self.world.open.values() for need in step.needs()]
        if (
            not (sure and timeline.promises)
            or timeline.callbacks
            or any(isinstance(wait, Point) and wait.timeline is timeline for wait in waits)
        ):
            return
        value, step = timeline.promises[0]
        if step.state != OPEN or step.immune or self.world.fates().of(step) != STUCK:
            return
        if step.mistake is not None or step.deferred or timeline.value >= value:
            return  # a call that has deferred its end was issued
        self.program.log(f"s{timeline.number}.signal({value})  # overtakes op{step.number}")
        timeline.real.signal(value)
        timeline.overtaken = True
        timeline.advance(value)
        step.mistake, step.effect = "overtaken", None

    def wait_for_value(self, timeline: Timeline, value: int) -> None:
        """Wait for a value: it comes, fails, or never comes."""
        if timeline.overtaken:
            return
        wait = Point(
            timeline, self.sure(timeline, min(value, timeline.reserved) if value % 2 else value)
        )
        self.program.log(f"s{timeline.number}.wait({wait.value})")
        self.wait_all([wait])

    @staticmethod
    def sure(timeline: Timeline, value: int) -> int:
        """Return a value that is not reached while a failure may still come, or `value`."""
        return value if timeline.safe else max(1, value)

    def look(self, timeline: Timeline, _: int) -> None:
        """Query and poll a semaphore."""
        self.program.check_timeline(timeline)

    def call_back(self, timeline: Timeline, value: int) -> None:
        """Ask for a callback."""
        if timeline.overtaken:
            return
        given: list[HalError | None] = []
        value = self.sure(timeline, value)
        self.program.log(f"s{timeline.number}.on_reached({value})")
        handle = timeline.real.on_reached(value, given.append)
        expected: list[Any] = [value, True if timeline.value >= value else None]
        if timeline.failure is not None:
            expected[1] = timeline.failure
        timeline.callbacks.append(expected)
        self.program.callbacks.append((timeline, expected, given, handle))

    def cancel(self, _: Timeline, which: int) -> None:
        """Take a callback back, if it has not come."""
        if not self.program.callbacks:
            return
        place = which % len(self.program.callbacks)
        timeline, expected, given, handle = self.program.callbacks[place]
        if expected[1] is not None:
            callbacks_done()
        fate = self.world.fates().of_wait(Point(timeline, expected[0]))
        cancelled = handle.cancel()
        self.program.log(f"<callback of s{timeline.number}@{expected[0]}>.cancel() == {cancelled}")
        if cancelled:
            assert expected[1] is None, "a callback that has come was cancelled"
            timeline.callbacks = [each for each in timeline.callbacks if each is not expected]
            del self.program.callbacks[place]
            assert not given, "a callback that was cancelled has come"
        else:
            assert fate != STUCK or expected[1] is not None, "a callback cannot be cancelled"

    # Waits

    @rule(picks=st.binary(max_size=3), how=st.integers(0, 4))
    def wait(self, picks: bytes, how: int) -> None:
        """Wait for all, or any, of some steps and values, or await one."""
        waits = [wait for wait in (self.choose_wait(pick, 3) for pick in picks) if wait is not None]
        text = self.program.describe(waits)
        if how < 2:
            self.program.log(f"hal.wait_all([{text}])")
            self.wait_all(waits)
        elif how < 4:
            self.program.log(f"hal.wait_any([{text}])")
            self.wait_any(waits)
        elif waits and self.world.fates().of_wait(waits[0]) == DONE:
            self.program.log(f"await {self.program.describe(waits[:1])}")
            asyncio.run(_await(waits[0]))
            self.note(waits[0])

    def wait_all(self, waits: list[Point | Step]) -> None:
        """Wait for all of some things; they come, fail, or never come."""
        fates = self.world.fates()
        found = [fates.of_wait(wait) for wait in waits]
        real = self.program.real_waits(waits)
        if UNSURE in found:
            return
        if DOOMED in found:
            if self.fails_surely(waits):
                reasons = frozenset().union(*map(fates.wait_reasons, waits))
                with self.raises(reasons):
                    hal.wait_all(real, LIMIT)
        elif STUCK in found:
            with self.times_out():
                hal.wait_all(real, 0.001 if len(real) > 1 else 0)
        else:
            hal.wait_all(real, LIMIT)
            for wait in waits:
                self.note(wait)

    def wait_any(self, waits: list[Point | Step]) -> None:
        """Wait for any of some things."""
        fates = self.world.fates()
        found = [fates.of_wait(wait) for wait in waits]
        real = self.program.real_waits(waits)
        if UNSURE in found:
            return
        if DOOMED in found:
            if self.fails_surely(waits) and DONE not in found:
                reasons = frozenset().union(*map(fates.wait_reasons, waits))
                with self.raises(reasons):
                    hal.wait_any(real, LIMIT)
        elif DONE in found or not waits:
            index = hal.wait_any(real, LIMIT)
            assert (index is None) == (not waits)
            if index is not None:
                assert found[index] == DONE, f"wait_any says {index}"
                self.note(waits[index])
        else:
            with self.times_out():
                hal.wait_any(real, 0.001)

    def fails_surely(self, waits: list[Point | Step]) -> bool:
        """Return whether one of some waits fails without the host."""
        fates = self.world.fates()
        for wait in waits:
            if fates.of_wait(wait) != DOOMED:
                continue
            if isinstance(wait, Step):
                steps = [wait]
            elif wait.timeline.failure is not None:
                return True
            else:
                steps = [step for _, step in wait.timeline.promises]
            if any(fates.of(step) == DOOMED and fates.ends(step) for step in steps):
                return True
        return False

    def note(self, wait: Point | Step) -> None:
        """Note what has ended once a wait has succeeded."""
        step = wait if isinstance(wait, Step) else None
        if isinstance(wait, Point) and wait.value > wait.timeline.value:
            step = wait.timeline.covering(wait.value)
        if step is not None and step.state == OPEN:
            self.program.note(self.world.before(step))

    def settle(self, which: int) -> None:
        """Wait for all that ends, and look at a buffer."""
        self.program.log("<wait for what ends>")
        self.program.settle()
        if self.program.handles and self.world.is_sure():
            self.program.compare(self.program.handles[which % len(self.program.handles)])

    @contextlib.contextmanager
    def raises(self, reasons: frozenset[str]) -> Iterator[None]:
        """Expect a failure of the model's."""
        try:
            yield
        except HalError as error:
            self.program.check_error(error, reasons, f"a wait failed with {error!r}")
        else:
            message = f"a wait did not fail with one of {sorted(reasons)}"
            raise AssertionError(message)

    @contextlib.contextmanager
    def times_out(self) -> Iterator[None]:
        """Expect a time-out that says why."""
        try:
            yield
        except DeadlineExceededError:
            pass
        else:
            message = "a wait ended for what nobody brings about"
            raise AssertionError(message)


async def _await(wait: Point | Step) -> None:
    if isinstance(wait, Step):
        await asyncio.wait_for(wait.real, LIMIT)
    else:
        await asyncio.wait_for(wait.timeline.real.reached(wait.value), LIMIT)
