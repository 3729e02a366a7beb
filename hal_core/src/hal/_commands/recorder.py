"""The state of a command buffer until it ends, its events and its with blocks (rules C1, C2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from hal._base.failures import placed
from hal._commands import nodes
from hal._commands.lowering import CommandJoin, CommandOrder
from hal._commands.nodes import Command, Operand
from hal._commands.playback import Playback, Stages
from hal._commands.slots import DIRECT, Slots
from hal._engine.stream import StreamQueue
from hal._memory.core import DeviceCore
from hal._memory.storage import Transient
from hal.arguments import as_choice, as_flag, as_instance, as_name
from hal.errors import ClosedError, HalError, InvalidArgumentError, UnimplementedError
from hal.handlers import own

_MODES: Final = ("auto", "graph", "stream")
_HAZARDS: Final = ("auto", "manual")
_CATEGORIES: Final = ("all", "dispatch", "transfer")
_T = TypeVar("_T")

_SAME: Final = object()  # instead of a queue: the one outside of the block


class Recorder:
    """The commands recorded so far, and the checks of new ones; base of `hal.CommandBuffer`."""

    __slots__ = (
        "_category",
        "_commands",
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
        "_order",
        "_place",
        "_places",
        "_playback",
        "_queues",
        "_runs",
        "_scopes",
        "_slots",
        "_stages",
    )

    def __init__(
        self,
        device: DeviceCore,
        slots: object,
        one_shot: object,
        hazards: str,
        categories: str,
        command_buffer: str | None,
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
        # A one-shot recording has one token, which its execution takes (`executions.once`).
        self._runs: list[None] | None = [None] if as_flag(one_shot, "record: one_shot") else None
        self._slots = Slots(device, slots)
        self._commands: list[Command] = []  # until it has ended: `Playback` has them then
        self._names: list[str] = []  # of each command
        self._order = CommandOrder()
        self._scopes: list[Scope] = []  # that are open, from which three follow:
        self._here = device  # whose the next commands are
        self._place = 0  # of the next commands
        self._groups = ""  # the names before theirs
        # The places; the first is the executing one
        self._queues: list[StreamQueue | None] = [None]
        self._places: list[int] = []  # of each command
        self._launches: list[object] = []  # of each command, that of a group, or None
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
            label = f"{self._groups}/{label}" if label else self._groups
        try:
            checked = check(self._here, self._slots, *arguments)
        except own(HalError) as error:
            if not label:
                raise
            raise placed(label, error) from error
        title = f"{verb} {label!r}" if label else verb
        for command in checked:
            self._change(self._append, command, title)

    def _change(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function that changes the recording, which an interrupt ends: it may be half done.

        To repair it was rejected: it would take a copy of the order before each command.
        """
        self._failed = True
        try:
            result = function(*arguments)
        except own(HalError):
            self._failed = False  # nothing has changed
            raise
        self._failed = False
        return result

    def _append(self, command: Command, title: str) -> None:
        number = len(self._commands)
        launch = self._launch_of(command, title)
        for each in command.resources:
            if isinstance(each, Transient):
                each.record(self._slots)
        arena = self._slots._arena
        for memory, start, size, _, alignment, rights, element in command.operands:
            if memory == DIRECT:
                continue
            if arena is not None and memory == len(self._slots):
                # With hazards any later command may use the bytes of a temporary that has ended:
                # that they are the same orders the two. Else only barriers and events do.
                arena.use(start, number if self._hazards else self._order.stop)
            self._slots.need(memory, nodes.needed(start, size), alignment, rights, element)
        if command.values:
            command = command._replace(values=[*map(self._slots.need_value, command.values)])
        self._order.add()
        self._places.append(self._place)
        self._launches.append(launch)
        self._commands.append(command)
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

    def _settle_scopes(self) -> None:
        """Put the next commands into the scopes that are open."""
        self._groups = "/".join([each.group for each in self._scopes if each.group])
        queues = [None, *(each.queue for each in self._scopes if each.queue is not _SAME)]
        queue: Any = queues[-1]
        if queue not in self._queues:
            self._queues.append(queue)
        self._place = self._queues.index(queue)
        self._here = self._device if queue is None else queue.device

    def _settled(self) -> list[Command]:
        """Return the commands, with the places of temporaries in their blocks.

        Changes nothing that a second call would see, which may follow an interrupt.
        """
        arena = self._slots._arena
        if arena is None:
            return self._commands
        place, first = arena.settle(), len(self._slots)

        def moved(operand: Operand) -> Operand:
            if operand.memory != first:
                return operand
            block, start = place(operand.start)
            return operand._replace(memory=first + block, start=start)

        return [each._replace(operands=tuple(map(moved, each.operands))) for each in self._commands]

    def _check_event(self, event: CommandEvent, what: str) -> None:
        self._recording()
        as_instance(event, CommandEvent, f"{what} takes an event (commands.create_event())")
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


class CommandEvent:
    """A barrier in two halves: orders all before its signal with all after a wait for it.

    Made by `CommandBuffer.create_event`, and known to that recording only. Commands
    recorded between the two halves may run beside either. It is resolved
    while recording: an event has no state on the device, and keeps none
    from one execution to the next.
    """

    __slots__ = ("_commands", "_join", "_name", "_signalled")

    def __init__(self, commands: object, name: str) -> None:
        self._commands = commands  # the recording that knows it
        self._name = name
        self._signalled = False
        self._join: CommandJoin | None = None  # None: nothing was recorded before its signal

    @property
    def name(self) -> str:
        """The name that errors use."""
        return self._name

    @property
    def signalled(self) -> bool:
        """Whether a signal of it was recorded, and no reset since."""
        return self._signalled

    def __repr__(self) -> str:
        state = "signalled" if self._signalled else "not signalled"
        return f"<CommandEvent {self._name!r} {state}>"


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """A ``with`` block of a recording: a group of commands, or those of another queue.

    See `CommandBuffer.group` and `CommandBuffer.on`.
    """

    _commands: Recorder
    title: str
    group: str = ""
    queue: Any = _SAME  # a `Queue`, or None for the executing one

    def __enter__(self) -> Self:
        commands = self._commands
        commands._recording()
        if self in commands._scopes:
            message = f"the context {self.title} is open already; make another for a second time"
            raise InvalidArgumentError(message)
        commands._scopes.append(self)
        commands._settle_scopes()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        scopes = self._commands._scopes
        last = scopes[-1] if scopes else None
        if last is not self and kind is None:
            raise InvalidArgumentError(
                f"the context {self.title} ends while {last.title if last else 'none'} is open; "
                "contexts end in the reverse of the order in which they began"
            )
        if self in scopes:
            del scopes[scopes.index(self) :]
        self._commands._settle_scopes()


def check_mode(mode: object, features: Iterable[str], device: str) -> str:
    """Return a way to run command buffers; raise if it is unknown or unavailable here."""
    checked = as_choice(mode, _MODES, "command_buffer")
    if checked == "graph" and "graphs" not in features:
        raise UnimplementedError(
            f"command_buffer='graph' was asked for, and {device} has no native graphs (the feature "
            "'graphs'); use 'auto' or 'stream'"
        )
    return checked
