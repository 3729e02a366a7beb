"""Check commands of a recording and describe each by a node and its operands (rules C1, C3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hal._base.checks import check_copy, check_range
from hal._buffers.buffer import Buffer
from hal._commands.hazards import END, Access
from hal._commands.slots import DIRECT, Slot, Slots
from hal._commands.values import GRID, ValueUse, stand_in, takes_number, wrong_kind
from hal._kernels.dispatch import check_counts, check_kernel, check_launch
from hal._kernels.indirect import COUNTS_ALIGNMENT, COUNTS_SIZE
from hal._memory.access import check_buffer
from hal._memory.peers import is_peer
from hal._memory.usage import (
    DISPATCH,
    INDIRECT,
    OUTPUT,
    READ,
    TRANSFER_SOURCE,
    TRANSFER_TARGET,
    WRITE,
)
from hal._programs.elements import alignment_of
from hal._programs.parameters import POINTERS
from hal._programs.printing import PARAMETER
from hal._transfers import peer_copies
from hal._transfers.patterns import NATIVE
from hal._transfers.transfers import CHUNK, _bytes_of, capture, check_fill
from hal.arguments import as_names, shown
from hal.errors import InvalidArgumentError
from hal.native import (
    CopyNode,
    FillNode,
    HostCopyNode,
    IndirectLaunchNode,
    LaunchNode,
    MemoryType,
    PeerCopyNode,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hal._kernels.executable import Kernel
    from hal._memory.core import DeviceCore
    from hal._memory.storage import Storage
    from hal._programs.parameters import ParameterBlock
    from hal.native import Node


COPIES: Final = frozenset({CopyNode, PeerCopyNode})
"""The nodes of copies between memories of devices."""

_NO_NAMES: Final = ()
_BLOCK: Final = 4 << 20
"""The most captured bytes of a pattern that no native fill takes; copies repeat them."""


class Operand(NamedTuple):
    """A memory that a command uses, and where its address goes."""

    memory: int  # the slot, or `hal._commands.slots.DIRECT`
    start: int  # in bytes from the slot's beginning, or the address
    size: int
    argument: int  # the index of a kernel's parameter, or the field of another node, from -1 down
    alignment: int  # `start` is a multiple of it, and the slot's own address must be
    rights: int  # the uses that the buffer must allow, bits of `hal._memory.usage`
    element: str = ""  # what a kernel's pointer to a slot points to, if that matters


class Command(NamedTuple):
    """A checked command: a native call, the memory that it touches, and what it keeps alive."""

    function: Callable[..., object]
    node: Node  # the arguments after the stream, without the addresses of slots
    operands: tuple[Operand, ...]
    resources: tuple[object, ...]
    parameters: ParameterBlock | None = None  # a kernel's, packed
    values: Sequence[ValueUse] = ()  # the slots whose numbers it takes

    def accesses(self) -> list[Access]:
        """Return the bytes that it touches."""
        return [
            Access(each.memory, each.start, each.start + each.size, bool(each.rights & WRITE))
            for each in self.operands
            if each.size
        ]


def fill(
    device: DeviceCore, slots: Slots, target: object, value: object, offset: object, size: object
) -> list[Command]:
    """Check a fill; see `Queue.fill`. Like its siblings, returns nothing for no bytes."""
    thing, memory, base, kept = check_operand(device, slots, target, "fill", TRANSFER_TARGET)
    _check_sized(thing, size, "fill")
    start, length, pattern, width = check_fill(base, thing._size, thing._dtype, value, offset, size)
    start += base
    if not length:
        return []
    if width > NATIVE:
        unit = np.frombuffer(pattern.to_bytes(width, "little"), np.uint8)
        host = np.tile(unit, min(length, _BLOCK) // width)
        return _from_captured(device, memory, start, length, host, kept, NATIVE)
    return [
        Command(
            device._fill,
            FillNode(start + part, pattern, width, count // width),
            (Operand(memory, start + part, count, -1, width, TRANSFER_TARGET),),
            (kept,),
        )
        for part, count in _parts(length)
    ]


def update(
    device: DeviceCore, slots: Slots, target: object, data: object, offset: object
) -> list[Command]:
    """Check an update and capture its bytes; see `Queue.update`."""
    thing, memory, base, kept = check_operand(device, slots, target, "update", TRANSFER_TARGET)
    host = _bytes_of(data, "update", thing._dtype)
    start, length = check_range(thing._size, offset, host.size, "update")
    if not length:
        return []
    return _from_captured(device, memory, start + base, length, host, kept, 1)


def _from_captured(
    device: DeviceCore,
    memory: int,
    start: int,
    length: int,
    host: NDArray[np.uint8],
    kept: object,
    alignment: int,
) -> list[Command]:
    """Return copies of bytes that are captured now, repeated where they are fewer."""
    source, captured = capture(device, host)
    return [
        Command(
            device._copy_from_host,
            HostCopyNode(start + part, source + part % host.size, count),
            (Operand(memory, start + part, count, -1, alignment, TRANSFER_TARGET),),
            (kept, captured),
        )
        for part, count in _parts(length, host.size)
    ]


def copy(
    device: DeviceCore,
    slots: Slots,
    source: object,
    target: object,
    source_offset: object,
    target_offset: object,
    size: object,
) -> list[Command]:
    """Check a copy, also from or to another device; see `Queue.copy`."""
    owners = _owner(device, source), _owner(device, target)
    if device not in owners:
        raise peer_copies.on_neither_side(
            *owners, f"this recording to {device._name}; record it for"
        )
    read = check_operand(owners[0], slots, source, "copy: the source", TRANSFER_SOURCE)
    written = check_operand(owners[1], slots, target, "copy: the target", TRANSFER_TARGET)
    _check_sized(read.thing, size, "copy: the source")
    offsets = source_offset, target_offset
    apart = written.base - read.base if read.memory == written.memory else None
    first, into, length = check_copy(read.thing._size, written.thing._size, offsets, size, apart)
    begin, end = first + read.base, into + written.base
    commands = []
    for part, count in _parts(length):
        node: Node = CopyNode(end + part, begin + part, count)
        call, argument = device._copy, -2
        if owners != (device, device):
            of, to = owners[0]._native, owners[1]._native
            node = PeerCopyNode(end + part, to, begin + part, of, count)
            call, argument = device._native.copy_peer, -3
        operands = (
            Operand(written.memory, end + part, count, -1, 1, TRANSFER_TARGET),
            Operand(read.memory, begin + part, count, argument, 1, TRANSFER_SOURCE),
        )
        commands.append(Command(call, node, operands, (read.kept, written.kept)))
    return commands


def dispatch(
    device: DeviceCore,
    slots: Slots,
    kernel: Kernel,
    grid: object,
    block: int | Sequence[int] | None,
    args: Sequence[object] | Mapping[str, object],
    shared_memory: int | None,
    reads: Sequence[str],
    writes: Sequence[str],
) -> list[Command]:
    """Check a dispatch and pack its arguments; see `Queue.dispatch`."""
    operands: list[Operand] = []
    resources: list[object] = []
    names: list[str] = []
    check_kernel(kernel)
    grid, args, values = _take_numbers(slots, kernel, grid, args)
    if reads is not _NO_NAMES or writes is not _NO_NAMES:
        reads = _check_names(kernel, reads, "reads")
        writes = _check_names(kernel, writes, "writes")

    def resolve(argument: object, parameter: str) -> int | None:
        if not isinstance(argument, (Buffer, Slot)):
            return None
        reading = parameter not in writes and (
            parameter in reads or parameter in kernel.signature.constants
        )
        rights = DISPATCH | READ if reading else DISPATCH | WRITE
        what = f"{kernel.name}: argument {parameter!r}"
        thing, memory, base, kept = check_operand(device, slots, argument, what, rights)
        if parameter == PARAMETER and kernel.signature.output:
            rights |= OUTPUT
            if memory != DIRECT and base:
                raise InvalidArgumentError(f"{what} takes a slot as a whole, not a part of one")
        if not names:
            names.extend(each.name for each in kernel.signature.parameters)
        index = names.index(parameter)
        element = kernel.signature.parameters[index].element
        if element:
            kernel.signature._check_buffer(kernel.name, parameter, thing._dtype, base)
        alignment = alignment_of(element)
        used = Operand(memory, base, thing._size, index, alignment, rights, element)
        # A slot of bytes takes any buffer, so each binding is compared; others were compared above.
        operands.append(used if thing.dtype == np.uint8 else used._replace(element=""))
        resources.append(kept)
        return base  # of a slot the offset alone: each execution adds an address

    blocks, threads, shared, parameters = check_launch(
        device, kernel, grid, block, args, shared_memory, resolve, "recording"
    )
    function, address = kernel._function, parameters.address
    resources += (kernel._module, parameters)
    if blocks is not None:
        if not all(blocks):
            return []
        node: Node = LaunchNode(function, blocks, threads, shared, address)
        call: Callable[..., object] = device._launch
        if values and values[-1].argument == GRID:
            call = partial(_launch_some, call)
    else:
        what = f"dispatch of {kernel.name!r}: the grid"
        thing, memory, base, kept = check_operand(device, slots, grid, what, INDIRECT)
        check_counts(kernel, thing._size, base)
        operands.append(Operand(memory, base, COUNTS_SIZE, -2, COUNTS_ALIGNMENT, INDIRECT))
        resources.append(kept)
        node = IndirectLaunchNode(function, base, threads, shared, address)
        call = device._launch_indirect
    _check_apart(kernel, operands, values)
    return [Command(call, node, tuple(operands), tuple(resources), parameters, values)]


def _take_numbers(
    slots: Slots, kernel: Kernel, grid: object, args: Sequence[object] | Mapping[str, object]
) -> tuple[object, tuple[object, ...], list[ValueUse]]:
    """Return a grid and arguments with a stand-in for slots that give numbers, and those slots."""
    signature = kernel.signature
    items = list(signature._in_order(kernel.name, args))
    values: list[ValueUse] = []
    for index, (parameter, slot) in enumerate(zip(signature.parameters, items, strict=False)):
        if not isinstance(slot, Slot) or not takes_number(parameter, slot.kind):
            continue
        what = f"kernel {kernel.name!r}: parameter {parameter.name!r} ({parameter.type})"
        slots._check_own(slot, what, "scalar")
        values.append(ValueUse(slot._index, index, kernel))
        items[index] = stand_in(parameter)
    if isinstance(grid, Slot) and grid.kind == "grid":
        slots._check_own(grid, f"dispatch of {kernel.name!r}: the grid")
        values.append(ValueUse(grid._index, GRID, kernel))
        grid = 1
    return grid, tuple(items), values


def _check_apart(kernel: Kernel, operands: Sequence[Operand], values: Sequence[ValueUse]) -> None:
    """Raise if one slot stands for a buffer and for a number."""
    numbers = {use.slot for use in values}
    for operand in operands:
        if operand.memory in numbers:
            raise wrong_kind(f"dispatch of {kernel.name!r}", "a buffer", operand.memory, "scalar")


def _launch_some(
    launch: Callable[..., object], stream: int, function: int, grid: tuple[int, ...], *rest: object
) -> None:
    """Launch unless a slot's grid is empty, which no native launch takes."""
    if all(grid):
        launch(stream, function, grid, *rest)


