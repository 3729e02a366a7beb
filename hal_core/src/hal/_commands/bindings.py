"""Binding tables: what each execution gives for the slots of a recording (rule C3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from hal._commands.hazards import END, Access, RangeSet
from hal._commands.nodes import COPIES, Command
from hal._commands.slots import DIRECT, SlotRule, Slots
from hal._kernels.output import Output
from hal._memory.access import check_buffer, late_address
from hal._memory.extent import Extent
from hal._memory.storage import Storage, Transient
from hal._memory.usage import OUTPUT
from hal._programs.elements import PLAIN, fits, refusal, sure_dtypes
from hal.arguments import as_items, as_mapping, same_elements, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError

Bindings: TypeAlias = Sequence[object] | Mapping[int, object]
"""A buffer, scalar or grid for each slot: in order, or by the slot's index."""

Table: TypeAlias = tuple[Any, ...]
"""The address of each slot's buffer, a scalar's bytes, or a grid's three numbers."""

LateTable: TypeAlias = list[tuple[Storage | None, Any, int]]
"""The storage, offset and size of each slot's buffer: some have no address yet (M3).

For a number there is no storage, and the entry of the table instead of the offset.
"""

_BINDINGS: Final = (
    "execute: bindings are a list of what each slot stands for, or a mapping of slots to that"
)


class SlotRules:
    """Checks of binding tables against what a recording needs; immutable."""

    __slots__ = ("_arena", "_copies", "_count", "_hazards", "count", "outputs", "slots", "sure")

    def __init__(
        self,
        slots: Slots,
        commands: Sequence[Command],
        names: Sequence[str],
        hazards: Sequence[Sequence[Access]],
    ) -> None:
        """Take what the commands need; `hazards` are the bytes that each touches, if they order."""
        self._count = len(slots)
        self._arena = slots._arena
        # A hidden slot follows for each block of the temporaries, as the plan's.
        more = len(self.temporaries()) - 1
        self.slots = (*slots._rules, *slots._rules[-1:] * more)
        self.count = len(self.slots)  # of addresses in a table
        # The dtypes that surely fit each; None where anything may be bound.
        self.sure = [*map(_surely, self.slots)]
        self.outputs = [index for index, each in enumerate(self.slots) if each.rights & OUTPUT]
        # Copies from one memory to another: the target and the source, and a description
        self._copies = [
            (command.operands, f"command {number}, {name},")
            for number, (command, name) in enumerate(zip(commands, names, strict=True))
            if command.node.__class__ in COPIES
            and command.operands[0].memory != command.operands[1].memory
        ]
        self._hazards = None
        if hazards and self.slots:
            self._hazards = _Apart(len(self.slots), hazards)

    def ranges(self, memory: int) -> tuple[tuple[int, int], ...] | None:
        """Return what the commands touch of a memory; None where their order ignores it."""
        return None if self._hazards is None else self._hazards.ranges(memory)

    def temporaries(self) -> tuple[int, ...]:
        """Return the bytes of each block of the temporaries; empty if there are none."""
        return () if self._arena is None else self._arena.blocks

    def check(
        self, bindings: object, blocks: Sequence[Storage] = ()
    ) -> tuple[Table | LateTable, list[Storage | None]]:
        """Check a binding table; return it, and what to keep alive for each slot.

        `blocks` are the memory of the temporaries. If a buffer has no address yet, returns
        the input of `resolve` instead. Raises `ArgumentTypeError`,
        `InvalidArgumentError` and `ClosedError`.
        """
        late: LateTable = []
        addresses: list[Any] = []
        buffers = self._in_order(bindings)
        for index, (buffer, rule) in enumerate(zip(buffers, self.slots, strict=False)):
            if rule.numbers is not None:
                value = rule.numbers.convert(index, buffer)
                addresses.append(value)
                late.append((None, value, 0))
                continue
            what = f"execute: the binding of slot {index}"
            storage = check_buffer(rule.device, buffer, what, rule.rights, "slot")
            address = storage.address
            # Memory without an address yet will have an aligned one; foreign memory may not.
            start = buffer._offset if address is None else address + buffer._offset
            if buffer._size < rule.needed or start % rule.alignment:
                raise InvalidArgumentError(_refusal(index, rule, buffer, start))
            sure = self.sure[index]
            if sure is not None and buffer._dtype not in sure:
                _check_elements(index, rule, buffer._dtype)
            addresses.append(None if address is None else start)
            late.append((storage, buffer._offset, buffer._size))
        for index in self.outputs:
            if not isinstance(buffers[index], Output):
                raise ArgumentTypeError(
                    f"execute: a kernel prints to slot {index}, which takes a hal.Output(device), "
                    f"not {type(buffers[index]).__name__}"
                )
        for block in blocks:
            addresses.append(None)
            late.append((block, 0, block.size))
        storages = [storage for storage, _, _ in late]
        table: Table = tuple(addresses)
        self._check_addresses(table, late)
        return late if None in table else table, storages

    def resolve(self, late: LateTable) -> Table:
        """Return the final addresses, when the execution is issued.

        Raises `OperationError` for a buffer that still has none.
        """
        table = tuple(
            [
                offset if storage is None else late_address(storage) + offset
                for storage, offset, _ in late
            ]
        )
        if any(isinstance(each[0], Transient) for each in late[: self._count]):
            self._check_addresses(table, late)  # now all are known
        return table

    def _in_order(self, bindings: object) -> Sequence[Any]:
        count = self._count
        kind = type(bindings)  # to ask whether something is a mapping takes long
        if kind is not tuple and kind is not list and isinstance(bindings, Mapping):
            bindings = as_mapping(bindings, "execute: bindings by slot are a mapping")
            unknown = [key for key in bindings if key not in range(count)]
            missing = [index for index in range(count) if index not in bindings]
            if unknown or missing:
                told = [f"nothing for slots {missing}"] if missing else []
                told += [f"something for {shown(unknown)}, which are no slots"] if unknown else []
                raise InvalidArgumentError(
                    f"execute: the recording has {count} slots, and the bindings have "
                    f"{' and '.join(told)}"
                )
            return [bindings[index] for index in range(count)]
        items = as_items(bindings, _BINDINGS, ordered=True)
        if len(items) != count:
            raise InvalidArgumentError(
                f"execute: the recording has {count} slots, and {len(items)} bindings were "
                "given; give one for each slot"
            )
        return items

    def _check_addresses(self, table: Table, bound: LateTable) -> None:
        """Raise if a copy or an order would meet memory that overlaps, where that is known."""
        for (target, source), description in self._copies:
            to = 0 if target.memory == DIRECT else table[target.memory]
            of = 0 if source.memory == DIRECT else table[source.memory]
            if to is None or of is None:
                continue
            distance = target.start + to - source.start - of
            if 0 < abs(distance) < source.size:
                raise InvalidArgumentError(
                    f"execute: {description} would copy {source.size} bytes onto memory that "
                    "overlaps them with these bindings; copy through another buffer"
                )
        if self._hazards is not None:
            extents = [
                (0, 0) if storage is None or start is None else (start, start + size)
                for start, (storage, _, size) in zip(table, bound, strict=True)
            ]
            self._hazards.check(extents)


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
        self._touched = [RangeSet(each) for each in touched]
        self._written = [RangeSet(each) for each in written]

    def ranges(self, memory: int) -> tuple[tuple[int, int], ...]:
        """Return the bytes of a memory that the commands touch."""
        return tuple(self._touched[memory].shifted(0, END))

    def check(self, bound: Sequence[tuple[int, int]]) -> None:
        """Raise if two of the bindings, or one and a direct buffer, overlap in written bytes.

        `bound` holds the start and the end of each binding.
        """
        furthest = 0  # the largest end so far
        for start, stop in sorted(bound):
            if start < furthest or self._touched[DIRECT].meet(start, stop):
                self._check_uses(bound)
                return
            furthest = stop

    def _check_uses(self, bound: Sequence[tuple[int, int]]) -> None:
        """Compare the bytes that are used: some bindings do overlap, which is fine for readers."""
        direct = len(bound)
        uses = [
            (begin, end, writes, index)
            for index, place in enumerate((*bound, (0, END)))
            for writes, extents in ((False, self._touched), (True, self._written))
            for begin, end in extents[index].shifted(*place)
            if begin < end
        ]
        # The ends of the two memories that reach furthest so far, for reads and for writes. A use
        # is compared with memories other than its own, and the furthest of those is one of the two.
        furthest: dict[bool, dict[int, int]] = {False: {}, True: {}}
        for begin, end, writes, index in sorted(uses):
            for other, stop in furthest[not writes].items():
                if other != index and begin < stop:
                    raise _shared(min(index, other), max(index, other), direct)
            known = furthest[writes]
            known[index] = max(end, known.get(index, 0))
            if len(known) > 2:  # noqa: PLR2004 - as above
                del known[min(known, key=known.__getitem__)]


