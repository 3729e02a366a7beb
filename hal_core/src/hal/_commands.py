"""Define command buffers: operations recorded once and submitted together (rules C1 to C4)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from hal import _recorded
from hal._command_events import CommandEvent
from hal._failure import fresh
from hal._hazards import Access
from hal._instances import SlotUses
from hal._lowering import Order, lower
from hal._program import Program
from hal._recorded import Command
from hal._slots import DIRECT, Slot, SlotRules, Slots
from hal._usage import WRITE
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.native import CopyNode, IndirectLaunchNode

if TYPE_CHECKING:
    from types import TracebackType

    from hal import _transfers
    from hal._buffer import Buffer
    from hal._device import Device
    from hal._dispatch import Grid
    from hal._executable import Kernel
    from hal._instances import Patch
    from hal._parameters import ParameterBlock
    from hal.native import Node

__all__ = ["CommandBuffer", "check_mode", "execute"]

_MODES: Final = ("auto", "graph", "stream")
_HAZARDS: Final = ("auto", "manual")
_CATEGORIES: Final = ("all", "dispatch", "transfer")

_GRAPH_COMMANDS: Final = 4
"""From so many commands on "auto" takes a graph: for one, a graph has nothing to save."""


class CommandBuffer:
    """Record operations, and run them on a queue as often as wanted.

    Made by `Device.record`. After `end`, which leaving the ``with`` block
    calls, it is immutable and may be submitted from any thread, many times at
    once. While it records, one thread uses it. It keeps alive what it uses.

    Commands between two barriers may run concurrently, and a barrier orders
    all before it with all after it; with ``hazards="auto"`` commands that touch
    the same bytes are ordered as recorded, and barriers are not needed (C2).

    Wherever a buffer is taken, a `Slot` of this recording is (C3). `name` is
    what errors call a command. Errors of every recording method, which leave
    the recording as it was: `InvalidArgumentError` after `end` and for a
    category that it does not have, `ClosedError` after an error left its
    ``with`` block and for a closed buffer, `ArgumentTypeError` and
    `InvalidArgumentError` for arguments.
    """

    __slots__ = (
        "_blocks",
        "_category",
        "_copies",
        "_device",
        "_ended",
        "_events",
        "_failed",
        "_functions",
        "_groups",
        "_hazards",
        "_mode",
        "_names",
        "_nodes",
        "_order",
        "_patches",
        "_program",
        "_resources",
        "_runs",
        "_slots",
    )

    def __init__(
        self,
        device: Device,
        slots: object = 0,
        *,
        one_shot: bool = False,
        hazards: str = "manual",
        categories: str = "all",
        command_buffer: str | None = None,
    ) -> None:
        """Check the settings; see `Device.record`."""
        _check_choice(hazards, _HAZARDS, "record: hazards")
        _check_choice(categories, _CATEGORIES, "record: categories")
        self._mode = device._command_buffer
        if command_buffer is not None:
            self._mode = check_mode(command_buffer, device._native.features, device.name)
        self._device = device
        self._hazards = hazards == "auto"
        self._category = categories
        # A one-shot recording has one token, which its execution takes.
        self._runs: list[None] | None = [None] if one_shot else None
        self._slots = Slots(device, slots)
        self._functions: list[Callable[..., object]] = []
        self._nodes: list[Node] = []
        self._resources: list[object] = []
        self._names: list[str] = []  # of each command
        self._patches: list[Patch] = []
        self._blocks: dict[int, ParameterBlock] = {}  # of the commands whose kernels use slots
        self._copies: list[tuple[int, int, int, int, int, str]] = []
        self._order = Order()
        self._groups: list[str] = []
        self._events = 0
        self._program: Program | None = None
        self._ended = False
        self._failed = False

    @property
    def device(self) -> Device:
        """Return the device that it records for."""
        return self._device

    @property
    def slots(self) -> Slots:
        """Return the slots, in order, which stand for the buffers of a binding table (C3)."""
        return self._slots

    @property
    def one_shot(self) -> bool:
        """Return whether it may be executed only once."""
        return self._runs is not None

    @property
    def lowering(self) -> str | None:
        """Return how it is run: ``"graph"``, ``"stream"`` or ``"host"``; None before `end` (C4)."""
        program = self._program
        if program is None:
            return None
        return "host" if program.is_host else "graph" if program._lowering else "stream"

    def __len__(self) -> int:
        """Return how many commands were recorded, barriers and no-ops left out."""
        return len(self._nodes)

    def __repr__(self) -> str:
        state = "left by an error" if self._failed else "ended" if self._ended else "recording"
        return f"<CommandBuffer of {len(self)} commands, {len(self._slots)} slots, {state}>"

    def __enter__(self) -> Self:
        self._recording()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.end()
        else:
            self._failed = True

    # Commands

    def fill(
        self,
        buffer: Buffer | Slot,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None:
        """Record what `Queue.fill` does. A slot without a size takes one here."""
        self._add("transfer", "fill", name, _recorded.fill, buffer, value, offset, size)

    def update(
        self, buffer: Buffer | Slot, data: object, *, offset: int = 0, name: str | None = None
    ) -> None:
        """Record what `Queue.update` does; the bytes are taken now."""
        self._add("transfer", "update", name, _recorded.update, buffer, data, offset)

    def copy(
        self,
        source: Buffer | Slot,
        target: Buffer | Slot,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None:
        """Record what `Queue.copy` does. A source slot without a size takes one here.

        Whether a slot's bytes overlap others is checked when it is bound.
        """
        arguments = (source, target, source_offset, target_offset, size)
        self._add("transfer", "copy", name, _recorded.copy, *arguments)

    def dispatch(
        self,
        kernel: Kernel,
        *,
        grid: Grid | Slot,
        block: int | Sequence[int] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int | None = None,
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        """Record what `Queue.dispatch` does; the arguments are packed now, once.

        With ``hazards="auto"`` a kernel reads and writes all of each buffer
        that it is given, and only reads it where its parameter is a pointer to
        const. `reads` and `writes` name parameters that are only read, or
        written too, whatever their type says.
        """
        arguments = (kernel, grid, block, args, shared_memory, reads, writes)
        self._add("dispatch", "dispatch", name, _recorded.dispatch, *arguments)

    # Order

    def barrier(self) -> None:
        """Order all commands before it with all after it."""
        self._recording()
        self._order.barrier()

    def create_event(self, *, name: str | None = None) -> CommandEvent:
        """Return an event of this recording, not signalled: a barrier in two halves."""
        self._recording()
        self._events += 1
        return CommandEvent(self, _check_name(name) or f"event{self._events}")

    def signal_event(self, event: CommandEvent) -> None:
        """Signal an event once all commands recorded so far have ended.

        Raises `InvalidArgumentError` for one that is signalled: reset it first.
        """
        self._check_event(event, "signal_event")
        if event._signalled:
            message = (
                f"signal_event: {event.name} is signalled; reset it first, or create another event"
            )
            raise InvalidArgumentError(message)
        event._join = self._order.join()
        event._signalled = True

    def wait_events(self, *events: CommandEvent) -> None:
        """Order all commands before the events' signals with all recorded from now on.

        Raises `InvalidArgumentError` for an event that is not signalled, for
        which the commands would wait for ever.
        """
        for event in events:
            self._check_event(event, "wait_events")
            if not event._signalled:
                message = (
                    f"wait_events: nothing that was recorded so far signals {event.name}; record "
                    "signal_event() for it before"
                )
                raise InvalidArgumentError(message)
        for event in events:
            self._order.wait(event._join)

    def reset_event(self, event: CommandEvent) -> None:
        """Make an event not signalled, so that it can be signalled again."""
        self._check_event(event, "reset_event")
        event._signalled = False
        event._join = None

    def group(self, name: str) -> _Group:
        """Return a context that puts `name` in front of the names of commands recorded in it.

        Groups nest: ``"frame/blur/rows"``. They order nothing.
        """
        self._recording()
        if not isinstance(name, str):
            message = f"the name of a group is a str, not {type(name).__name__}"
            raise ArgumentTypeError(message)
        return _Group(self, name)

    def end(self) -> None:
        """End the recording; raises `InvalidArgumentError` if it has ended or a group is open."""
        self._recording()
        if self._groups:
            message = (
                f"end: the group {'/'.join(self._groups)!r} is still open; leave its with block"
            )
            raise InvalidArgumentError(message)
        self._program = self._make_program()
        self._ended = True

    # Inside

    def _add(
        self,
        category: str,
        verb: str,
        name: str | None,
        check: Callable[..., list[Command]],
        *arguments: object,
    ) -> None:
        """Check a command and append it, in pieces if it is too large for one native call."""
        self._recording()
        if self._category not in {"all", category}:
            message = (
                f"{verb}: this recording takes {self._category} commands only; record it with "
                "categories='all'"
            )
            raise InvalidArgumentError(message)
        label = _check_name(name) or ""
        if self._groups:
            label = "/".join([*self._groups, label]) if label else "/".join(self._groups)
        try:
            checked = check(self._device, self._slots, *arguments)
        except HalError as error:
            if not label:
                raise
            told = fresh(error)
            told.args = (f"{label}: {error}", *error.args[1:])
            raise told from error
        for command in checked:
            self._append(command, f"{verb} {label!r}" if label else verb)

    def _append(self, command: Command, title: str) -> None:
        """Append a checked command."""
        number = len(self._nodes)
        operands = command.operands
        for memory, start, size, place, alignment, rights in operands:
            if memory == DIRECT:
                continue
            self._slots.need(memory, _recorded.needed(start, size), alignment, rights)
            self._patches.append((number, memory, start, place))
            if command.block is not None and place >= 0:
                self._blocks[number] = command.block
        if command.node.__class__ is CopyNode and operands[0].memory != operands[1].memory:
            target, source = operands
            self._copies.append(
                (
                    *(target.memory, target.start, source.memory, source.start, source.size),
                    f"command {number}, {title},",
                )
            )
        if self._hazards:
            self._order.accesses.append(
                [
                    Access(memory, start, start + size, bool(rights & WRITE))
                    for memory, start, size, _, _, rights in operands
                    if size
                ]
            )
        self._order.add()
        self._functions.append(command.function)
        self._nodes.append(command.node)
        self._resources.append(command.resources)
        self._names.append(title)

    def _make_program(self) -> Program:
        """Lower the recording; no native call is made."""
        device, count = self._device, len(self._nodes)
        is_host = "indirect_dispatch" not in device.features and any(
            node.__class__ is IndirectLaunchNode for node in self._nodes
        )
        graph = self._mode == "graph" or (
            self._mode == "auto"
            and "graphs" in device.features
            and self._runs is None
            and count >= _GRAPH_COMMANDS
        )
        return Program(
            device,
            self._functions,
            self._nodes,
            self._resources,
            SlotRules(self._slots, self._copies, self._order.accesses if self._hazards else None),
            SlotUses(len(self._slots), self._patches, self._blocks),
            lower(self._order) if graph and count and not is_host else None,
            functools.partial(_describe, self._names),
            is_host=is_host,
        )

    def _check_event(self, event: CommandEvent, what: str) -> None:
        self._recording()
        if not isinstance(event, CommandEvent):
            message = f"{what} takes an event (commands.create_event()), not {type(event).__name__}"
            raise ArgumentTypeError(message)
        if event._commands is not self:
            message = (
                f"{what}: {event.name} was created by another recording; events order commands of "
                "one recording only, and semaphores order executions"
            )
            raise InvalidArgumentError(message)

    def _recording(self) -> None:
        if self._failed:
            message = "the recording was left by an error; record another with device.record()"
            raise ClosedError(message)
        if self._ended:
            message = "the recording has ended and is immutable; record another"
            raise InvalidArgumentError(message)

    def _take_run(self) -> None:
        """Take the token of a one-shot recording, or raise that it has been executed."""
        if self._runs is not None:
            try:
                self._runs.pop()  # one bytecode: two threads cannot get the same
            except IndexError:
                message = (
                    "execute: the recording is one-shot and has been executed; record another, or "
                    "record it with one_shot=False"
                )
                raise ClosedError(message) from None

    def _give_back_run(self) -> None:
        """Undo `_take_run`: the submission was refused."""
        if self._runs is not None:
            self._runs.append(None)


class _Group:
    """Keep a group of commands open; see `CommandBuffer.group`."""

    __slots__ = ("_commands", "_depth", "_name")

    def __init__(self, commands: CommandBuffer, name: str) -> None:
        self._commands = commands
        self._name = name
        self._depth = -1

    def __enter__(self) -> Self:
        self._commands._recording()
        if self._depth >= 0:
            message = f"the group {self._name!r} is open already; make another for a second time"
            raise InvalidArgumentError(message)
        self._depth = len(self._commands._groups)
        self._commands._groups.append(self._name)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        depth, self._depth = self._depth, -1
        groups = self._commands._groups
        balanced = depth == len(groups) - 1 and groups[depth] == self._name
        if not balanced and kind is None:
            message = (
                f"the group {self._name!r} ends while {'/'.join(groups) or 'none'!r} is open; "
                "groups end in the reverse of the order in which they began"
            )
            raise InvalidArgumentError(message)
        del groups[depth:]


def check_mode(mode: object, features: Iterable[str], device: str) -> str:
    """Return a way to run command buffers, or raise that there is none such, or not here."""
    checked = _check_choice(mode, _MODES, "command_buffer")
    if checked == "graph" and "graphs" not in features:
        message = (
            f"command_buffer='graph' was asked for, and {device} has no native graphs (the feature "
            "'graphs'); use 'auto' or 'stream'"
        )
        raise UnimplementedError(message)
    return checked


def execute(device: Device, commands: CommandBuffer, bindings: object) -> _transfers.Payload:
    """Check an execution and return its payload; see `Queue.execute`."""
    if not isinstance(commands, CommandBuffer):
        message = f"execute takes a command buffer (device.record()), not {type(commands).__name__}"
        raise ArgumentTypeError(message)
    if commands._device is not device:
        message = (
            f"execute: the commands were recorded for {commands.device.name}, and this queue "
            f"belongs to {device.name}"
        )
        raise InvalidArgumentError(message)
    program = commands._program
    if program is None or commands._failed:
        message = "execute: the recording has not ended; call end(), or leave its with block"
        raise InvalidArgumentError(message)
    return program.payload(bindings)


def _check_choice(value: object, choices: Sequence[str], what: str) -> str:
    if not isinstance(value, str) or value not in choices:
        message = f"{what} is one of {', '.join(map(repr, choices))}, not {value!r}"
        raise InvalidArgumentError(message)
    return value


def _check_name(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        message = f"the name of a command is a str, not {type(name).__name__}"
        raise ArgumentTypeError(message)
    return name


def _describe(names: Sequence[str], command: int) -> str:
    """Say which command of a recording it is."""
    return f"command {command} of {len(names)}, {names[command]}"