def hosts_of(command: Command) -> tuple[int, ...] | None:
    """Return the slots that make a copy one from host to host when bound to pinned memory.

    None for a command that is not a copy, or where one side is never the host's.
    """
    kind, kept = command.node.__class__, command.resources
    if kind not in {*COPIES, HostCopyNode}:
        return None
    sides = kept[::-1] if kind in COPIES else kept[:1]  # in the order of the operands
    slots = []
    for operand, storage in zip(command.operands, sides, strict=True):
        if operand.memory != DIRECT:
            slots.append(operand.memory)
        elif storage.memory is not MemoryType.HOST:  # type: ignore[attr-defined] # a storage
            return None
    return tuple(slots)


def needed(start: int, size: int) -> int:
    """Return how many bytes from its beginning on a slot surely needs for an operand."""
    return start + size if start + size < END else start


def _owner(device: DeviceCore, thing: object) -> DeviceCore:
    """Return the device of a buffer or a slot if a copy of `device` reaches it, else `device`."""
    if not isinstance(thing, Slot):
        return peer_copies.owner(device, thing)
    other = thing._slots._rules[thing._index].device
    return other if other is device or is_peer(device, other) else device


class _BoundOperand(NamedTuple):
    """A buffer or a slot that a command may use."""

    thing: Any
    memory: int  # as in `Operand`
    base: int  # its offset there
    kept: Storage | None  # what to keep alive


