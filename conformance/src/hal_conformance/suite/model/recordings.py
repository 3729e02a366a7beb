"""Record the same commands in hal and in the model, with the order that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

import hal
from hal_conformance.suite.model.things import Access, Memory, meet

__all__ = ["SLOT", "Part", "Recording", "mix"]

SLOT: Final = 64
"""Bytes that each slot needs."""

Part = tuple[Memory, int]
"""Where something begins in the model's memory."""

Place = int
"""A buffer of a recording: 0 and more is given directly, -1 and less a slot."""


def mix(source: Part, target: Part, factor: int, count: int) -> None:
    """The suite's kernel: ``target[i] = target[i] * 5 + source[i] * factor + i``."""
    size = 4 * count
    (given, have), (taken, known) = source[0].take(source[1], size), target[0].take(target[1], size)
    words = taken.view("<u4").astype(np.uint64) * 5 + np.arange(count, dtype=np.uint64)
    words += given.view("<u4").astype(np.uint64) * np.uint64(factor)
    whole = (have & known).reshape(-1, 4).all(axis=1).repeat(4)
    target[0].put(target[1], words.astype("<u4").view(np.uint8), whole)


class Recording:
    """A recording: hal's, and a list of what each command touches and does.

    Commands of a manual one are kept apart, by a barrier or an event, wherever
    they touch the same bytes and one writes. A slot is a memory of its own:
    what is bound must not overlap, nor lie in what is given directly.
    """

    def __init__(
        self,
        number: int,
        recording: hal.CommandBuffer,
        direct: list[tuple[Part, Any]],
        *,
        is_manual: bool,
        kernel: hal.Kernel | None,
    ) -> None:
        self.number = number
        self.real = recording
        self.slots = len(recording.slots)
        self.runs = 0
        self.text: list[str] = []
        self._direct = direct
        self._stand_ins = [Memory(SLOT, 0) for _ in range(self.slots)]
        self._is_manual = is_manual
        self._kernel = kernel
        self._commands: list[tuple[list[Access], Callable[[list[Part]], None]]] = []
        self._unordered: list[tuple[int, list[Access]]] = []
        self._events: list[tuple[hal.CommandEvent, int]] = []

    @property
    def memories(self) -> list[Memory]:
        """Return the memories that are given directly."""
        return [memory for (memory, _), _ in self._direct]

    def accesses(self, table: list[Part]) -> list[Access]:
        """Return what an execution touches."""
        found = []
        for accesses, _ in self._commands:
            for memory, start, stop, writes in accesses:
                if memory in self._stand_ins:
                    bound, base = table[self._stand_ins.index(memory)]
                    found.append(Access(bound, base + start, base + stop, writes))
                else:
                    found.append(Access(memory, start, stop, writes))
        return found

    def run(self, table: list[Part]) -> None:
        """Run the commands, in their order."""
        for _, function in self._commands:
            function(table)

    def add(self, kind: str, choices: Sequence[int]) -> None:
        """Add a command; `choices` are ints that decide everything else."""
        first, second, start, end, size, value = choices
        places = [*range(len(self._direct)), *range(-self.slots, 0)]
        place, other = places[first % len(places)], places[second % len(places)]
        start, end = start % SLOT, end % SLOT
        size %= SLOT + 1 - max(start, end)
        target = self._operand(place)
        if kind == "fill":
            width = (1, 2, 4)[value % 3]
            start, size = start - start % width, size - size % width
            pattern = (value * 0x01030507 % 2**32).to_bytes(4, "little")[:width]
            self._put([self._access(place, start, size, writes=True)], f"fill({pattern!r})")
            self.real.fill(target, pattern, offset=start, size=size)
            self._do(
                lambda table: _write(self._find(place, table), start, pattern * (size // width))
            )
        elif kind == "update":
            content = bytes((value + 3 * each) % 256 for each in range(size))
            self._put([self._access(place, start, size, writes=True)], "update()")
            self.real.update(target, content, offset=start)
            self._do(lambda table: _write(self._find(place, table), start, content))
        elif place == other:
            self.real.barrier()
            self.text.append("barrier()")
            self._unordered.clear()
        elif kind == "copy":
            self._put(
                [
                    self._access(place, start, size, writes=False),
                    self._access(other, end, size, writes=True),
                ],
                "copy()",
            )
            self.real.copy(
                target, self._operand(other), source_offset=start, target_offset=end, size=size
            )

            def copy(table: list[Part]) -> None:
                memory, base = self._find(place, table)
                content, known = memory.take(base + start, size)
                memory, base = self._find(other, table)
                memory.put(base + end, content, known)

            self._do(copy)
        elif self._kernel is not None:
            start, end, count = start - start % 4, end - end % 4, size // 4
            if count:
                self._mix(place, other, start, end, count, value)

    def _mix(
        self, source: Place, target: Place, start: int, end: int, count: int, factor: int
    ) -> None:
        self._put(
            [
                self._access(source, start, 4 * count, writes=False),
                self._access(target, end, 4 * count, writes=True),
            ],
            "mix()",
        )
        arguments = (
            self._operand(source).subspan(start, 4 * count),
            self._operand(target).subspan(end, 4 * count),
            factor,
            count,
        )
        assert self._kernel is not None
        self.real.dispatch(self._kernel, grid=-(-count // 8), block=8, args=arguments)

        def run(table: list[Part]) -> None:
            (read, first), (written, second) = self._find(source, table), self._find(target, table)
            mix((read, first + start), (written, second + end), factor, count)

        self._do(run)

    def _put(self, accesses: list[Access], text: str) -> None:
        """Order a command behind those that it conflicts with, and note what it touches."""
        number = len(self._commands)
        if self._is_manual:
            needed = [each for each, others in self._unordered if meet(accesses, others)]
            fitting = [event for event in self._events if needed and event[1] > max(needed)]
            if fitting and number % 2:
                event, before = fitting[number % len(fitting)]
                self.real.wait_events(event)
                self.text.append("wait_events()")
                self._unordered = [each for each in self._unordered if each[0] >= before]
            elif needed:
                self.real.barrier()
                self.text.append("barrier()")
                self._unordered.clear()
        self._unordered.append((number, accesses))
        self._accesses = accesses
        where = ", ".join(
            f"{'slot' if memory in self._stand_ins else 'memory'} {start}:{stop}"
            for memory, start, stop, _ in accesses
        )
        self.text.append(f"{text} {where}")

    def _do(self, function: Callable[[list[Part]], None]) -> None:
        """Add what was put."""
        self._commands.append((self._accesses, function))
        if self._is_manual and len(self._commands) % 3 == 0:
            event = self.real.create_event()
            self.real.signal_event(event)
            self._events.append((event, len(self._commands)))

    def _operand(self, place: Place) -> Any:  # noqa: ANN401 - a buffer or a slot
        return self._direct[place][1] if place >= 0 else self.real.slots[-1 - place]

    def _access(self, place: Place, start: int, size: int, *, writes: bool) -> Access:
        memory, base = self._direct[place][0] if place >= 0 else (self._stand_ins[-1 - place], 0)
        return Access(memory, base + start, base + start + size, writes)

    def _find(self, place: Place, table: list[Part]) -> Part:
        return self._direct[place][0] if place >= 0 else table[-1 - place]


def _write(where: Part, offset: int, content: bytes) -> None:
    memory, base = where
    memory.put(base + offset, content)
