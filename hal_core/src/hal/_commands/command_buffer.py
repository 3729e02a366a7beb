"""Command buffers: operations recorded once and submitted together (rules C1 to C4)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, SupportsIndex, cast

import numpy as np

from hal._commands import nodes
from hal._commands.bindings import SlotRules
from hal._commands.collectives import Gathering, collective
from hal._commands.lowering import CommandOrder, lower, runs_as_graph
from hal._commands.nodes import Command
from hal._commands.parts import cut, narrow
from hal._commands.playback import Playback, Stage, Stages
from hal._commands.recorder import CommandEvent, Recorder, Scope
from hal._commands.slots import Slot, Slots
from hal._engine.stream import StreamQueue
from hal._memory.core import DeviceCore
from hal._memory.extent import check_allocation
from hal._memory.storage import Transient
from hal._transfers.collective_methods import Collectives, check_options
from hal.arguments import as_choice, as_name
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError
from hal.native import IndirectLaunchNode, MemoryType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._buffers.buffer import Buffer
    from hal._devices.device import Device
    from hal._kernels.dispatch import Grid
    from hal._kernels.executable import Kernel


_KINDS: Final = ("compute", "upload", "download")
"""The queues that every device has, by the names that `hal.Queues` gives them."""


class CommandBuffer(Recorder, Collectives["Buffer | Slot", None]):
    """A recording of operations that runs on a queue as often as wanted.

    Made by `Device.record`. Leaving the ``with`` block calls `end`. After that it
    is immutable, and any thread may submit it, many times at
    once. While it records, one thread uses it. It keeps alive what it uses.

    Commands between two barriers may run concurrently, and a barrier orders
    all before it with all after it; with ``hazards="auto"`` commands that touch
    the same bytes are ordered as recorded, and barriers are not needed (C2).

    A `Slot` of this recording may replace any buffer, scalar argument or grid (C3).
    Errors call a command by its `name`. Every recording method can raise the following errors,
    which leave the recording as it was: `InvalidArgumentError` after `end` and for a
    category that it does not have, `ClosedError` after an error left its
    ``with`` block or cut a change short, and for a closed buffer, `ArgumentTypeError` and
    `InvalidArgumentError` for arguments.
    """

    __slots__ = ()

    @property
    def device(self) -> Device:
        """The device that it records for."""
        return self._device  # type: ignore[return-value]  # `cast` is a call

    @property
    def slots(self) -> Slots:
        """The slots, in order, which stand for what a binding table gives (C3)."""
        return self._slots

    @property
    def one_shot(self) -> bool:
        """Whether it may be executed only once."""
        return self._runs is not None

    @property
    def lowering(self) -> str | None:
        """How it runs: ``"graph"``, ``"stream"`` or ``"host"``; None before `end` (C4).

        ``"parts"`` if several queues run it (see `on`), or groups of ranks, each part in one of
        these ways.
        Whatever this says, the host runs an execution whose bindings turn a
        copy into one from pinned to pinned memory (Q1).
        """
        playback = self._playback
        if playback is None:
            return None if self._stages is None else "parts"
        return "host" if playback.is_host else "graph" if playback._lowering else "stream"

    def __len__(self) -> int:
        """Return the number of recorded commands, without barriers and no-ops."""
        return len(self._names)

    def __repr__(self) -> str:
        state = "left by an error" if self._failed else "ended" if self._ended else "recording"
        return f"<CommandBuffer of {len(self)} commands, {len(self._slots)} slots, {state}>"

    def __enter__(self) -> Self:
        self._recording()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
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
        """Record a `Queue.fill`. A slot without a size takes one here."""
        self._add("transfer", "fill", name, nodes.fill, buffer, value, offset, size)

    def update(
        self, buffer: Buffer | Slot, data: object, *, offset: int = 0, name: str | None = None
    ) -> None:
        """Record a `Queue.update`; captures the bytes now."""
        self._add("transfer", "update", name, nodes.update, buffer, data, offset)

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
        """Record a `Queue.copy`. A source slot without a size takes one here.

        One of the two may be another device's, as there; a slot is this one's.
        Whether a slot's bytes overlap others is checked when it is bound.
        """
        arguments = (source, target, source_offset, target_offset, size)
        self._add("transfer", "copy", name, nodes.copy, *arguments)

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
        """Record a `Queue.dispatch`; packs the arguments now, once.

        With ``hazards="auto"`` a kernel reads and writes all of each buffer
        that it is given, and only reads it where its parameter is a pointer to
        const. `reads` and `writes` name parameters that are only read, or
        also written, whatever their type says.

        A slot may stand for a number in `args`, and one that was declared a ``"grid"`` for
        `grid`; another slot there is a buffer that has the grid.
        """
        arguments = (kernel, grid, block, args, shared_memory, reads, writes)
        self._add("dispatch", "dispatch", name, nodes.dispatch, *arguments)

    # Temporaries

    def alloca(self, size: SupportsIndex, *, dtype: DTypeLike = np.uint8) -> Slot:
        """Return `size` bytes of device memory that live within the recording.

        The temporary is used like a slot, and never bound. Its content is undefined at first.
        It ends with `dealloca`, or with the recording. Each execution reserves the memory of all
        temporaries when it is issued, all of it or none, as `Queue.alloca` does, and gives it
        back after its last command. It raises `OutOfMemoryError` if they need more together
        than the device or the ``memory_limit`` has.
        """
        self._recording()
        length, _, element, _ = check_allocation(size, dtype, MemoryType.DEVICE, "alloca")
        return self._change(self._slots._take_temporary, length, element)

    def dealloca(self, temporary: Slot) -> None:
        """End a temporary: later ones may have its bytes.

        With ``hazards="auto"`` those are all whose first command comes after this; otherwise all
        whose first command is ordered, by barriers and events, behind every command that was
        recorded before this. Raises `ArgumentTypeError`
        for anything but a temporary, `InvalidArgumentError` for a part or one of
        another recording, and `ClosedError` for one that has ended, as does its use
        afterwards.
        """
        self._recording()
        self._slots._give_temporary(temporary, len(self) - 1)

    # Order

    def barrier(self) -> None:
        """Order all commands before it with all after it."""
        self._recording()
        self._change(self._order.barrier)

    def create_event(self, *, name: str | None = None) -> CommandEvent:
        """Return an event of this recording, not signalled: a barrier in two halves."""
        self._recording()
        self._events += 1
        title = "" if name is None else as_name(name, "an event")
        return CommandEvent(self, title or f"event{self._events}")

    def signal_event(self, event: CommandEvent) -> None:
        """Signal an event once all commands recorded so far have ended.

        Raises `InvalidArgumentError` for one that is signalled: reset it first.
        """
        self._check_event(event, "signal_event")
        if event._signalled:
            raise InvalidArgumentError(
                f"signal_event: {event.name} is signalled; reset it first, or create another event"
            )
        event._join = self._change(self._order.join)
        event._signalled = True

    def wait_events(self, *events: CommandEvent) -> None:
        """Order all commands before the events' signals with all recorded from now on.

        Raises `InvalidArgumentError` for an event that is not signalled: the
        commands would wait for it forever.
        """
        for event in events:
            self._check_event(event, "wait_events")
            if not event._signalled:
                raise InvalidArgumentError(
                    f"wait_events: nothing that was recorded so far signals {event.name}; record "
                    "signal_event() for it before"
                )
        for event in events:
            self._change(self._order.wait, event._join)

    def reset_event(self, event: CommandEvent) -> None:
        """Reset an event to not signalled, so that it can be signalled again."""
        self._check_event(event, "reset_event")
        event._signalled = False
        event._join = None

    def on(self, where: StreamQueue | DeviceCore | str) -> Scope:
        """Return a context whose commands another queue runs: a *part* of the recording.

        `where` is a queue of any device, another device (its compute queue), or ``"compute"``,
        ``"upload"`` or ``"download"`` for that queue of this device. Commands outside of such
        contexts, and those on this device itself, are the executing queue's. Commands inside use
        memory and kernels of the context's device, and copy from and to others'. They are ordered
        as all commands of the recording are, by barriers, events and bytes. Contexts nest, and
        the innermost holds.

        `Queue.execute` submits all parts in one step. They begin when the executing queue gets
        there, and ``wait``, are reached, and the submission has ended when all of them have;
        if one fails, so do those that come after it and the submission. A
        part stands in the line of an ordered queue: what that queue was given before comes first.

        Raises `ArgumentTypeError` and `InvalidArgumentError` for no such place, and `ClosedError`
        for a closed queue or device.
        """
        self._recording()
        queue = None if where is self._device else _queue_at(self._device, where)
        name = self._device._name if queue is None else queue.name
        return Scope(self, f"on({name})", queue=queue)

    def group(self, name: str) -> Scope:
        """Return a context that prefixes `name` to the names of commands recorded in it.

        Groups nest: ``"frame/blur/rows"``. They do not order commands.
        """
        self._recording()
        checked = as_name(name, "a group")
        return Scope(self, repr(checked), group=checked)

    def end(self) -> None:
        """End the recording.

        Raises `InvalidArgumentError` if it has ended, or a group or a context of `on` is open.
        """
        self._recording()
        if self._scopes:
            name = repr(self._groups) if self._groups else self._scopes[-1].title
            message = f"end: the context {name} is still open; leave its with block"
            raise InvalidArgumentError(message)
        commands, order = self._settled(), self._order
        if self._hazards:
            order.accesses = [each.accesses() for each in commands]
        rules = SlotRules(self._slots, commands, self._names, order.accesses)
        if any(self._places) or any(self._launches):
            stages = self._stages = self._make_stages(commands, rules)
            queue, work, _ = stages.stages[0]
            is_one = len(stages.stages) == 1
            if is_one and isinstance(work, Playback) and work.device is self._device:
                self._playback, self._only = work, queue
        else:
            self._playback = self._make_playback(self._device, commands, order, rules)
        self._ended = True  # only now: an end that an interrupt cuts short is repeated
        self._commands, self._order = [], CommandOrder()

    # Inside

    def _make_stages(self, recorded: Sequence[Command], rules: SlotRules) -> Stages:
        stages = []
        groups = {}
        for place, numbers, after in cut(self._order, self._places, self._launches):
            queue: Any = self._queues[place]
            device = self._device if queue is None else queue.device
            part = [recorded[each] for each in numbers]
            work: Playback | Gathering
            if self._launches[numbers[0]] is None:
                order = narrow(self._order, numbers)
                work = self._make_playback(device, part, order, rules, numbers)
            else:
                work = Gathering(device, part)
                groups[id(work.group)] = work.group
            stages.append(Stage(queue, work, after))
        before = {each for stage in stages for each in stage.after}
        last = tuple([index for index in range(len(stages)) if index not in before])
        return Stages(rules, tuple(stages), last, tuple([groups[each] for each in sorted(groups)]))

    def _make_playback(
        self,
        device: DeviceCore,
        commands: Sequence[Command],
        order: CommandOrder,
        rules: SlotRules,
        numbers: Sequence[int] | None = None,
    ) -> Playback:
        """Lower commands of one queue; makes no native call. `numbers` are those of a part's."""
        recorded = [each.node for each in commands]
        is_host = "indirect_dispatch" not in device.features and any(
            node.__class__ is IndirectLaunchNode for node in recorded
        )
        host_copies = []
        if not device._pageable:  # its driver would block for copies from host to host (Q1)
            found = map(nodes.hosts_of, commands)
            host_copies = [(each, slots) for each, slots in enumerate(found) if slots is not None]
        is_host = is_host or any(not slots for _, slots in host_copies)
        kept = itertools.chain.from_iterable(each.resources for each in commands)
        direct = dict.fromkeys(each for each in kept if isinstance(each, Transient))
        is_graph = not is_host and runs_as_graph(
            device._native, recorded, self._mode, one_shot=self.one_shot
        )
        return Playback(
            device,
            commands,
            rules,
            lower(order) if is_graph else None,
            functools.partial(_describe, self._names, numbers),
            tuple(direct),
            host_copies,
            is_host=is_host,
        )

    def _gather(
        self, kind: str, *arguments: object, name: str | None = None, **unknown: object
    ) -> None:
        check_options(kind, unknown, "name=")
        verb = "group_barrier" if kind == "barrier" else kind
        self._add("collective", verb, name, collective, kind, *arguments)


def _describe(names: Sequence[str], numbers: Sequence[int] | None, command: int) -> str:
    number = command if numbers is None else numbers[command]
    return f"command {number} of {len(names)}, {names[number]}"


def _queue_at(device: DeviceCore, where: object) -> StreamQueue:
    """Return the queue that a part names; raise if there is none, or it is closed."""
    queue: Any = where
    if isinstance(where, str):
        queue = getattr(device.queues, as_choice(where, _KINDS, "on: the queue"))
    elif isinstance(where, DeviceCore):
        where._live()
        queue = where.queue
    elif not isinstance(where, StreamQueue):
        raise ArgumentTypeError(
            f"on takes a queue, a device, or one of {', '.join(map(repr, _KINDS))}, not "
            f"{type(where).__name__}"
        )
    if queue._closed:
        queue.device._live()
        raise ClosedError(f"on: {queue.name} is closed; create another with create_queue")
    return cast("StreamQueue", queue)
