"""The embedded provider: the ranks are devices of one process, driven by any threads.

Nothing blocks. A rank's operation leaves what it gives at a *meeting*, and ends when the last
rank has come, whose thread does the work of all.

A signal handler or a finaliser may use a group in the middle of another call of its thread (O3).
So the locks are re-entrant, each change is one step of a dict's or a set's own, and who is about to
wait is noted before it looks at the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from hal.collectives import numerics
from hal.collectives.texts import RECORDS, mismatch, not_all_came
from hal.errors import CollectiveError, HalError, InvalidArgumentError, OperationError
from hal.locks import RLock
from hal.native_collectives import (
    MESSAGES,
    Collective,
    CollectiveStep,
    Join,
    NativeGroup,
    Provider,
    Region,
)

__all__ = ["PROVIDER", "World", "join_all"]

_Finish: TypeAlias = Callable[[BaseException | None], None]
_Key: TypeAlias = "tuple[int, int, int]"
"""A number, and the two ranks of a message; -1 and -1 for all."""


class _RankSubmission:
    """One submission of a rank, which ends with the last of its operations."""

    __slots__ = ("_finish", "_left", "_lock")

    def __init__(self, count: int, finish: _Finish) -> None:
        self._finish = finish
        self._left = count
        self._lock = RLock()

    def end(self, error: BaseException | None) -> None:
        """Count one operation; the first error ends it at once."""
        with self._lock:
            is_over = self._left > 0 and (error is not None or self._left == 1)
            self._left = 0 if is_over else self._left - 1
        if is_over:
            self._finish(error)


class _Meeting:
    """The ranks that have come to one operation."""

    __slots__ = ("came", "needed")

    def __init__(self, needed: tuple[int, ...]) -> None:
        self.needed = needed
        self.came: dict[int, tuple[Collective, _RankSubmission]] = {}


class World:
    """The state that the ranks of a group share."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.lock = RLock()
        self.failure: CollectiveError | None = None
        self.records: list[deque[CollectiveStep]] = [deque(maxlen=RECORDS) for _ in range(size)]
        self.closed: set[int] = set()
        self._meetings: dict[_Key, _Meeting] = {}

    def come(self, rank: int, work: Sequence[Collective], finish: _Finish) -> None:
        """Have a rank come to its operations; do those whose last it is."""
        part = _RankSubmission(len(work), finish)
        ready: list[_Meeting] = []
        failure: CollectiveError | None = None
        with self.lock:
            for each in work:
                self.records[rank].append(each.step)
                failure = self.failure or self._enter(rank, each, part, ready) or self.failure
                if failure is not None:
                    break
        if failure is not None:
            self.fail(failure)
            part.end(failure)
            return
        for meeting in ready:  # without the lock: its ends call hal
            self._do(meeting)

    def _enter(
        self, rank: int, work: Collective, part: _RankSubmission, ready: list[_Meeting]
    ) -> CollectiveError | None:
        """Have a rank come to one operation; return the error if it is another than the others'."""
        step = work.step
        needed = tuple(range(self.size))
        key = (step.number, -1, -1)
        if step.kind in MESSAGES:
            needed = (rank, step.root) if step.kind == "send" else (step.root, rank)
            key = (step.number, *needed)
        meeting = self._meetings.setdefault(key, _Meeting(needed))
        meeting.came[rank] = (work, part)
        if gone := self.closed.intersection(needed) - meeting.came.keys():
            left = min(gone)
            return CollectiveError(
                f"{step} on rank {rank} of {self.name}: rank {left} has closed the group",
                ranks=(left,),
                records=self._told(),
            )
        for other, (theirs, _) in list(meeting.came.items()):
            if _essence(theirs.step) != _essence(step):
                said = {other: str(theirs.step), rank: str(step)}
                return mismatch(self.name, said, self._told())
        if len(meeting.came) == len(needed) and self._meetings.pop(key, None) is meeting:
            ready.append(meeting)
        return None

    def _do(self, meeting: _Meeting) -> None:
        """Do an operation that all have come to, and end it for each."""
        error: BaseException | None = None
        works = [meeting.came[rank][0] for rank in meeting.needed]
        try:
            _perform(works)
        except Exception as raised:  # noqa: BLE001 - it fails the operation of every rank
            error = raised
            if not isinstance(raised, HalError):
                error = OperationError(f"{works[0].step} of {self.name} raised {raised!r}")
                error.__cause__ = raised
        for _, part in meeting.came.values():
            part.end(error)

    def fail(self, failure: CollectiveError) -> None:
        """Break the group: fail what waits for a rank that has not come."""
        with self.lock:
            self.failure = self.failure or failure
            failure = self.failure
            meetings = list(self._meetings.values())
            self._meetings.clear()
            waiting = [part for each in meetings for _, part in each.came.values()]
        for part in waiting:
            part.end(failure)

    def leave(self, rank: int) -> None:
        """Have a rank close the group, which breaks it if others wait for that rank."""
        with self.lock:
            self.closed.add(rank)
            waits = any(
                rank in each.needed and rank not in each.came
                for each in list(self._meetings.values())
            )
            records = self._told()
        if waits:
            words = f"rank {rank} has closed {self.name}, and others wait for it"
            self.fail(CollectiveError(words, ranks=(rank,), records=records))

    def report(self) -> tuple[tuple[int, ...], Mapping[int, tuple[str, ...]]]:
        """Return who is waited for in the oldest operation, and what each rank did last."""
        with self.lock:
            missing: set[int] = set()
            for _, oldest in sorted(self._meetings.items())[:1]:  # the keys differ
                missing = set(oldest.needed) - oldest.came.keys()
            return tuple(sorted(missing)), self._told()

    def _told(self) -> dict[int, tuple[str, ...]]:
        return {rank: tuple(map(str, each.copy())) for rank, each in enumerate(self.records)}


