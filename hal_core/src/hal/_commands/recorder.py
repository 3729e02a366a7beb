"""The state of a command buffer until it ends (rule C1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Self

from hal._base.failures import placed
from hal._commands import nodes
from hal._commands.events import CommandEvent
from hal._commands.hazards import Access
from hal._commands.lowering import Order
from hal._commands.nodes import Command
from hal._commands.slots import DIRECT, Slots
from hal._memory.usage import WRITE
from hal.arguments import as_choice, as_flag, as_name
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.native import CopyNode

if TYPE_CHECKING:
    from hal._commands.instances import Patch
    from hal._commands.playback import Playback
    from hal._commands.values import ValuePatch
    from hal._memory.core import DeviceCore
    from hal._programs.parameters import ParameterBlock
    from hal.native import Node

__all__ = ["Group", "Recorder", "check_mode"]

_MODES: Final = ("auto", "graph", "stream")
_HAZARDS: Final = ("auto", "manual")
_CATEGORIES: Final = ("all", "dispatch", "transfer")


class Recorder:
    """The commands recorded so far, and the checks of new ones; base of `hal.CommandBuffer`."""

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
        "_host_copies",
        "_mode",
        "_names",
        "_nodes",
        "_order",
        "_patches",
        "_playback",
        "_resources",
        "_runs",
        "_slots",
        "_values",
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
        self._functions: list[Callable[..., object]] = []
        self._nodes: list[Node] = []
        self._resources: list[object] = []
        self._names: list[str] = []  # of each command
        self._patches: list[Patch] = []
        self._values: list[ValuePatch] = []
        self._blocks: dict[int, ParameterBlock] = {}  # of the commands whose kernels use slots
        self._copies: list[tuple[int, int, int, int, int, str]] = []
        # Copies that are, or with certain bindings become, from host to host (Q1)
        self._host_copies: list[tuple[int, tuple[int, ...]]] = []
        self._order = Order()
        self._groups: list[str] = []
        self._events = 0
        self._playback: Playback | None = None  # once it has ended
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
            message = (
                f"{verb}: this recording takes {self._category} commands only; record it with "
                "categories='all'"
            )
            raise InvalidArgumentError(message)
        label = "" if name is None else as_name(name, "a command")
        if self._groups:
            label = "/".join([*self._groups, label]) if label else "/".join(self._groups)
        try:
            checked = check(self._device, self._slots, *arguments)
        except HalError as error:
            if not label:
                raise
            raise placed(label, error) from error
        for command in checked:
            self._append(command, f"{verb} {label!r}" if label else verb)

    def _append(self, command: Command, title: str) -> None:
        """Append a checked command."""
        number = len(self._nodes)
        operands = command.operands
        for memory, start, size, place, alignment, rights, element in operands:
            if memory == DIRECT:
                continue
            self._slots.need(memory, nodes.needed(start, size), alignment, rights, element)
            self._patches.append((number, memory, start, place))
            if command.block is not None and place >= 0:
                self._blocks[number] = command.block
        for use in command.values:
            patch = self._slots.need_value(number, use)
            self._values.append(patch)
            if command.block is not None and patch.size:
                self._blocks[number] = command.block
        if command.node.__class__ is CopyNode and operands[0].memory != operands[1].memory:
            target, source = operands
            self._copies.append(
                (
                    *(target.memory, target.start, source.memory, source.start, source.size),
                    f"command {number}, {title},",
                )
            )
        hosts = None if self._device._pageable else nodes.hosts_of(command)
        if hosts is not None:
            self._host_copies.append((number, hosts))
        if self._hazards:
            self._order.accesses.append(
                [
                    Access(memory, start, start + size, bool(rights & WRITE))
                    for memory, start, size, _, _, rights, _ in operands
                    if size
                ]
            )
        self._order.add()
        self._functions.append(command.function)
        self._nodes.append(command.node)
        self._resources.append(command.resources)
        self._names.append(title)

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
        """Take the token of a one-shot recording; raise if it has been executed."""
        if self._runs is not None:
            try:
                self._runs.pop()  # one bytecode: two threads cannot get the same token
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
            message = (
                f"the group {self._name!r} ends while {'/'.join(groups) or 'none'!r} is open; "
                "groups end in the reverse of the order in which they began"
            )
            raise InvalidArgumentError(message)
        del groups[depth:]


def check_mode(mode: object, features: Iterable[str], device: str) -> str:
    """Return a way to run command buffers; raise if it is unknown or unavailable here."""
    checked = as_choice(mode, _MODES, "command_buffer")
    if checked == "graph" and "graphs" not in features:
        message = (
            f"command_buffer='graph' was asked for, and {device} has no native graphs (the feature "
            "'graphs'); use 'auto' or 'stream'"
        )
        raise UnimplementedError(message)
    return checked
