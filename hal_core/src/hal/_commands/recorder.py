"""The state of a command buffer until it ends (rule C1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeAlias

from hal._base.failures import placed
from hal._commands import nodes
from hal._commands.events import CommandEvent
from hal._commands.hazards import Access
from hal._commands.lowering import Order
from hal._commands.nodes import Command
from hal._commands.parts import Recorded
from hal._commands.playback import Playback, Stages
from hal._commands.slots import DIRECT, Slots
from hal._engine.stream import StreamQueue
from hal._memory.core import DeviceCore
from hal._memory.usage import WRITE
from hal.arguments import as_choice, as_flag, as_name
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)

_MODES: Final = ("auto", "graph", "stream")
_HAZARDS: Final = ("auto", "manual")
_CATEGORIES: Final = ("all", "dispatch", "transfer")

_Copy: TypeAlias = tuple[int, int, int, int, int, str]
"""A copy between two memories, one of them a slot's: the target and the start in it, the source
and the start in it, the size, and its name for errors."""


class Recorder:
    """The commands recorded so far, and the checks of new ones; base of `hal.CommandBuffer`."""

    __slots__ = (
        "_category",
        "_copies",
        "_device",
        "_ended",
        "_events",
        "_failed",
        "_groups",
        "_hazards",
        "_here",
        "_launches",
        "_mode",
        "_names",
        "_only",
        "_open",
        "_order",
        "_place",
        "_places",
        "_playback",
        "_queues",
        "_recorded",
        "_runs",
        "_slots",
        "_stages",
    )

    def __init__(
        self,
        device: DeviceCore,
        slots: object = 0,
        *,
        one_shot: bool = False,
        hazards: str = "manual",
        categories: str = "all",
        command_buffer: str | None = None,
    ) -> None:
        """Check the settings; see `Device.record`."""
        as_choice(hazards, _HAZARDS, "record: hazards")
        as_choice(categories, _CATEGORIES, "record: categories")
        self._mode = device._command_buffer
        if command_buffer is not None:
            self._mode = check_mode(command_buffer, device._native.features, device._name)
        self._device = device
        self._hazards = hazards == "auto"
        self._category = categories
        # A one-shot recording has one token, which its execution takes.
        self._runs: list[None] | None = [None] if as_flag(one_shot, "record: one_shot") else None
        self._slots = Slots(device, slots)
        self._names: list[str] = []  # of each command
        self._copies: list[_Copy] = []
        self._order = Order()
        self._recorded = Recorded([], [], [], [], [], {}, [], self._order)
        self._here = device  # whose the next commands are
        # The places; the first is the executing one
        self._queues: list[StreamQueue | None] = [None]
        self._open = 0  # how many contexts of `on` are
        self._place = 0  # of the next commands
        self._places: list[int] = []  # of each command
        self._launches: list[object] = []  # of each command, that of a group, or None
        self._groups: list[str] = []
        self._events = 0
        # Once it has ended: how any queue runs it, and how several do
        self._playback: Playback | None = None
        self._stages: Stages | None = None
        self._only: StreamQueue | None = None  # with both, the queue that runs all of it
        self._ended = False
        self._failed = False

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
            raise InvalidArgumentError(
                f"{verb}: this recording takes {self._category} commands only; record it with "
                "categories='all'"
            )
        label = "" if name is None else as_name(name, "a command")
        if self._groups:
            label = "/".join([*self._groups, label]) if label else "/".join(self._groups)
        try:
            checked = check(self._here, self._slots, *arguments)
        except HalError as error:
            if not label:
                raise
            raise placed(label, error) from error
        for command in checked:
            self._append(command, f"{verb} {label!r}" if label else verb)

    def _append(self, command: Command, title: str) -> None:
        """Append a checked command."""
        recorded = self._recorded
        number = len(recorded.nodes)
        launch = self._launch_of(command, title)
        operands = command.operands
        arena = self._slots._arena
        for memory, start, size, place, alignment, rights, element in operands:
            if memory == DIRECT:
                continue
            if arena is not None and memory == len(self._slots):
                arena.use(start, number if self._hazards else self._order.stop)
            self._slots.need(memory, nodes.needed(start, size), alignment, rights, element)
            recorded.patches.append((number, memory, start, place))
            if command.block is not None and place >= 0:
                recorded.blocks[number] = command.block
        for use in command.values:
            patch = self._slots.need_value(number, use)
            recorded.values.append(patch)
            if command.block is not None and patch.size:
                recorded.blocks[number] = command.block
        if command.node.__class__ in nodes.COPIES and operands[0].memory != operands[1].memory:
            target, source = operands
            self._copies.append(
                (
                    *(target.memory, target.start, source.memory, source.start, source.size),
                    f"command {number}, {title},",
                )
            )
        hosts = None if self._here._pageable else nodes.hosts_of(command)
        if hosts is not None:
            recorded.host_copies.append((number, hosts))
        if self._hazards:
            self._order.accesses.append(
                [
                    Access(memory, start, start + size, bool(rights & WRITE))
                    for memory, start, size, _, _, rights, _ in operands
                    if size
                ]
            )
        self._order.add()
        self._places.append(self._place)
        self._launches.append(launch)
        recorded.functions.append(command.function)
        recorded.nodes.append(command.node)
        recorded.resources.append(command.resources)
        self._names.append(title)

    def _launch_of(self, command: Command, title: str) -> object:
        """Return the launch of a group that a command is part of, or None.

        Raises `InvalidArgumentError` for a batch of which others have been recorded elsewhere.
        """
        launch = getattr(command.node, "launch", None)
        if launch is None or launch not in self._launches:
            return launch
        if self._launches[-1] is not launch or self._places[-1] != self._place:
            raise InvalidArgumentError(
                f"{title}: a batch is one launch on one queue: record its operations next to each "
                "other, and nothing else between them"
            )
        return launch

    def _placed(self) -> tuple[Recorded, list[_Copy]]:
        """Return the commands and the copies, with the places of temporaries in their blocks.

        Changes nothing that a second call would see, which may follow an interrupt.
        """
        arena = self._slots._arena
        if arena is None:
            return self._recorded, self._copies
        place, first = arena.settle(), len(self._slots)

        def moved(memory: int, start: int) -> tuple[int, int]:
            if memory != first:
                return memory, start
            block, start = place(start)
            return first + block, start

        patches = [
            (number, *moved(memory, start), field)
            for number, memory, start, field in self._recorded.patches
        ]
        copies = [
            (*moved(target, to), *moved(source, of), size, title)
            for target, to, source, of, size, title in self._copies
        ]
        return self._recorded._replace(patches=patches, order=self._order.moved(moved)), copies

    def _check_event(self, event: CommandEvent, what: str) -> None:
        self._recording()
        if not isinstance(event, CommandEvent):
            message = f"{what} takes an event (commands.create_event()), not {type(event).__name__}"
            raise ArgumentTypeError(message)
        if event._commands is not self:
            raise InvalidArgumentError(
                f"{what}: {event.name} was created by another recording; events order commands of "
                "one recording only, and semaphores order executions"
            )

    def _recording(self) -> None:
        if self._failed:
            message = "the recording was left by an error; record another with device.record()"
            raise ClosedError(message)
        if self._ended:
            raise InvalidArgumentError("the recording has ended and is immutable; record another")

    def _take_run(self) -> None:
        """Take the token of a one-shot recording; raise if it has been executed."""
        if self._runs is not None:
            try:
                self._runs.pop()  # one bytecode: two threads cannot get the same token
            except IndexError:
                raise ClosedError(
                    "execute: the recording is one-shot and has been executed; record another, or "
                    "record it with one_shot=False"
                ) from None

    def _give_back_run(self) -> None:
        """Undo `_take_run`: the submission was refused."""
        if self._runs is not None:
            self._runs.append(None)


class Group:
    """The context of an open group of commands; see `CommandBuffer.group`."""

    __slots__ = ("_commands", "_depth", "_name")

    def __init__(self, commands: Recorder, name: str) -> None:
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
            raise InvalidArgumentError(
                f"the group {self._name!r} ends while {'/'.join(groups) or 'none'!r} is open; "
                "groups end in the reverse of the order in which they began"
            )
        del groups[depth:]


class On:
    """The context of commands that another queue runs; see `CommandBuffer.on`."""

    __slots__ = ("_commands", "_inside", "_outside", "_queue")

    def __init__(self, commands: Recorder, queue: Any) -> None:  # noqa: ANN401 - a `Queue`, or None
        self._commands = commands
        self._queue = queue
        self._inside = 0  # its place
        self._outside: tuple[int, DeviceCore] | None = None

    def __enter__(self) -> Self:
        commands, queue = self._commands, self._queue
        commands._recording()
        if self._outside is not None:
            message = f"{self._name(queue)} is open already; make another for a second time"
            raise InvalidArgumentError(message)
        if queue not in commands._queues:
            commands._queues.append(queue)
        self._inside = commands._queues.index(queue)
        self._outside = commands._place, commands._here
        commands._place = self._inside
        commands._here = commands._device if queue is None else queue.device
        commands._open += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        outside, self._outside = self._outside, None
        commands = self._commands
        if commands._place != self._inside and kind is None:
            open_one = self._name(commands._queues[commands._place])
            raise InvalidArgumentError(
                f"{self._name(self._queue)} ends while {open_one} is open; contexts end in the "
                "reverse of the order in which they began"
            )
        if outside is not None:
            commands._place, commands._here = outside
            commands._open -= 1

    def _name(self, queue: Any) -> str:  # noqa: ANN401 - a `Queue`, or None
        return f"on({self._commands._device._name if queue is None else queue.name})"


def check_mode(mode: object, features: Iterable[str], device: str) -> str:
    """Return a way to run command buffers; raise if it is unknown or unavailable here."""
    checked = as_choice(mode, _MODES, "command_buffer")
    if checked == "graph" and "graphs" not in features:
        raise UnimplementedError(
            f"command_buffer='graph' was asked for, and {device} has no native graphs (the feature "
            "'graphs'); use 'auto' or 'stream'"
        )
    return checked
