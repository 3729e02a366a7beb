"""Recordings that track their reads and writes, of slots and of tracked buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import itemgetter
from typing import Any, Final, Self, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

import hal
from hal.arguments import as_instance, as_int, as_items, as_mapping, as_names, shown
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.scheduler import AnyDevice, Scheduler, index_of
from hal.flow.tracking import TrackedAccess
from hal.handlers import own
from hal.protocols import Bindings

_BINDINGS: Final = (
    "execute: bindings are a sequence of tracked buffers and numbers, or a mapping of slots to them"
)
_MEMORY: Final = (TrackedBuffer, hal.Slot, hal.Buffer)
_NO_NAMES: Final = ()
_UNUSED: Final = 0
_READ: Final = 1
_WRITTEN: Final = 2
_NUMBER: Final = -1  # no buffer


class Recording:
    """A recording of operations that run together, like `hal.CommandBuffer`, with their uses.

    Made by `Flow.record`, executed by `Flow.execute`. It takes its own slots,
    and tracked buffers: those are part of every execution. A slot
    counts as a whole: a use of a part is a use of all of its buffer.

    `commands` is the raw command buffer. `uses` has the use of each slot: 0 unused, 1 read,
    2 written, -1 a number. `read_first` are the slots that are read before anything has written
    them, and `direct` the accesses to buffers that were recorded directly.
    """

    __slots__ = ("_places", "_scheduler", "commands", "direct", "read_first", "uses")

    def __init__(self, scheduler: Scheduler, commands: hal.CommandBuffer) -> None:
        self._scheduler = scheduler
        self.commands: Final = commands
        self.uses = [_UNUSED if kind == "buffer" else _NUMBER for kind in commands.slots.kinds]
        self.read_first: set[int] = set()
        self.direct: list[TrackedAccess] = []  # a list, as C reads it
        self._places: dict[TrackedAccess, int] = {}  # of each in `direct`

    @property
    def slots(self) -> Sequence[hal.Slot]:
        """The slots, in order, which stand for what `Flow.execute` binds."""
        return self.commands.slots

    def __len__(self) -> int:
        return len(self.commands)

    def __repr__(self) -> str:
        return f"<Recording of {self.commands!r}>"

    def __enter__(self) -> Self:
        self.commands.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self.commands.__exit__(*raised)

    def fill(
        self,
        buffer: TrackedBuffer | hal.Slot,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None:
        """Record a `Flow.fill`."""
        target = self._raw(buffer, "fill")
        if isinstance(buffer, TrackedBuffer):
            buffer.check_fill(value)
        record = partial(self.commands.fill, target, value, offset=offset, size=size, name=name)
        self._add(record, (buffer, _WRITTEN))

    def update(
        self,
        buffer: TrackedBuffer | hal.Slot,
        data: object,
        *,
        offset: int = 0,
        name: str | None = None,
    ) -> None:
        """Record a `Flow.update`; captures the bytes now."""
        target = self._raw(buffer, "update")
        offset = index_of(offset, "update: offset")
        if isinstance(buffer, TrackedBuffer):
            buffer.check_write(data, is_whole=not offset)
        record = partial(self.commands.update, target, data, offset=offset, name=name)
        self._add(record, (buffer, _WRITTEN))

    def copy(
        self,
        source: TrackedBuffer | hal.Slot,
        target: TrackedBuffer | hal.Slot,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None:
        """Record a `Flow.copy`, of which one side is the device's that runs it (see `on`)."""
        raw = self._raw(source, "copy: the source")
        raw_target = self._raw(target, "copy: the target")
        source_offset = index_of(source_offset, "copy: source_offset")
        target_offset = index_of(target_offset, "copy: target_offset")
        if isinstance(target, TrackedBuffer) and isinstance(source, TrackedBuffer):
            is_whole = size is None and not source_offset and not target_offset
            target.check_copy(source, is_whole=is_whole)
        record = partial(
            self.commands.copy,
            raw,
            raw_target,
            source_offset=source_offset,
            target_offset=target_offset,
            size=size,
            name=name,
        )
        self._add(record, (source, _READ), (target, _WRITTEN))

    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int] | TrackedBuffer | hal.Slot,
        block: int | Sequence[int] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int | None = None,
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        """Record a `Flow.dispatch`; packs the arguments now."""
        given, used = kernel_arguments(kernel, args, reads, writes)
        for key, value, _ in used:
            given[key] = self._raw(value, "dispatch")
        where: Any = grid
        if is_memory(grid):
            where = self._raw(grid, "dispatch: the grid")
            used.append((None, grid, False))
        record = partial(
            self.commands.dispatch,
            kernel,
            grid=where,
            block=block,
            args=given,
            shared_memory=shared_memory,
            reads=reads,
            writes=writes,
            name=name,
        )
        ordered = sorted(used, key=itemgetter(2))  # reads first
        self._add(record, *((each, _WRITTEN if written else _READ) for _, each, written in ordered))

    def alloca(self, size: SupportsIndex, *, dtype: DTypeLike = np.uint8) -> hal.Slot:
        """Return device memory that lives within the recording, as `hal.CommandBuffer.alloca`."""
        return self.commands.alloca(size, dtype=dtype)

    def dealloca(self, temporary: hal.Slot) -> None:
        """End a temporary: later ones may have its bytes."""
        self.commands.dealloca(temporary)

    def barrier(self) -> None:
        """Order all commands before it with all after it."""
        self.commands.barrier()

    def create_event(self, *, name: str | None = None) -> hal.CommandEvent:
        """Return an event of this recording, not signalled."""
        return self.commands.create_event(name=name)

    def signal_event(self, event: hal.CommandEvent) -> None:
        """Signal an event once all commands recorded so far have ended."""
        self.commands.signal_event(event)

    def wait_events(self, *events: hal.CommandEvent) -> None:
        """Order all commands before the events' signals with all recorded from now on."""
        self.commands.wait_events(*events)

    def reset_event(self, event: hal.CommandEvent) -> None:
        """Reset an event to not signalled, so that it can be signalled again."""
        self.commands.reset_event(event)

    def on(self, where: AnyDevice | str) -> AbstractContextManager[object]:
        """Return a context whose commands another device of the flow runs, or another queue.

        The latter is ``"compute"``, ``"upload"`` or ``"download"`` of the recording's device. See
        `hal.CommandBuffer.on`.
        """
        if isinstance(where, str):
            return self.commands.on(where)
        return self.commands.on(self._scheduler.lanes_of(where).device)

    def group(self, name: str) -> AbstractContextManager[object]:
        """Return a context that prefixes `name` to the names of commands."""
        return self.commands.group(name)

    def end(self) -> None:
        """End the recording; leaving its ``with`` block does so too."""
        self.commands.end()

    def _raw(self, value: object, what: str) -> Any:  # noqa: ANN401 - a buffer or a slot
        if isinstance(value, hal.Slot):
            return value
        self._scheduler.check(value, what)
        assert isinstance(value, TrackedBuffer)  # noqa: S101 - it was checked
        return value.raw

    def _add(self, record: Callable[[], None], *uses: tuple[TrackedBuffer | hal.Slot, int]) -> None:
        """Record a command and note its uses; without some of them it would run at a wrong time."""
        try:
            record()
            for value, use in uses:
                self._note(value, use)
        except own(HalError):
            raise  # it was refused
        except BaseException as error:
            self.commands.__exit__(type(error))  # after that it is refused
            raise

    def _note(self, value: TrackedBuffer | hal.Slot, use: int) -> None:
        if isinstance(value, hal.Slot):
            if value.index >= len(self.uses):  # a temporary: no other work has it
                return
            if value.kind != "buffer":
                self.uses[value.index] = _NUMBER
                return
            if use == _READ and self.uses[value.index] == _UNUSED:
                self.read_first.add(value.index)
            self.uses[value.index] = max(self.uses[value.index], use)
            return
        # A write comes after more than a read does, so it stands for both.
        access = value.writing if use == _WRITTEN else value.reading
        if access in self._places or value.writing in self._places:
            return
        place = self._places.get(value.reading, len(self.direct))
        self._places[access] = place
        self.direct[place : place + 1] = [access]


