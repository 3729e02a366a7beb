"""Slots: places of a recording that each execution fills with its own buffers (rule C3)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hal._base.checks import check_index, explain_range
from hal._buffers.buffer import Buffer
from hal._commands.hazards import END, Access, Extents
from hal._commands.temporaries import Arena, Life
from hal._kernels.output import Output
from hal._memory.access import check_buffer, late_address
from hal._memory.extent import shape_of
from hal._memory.storage import Storage, Transient
from hal._memory.usage import OUTPUT
from hal._programs.elements import dtype_of, fits, refusal, same_elements
from hal._programs.printing import OutputPlace
from hal.arguments import as_dtype, as_int, as_items, as_mapping, shown
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._memory.core import DeviceCore

__all__ = ["DIRECT", "Bindings", "Late", "Slot", "SlotRules", "SlotSpecs", "Slots", "Table"]

SlotSpecs: TypeAlias = "int | Sequence[DTypeLike | tuple[DTypeLike, int]]"
"""The number of a recording's slots, or what each of them takes."""

Bindings: TypeAlias = Sequence[Buffer] | Mapping[int, Buffer]
"""A buffer for each slot: in order, or by the slot's index."""

Table: TypeAlias = tuple[int, ...]
"""The address of each slot's buffer."""

Late: TypeAlias = list[tuple[Storage, int, int]]
"""The storage, offset and size of each slot's buffer: some have no address yet (M3)."""

_MOST: Final = 1 << 16
"""The most slots of one recording."""
DIRECT: Final = -1
"""The memory of all buffers given directly, for `hal._commands.hazards.Access`."""


