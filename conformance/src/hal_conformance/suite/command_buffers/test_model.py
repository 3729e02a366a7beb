"""Random recordings, against a model of bytes (C1 to C4)."""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT, pattern

pytestmark = pytest.mark.ordering

MEMORIES: Final = 5
"""Memories that a recording uses, some of them by slot."""

SIZE: Final = 256
"""Bytes of each."""

GUARD: Final = 32
"""Bytes between two of them, which nobody may write."""

SEEDS: Final = range(10)


class Commands:
    """Random commands: for the model a list of functions of bytes, and for hal a recording.

    The commands of a manual recording are kept apart by barriers, or by events,
    only where they have a byte in common that one of them writes. What has been
    recorded is not looked at again: the model runs its commands in their order.
    """

    def __init__(
        self, random: random.Random, recording: hal.CommandBuffer, operands: list[Any]
    ) -> None:
        self.random = random
        self.recording = recording
        self.operands = operands
        self.steps: list[Any] = []
        self.program: hal.Executable | None = None
        self.is_manual = True
        self._open: list[tuple[int, list[tuple[int, int, int, bool]]]] = []
        self._events: list[tuple[hal.CommandEvent, int]] = []

    def add(self) -> None:
        """Add one command."""
        kinds = ["fill", "fill", "update", "copy", "copy", "copy", "nothing"]
        if self.program is not None:
            kinds += ["mix"] * 4
        getattr(self, f"_{self.random.choice(kinds)}")()
        if self.is_manual and self.random.random() < 0.25:
            event = self.recording.create_event()
            self.recording.signal_event(event)
            self._events.append((event, len(self.steps)))

    def run(self, memories: list[bytearray]) -> None:
        """Run them in the model."""
        for step in self.steps:
            step(memories)

    def _range(self, unit: int = 1) -> tuple[int, int]:
        """Choose bytes of a memory: an offset and a length, multiples of `unit`."""
        start, end = sorted(self.random.sample(range(SIZE // unit + 1), 2))
        return start * unit, (end - start) * unit

    def _operand(self, memory: int) -> tuple[Any, int]:
        """Return a buffer or a slot, or a part of it, and where in the memory that begins."""
        whole, start = self.operands[memory], 0
        if self.random.random() < 0.3:
            start = 16 * self.random.randrange(4)
            whole = whole.subspan(start, SIZE - start)
        return whole, start

    def _order(self, *accesses: tuple[int, int, int, bool]) -> None:
        """Put a barrier, or an event, before a command that needs one; ``(memory, from, to)``."""
        if self.is_manual:
            needed = [
                number
                for number, others in self._open
                if any(_conflict(mine, theirs) for mine in accesses for theirs in others)
            ]
            fitting = [each for each in self._events if needed and each[1] > max(needed)]
            if fitting and self.random.random() < 0.7:
                event, before = self.random.choice(fitting)
                self.recording.wait_events(event)
                self._open = [each for each in self._open if each[0] >= before]
            elif needed:
                self.recording.barrier()
                self._open.clear()
        self._open.append((len(self.steps), list(accesses)))

    def _fill(self) -> None:
        width = self.random.choice((1, 2, 4))
        memory, value = self.random.randrange(MEMORIES), self.random.getrandbits(8 * width)
        start, length = self._range(width)
        self._order((memory, start, start + length, True))
        whole = self.operands[memory].subspan(0, SIZE, dtype=f"<u{width}")
        self.recording.fill(whole, value, offset=start, size=length)
        content = value.to_bytes(width, "little") * (length // width)
        self.steps.append(lambda memories: _put(memories[memory], start, content))

    def _update(self) -> None:
        memory = self.random.randrange(MEMORIES)
        operand, base = self._operand(memory)
        start = self.random.randrange(SIZE - base)
        content = self.random.randbytes(self.random.randint(1, SIZE - base - start))
        at = base + start
        self._order((memory, at, at + len(content), True))
        self.recording.update(operand, content, offset=start)
        self.steps.append(lambda memories: _put(memories[memory], at, content))

    def _copy(self) -> None:
        source, target = self.random.randrange(MEMORIES), self.random.randrange(MEMORIES)
        (start, length), (end, _) = self._range(), self._range()
        length = min(length, SIZE - end)
        if source == target and abs(start - end) < length:
            length = abs(start - end)
        self._order((source, start, start + length, False), (target, end, end + length, True))
        self.recording.copy(
            self.operands[source],
            self.operands[target],
            source_offset=start,
            target_offset=end,
            size=length,
        )
        self.steps.append(
            lambda memories: _put(
                memories[target], end, bytes(memories[source][start : start + length])
            )
        )

    def _nothing(self) -> None:
        operand = self.operands[self.random.randrange(MEMORIES)]
        self.recording.fill(operand, 1, offset=self.random.randrange(SIZE), size=0)
        if self.random.random() < 0.3:
            self.recording.barrier()
            self._open.clear()

    def _mix(self) -> None:
        """Dispatch ``output[i] = output[i] * 5 + input[i] * factor + i`` over some words."""
        assert self.program is not None
        source, target = self.random.sample(range(MEMORIES), 2)
        count, factor = self.random.randint(1, 32), self.random.getrandbits(32)
        start, end = (4 * self.random.randint(0, SIZE // 4 - count) for _ in range(2))
        length = 4 * count
        self._order((source, start, start + length, False), (target, end, end + length, True))
        read = self.operands[source].subspan(start, length)
        written = self.operands[target].subspan(end, length)
        self.recording.dispatch(
            self.program["mix"], grid=-(-count // 8), block=8, args=(read, written, factor, count)
        )

        def run(memories: list[bytearray]) -> None:
            given = memoryview(memories[source])[start : start + length].cast("I")
            taken = memoryview(memories[target])[end : end + length].cast("I")
            for index in range(count):
                value = taken[index] * 5 + given[index] * factor + index
                taken[index] = value % (1 << 32)

        self.steps.append(run)


def _put(memory: bytearray, start: int, content: bytes) -> None:
    memory[start : start + len(content)] = content


def _conflict(first: tuple[int, int, int, bool], second: tuple[int, int, int, bool]) -> bool:
    """Return whether two accesses have a byte in common that one of them writes."""
    return (
        first[0] == second[0]
        and max(first[1], second[1]) < min(first[2], second[2])
        and (first[3] or second[3])
    )


def check(
    queue: hal.Queue, seed: int, lowering: str, hazards: str, program: hal.Executable | None
) -> None:
    """Record random commands, execute them over random bindings, and compare every byte."""
    # A text: numbers of this kind would give the same recordings in both orders.
    chance = random.Random(f"{seed} {hazards}")  # noqa: S311 - nothing is secret
    stride = SIZE + GUARD
    places = 2 * MEMORIES
    content = bytearray(pattern(places * stride, seed).tobytes())
    pool = queue.device.upload(np.frombuffer(bytes(content), np.uint8))
    parts = [pool.subspan(place * stride, SIZE) for place in range(places)]
    slots = chance.randint(0, MEMORIES)
    specs: list[Any] = [("u1", SIZE)] * slots
    with queue.device.record(slots=specs, hazards=hazards, command_buffer=lowering) as recording:
        direct = list(range(MEMORIES - slots))
        operands = [parts[place] for place in direct] + list(recording.slots)
        commands = Commands(chance, recording, operands)
        commands.program, commands.is_manual = program, hazards == "manual"
        for _ in range(chance.randint(1, 24)):
            commands.add()
    last = queue.barrier()
    for _ in range(4):
        bound = chance.sample(range(MEMORIES - slots, places), slots)
        last = queue.execute(recording, bindings=[parts[place] for place in bound])
        memories = [content[place * stride : place * stride + SIZE] for place in [*direct, *bound]]
        commands.run(memories)
        for place, memory in zip([*direct, *bound], memories, strict=True):
            _put(content, place * stride, bytes(memory))
        if chance.random() < 0.3:
            last.wait(LIMIT)
    last.wait(LIMIT)
    assert pool.numpy(timeout=LIMIT).tobytes() == bytes(content)


@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_transfers_against_a_model_c2(queue, lowering, hazards, seed):
    """C2, C1 to C4: random transfers, directly or by slot, do what the model does, to the byte."""
    for number in range(4):
        check(queue, 100 * seed + number, lowering, hazards, None)


@pytest.mark.feature("kernels")
@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_commands_against_a_model_c2(queue, program, lowering, hazards, seed):
    """C2, with C1 to C5: the same with kernels among them."""
    for number in range(4):
        check(queue, 100 * seed + number, lowering, hazards, program)