def _shared(index: int, other: int, direct: int) -> InvalidArgumentError:
    whom = f"the buffer bound to slot {other}"
    if other >= direct:
        whom = "a buffer that was recorded directly"
    return InvalidArgumentError(
        f"execute: the buffer bound to slot {index} shares bytes with {whom}, and one of them is "
        "written: with hazards='auto' slots are memories of their own, and the commands are not "
        "ordered for that; bind memory apart, or record with barriers"
    )


def _refusal(index: int, rule: SlotRule, buffer: Extent, start: int) -> str:
    """Describe why a buffer cannot be bound to a slot."""
    if buffer._size < rule.needed:
        return (
            f"execute: slot {index} needs {rule.needed} bytes, and the buffer that was bound has "
            f"{buffer._size}"
        )
    return (
        f"execute: slot {index} needs a buffer that begins at a multiple of {rule.alignment} "
        f"bytes, and the one that was bound begins at {start:#x}"
    )


def _check_elements(index: int, rule: SlotRule, dtype: np.dtype[Any]) -> None:
    """Raise unless a buffer of `dtype` has the elements of its slot and of its uses."""
    if not same_elements(rule.dtype, dtype):
        raise ArgumentTypeError(
            f"execute: slot {index} is of {rule.dtype}, and the buffer that was bound holds "
            f"{dtype}; bind buffer.view(np.{rule.dtype}) if its bytes are meant"
        )
    for element in rule.elements:
        if not fits(element, dtype):
            message = f"execute: slot {index} ({element}*) {refusal(element, dtype)}"
            raise ArgumentTypeError(message)


def _surely(rule: SlotRule) -> tuple[np.dtype[Any], ...] | None:
    """Return the dtypes whose buffers need no further check, or None if no buffer needs any."""
    declared, elements = rule.dtype, rule.elements
    if declared == np.uint8 and all(sure_dtypes(element) is None for element in elements):
        return None
    return tuple(
        dtype
        for dtype in (declared, *PLAIN)
        if same_elements(declared, dtype) and all(fits(element, dtype) for element in elements)
    )
