"""Command buffers: operations recorded once and submitted together (rules C1 to C4)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self, SupportsIndex

import numpy as np

from hal._commands import nodes
from hal._commands.bindings import SlotRules
from hal._commands.events import CommandEvent
from hal._commands.instances import SlotUses
from hal._commands.lowering import lower
from hal._commands.playback import Playback
from hal._commands.recorder import Group, Recorder
from hal._commands.slots import Slot, Slots
from hal._memory.extent import check_allocation
from hal.arguments import as_name
from hal.errors import InvalidArgumentError
from hal.native import IndirectLaunchNode, MemoryType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._buffers.buffer import Buffer
    from hal._devices.device import Device
    from hal._kernels.dispatch import Grid
    from hal._kernels.executable import Kernel

__all__ = ["CommandBuffer"]


class CommandBuffer(Recorder):
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
    ``with`` block and for a closed buffer, `ArgumentTypeError` and
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

        Whatever this says, the host runs an execution whose bindings turn a
        copy into one from pinned to pinned memory (Q1).
        """
        playback = self._playback
        if playback is None:
            return None
        return "host" if playback.is_host else "graph" if playback._lowering else "stream"

    def __len__(self) -> int:
        """Return the number of recorded commands, without barriers and no-ops."""
        return len(self._nodes)

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

        The temporary is used like a slot, and never bound. Each execution reserves one
        block for all temporaries when it is issued, as `Queue.alloca` does, and
        gives it back after its last command. The content is undefined at first. It ends
        with `dealloca`, or with the recording. An execution raises
        `OutOfMemoryError` if all temporaries together need more than the
        device or the ``memory_limit`` has.
        """
        self._recording()
        length, _, element, _ = check_allocation(size, dtype, MemoryType.DEVICE, "alloca")
        return self._slots._take_temporary(length, element, is_ordered=self._hazards)

    def dealloca(self, temporary: Slot) -> None:
        """End a temporary: later ones may have its bytes.

        With ``hazards="auto"`` those are all that begin after this; otherwise all that
        begin behind a barrier that comes after this. Raises `ArgumentTypeError`
        for anything but a temporary, `InvalidArgumentError` for a part or one of
        another recording, and `ClosedError` for one that has ended, as does its use
        afterwards.
        """
        self._recording()
        self._slots._give_temporary(temporary)

    # Order

    def barrier(self) -> None:
        """Order all commands before it with all after it."""
        self._recording()
        self._order.barrier()
        if self._slots._arena is not None:
            self._slots._arena.barrier()

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
            message = (
                f"signal_event: {event.name} is signalled; reset it first, or create another event"
            )
            raise InvalidArgumentError(message)
        event._join = self._order.join()
        event._signalled = True

    def wait_events(self, *events: CommandEvent) -> None:
        """Order all commands before the events' signals with all recorded from now on.

        Raises `InvalidArgumentError` for an event that is not signalled: the
        commands would wait for it forever.
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
        """Reset an event to not signalled, so that it can be signalled again."""
        self._check_event(event, "reset_event")
        event._signalled = False
        event._join = None

    def group(self, name: str) -> Group:
        """Return a context that prefixes `name` to the names of commands recorded in it.

        Groups nest: ``"frame/blur/rows"``. They do not order commands.
        """
        self._recording()
        return Group(self, as_name(name, "a group"))

    def end(self) -> None:
        """End the recording; raises `InvalidArgumentError` if it has ended or a group is open."""
        self._recording()
        if self._groups:
            message = (
                f"end: the group {'/'.join(self._groups)!r} is still open; leave its with block"
            )
            raise InvalidArgumentError(message)
        self._playback = self._make_playback()
        self._ended = True

    # Inside

    def _make_playback(self) -> Playback:
        """Lower the recording; makes no native call."""
        device, count = self._device, len(self._nodes)
        is_host = "indirect_dispatch" not in device.features and any(
            node.__class__ is IndirectLaunchNode for node in self._nodes
        )
        is_host = is_host or any(not slots for _, slots in self._host_copies)
        rules = SlotRules(
            self._slots, self._copies, self._order.accesses if self._hazards else None
        )
        graph = self._mode == "graph" or (self._mode == "auto" and self._pays_as_graph(count))
        return Playback(
            device,
            self._functions,
            self._nodes,
            self._resources,
            rules,
            SlotUses(rules.count, self._patches, self._blocks, self._values),
            lower(self._order) if graph and count and not is_host else None,
            functools.partial(_describe, self._names),
            self._host_copies,
            self._slots._direct,
            is_host=is_host,
        )

    def _pays_as_graph(self, count: int) -> bool:
        """Return whether "auto" takes a graph: making one costs more than a replay saves once."""
        native = self._device._native
        least = native.graph_commands
        return "graphs" in native.features and self._runs is None and 0 < least <= count


def _describe(names: Sequence[str], command: int) -> str:
    """Describe a command of the recording for an error."""
    return f"command {command} of {len(names)}, {names[command]}"