def kernel_arguments(
    kernel: hal.Kernel,
    args: Sequence[object] | Mapping[str, object],
    reads: Iterable[str],
    writes: Iterable[str],
) -> tuple[Any, list[tuple[Any, Any, bool]]]:
    """Return a copy of a kernel's arguments, and the buffers and slots among them.

    Each of these with its index or name, and whether the kernel writes it.
    """
    as_instance(kernel, hal.Kernel, "dispatch takes a kernel (program['name'])")
    constants = constants_of(kernel, reads, writes)
    kind: type = args.__class__  # to ask whether something is a mapping takes long
    if kind is not tuple and kind is not list:
        if isinstance(args, Mapping):
            named = as_mapping(args, "dispatch: args by name are a mapping")
            used = [(name, value, name not in constants) for name, value in named.items()]
            return named, [each for each in used if is_memory(each[1])]
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
            raise ArgumentTypeError(
                f"dispatch of {kernel.name!r}: args are a sequence or, by name, a mapping, not "
                f"{type(args).__name__}"
            )
        args = as_items(args, "dispatch: args are a sequence")
    known = kernel.signature.parameters
    return [*args], [
        (index, value, index >= len(known) or known[index].name not in constants)
        for index, value in enumerate(args)
        if value.__class__ is TrackedBuffer or is_memory(value)  # mostly the former
    ]


