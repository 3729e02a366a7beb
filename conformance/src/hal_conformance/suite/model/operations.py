"""Random programs: submit every kind of operation; one half of the machine."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hal_conformance.suite.model.choices import Choices, Lists
from hal_conformance.suite.model.program import run_call
from hal_conformance.suite.model.recordings import SLOT, Part, Recording, mix
from hal_conformance.suite.model.stage import LARGE, SIZE, Handle
from hal_conformance.suite.model.things import OPEN, Memory

__all__ = ["Operations"]

CHOICES: Final = st.binary(min_size=6, max_size=6)
"""Choices: of things by their places in a list, round and round, and of places and sizes."""

OPERATIONS: Final = st.lists(st.binary(min_size=14, max_size=14), min_size=1, max_size=6)
"""Operations: of each its kind, six choices, and its lists (`Lists`)."""


KINDS: Final = {
    **dict.fromkeys(("fill", "update", "write", "large"), "put"),
    **dict.fromkeys(("copy", "read"), "take"),
    "dispatch": "dispatch",
    **dict.fromkeys(("plain", "defers", "hal", "other", "barrier"), "call"),
    "execute": "execute",
    "alloca": "alloca",
    "dealloca": "dealloca",
}
"""The methods that submit each kind of operation; of calls, what the function does."""

MOVES: Final = ("copy", "fill", "update", "write", "read", "dispatch", "copy", "large", "dispatch")

OTHERS: Final = (
    *("barrier", "fill", "execute", "alloca", "plain", "execute", "defers", "execute"),
    *("dealloca", "execute", "dispatch", "hal", "execute", "other", "defers", "execute"),
)

COMMANDS: Final = ("fill", "update", "copy", "copy", "mix", "mix")


class Operations(Choices):
    """Rules that submit, record and allocate; the world decides the waits."""

    # Rules

    def submit(self, operations: list[bytes], kinds: tuple[str, ...]) -> None:
        """Submit some operations."""
        for drawn in operations:
            kind = kinds[drawn[0] % len(kinds)]
            getattr(self, KINDS[kind])(kind, drawn[1:7], Lists.read(drawn[7:]))

    @rule(operations=OPERATIONS)
    def move_bytes(self, operations: list[bytes]) -> None:
        """Fill, update, write, copy, read and dispatch."""
        self.submit(operations, MOVES)

    @rule(operations=OPERATIONS)
    def do_anything(self, operations: list[bytes]) -> None:
        """Submit any operation."""
        self.submit(operations, OTHERS)

    @rule(what=st.sampled_from(["subspan", "allocate", "map", "close_buffer"]), choices=CHOICES)
    def manage(self, what: str, choices: bytes) -> None:
        """Do something with memory."""
        getattr(self, what)(choices)

    def put(self, kind: str, to: bytes, lists: Lists) -> None:
        """Write to a buffer."""
        step = self.step("write" if kind == "large" else kind, lists)
        handles = self.usable(step.line.device)
        if not handles:
            return
        handle = handles[to[0] % len(handles)]
        start, value = to[1] % (handle.size + 1), to[3]
        size = min(to[2], handle.size - start)
        queue, text = step.line.real, f"b{handle.number}, offset={start}"
        arguments: tuple[Any, ...]
        if kind == "fill":
            width = (1, 2, 4)[value % 3]
            start, size = start - start % width, size - size % width
            pattern = (value * 0x01030507 % 2**32).to_bytes(4, "little")[:width]
            content = np.frombuffer(pattern * (size // width), np.uint8)
            arguments, named = (handle.real, pattern), {"offset": start, "size": size}
            text = f"b{handle.number}, {pattern!r}, offset={start}, size={size}"
        else:
            if kind == "large":
                start, size = 0, handle.size
            data = (np.arange(size) * 7 + value).astype(np.uint8)
            content = data.copy()
            arguments, named = (handle.real, data), {"offset": start}
            text = f"b{handle.number}, <{size} bytes from {value}>, offset={start}"
        self.use(step, handle.access(start, size, writes=True))
        memory, at = handle.memory, handle.offset + start
        step.effect = lambda: memory.put(at, content)
        self.program.submit(
            step, text, getattr(queue, step.kind), *arguments, how=lists.how, **named
        )
        if kind == "update" or (kind == "write" and size <= 1 << 16):
            data[:] = 0  # its bytes were taken

    def take(self, kind: str, source: bytes, lists: Lists) -> None:
        """Copy from a buffer to another one, or to the host."""
        step = self.step(kind, lists)
        handles = self.usable(step.line.device)
        if not handles:
            return
        handle = handles[source[0] % len(handles)]
        target = handles[source[1] % len(handles)]
        start, end = source[2] % (handle.size + 1), source[3] % (target.size + 1)
        size = min(source[4], handle.size - start)
        if kind == "copy":
            size = min(size, target.size - end)
            reads = handle.access(start, size, writes=False)
            writes = target.access(end, size, writes=True)
            if reads.meets(writes):
                return
            self.use(step, reads, writes)
            step.effect = lambda: target.memory.put(
                writes.start, *handle.memory.take(reads.start, size)
            )
            self.program.submit(
                step,
                f"b{handle.number}, b{target.number}, source_offset={start}, "
                f"target_offset={end}, size={size}",
                step.line.real.copy,
                handle.real,
                target.real,
                how=lists.how,
                source_offset=start,
                target_offset=end,
                size=size,
            )
            return
        array, content = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        known = np.zeros(size, np.bool_)
        reads = handle.access(start, size, writes=False)

        def note() -> None:
            content[:], known[:] = handle.memory.take(reads.start, size)

        self.use(step, reads)
        step.effect = note
        text = f"b{handle.number}, <{size} bytes>, offset={start}"
        real = step.line.real.read
        self.program.submit(step, text, real, handle.real, array, how=lists.how, offset=start)
        self.program.reads.append((step, array, content, known))

    def dispatch(self, _kind: str, choices: bytes, lists: Lists) -> None:
        """Launch a kernel, where there are kernels; an empty grid does nothing."""
        step = self.step("dispatch", lists)
        handles = [
            handle for handle in self.usable(step.line.device, SLOT) if handle.offset % 4 == 0
        ]
        source, target = (
            (handles[each % len(handles)] for each in choices[:2]) if handles else 2 * (None,)
        )
        if self.stage.kernel is None or source is None or target is None or step.line.device:
            return
        if source.memory is target.memory:
            return
        start, end, count = 4 * (choices[2] % 8), 4 * (choices[3] % 8), choices[4] % 9
        reads = source.access(start, 4 * count, writes=False)
        writes = target.access(end, 4 * count, writes=True)
        self.use(step, reads, writes)
        if count:
            step.effect = lambda: mix(
                (source.memory, reads.start), (target.memory, writes.start), choices[2], count
            )
        arguments = (
            source.real.subspan(start, SLOT - start),
            target.real.subspan(end, SLOT - end),
            choices[2],
            count,
        )
        self.program.submit(
            step,
            f"mix, grid={-(-count // 4)}, block=4, args=(b{source.number}[{start}:], "
            f"b{target.number}[{end}:], {choices[2]}, {count})",
            step.line.real.dispatch,
            self.stage.kernel,
            how=lists.how,
            grid=-(-count // 4),
            block=4,
            args=arguments,
        )

    def call(self, kind: str, back: bytes, lists: Lists) -> None:
        """Call a host function, which returns, raises or defers its end; or only order."""
        number = self.world.count
        mistake = {"hal": f"step {number} fails", "other": f"raised by {number}."}.get(kind)
        step = self.step("barrier" if kind == "barrier" else "call", lists, mistake=mistake)
        if kind == "barrier":
            self.program.submit(step, "", step.line.real.barrier, how=lists.how)
            return
        if kind == "defers" and not step.line.closable:
            for each in back[: 1 + back[2] % 2]:
                wait = self.choose_wait(each, lists.how)
                if wait is not None:
                    step.deferred.append(wait)
        step.effect = lambda: self.program.calls.append(number)
        self.program.submit(
            step,
            f"<{kind} {self.program.describe(step.deferred)}>",
            step.line.real.call,
            run_call,
            mistake,
            number,
            self.program.called,
            self.program.real_waits(step.deferred),
            self.lock,
            how=lists.how,
        )

    # Command buffers

    @rule(
        direct=st.binary(max_size=2),
        how=st.integers(0, 63),
        commands=st.lists(st.binary(min_size=7, max_size=7), max_size=5),
    )
    def record(self, direct: bytes, how: int, commands: list[bytes]) -> None:
        """Record commands over buffers and slots."""
        slots = how // 16
        handles: list[Handle] = []
        for number in direct:
            able = [each for each in self.usable(0, SLOT) if each.memory.allocation is None]
            able = [each for each in able if each.offset % 16 == 0]
            handle = able[number % len(able)] if able else None
            if handle is not None and all(handle.memory is not other.memory for other in handles):
                handles.append(handle)
        if not handles and not slots:
            return
        is_manual, lowering = (
            how % 2 == 0,
            self.stage.lowerings[how // 4 % len(self.stage.lowerings)],
        )
        real = self.stage.device.record(
            slots=[(np.uint8, SLOT)] * slots,
            one_shot=how % 4 == 3,
            hazards="manual" if is_manual else "auto",
            command_buffer=lowering,
        )
        parts = [((handle.memory, handle.offset), handle.real) for handle in handles]
        number = len(self.recordings)
        kernel = self.stage.kernel
        recording = Recording(number, real, parts, is_manual=is_manual, kernel=kernel)
        for kind, *choices in commands:
            recording.add(COMMANDS[kind % len(COMMANDS)], choices)
        real.end()
        self.recordings.append(recording)
        self.program.log(
            f"r{number} = d0.record(slots={slots}, one_shot={real.one_shot}, "
            f"{'manual' if is_manual else 'auto'}, {lowering}) over "
            f"{[f'b{handle.number}' for handle in handles]}: {'; '.join(recording.text)}"
        )

    def execute(self, _kind: str, bound: bytes, lists: Lists) -> None:
        """Execute a recording, over any buffers."""
        if not self.recordings:
            return
        recording = self.recordings[-1 - bound[5] % len(self.recordings)]
        step = self.step("execute", lists)
        if step.line.device or (recording.real.one_shot and recording.runs):
            return
        table: list[Handle] = []
        able = [handle for handle in self.usable(0, SLOT) if handle.offset % 16 == 0]
        for number in bound[: recording.slots]:
            taken = [*recording.memories, *(other.memory for other in table)]
            free = [handle for handle in able if handle.memory not in taken]
            if free:
                table.append(free[number % len(free)])
        if len(table) < recording.slots:
            return
        parts: list[Part] = [(handle.memory, handle.offset) for handle in table]
        self.use(step, *recording.accesses(parts))
        used = {access.memory for access in step.accesses}
        if any(memory.allocation is not None and memory not in used for memory, _ in parts):
            return  # whether an empty range needs memory is unspecified
        step.effect = lambda: recording.run(parts)
        recording.runs += 1
        self.program.submit(
            step,
            f"r{recording.number}, bindings={[f'b{handle.number}' for handle in table]}",
            step.line.real.execute,
            recording.real,
            how=lists.how,
            bindings=[handle.real for handle in table] if recording.slots else None,
        )

    # Memory

    def alloca(self, _kind: str, choices: bytes, lists: Lists) -> None:
        """Allocate in the order of a queue."""
        step, size = self.step("alloca", lists), (SIZE, SLOT, 1)[choices[0] % 3]
        memory = Memory(size, step.line.device, step)
        real = self.program.submit(step, f"{size}", step.line.real.alloca, size, how=lists.how)
        handle = self.program.add_handle(memory, 0, size, real)
        handle.is_whole = True
        self.program.log(f"b{handle.number} = op{step.number}")

    def dealloca(self, _kind: str, choices: bytes, lists: Lists) -> None:
        """Give such memory back; its buffers are of no use from then on."""
        handles = [handle for handle in self.program.handles if handle.is_whole]
        if not handles:
            return
        handle = handles[choices[0] % len(handles)]
        step = self.step("dealloca", lists)
        if step.line.device != handle.memory.device:
            return
        allocation = handle.memory.allocation
        if allocation is not None and allocation.state == OPEN:
            step.waits.append(allocation)
        text = f"b{handle.number}"
        self.program.submit(step, text, step.line.real.dealloca, handle.real, how=lists.how)
        ended = [each for each in self.program.handles if each.memory is handle.memory]
        self.program.ended += ended
        self.program.handles = [each for each in self.program.handles if each not in ended]

    def subspan(self, choices: bytes) -> None:
        """Make a buffer of a part of another."""
        if len(self.program.handles) > 12:
            return
        handles = [handle for handle in self.program.handles if not handle.memory.device]
        if not handles:
            return
        handle = handles[choices[0] % len(handles)]
        start = choices[1] % (handle.size + 1) // 4 * 4
        size = min(choices[2], handle.size - start)
        real = handle.real.subspan(start, size)
        memory, offset = handle.memory, handle.offset + start
        part = self.program.add_handle(memory, offset, size, real)
        self.program.log(f"b{part.number} = b{handle.number}.subspan({start}, {size})")

    def allocate(self, choices: bytes) -> None:
        """Allocate; once a program a memory larger than what a write takes in the call."""
        kind = ("device", "host", "managed", "large")[choices[0] % 4]
        if len(self.program.handles) < 10:
            if kind != "large":
                self.program.add_memory(SIZE, kind)
            elif all(handle.size < LARGE for handle in self.program.handles):
                self.program.add_memory(LARGE)