class Slot(OutputPlace):
    """A placeholder for a buffer that is given when the recording is executed.

    Taken from `CommandBuffer.slots`, and usable wherever that recording takes
    a buffer. `size` is the number of bytes that it surely has: those asked for
    when the recording began, or None. A fill or a copy of a slot without a size
    gives its own; a kernel may use all that is bound there.
    """

    __slots__ = ("_dtype", "_index", "_life", "_offset", "_size", "_slots")

    def __init__(
        self,
        slots: Slots,
        index: int,
        offset: int,
        size: int,
        dtype: np.dtype[Any],
        life: Life | None = None,
    ) -> None:
        self._life = life  # of the temporary that it is, or is part of
        self._slots = slots
        self._index = index
        self._offset = offset
        self._size = size  # END if there is none
        self._dtype = dtype

    @property
    def index(self) -> int:
        """The slot's place in the binding table."""
        return self._index

    @property
    def offset(self) -> int:
        """Its beginning, in bytes from the start of the bound buffer."""
        return self._offset

    @property
    def size(self) -> int | None:
        """The size in bytes, or None where only the binding has one."""
        return self._size if self._offset + self._size < END else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of an element, which a fill converts numbers to.

        Bytes unless the recording began with another type. A slot of bytes takes
        any buffer whose elements fit the kernels' pointers.
        """
        return self._dtype

    def subspan(
        self, offset: int, size: int | None = None, *, dtype: DTypeLike | None = None
    ) -> Slot:
        """Return a part of the slot: `size` bytes from `offset` on; None means all of the rest.

        `dtype` is this slot's unless given. Raises `InvalidArgumentError` for
        bytes outside a slot with a size.
        """
        start = check_index(offset, "subspan: the offset")
        length = self._size - start if size is None else check_index(size, "subspan: the size")
        if start > self._size or length > self._size - start:
            asked = None if size is None else length
            message = explain_range("subspan", start, asked, self._describe(), self._size)
            raise InvalidArgumentError(message)
        kind = self._dtype if dtype is None else as_dtype(dtype)
        return Slot(self._slots, self._index, self._offset + start, length, kind, self._life)

    def view(self, dtype: DTypeLike) -> Slot:
        """Return the slot with its bytes read as elements of another type, as in `Buffer.view`.

        The bound buffer is not compared with that type.
        """
        kind = as_dtype(dtype)
        return Slot(self._slots, self._index, self._offset, self._size, kind, self._life)

    def _describe(self) -> str:
        return f"slot {self._index}" if self._life is None else "the temporary"

    def __repr__(self) -> str:
        if self._life is not None:
            state = ", given back" if self._life.is_over else ""
            return f"<Temporary {self._dtype}, {self._size} bytes{state}>"
        size = "of any size" if self.size is None else f"{self.size} bytes"
        return f"<Slot {self._index} from {self._offset}, {self._dtype}, {size}>"


class Slots(Sequence[Slot]):
    """The slots of one recording, and what its commands need of each.

    Once there are temporaries, a hidden slot for their block follows.
    """

    __slots__ = (
        "__weakref__",
        "_alignments",
        "_arena",
        "_count",
        "_device",
        "_direct",
        "_dtypes",
        "_elements",
        "_needed",
        "_rights",
        "_sizes",
    )

    def __init__(self, device: DeviceCore, specs: object) -> None:
        self._device = device
        self._dtypes: list[np.dtype[Any]] = []
        self._sizes: list[int] = []
        for index, (dtype, size) in enumerate(_read_specs(specs)):
            what = f"slot {index}"
            kind = as_dtype(dtype)
            shape_of(0, kind, what)
            self._dtypes.append(kind)
            self._sizes.append(END if size is None else check_index(size, f"{what}: the size"))
        self._needed = [0 if size == END else size for size in self._sizes]
        self._alignments = [1] * len(self._sizes)
        self._rights = [0] * len(self._sizes)  # bits of `hal._memory.usage`
        self._elements: list[set[str]] = [set() for _ in self._sizes]
        self._count = len(self._sizes)
        self._arena: Arena | None = None  # of the temporaries
        self._direct: list[Transient] = []  # memory of `Queue.alloca` that is used directly

    def __len__(self) -> int:
        return self._count

    def _take_temporary(self, size: int, dtype: np.dtype[Any], *, is_ordered: bool) -> Slot:
        """Return a temporary; `is_ordered` as in `Arena`."""
        arena = self._arena
        if arena is None:
            arena = self._arena = Arena(is_ordered=is_ordered)
            self._dtypes.append(np.dtype(np.uint8))
            self._sizes.append(END)
            self._needed.append(0)
            self._alignments.append(1)
            self._rights.append(0)
            self._elements.append(set())
        start = arena.take(size or 1)
        life = Life(self, start, size or 1, dtype)
        return Slot(self, self._count, start, size, dtype, life)

    def _give_temporary(self, temporary: object) -> None:
        """End a temporary; raise unless it is a whole one of this recording that has not ended."""
        life = temporary._life if isinstance(temporary, Slot) else None
        if not isinstance(temporary, Slot) or life is None:
            message = (
                "dealloca takes a temporary of this recording (commands.alloca()), not "
                f"{type(temporary).__name__}; other memory outlives its executions"
            )
            raise ArgumentTypeError(message)
        self._check_own(temporary, "dealloca")
        if temporary._offset != life.start or (temporary._size or 1) != life.size:
            message = "dealloca takes the whole temporary that alloca returned, not a part of it"
            raise InvalidArgumentError(message)
        assert self._arena is not None  # noqa: S101 - it has a temporary
        life.is_over = True
        self._arena.give(life.start, life.size)

    def _check_own(self, slot: Slot, what: str) -> None:
        """Raise unless an object is a slot of this recording that can be used."""
        life = slot._life
        if slot._slots is not self:
            kind = "slot" if life is None else "temporary"
            message = f"{what}: the {kind} is another recording's; take it from this one"
            raise InvalidArgumentError(message)
        if life is not None and life.is_over:
            message = f"{what}: the temporary was given back with dealloca; take another"
            raise ClosedError(message)

    def _hold(self, storage: Transient) -> None:
        """Note memory of `Queue.alloca` that a command uses directly."""
        if storage not in self._direct:
            self._direct.append(storage)
            storage.recordings.append(weakref.ref(self))

    def __getitem__(self, index: int) -> Slot:  # type: ignore[override] # slots are not sliced
        number = as_int(index, "a slot's index is an int")
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            message = (
                f"there is no slot {shown(number)}: the recording has {len(self)}; ask for more "
                "with device.record(slots=...)"
            )
            raise _SlotIndexError(message)
        return Slot(self, number, 0, self._sizes[number], self._dtypes[number])

    def __iter__(self) -> Iterator[Slot]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<Slots {', '.join(map(repr, self))}>"

    def need(self, index: int, size: int, alignment: int, rights: int, element: str) -> None:
        """Note that a command uses the first `size` bytes, from a multiple of `alignment` on.

        It also needs certain rights, bits of `hal._memory.usage`, and elements, if they matter.
        """
        if element:
            self._elements[index].add(element)
        self._rights[index] |= rights
        self._needed[index] = max(self._needed[index], size)
        self._alignments[index] = max(self._alignments[index], alignment)


class _SlotIndexError(InvalidArgumentError, IndexError):
    """The error for a missing slot; also an `IndexError`, which iterating relies on."""


_BINDINGS: Final = "execute: bindings are a list of buffers, or a mapping of slots to buffers"


class SlotRules:
    """Checks of binding tables against what a recording needs; immutable."""

    __slots__ = (
        "_alignments",
        "_arena",
        "_copies",
        "_count",
        "_declared",
        "_device",
        "_dtypes",
        "_elements",
        "_hazards",
        "_needed",
        "_outputs",
        "_rights",
    )

    def __init__(
        self,
        slots: Slots,
        copies: Sequence[tuple[int, int, int, int, int, str]],
        hazards: Sequence[Sequence[Access]] | None,
    ) -> None:
        """Take what the commands need.

        `copies` are ``(target memory, target, source memory, source, size,
        description)`` of copies with a slot; `hazards` the bytes that each
        command touches, where they order it.
        """
        self._device = slots._device
        self._count = len(slots)
        self._arena = slots._arena
        self._needed = tuple(slots._needed)
        self._alignments = tuple(slots._alignments)
        self._rights = tuple(slots._rights)
        self._elements = tuple(map(tuple, slots._elements))
        self._declared = tuple(slots._dtypes)
        # The dtypes that surely fit; None where anything may be bound.
        self._dtypes = tuple(map(_surely, self._declared, self._elements))
        self._outputs = [index for index, rights in enumerate(self._rights) if rights & OUTPUT]
        self._copies = tuple(copies)
        self._hazards = None
        if hazards is not None and self._needed:
            self._hazards = _Apart(len(self._needed), hazards)

    @property
    def count(self) -> int:
        """The number of addresses in a table."""
        return len(self._needed)

    def temporaries(self) -> int:
        """Return the bytes of the block of the temporaries; 0 if there are none."""
        return 0 if self._arena is None else self._arena.size

    def check(
        self, bindings: object, block: Storage | None = None
    ) -> tuple[Table | Late, list[Storage]]:
        """Check a binding table; return the addresses, and what to keep alive.

        `block` is the memory of the temporaries. If a buffer has no address yet, returns
        the input of `resolve` instead. Raises `ArgumentTypeError`,
        `InvalidArgumentError` and `ClosedError`.
        """
        late: Late = []
        addresses: list[int | None] = []
        buffers = self._in_order(bindings)
        for index, buffer in enumerate(buffers):
            what = f"execute: the binding of slot {index}"
            storage = check_buffer(self._device, buffer, what, self._rights[index], "recording")
            if buffer._size < self._needed[index] or buffer._offset % self._alignments[index]:
                raise InvalidArgumentError(self._refusal(index, buffer))
            if self._dtypes[index] is not None and buffer._dtype is not self._dtypes[index]:
                self._check_elements(index, buffer._dtype)
            address = storage.address
            addresses.append(None if address is None else address + buffer._offset)
            late.append((storage, buffer._offset, buffer._size))
        for index in self._outputs:
            if not isinstance(buffers[index], Output):
                message = (
                    f"execute: a kernel prints to slot {index}, which takes a hal.Output(device), "
                    f"not {type(buffers[index]).__name__}"
                )
                raise ArgumentTypeError(message)
        if block is not None:
            addresses.append(None)
            late.append((block, 0, block.size))
        storages = [storage for storage, _, _ in late]
        if None in addresses:
            return late, storages
        table: Table = tuple(addresses)  # type: ignore[arg-type] # none is None
        self._check_addresses(table, late)
        return table, storages

    def resolve(self, late: Late) -> Table:
        """Return the final addresses, when the execution is issued.

        Raises `OperationError` for a buffer that still has none.
        """
        table = tuple([late_address(storage) + offset for storage, offset, _ in late])
        self._check_addresses(table, late)
        return table

    def _refusal(self, index: int, buffer: Buffer) -> str:
        """Describe why a buffer cannot be bound to a slot."""
        needed, alignment = self._needed[index], self._alignments[index]
        if buffer._size < needed:
            return (
                f"execute: slot {index} needs {needed} bytes, and the buffer that was bound has "
                f"{buffer._size}"
            )
        return (
            f"execute: slot {index} needs a buffer that begins at a multiple of {alignment} "
            f"bytes, and the one that was bound begins at byte {buffer._offset} of its memory"
        )

    def _check_elements(self, index: int, dtype: np.dtype[Any]) -> None:
        """Raise unless a buffer of `dtype` has the elements of its slot and of its uses."""
        declared = self._declared[index]
        if not same_elements(declared, dtype):
            message = (
                f"execute: slot {index} is of {declared}, and the buffer that was bound holds "
                f"{dtype}; bind buffer.view(np.{declared}) if its bytes are meant"
            )
            raise ArgumentTypeError(message)
        for element in self._elements[index]:
            if not fits(element, dtype):
                message = f"execute: slot {index} ({element}*) {refusal(element, dtype)}"
                raise ArgumentTypeError(message)

    def _in_order(self, bindings: object) -> Sequence[Buffer]:
        count = self._count
        kind = type(bindings)  # to ask whether something is a mapping takes long
        if kind is not tuple and kind is not list and isinstance(bindings, Mapping):
            bindings = as_mapping(bindings, "execute: bindings by slot are a mapping")
            unknown = [key for key in bindings if key not in range(count)]
            missing = [index for index in range(count) if index not in bindings]
            if unknown or missing:
                told = [f"nothing for slots {missing}"] if missing else []
                told += [f"something for {shown(unknown)}, which are no slots"] if unknown else []
                message = (
                    f"execute: the recording has {count} slots, and the bindings have "
                    f"{' and '.join(told)}"
                )
                raise InvalidArgumentError(message)
            return [bindings[index] for index in range(count)]
        items = as_items(bindings, _BINDINGS, ordered=True)
        if len(items) != count:
            message = (
                f"execute: the recording has {count} slots, and {len(items)} bindings were "
                "given; give a buffer for each slot"
            )
            raise InvalidArgumentError(message)
        return items

    def _check_addresses(self, table: Table, bound: Late) -> None:
        """Raise if a copy or an order would meet memory that overlaps."""
        for target_memory, target, source_memory, source, size, description in self._copies:
            to = target + (table[target_memory] if target_memory >= 0 else 0)
            of = source + (table[source_memory] if source_memory >= 0 else 0)
            if abs(to - of) < size and to != of:
                message = (
                    f"execute: {description} would copy {size} bytes onto memory that overlaps "
                    "them with these bindings; copy through another buffer"
                )
                raise InvalidArgumentError(message)
        if self._hazards is not None:
            self._hazards.check(
                [(start, start + size) for start, (_, _, size) in zip(table, bound, strict=True)]
            )


class _Apart:
    """A check that refuses bindings whose shared memory the commands' order ignores.

    That order takes each slot for a memory of its own, apart from the others
    and from the buffers that were given directly.
    """

    __slots__ = ("_touched", "_written")

    def __init__(self, count: int, hazards: Sequence[Sequence[Access]]) -> None:
        touched: list[list[tuple[int, int]]] = [[] for _ in range(count + 1)]
        written: list[list[tuple[int, int]]] = [[] for _ in range(count + 1)]
        for accesses in hazards:
            for memory, start, stop, writes in accesses:
                touched[memory].append((start, stop))
                if writes:
                    written[memory].append((start, stop))
        # The last one is `DIRECT`.
        self._touched = [Extents(each) for each in touched]
        self._written = [Extents(each) for each in written]

    def check(self, bound: Sequence[tuple[int, int]]) -> None:
        """Raise if two of the bindings, or one and a direct buffer, overlap in written bytes.

        `bound` holds the start and the end of each binding.
        """
        furthest = 0  # the largest end so far
        for start, stop in sorted(bound):
            if start < furthest:
                self._compare_all(bound)
                return
            furthest = stop
        touched, written = self._touched[DIRECT], self._written[DIRECT]
        if touched:
            for index, (start, stop) in enumerate(bound):
                self._compare(index, start, stop, touched, written)

    def _compare_all(self, bound: Sequence[tuple[int, int]]) -> None:
        """Compare every pair: some bindings do overlap, which is fine for readers."""
        moved = [
            (
                Extents(self._touched[index].shifted(start, stop)),
                Extents(self._written[index].shifted(start, stop)),
            )
            for index, (start, stop) in enumerate(bound)
        ]
        moved.append((self._touched[DIRECT], self._written[DIRECT]))
        for index, (start, stop) in enumerate(bound):
            for other, (touched, written) in enumerate(moved):
                if other != index:
                    self._compare(index, start, stop, touched, written, other)

    def _compare(
        self,
        index: int,
        start: int,
        stop: int,
        touched: Extents,
        written: Extents,
        other: int = DIRECT,
    ) -> None:
        """Raise if others touch what a slot writes, or write what it touches."""
        for mine, theirs in ((self._written[index], touched), (self._touched[index], written)):
            if not theirs.meet(start, stop):
                continue
            for begin, end in mine.shifted(start, stop):
                if theirs.meet(begin, end):
                    whom = (
                        f"the buffer bound to slot {other}"
                        if 0 <= other < len(self._touched) - 1
                        else "a buffer that was recorded directly"
                    )
                    message = (
                        f"execute: the buffer bound to slot {index} shares bytes with {whom}, and "
                        "one of them is written: with hazards='auto' slots are memories of their "
                        "own, and the commands are not ordered for that; bind memory apart, or "
                        "record with barriers"
                    )
                    raise InvalidArgumentError(message)


def _surely(declared: np.dtype[Any], elements: tuple[str, ...]) -> np.dtype[Any] | None:
    """Return a dtype whose buffers need no further check, or None if no buffer needs any."""
    if declared == np.uint8 and len(elements) == 1:
        return dtype_of(elements[0]) or declared
    return declared if elements or declared != np.uint8 else None


def _read_specs(specs: object) -> list[tuple[Any, object]]:
    """Return the type and the size, or None, of each slot."""
    rule = "record: slots are a number, or a list of a dtype or a (dtype, bytes) for each"
    if isinstance(specs, (list, tuple, range)):
        given = as_items(specs, rule)
    else:
        count = as_int(specs, rule)
        if count < 0:
            message = f"record: the number of slots is 0 or more; {shown(count)} was given"
            raise InvalidArgumentError(message)
        given = ((np.uint8, None),) * min(count, _MOST + 1)
    if len(given) > _MOST:
        message = f"record: a recording has {_MOST} slots at most, not {shown(specs)}"
        raise InvalidArgumentError(message)
    return [
        each if isinstance(each, tuple) and len(each) == 2 else (each, None)  # noqa: PLR2004 - a pair
        for each in given
    ]