def _essence(step: CollectiveStep) -> tuple[object, ...]:
    """Return what must be the same on all ranks."""
    if step.kind in MESSAGES:
        return step.dtype, step.elements
    return step


def _perform(works: Sequence[Collective]) -> None:
    """Do one operation for all of its ranks, which are in order."""
    step, dtype = works[0].step, works[0].dtype
    if dtype is None or not step.elements:
        return
    sources = [work.source for work in works]
    targets = [(rank, work.target) for rank, work in enumerate(works) if work.target is not None]
    if step.kind in MESSAGES:
        data = _read(sources[0])
        targets[-1][1].write(data)
        return
    if step.kind == "broadcast":
        data = _read(sources[step.root])
        for _, target in targets:
            target.write(data)
        return
    parts = [_read(source) for source in sources]
    length = step.elements * dtype.itemsize
    if step.op:
        whole = numerics.reduced(parts, dtype, step.op)
        for rank, target in targets:
            begin = rank * length if step.kind == "reduce_scatter" else 0
            target.write(whole[begin : begin + length])
    elif step.kind == "all_gather":
        whole = np.concatenate(parts)
        for _, target in targets:
            target.write(whole)
    else:
        for rank, target in targets:
            place = slice(rank * length, (rank + 1) * length)
            target.write(np.concatenate([part[place] for part in parts]))


def _read(region: Region | None) -> numerics.Bytes:
    assert region is not None  # noqa: S101 - the core has checked it
    return region.read()


