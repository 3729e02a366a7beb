"""Check the operations of groups of ranks, and make submissions of them (docs/collectives.md).

The group, of a package above this one, decides on order and failure; here are its buffers, and
the engine's side of a launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from hal import bfloat16
from hal._base.failures import keep
from hal._engine import ending, progress, timelines
from hal._engine.plan import Payload
from hal._engine.submission import Submission
from hal._engine.submitting import start
from hal._engine.wait_lists import check_lists
from hal._memory.access import check_buffer, late_address
from hal._memory.extent import Extent, no_address
from hal._memory.usage import TRANSFER_SOURCE, TRANSFER_TARGET
from hal._memory.views import view_of
from hal._programs.elements import same_elements
from hal.arguments import as_choice, as_int, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError
from hal.native import MemoryType, NativeDevice
from hal.native_collectives import (
    MESSAGES,
    REDUCTIONS,
    Collective,
    Launch,
    Participant,
    Region,
    Step,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hal._engine.fence import Waits
    from hal._engine.steps import Step as EngineStep
    from hal._engine.stream import StreamQueue
    from hal._engine.wait_lists import Signals
    from hal._memory.core import DeviceCore
    from hal._memory.storage import Storage

__all__ = ["enter"]

_REDUCING: Final = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_name_of: Final = functools.lru_cache(maxsize=64)(bfloat16.name_of)
_ALIKE: Final = frozenset({"all_reduce", "broadcast", "reduce"})
"""Kinds whose target is the source unless given."""
_ROOTED: Final = {"broadcast": "root", "reduce": "root", "send": "peer", "receive": "peer"}


class _Region(Region):
    """A range of a storage."""

    __slots__ = ("_device", "_size", "_start", "storage")

    def __init__(self, device: DeviceCore, storage: Storage, extent: Extent) -> None:
        self._device = device
        self.storage = storage
        self._start = extent._offset
        self._size = extent._size

    @property
    def size(self) -> int:
        return self._size

    @property
    def is_visible(self) -> bool:
        # Managed memory, which the device may have, is the driver's to copy.
        storage = self.storage
        return storage.host_address is not None and (
            self._device._pageable or storage.memory is MemoryType.HOST
        )

    def address(self) -> int:
        return late_address(self.storage) + self._start

    def read(self) -> NDArray[np.uint8]:
        if self.storage.address is None:
            raise no_address(self.storage, OperationError)
        if self.is_visible:
            return self._memory()
        copied = np.empty(self._size, np.uint8)

        def drain(memory: memoryview, position: int) -> None:
            np.copyto(copied[position : position + len(memory)], np.frombuffer(memory, np.uint8))

        self._device._staging.read(self.address(), self._size, drain)
        return copied

    def write(self, data: NDArray[np.uint8]) -> None:
        if self.is_visible:
            memory = self._memory()
            if memory.ctypes.data != data.ctypes.data:
                np.copyto(memory, data)
            return

        def fill(memory: memoryview, position: int) -> None:
            np.copyto(np.frombuffer(memory, np.uint8), data[position : position + len(memory)])

        self._device._staging.write(self.address(), self._size, fill)

    def _memory(self) -> NDArray[np.uint8]:
        return np.asarray(view_of(self.storage))[self._start : self._start + self._size]


class _Launch(Launch):
    """The operations of one submission, and its lists."""

    __slots__ = ("_kind", "_made", "_signals", "_storages", "_waits")

    queue: StreamQueue

    def __init__(
        self, queue: StreamQueue, work: Collective, waits: list[Any], signals: list[Any]
    ) -> None:
        self.queue = queue
        self.ordered = queue._ordered
        self.work = [work]
        self._kind = work.step.kind
        self._storages = [
            each.storage for each in (work.source, work.target) if isinstance(each, _Region)
        ]
        self._waits, self._signals = waits, signals
        self._made: Submission | None = None

    def make(self, run: Callable[..., object], *, on_stream: bool) -> Submission:
        work = self.work  # the launch itself is not kept: it would be a cycle
        payload: Payload = (run, (work,), ())
        if on_stream:
            payload = (_on_stream, (run, self.queue._native, work), ())
        else:
            progress.start_for(self._kind)
        self._made = Submission(self.queue, self._kind, payload, (), not on_stream)
        return self._made

    def absorb(self, other: Launch) -> None:
        added = cast("_Launch", other)
        waits, signals = [*self._waits, *added._waits], [*self._signals, *added._signals]
        check_lists(waits, signals)
        self._waits, self._signals = waits, signals
        self.work += added.work
        self._storages += added._storages

    @staticmethod
    def fail(submission: object, error: BaseException) -> None:
        progress.act(_fail, cast("Submission", submission), keep(error))

    def start(self, also: Sequence[object]) -> None:
        made = self._made
        assert made is not None  # noqa: S101 - for the type checker
        waits, signals = check_lists([*self._waits, *also], self._signals)
        made._resources = tuple(self._storages)
        made._signals = (*signals, *made._signals)  # the latter: somebody waits for its handle
        start(made, waits)


def _on_stream(
    stream: int, run: Callable[..., object], native: NativeDevice, work: list[Collective]
) -> None:
    run(native.export_stream(stream), work)


def _fail(step: EngineStep, submission: Submission, error: BaseException) -> None:
    with timelines.lock:
        step.work.append((timelines.CHANGE, (ending.fail, submission, error)))


def enter(
    queue: StreamQueue,
    device: DeviceCore,
    group: object,
    kind: str,
    source: object = None,
    target: object = None,
    *,
    op: object = None,
    root: object = None,
    wait: Waits = (),
    signal: Signals = (),
) -> Submission:
    """Check an operation of a group, and have the group submit it."""
    if not isinstance(group, Participant):
        message = f"{kind}: group is what hal.collectives.join returned, not {type(group).__name__}"
        raise ArgumentTypeError(message)
    device._live()
    if group.device is not device:
        message = (
            f"{kind}: the group has rank {group.rank} on {group.device.name}, and this queue is "
            f"of {device._name}; use a queue of the group's device"
        )
        raise InvalidArgumentError(message)
    work = _checked(device, group, kind, source, target, op, root)
    waits, signals = check_lists(wait, signal)
    launch = _Launch(queue, work, list(waits), list(signals))
    made: Submission = group.enter(launch)
    return made


def _checked(
    device: DeviceCore,
    group: Participant,
    kind: str,
    source: object,
    target: object,
    op: object,
    root: object,
) -> Collective:
    """Return the operation of checked arguments."""
    other = -1
    if kind in _ROOTED:
        other = _check_rank(group, kind, _ROOTED[kind], root)
    name = as_choice(op, REDUCTIONS, f"{kind}: op") if kind in _REDUCING else ""
    if kind == "barrier":
        return Collective(Step(kind, 0), None, None, None)
    if target is None and kind in _ALIKE:
        target = source
    reads = kind != "receive" and not (kind == "broadcast" and group.rank != other)
    writes = kind != "send" and not (kind == "reduce" and group.rank != other)
    given = source if reads else None
    taken = target if writes else None
    first = given if given is not None else taken
    regions: list[Region | None] = [None, None]
    what = f"{kind}: the source", f"{kind}: the target"
    for index, (each, need) in enumerate([(given, TRANSFER_SOURCE), (taken, TRANSFER_TARGET)]):
        if each is not None or (index == 0 and reads) or (index == 1 and writes):
            storage = check_buffer(device, each, what[index], need)
            regions[index] = _Region(device, storage, cast("Extent", each))
    extent = cast("Extent", first)
    dtype = extent._dtype
    is_same = given is taken and kind in _ALIKE
    if given is not None and taken is not None and not is_same:
        _check_pair(group, kind, cast("Extent", given), cast("Extent", taken))
    if name:
        _check_numbers(kind, dtype, name)
    size = extent._size
    if kind == "reduce_scatter":
        size = cast("Extent", taken)._size
    elif kind == "all_to_all":
        size = cast("Extent", given)._size // group.size
    step = Step(kind, 0, name, _name_of(dtype), size // dtype.itemsize, other)
    return Collective(step, dtype, regions[0], regions[1])


def _check_rank(group: Participant, kind: str, what: str, value: object) -> int:
    rank = as_int(value, f"{kind}: {what} is a rank, an int")
    if not 0 <= rank < group.size:
        message = (
            f"{kind}: {what} is a rank from 0 to {group.size - 1} of the group, not {shown(rank)}"
        )
        raise InvalidArgumentError(message)
    if kind in MESSAGES and rank == group.rank:
        message = f"{kind}: rank {rank} is this one; copy between its buffers with queue.copy()"
        raise InvalidArgumentError(message)
    return rank


def _check_pair(group: Participant, kind: str, source: Extent, target: Extent) -> None:
    """Check that a source and a target have the same type and fitting sizes, and do not overlap."""
    if not same_elements(source._dtype, target._dtype):
        message = (
            f"{kind}: the source is of {bfloat16.name_of(source._dtype)}, and the target of "
            f"{bfloat16.name_of(target._dtype)}; pass buffer.view(dtype) if the bytes are meant"
        )
        raise ArgumentTypeError(message)
    count = group.size
    part, whole = source._size, source._size
    if kind == "all_gather":
        whole = part * count
        fits = target._size == whole
        needed = f"{count} ranks times {part} bytes"
    elif kind == "reduce_scatter":
        part = target._size
        fits = part * count == whole
        needed = f"the {whole} bytes of the source divided by {count} ranks"
    else:
        fits = target._size == whole
        needed = f"the {whole} bytes of the source"
    if not fits:
        message = f"{kind}: the target has {target._size} bytes, and must have {needed}"
        raise InvalidArgumentError(message)
    if kind == "all_to_all" and whole % (count * source._dtype.itemsize):
        message = (
            f"{kind}: {whole} bytes of {bfloat16.name_of(source._dtype)} are no whole number of "
            f"elements for each of {count} ranks"
        )
        raise InvalidArgumentError(message)
    if source._storage is not target._storage:
        return
    distance = target._offset - source._offset
    in_place = {"all_gather": -group.rank * part, "reduce_scatter": group.rank * part}.get(kind, 0)
    if kind == "all_to_all":
        in_place = -1 << 62  # there is none
    if distance != in_place and -target._size < distance < source._size:
        rule = _IN_PLACE.get(kind, "they are the same")
        message = f"{kind}: source and target overlap; in place, {rule}"
        raise InvalidArgumentError(message)


_IN_PLACE: Final = {
    "all_gather": "the source is this rank's part of the target",
    "reduce_scatter": "the target is this rank's part of the source",
    "all_to_all": "it cannot be done: give another buffer",
}


def _check_numbers(kind: str, dtype: np.dtype[Any], op: str) -> None:
    """Raise unless elements can be reduced."""
    is_real = dtype.kind == "f" or bfloat16.is_bfloat16(dtype)
    if not (is_real or dtype.kind in "iu") or dtype.itemsize > 8:  # noqa: PLR2004
        message = f"{kind}: elements of {bfloat16.name_of(dtype)} are not reduced; use view(dtype)"
        raise ArgumentTypeError(message)
    if op == "average" and not is_real:
        message = f"{kind}: an average of {dtype} is none of that type; use op='sum', and divide"
        raise InvalidArgumentError(message)