def constants_of(kernel: hal.Kernel, reads: Iterable[str], writes: Iterable[str]) -> frozenset[str]:
    """Return the parameters that a kernel only reads, after the caller's corrections."""
    constants = kernel.signature.constants
    if reads is _NO_NAMES and writes is _NO_NAMES:
        return constants
    what = f"dispatch of {kernel.name!r}: reads and writes"
    read, written = frozenset(as_names(reads, what)), frozenset(as_names(writes, what))
    pointers = {each.name for each in kernel.signature.parameters if each.kind in {"ptr", "any"}}
    unknown = sorted((read | written) - pointers)
    if unknown:
        message = f"{what} name pointers out of {sorted(pointers)}; {shown(unknown)} are none"
        raise InvalidArgumentError(message)
    return (constants | read) - written


def is_memory(value: object) -> bool:
    """Return whether an object is a buffer, tracked or not, or a slot."""
    # An output is one run's own: nobody waits for it.
    return isinstance(value, _MEMORY) and not isinstance(value, hal.Output)


def bound_accesses(
    scheduler: Scheduler,
    commands: Recording | hal.CommandBuffer,
    bindings: Bindings,
    reads: Iterable[int],
    writes: Iterable[int],
    accesses: list[TrackedAccess],
) -> list[Any] | dict[int, object]:
    """Return the raw buffers and numbers to bind, and add an execution's accesses to them."""
    if isinstance(commands, Recording):
        uses = commands.uses
        if commands.direct:
            accesses += direct_accesses(scheduler, commands)
    else:
        uses = [_WRITTEN if kind == "buffer" else _NUMBER for kind in commands.slots.kinds]
    if reads is not _NO_NAMES or writes is not _NO_NAMES:
        uses = _narrowed_slots(uses, reads, writes)
    given: Any = bindings
    kind: type = given.__class__
    # To ask whether something is a mapping takes long.
    if kind is not tuple and kind is not list:
        if isinstance(given, Mapping):
            named = as_mapping(given, "execute: bindings by slot are a mapping")
            known = dict(enumerate(uses))  # finds any number that equals a slot's, as the core does
            return {
                key: bound(scheduler, key, each, known.get(key, _UNUSED), accesses)
                for key, each in named.items()
            }
        given = as_items(given, _BINDINGS, ordered=True)
    return [
        bound(scheduler, key, each, uses[key] if key < len(uses) else _UNUSED, accesses)
        for key, each in enumerate(given)
    ]


def direct_accesses(scheduler: Scheduler, recording: Recording) -> list[TrackedAccess]:
    """Return the accesses to buffers that were recorded directly; raise if one is closed."""
    for access in recording.direct:
        if access[0].raw is None:
            scheduler.refuse("execute: a buffer that was recorded")
    return [*recording.direct]


def bound(
    scheduler: Scheduler, index: int, given: object, use: int, accesses: list[TrackedAccess]
) -> object:
    """Return the raw buffer, or the number, to bind, and add the accesses to it."""
    if use == _NUMBER or isinstance(given, hal.Output):  # an output is one run's own
        return given
    buffer: Any = given
    scheduler.check(buffer, f"execute: slot {index}")
    if use:
        accesses.append(buffer.writing if use == _WRITTEN else buffer.reading)
    return buffer.raw


def _narrowed_slots(uses: list[int], reads: Iterable[int], writes: Iterable[int]) -> list[int]:
    narrowed = uses.copy()
    for use, slots in ((_READ, reads), (_WRITTEN, writes)):
        for index in as_items(slots, "execute: reads and writes are lists of slots"):
            number = as_int(index, "execute: a slot's index is an int")
            if not 0 <= number < len(narrowed):
                raise InvalidArgumentError(
                    f"execute: reads and writes are slots, 0 to {len(narrowed) - 1}; "
                    f"{shown(index)} is none"
                )
            narrowed[number] = use
    return narrowed
