"""Check the operations of groups of ranks, and make submissions of them (docs/collectives.md).

The group, of a package above this one, decides on order and failure; here are its buffers, and
the engine's side of a launch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from hal._base.failures import keep
from hal._engine import ending, progress
from hal._engine.operation import DONE
from hal._engine.payload import Payload
from hal._engine.submission import Submission
from hal._engine.submitting import start
from hal._engine.wait_lists import Signals, check_lists
from hal._memory import blocking
from hal._memory.access import check_buffer, late_address
from hal._memory.storage import Storage
from hal._memory.usage import TRANSFER_SOURCE, TRANSFER_TARGET
from hal._memory.views import host_bytes, view_of
from hal._transfers.collective_checks import check, check_group
from hal.errors import ClosedError
from hal.handlers import dropped
from hal.native_collectives import (
    SOURCE,
    STREAM,
    TARGET,
    Collective,
    CollectiveStep,
    Launch,
    Participant,
    Region,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hal._engine.backlog import CheckedWaits
    from hal._engine.fence import Waits
    from hal._engine.stream import StreamQueue
    from hal._engine.timelines import Timepoint
    from hal._memory.core import DeviceCore


class GroupRegion(Region):
    """A range of a storage."""

    __slots__ = ("_device", "memory", "size", "start")

    def __init__(self, device: DeviceCore, storage: Storage, start: int, size: int) -> None:
        self._device = device
        self.memory = storage
        self.start = start
        self.size = size

    @property
    def is_visible(self) -> bool:
        return self._device._host_copies(self.memory)

    def address(self) -> int:
        return late_address(self.memory) + self.start

    def read(self) -> NDArray[np.uint8]:
        if self.is_visible:
            return host_bytes(self.memory, self.start, self.size)
        copied = np.empty(self.size, np.uint8)
        blocking.read(self._device, self.memory, self.start, copied, blocking.IS_OPERATION)
        return copied

    def write(self, data: NDArray[np.uint8]) -> None:
        if not self.is_visible:
            blocking.write(self._device, self.memory, self.start, data, blocking.IS_OPERATION)
            return
        memory = host_bytes(self.memory, self.start, self.size)
        if memory.ctypes.data != data.ctypes.data:  # else it is what `read` has shown
            np.copyto(memory, data)


class GroupLaunch(Launch):
    """The operations of one submission, and its lists."""

    __slots__ = ("_signals", "_storages", "_waits")

    queue: StreamQueue
    submission: Submission

    def __init__(
        self,
        queue: StreamQueue,
        work: list[Collective],
        storages: tuple[Storage, ...],
        waits: CheckedWaits = (),
        signals: tuple[Timepoint, ...] = (),
    ) -> None:
        self.queue = queue
        self.ordered = queue._ordered
        self.work = work
        self.begun = self.ended = None
        self._storages = storages
        self._waits, self._signals = waits, signals

    def make(self, run: Callable[..., object], *, on_stream: bool) -> None:
        kind = self.work[0].step.kind
        if on_stream:
            payload: Payload = (_on_stream, (run, self, self.work), ())
        else:
            progress.start_for(kind)
            payload = (run, (self, self.work), ())
        self.submission = Submission(self.queue, kind, payload, (), not on_stream)

    def absorb(self, other: Launch) -> None:
        added = cast("GroupLaunch", other)
        waits, signals = [*self._waits, *added._waits], [*self._signals, *added._signals]
        self._waits, self._signals = check_lists(waits, signals)
        self._storages += added._storages
        self.work += added.work

    def start(self, also: Sequence[object]) -> None:
        made, waits, signals = self.seal(), self._waits, self._signals
        if also:
            waits, signals = check_lists([*waits, *also], signals)
        made._signals = signals + made._signals  # the latter: somebody waits for its handle
        start(made, waits)
        self.drop()

    def seal(self) -> Submission:
        """Have the submission keep the memory; return it."""
        self.submission._resources = self._storages
        return self.submission

    def drop(self) -> None:
        """Keep no memory any longer; it was submitted."""
        self.work = []
        self._storages = self._waits = self._signals = ()

    def fail(self, error: BaseException) -> None:
        progress.act(progress.change, ending.fail, (self.submission, keep(error)))

    def memory(self) -> object:
        # Views, since a close of the buffer or of the device gives back what only a storage keeps.
        resources = self.submission._resources or ()  # None: it has ended
        used = [each for each in resources if isinstance(each, Storage) and each.host_address]
        with dropped(ClosedError):
            return [view_of(each) for each in used]
        return None

    def outcome(self) -> bool | None:
        state = self.submission._state
        return None if state < DONE else state == DONE


def _on_stream(
    stream: int, run: Callable[..., object], launch: GroupLaunch, work: list[Collective]
) -> None:
    run(launch.queue._native.export_stream(stream), launch, work)


def enter(
    queue: StreamQueue,
    device: DeviceCore,
    wait: Waits,
    signal: Signals,
    kind: str,
    group: object,
    source: object,
    target: object,
    op: object,
    root: object,
) -> Submission:
    """Check an operation of a group, and have the group submit it."""
    device._live()
    member = check_group(device, group, kind, "this queue")
    step, dtype, given, taken = check(device, member, kind, source, target, op, root, _find)
    waits, signals = check_lists(wait, signal)
    storages: tuple[Storage, ...] = ()
    if given is not None:
        storages = (given.memory,)
    if taken is not None and taken is not given:
        storages += (taken.memory,)
    work = [Collective(step, dtype, given, taken)]
    made: Submission = member.enter(GroupLaunch(queue, work, storages, waits, signals))
    return made


def _find(device: DeviceCore, thing: object, what: str, rights: int) -> GroupRegion:
    """Return the region that a queue's operation uses."""
    storage = check_buffer(device, thing, what, rights)
    extent: Any = thing
    return GroupRegion(device, storage, extent._offset, extent._size)


_WORDS: Final = 8
_PREPARED: Final = struct.Struct(f"={1 + _WORDS}Q{_WORDS}B3q")
"""The record of a call, as `hal_core/speedups/collectives.c` has it."""


def prepare(
    group: Participant,
    kind: str,
    source: Any,  # noqa: ANN401 - as users give them
    target: Any,  # noqa: ANN401
    op: object,
    root: object,
) -> tuple[CollectiveStep, list[int], bytes, object] | None:
    """Check an operation, and return how C makes later ones of the same kind, sizes and types.

    That is the step, the last number, the native call, and the objects that C compares by identity,
    to be kept alive. None if Python makes them.
    """
    device: DeviceCore = group.device
    step, dtype, given, taken = check(device, group, kind, source, target, op, root, _find)
    found = group.call_for(step, dtype)
    if found is None:
        return None
    line, (function, arguments, fine) = found
    into = 0 if target is None else 1  # the target is the source, unless it is given
    rights = [0, 0]
    if given is not None:
        rights[0] = TRANSFER_SOURCE
    if taken is not None:
        rights[into] |= TRANSFER_TARGET
    meanings = {SOURCE: 1, TARGET: 1 + into, STREAM: 3}
    words = [*arguments, *(0,) * (_WORDS - len(arguments))]
    kinds = [meanings.get(word, 0) for word in words]
    values = [0 if kind else word for word, kind in zip(words, kinds, strict=True)]
    kept = op, *[each._dtype for each in (source, target) if each is not None]
    return step, line, _PREPARED.pack(function, *values, *kinds, *rights, fine), kept