def check_operand(
    device: DeviceCore, slots: Slots, thing: object, what: str, rights: int
) -> _BoundOperand:
    """Return a buffer or a slot, and its memory; raise if it cannot be used here."""
    if isinstance(thing, Slot):
        slots._check_own(thing, what, "buffer")
        slots._check_device(thing, device, what, rights)
        return _BoundOperand(thing, thing._index, thing._offset, None)
    storage = check_buffer(device, thing, what, rights, "recording")
    assert isinstance(thing, Buffer)  # noqa: S101 - for the type checker
    if storage.address is None:
        raise InvalidArgumentError(
            f"{what}: the buffer has no address before its alloca was issued; record a slot "
            "(device.record(slots=...)) and bind the buffer when the commands are executed"
        )
    return _BoundOperand(thing, DIRECT, storage.address + thing._offset, storage)


def _check_sized(thing: Any, size: object, what: str) -> None:  # noqa: ANN401 - buffer or slot
    """Raise if a command asks for the rest of a slot without a size."""
    if size is None and isinstance(thing, Slot) and thing.size is None:
        raise InvalidArgumentError(
            f"{what}: slot {thing.index} has no size of its own; pass size=, or give it one in "
            "device.record(slots=[(dtype, bytes), ...])"
        )


def _parts(length: int, most: int = CHUNK) -> list[tuple[int, int]]:
    """Return the offsets and sizes of the pieces that native calls take."""
    step = min(CHUNK, most)
    return [(start, min(step, length - start)) for start in range(0, length, step)]


def _check_names(kernel: Kernel, names: object, what: str) -> tuple[str, ...]:
    """Return names; raise unless all of them are pointers of the kernel."""
    checked = as_names(names, f"dispatch of {kernel.name!r}: {what}")
    pointers = [each.name for each in kernel.signature.parameters if each.kind in POINTERS]
    for name in checked:
        if name not in pointers:
            raise InvalidArgumentError(
                f"dispatch of {kernel.name!r}: {what} names {shown(name)}, which is no pointer of "
                f"the kernel; its parameters are {kernel.signature}"
            )
    return checked