class EmbeddedGroup(NativeGroup):
    """One rank's end of a world."""

    __slots__ = ("_rank", "_world")

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self._rank = rank

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._world.size

    def begin(self, work: Sequence[Collective], finish: _Finish) -> None:
        self._world.come(self._rank, work, finish)

    def failure(self) -> CollectiveError | None:
        return self._world.failure

    def report(self) -> tuple[tuple[int, ...], Mapping[int, tuple[str, ...]]]:
        return self._world.report()

    def abort(self, error: HalError) -> None:
        if isinstance(error, CollectiveError):
            self._world.fail(error)

    def split(self, color: int | None, key: int, name: str, timeout: float) -> NativeGroup | None:
        world = self._world
        table = _meet(
            (id(world), name), self._rank, range(world.size), (color, key), timeout, world.name
        )
        if color is None:
            return None
        chosen = sorted((pair[1], rank) for rank, pair in table.items() if pair[0] == color)
        ranks = tuple(rank for _, rank in chosen)
        return self._part((id(world), name, color), ranks, name, timeout)

    def rebuild(self, ranks: tuple[int, ...], name: str, timeout: float) -> NativeGroup:
        return self._part((id(self._world), name, ranks), ranks, name, timeout)

    def _part(
        self, key: tuple[object, ...], ranks: tuple[int, ...], name: str, timeout: float
    ) -> NativeGroup:
        """Meet those ranks, and return the group of them."""
        offered = World(name, len(ranks))
        worlds = _meet(key, self._rank, ranks, offered, timeout, name)
        return EmbeddedGroup(worlds[ranks[0]], ranks.index(self._rank))

    def close(self, timeout: float) -> None:  # noqa: ARG002 - nothing is waited for
        self._world.leave(self._rank)


_tables: Final[dict[object, dict[int, Any]]] = {}
"""For each meeting, by its key: what each rank that has arrived has brought."""
_changed: Final = threading.Condition()


def _meet(
    key: object, rank: int, ranks: Sequence[int], brings: object, timeout: float, name: str
) -> dict[int, Any]:
    """Bring something, and return what each rank has brought; blocks until all have come."""
    with _changed:
        brought = _tables.setdefault(key, {})
        if rank in brought:
            message = f"rank {rank} of {name} is taken: another thread has joined with it"
            raise InvalidArgumentError(message)
        try:
            brought[rank] = brings
            _changed.notify_all()
            _changed.wait_for(lambda: len(brought) >= len(ranks), timeout)
        finally:
            have_come = len(brought) >= len(ranks)
            if not have_come:
                # After a Ctrl-C, too: else the others would meet a rank that has gone, and it
                # could not come again. Once all have come they have its part already.
                brought.pop(rank, None)
            if (have_come or not brought) and _tables.get(key) is brought:
                del _tables[key]
        if have_come:
            return dict(brought)
        missing = sorted(set(ranks) - {rank} - brought.keys())
    raise not_all_came(name, rank, missing, timeout)


def join_all(devices: Sequence[Any], name: str) -> list[NativeGroup]:
    """Return the groups of all ranks of this process, one for each device."""
    _check_devices(name, dict(enumerate(devices)))
    world = World(name, len(devices))
    return [EmbeddedGroup(world, rank) for rank in range(len(devices))]


def _join(request: Join) -> NativeGroup:
    """Meet the other threads of this process."""
    rank, size = request.place.rank, request.place.size
    brings = (request.device, World(request.name, size))
    key = ("join", request.place.rendezvous, request.name)
    table = _meet(key, rank, range(size), brings, request.timeout, request.name)
    sizes = {pair[1].size for pair in table.values()}
    if len(sizes) > 1:
        message = f"the ranks of {request.name} do not agree on its size: {sorted(sizes)}"
        raise InvalidArgumentError(message)
    _check_devices(request.name, {each: pair[0] for each, pair in table.items()})
    return EmbeddedGroup(table[0][1], rank)


def _check_devices(name: str, devices: Mapping[int, Any]) -> None:
    ranks: dict[int, int] = {}
    for rank, device in sorted(devices.items()):
        other = ranks.setdefault(id(device), rank)
        if other != rank:
            raise InvalidArgumentError(
                f"{device.name} is in {name} twice, as rank {other} and as rank {rank}; open a "
                "device for each rank"
            )


def _suits(request: Join) -> str:
    place = request.place
    if place.size > 1 and (place.launcher != "given" or "://" in (place.rendezvous or "://")):
        return "it serves the threads of one process, which give rank, size and rendezvous='NAME'"
    return ""


PROVIDER: Final = Provider(
    name="embedded", summary="ranks in one process, reduced on the host", suits=_suits, join=_join
)
