"""A group over MPI: one thread makes its calls, in the order of the group.

Before a collective the ranks exchange headers, so all have come when its data moves. A rank that
waits too long for them asks the others where they are: those that are in an operation of the group
answer, so that the others are known. An error is told to all. Calls on the user's own thread would
save two hand-overs, and were rejected: a submission never waits for other ranks (G3).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from hal import errors
from hal.collectives.numerics import narrow, wide_type, widen
from hal.collectives.texts import RECORDS, mismatch
from hal.errors import CollectiveError, HalError, OperationError, RendezvousError
from hal.handlers import dropped
from hal.locks import RLock
from hal.native_collectives import (
    MESSAGES,
    Collective,
    CollectiveStep,
    GroupCall,
    Join,
    Meet,
    NativeGroup,
)
from hal_mpi import _mpi, closed
from hal_mpi.streams import Streams

__all__ = ["join"]

_HEADERS: Final = 1
_DATA: Final = 2
_BUSY: Final = 0.005
"""Seconds between two looks for messages of the others, while the thread waits for them."""
_LAST: Final = 3
"""Operations of each rank that an error tells the others."""
_MOST: Final = 4000
"""Bytes of an error that the others are told: a rank that hangs may hold up who takes more."""
_WORDS: Final = 2000
"""Characters of its text."""

_Finish = Callable[[BaseException | None], None]


def join(request: Join) -> MpiGroup:
    """Meet the other ranks of MPI's world."""
    place, deadline = request.place, time.monotonic() + request.timeout
    world = _mpi.world(request.name, place.rank, request.timeout)
    if world.Get_size() != place.size or world.Get_rank() != place.rank:
        message = (
            f"the launcher says rank {place.rank} of {place.size}, and mpi4py's MPI rank "
            f"{world.Get_rank()} of {world.Get_size()}: mpiexec is of another MPI than mpi4py; "
            "use the one that mpi4py was built for"
        )
        raise RendezvousError(message)
    ranks, name = range(place.size), request.name
    left = max(deadline - time.monotonic(), 0.0)
    closed.free()
    # All ranks run their operations on streams, or none does.
    said = _mpi.meet(world, ranks, name, request.meet is not None, left)
    meet = request.meet if all(said.values()) else None
    return MpiGroup(_mpi.Communicator(world, ranks, name, deadline, meet), name, meet)


class MpiGroup(NativeGroup):
    """One rank's end of a group."""

    def __init__(self, comm: _mpi.Communicator, name: str, meet: Meet | None) -> None:
        self._comm = comm
        self._name = name
        self._meet = meet
        self._streams = None if meet is None else Streams(comm)
        self.on_stream = meet is not None
        self._peers = [rank for rank in range(comm.size) if rank != comm.rank]
        self._jobs: SimpleQueue[tuple[Sequence[Collective], _Finish] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._records: dict[int, deque[str]] = {
            rank: deque(maxlen=RECORDS) for rank in range(comm.size)
        }
        self._begun = 0  # collectives that this rank has come to
        self._agreed = 0  # those that all have come to
        self._is_waiting = False
        self._failure: CollectiveError | None = None
        self._was_told = False  # the failure is another rank's, which has told all
        self._is_leaving = False  # it has told the others that it closes the group
        self._is_over = False
        self._answers: dict[int, list[str]] = {}
        # Who hears. No lock: a Ctrl-C between its `acquire` and the `try` would leave it taken.
        self._hearing: dict[str, object] = {}
        self._heard = 0.0  # when it last looked for messages
        # What MPI may use for the operations of the thread: till the end of the group, if one fails
        self._unended: list[tuple[object, list[_mpi.Request], list[_mpi.Request]]] = []
        self._told: list[tuple[_mpi.Request, bytes]] = []  # messages that may be on their way
        # Exchanges of headers that are not known to be over
        self._exchanges: list[tuple[_mpi.Request, np.ndarray[Any, Any]]] = []
        self._exchanged = 0
        self._moved = 0  # blocking calls of MPI's for data
        self._is_unsure = False  # MPI has failed or hangs: nobody knows what it still does
        self._calls: dict[object, None] = {}  # those of `_apart` that have not returned
        self._closed: dict[int, int] = {}  # the collectives of ranks that have closed the group
        # The exchanges of headers and the calls for data of all ranks that have closed it, or None
        # if MPI may still use the communicator there
        self._ends: dict[int, list[int] | None] = {}
        self._rest: list[_mpi.Request] = []  # messages that came to nobody
        self._noting = RLock()  # a signal handler may ask for the group's error

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    # Work on streams

    def takes(self, work: Sequence[Collective], *, is_batch: bool) -> bool:
        if self._streams is None or is_batch or len(work) > 1:
            return False
        return self._streams.take(work[0].step, work[0].dtype)

    def enqueue(self, stream: int, work: Sequence[Collective]) -> None:
        assert self._streams is not None  # noqa: S101 - it has taken the work
        self._streams.enqueue(stream, work[0])

    def call_for(self, step: CollectiveStep, dtype: np.dtype[Any] | None) -> GroupCall | None:
        streams = self._streams
        if streams is None or not streams.take(step, dtype):
            return None
        return streams.call_for(step, dtype)

    def refusal(self, work: Collective, status: int) -> HalError:
        assert self._streams is not None  # noqa: S101
        return self._streams.refusal(work, status)

    # Work on a thread

    def begin(self, work: Sequence[Collective], finish: _Finish) -> None:
        if self._thread is None:
            name = f"hal-mpi {self._name}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put((work, finish))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, finish = job
            error: BaseException | None = None
            self._is_waiting = True
            try:
                self._run(work)
            except Exception as raised:  # noqa: BLE001 - it fails the operation
                error = self._failure or raised
                if not isinstance(error, HalError):
                    self._is_unsure = True
                    error = OperationError(f"{work[0].step} of {self._name}: MPI said: {raised}")
                    error.__cause__ = raised
            self._is_waiting = False
            finish(error)
            del job, work, finish, error

    def _wait(self, request: _mpi.Request) -> None:
        _mpi.wait(request, self._has_ended)

    def _has_ended(self) -> bool:
        now = time.monotonic()
        if now - self._heard > _BUSY:
            self._heard = now
            self._hear()
        return self._is_over or self._failure is not None

    def _run(self, work: Sequence[Collective]) -> None:
        """Run the operations of one launch: messages are on their way while collectives run."""
        sent: list[_mpi.Request] = []
        received: list[_mpi.Request] = []
        heads: list[tuple[Collective, _mpi.Request, np.ndarray[Any, Any]]] = []
        self._unended.append((work, sent, received))
        try:
            for each in work:
                step = each.step
                if step.kind in MESSAGES:
                    self._note()
                    self._records[self.rank].append(str(step))
                if step.kind == "send":
                    data, head = _bytes_of(each), np.frombuffer(_essence(step), np.uint8)
                    sent.append(self._comm.send(head, step.root, _HEADERS))
                    sent.append(self._comm.send(data, step.root, _DATA))
                elif step.kind == "receive":
                    head = np.empty(_mpi.HEADER, np.uint8)
                    received.append(self._comm.receive(head, step.root, _HEADERS))
                    heads.append((each, received[-1], head))
            for each in work:
                if each.step.kind not in MESSAGES:
                    self._collective(each)
            for each, request, head in heads:
                self._receive(each, request, head, received)
            for request in sent:
                self._wait(request)
        except BaseException:
            _mpi.take_back(received)
            raise
        self._unended.pop()

    def _receive(
        self,
        work: Collective,
        request: _mpi.Request,
        head: np.ndarray[Any, Any],
        received: list[_mpi.Request],
    ) -> None:
        step, target = work.step, work.target
        assert target is not None  # noqa: S101 - the core has checked it
        self._wait(request)
        if head.tobytes() != _essence(step):
            theirs = f"send of {head.tobytes().decode().strip()}, to rank {self.rank}"
            said = {step.root: theirs, self.rank: str(step)}
            raise self._fail(mismatch(self._name, said, self._all_records()))
        data = target.read() if target.is_visible else np.empty(target.size, np.uint8)
        received.append(self._comm.receive(data, step.root, _DATA))
        self._wait(received[-1])
        target.write(data)

    def _collective(self, work: Collective) -> None:
        step, streams = work.step, self._streams
        if streams is None:
            self._agree(step)
        elif not streams.run(work):
            raise self._find() or OperationError("the group is broken")
        is_done = streams is not None and streams.take(step, work.dtype)
        if is_done or not step.elements or work.dtype is None:
            return
        self._moved += 1
        if step.op:
            self._reduce(work)
        else:
            self._move(work)

    def _agree(self, step: CollectiveStep) -> None:
        """Exchange headers; raise if the ranks differ."""
        self._begun = step.number
        self._records[self.rank].append(str(step))
        if not self._peers:
            return
        request, every = self._exchange(str(step).encode())
        self._wait(request)
        self._exchanges.clear()
        # A rank that comes late must hear first that the group is broken.
        while not self._hear() and not self._is_over:
            time.sleep(0)
        if self._has_ended():
            raise OperationError("the group is broken")
        said = {rank: every[rank].tobytes().decode().strip() for rank in range(self.size)}
        for rank in self._peers:
            self._records[rank].append(said[rank])
        if len(set(said.values())) > 1:
            raise self._fail(mismatch(self._name, said, self._all_records()))

    def _exchange(self, header: bytes) -> tuple[_mpi.Request, np.ndarray[Any, Any]]:
        self._exchanged += 1
        self._exchanges.append(self._comm.headers(header))
        return self._exchanges[-1]

    def _reduce(self, work: Collective) -> None:
        step, dtype, source, target = work.step, work.dtype, work.source, work.target
        assert dtype is not None and source is not None  # noqa: PT018, S101 - checked by the core
        given = widen(source.read(), dtype)
        is_same = wide_type(dtype) == dtype
        if step.kind == "reduce_scatter":
            array = np.empty(step.elements, given.dtype)
            self._comm.reduce_scatter(given, array, step.op)
        else:
            # Where the result belongs if nothing has to be converted, else in memory of its own
            array = np.empty_like(given)
            if is_same and target is not None and target.is_visible:
                array = target.read().view(dtype)
            if step.kind == "reduce":
                result = None if target is None else array
                self._comm.reduce(given, result, step.op, step.root)
            else:
                self._comm.all_reduce(given, array, step.op)
        if target is None:
            return
        if step.op == "average":
            np.divide(array, array.dtype.type(self.size), out=array)
        target.write(array.view(np.uint8) if is_same else narrow(array, dtype))

    def _move(self, work: Collective) -> None:
        step, source, target = work.step, work.source, work.target
        assert target is not None  # noqa: S101 - the core has checked it
        given = None if source is None else source.read()
        array = target.read() if target.is_visible else np.empty(target.size, np.uint8)
        if step.kind == "broadcast":
            if given is not None and given.ctypes.data != array.ctypes.data:
                np.copyto(array, given)
            self._comm.broadcast(array, step.root)
        elif step.kind == "all_gather":
            assert given is not None  # noqa: S101
            place = self.rank * given.size
            is_in_place = array[place : place + 1].ctypes.data == given.ctypes.data
            self._comm.all_gather(None if is_in_place else given, array)
        else:
            assert given is not None  # noqa: S101
            self._comm.all_to_all(given, array)
        target.write(array)

    # Failure

    def _note(self) -> None:
        """Note what has run on streams."""
        if self._streams is None:
            return
        with self._noting:
            begun, agreed, headers = self._streams.meeting.records()
            own = headers[len(headers) - min(begun - self._begun, len(headers)) :]
            theirs = headers[: len(headers) - (begun - agreed)]
            theirs = theirs[len(theirs) - min(agreed - self._agreed, len(theirs)) :]
            self._begun, self._agreed = max(begun, self._begun), max(agreed, self._agreed)
            self._records[self.rank].extend(own)
            for rank in self._peers:
                self._records[rank].extend(theirs)

    def _find(self) -> CollectiveError | None:
        """Return why an operation on a stream is held there, if one is."""
        assert self._streams is not None  # noqa: S101
        meeting = self._streams.meeting
        _, differ, status = meeting.state()
        if self._failure is not None or not (differ or status):
            return self._failure
        self._note()
        if status:
            text = f"{self._name}: MPI failed with {status} on rank {self.rank}"
            return self._fail(
                CollectiveError(text, ranks=(self.rank,), records=self._all_records())
            )
        said = dict(enumerate(meeting.headers()))
        for rank in self._peers:
            self._records[rank].append(said[rank])
        return self._fail(mismatch(self._name, said, self._all_records()))

    def _is_inside(self) -> bool:
        """Whether this rank is in an operation."""
        streams = self._streams
        return self._is_waiting or (streams is not None and bool(streams.meeting.state()[0]))

    def _all_records(self) -> dict[int, tuple[str, ...]]:
        self._note()
        return {rank: tuple(steps) for rank, steps in self._records.items()}

    def _fail(self, error: CollectiveError) -> CollectiveError:
        """Keep the first failure, and return it."""
        self._failure = self._failure or error
        return self._failure

    def failure(self) -> CollectiveError | None:
        if not self._is_over:
            self._hear()
            if self._streams is not None:
                self._find()
        return self._failure

    def _hear(self) -> bool:
        """Take what the others have told; answer those that ask. False if another call does."""
        meeting = None if self._streams is None else self._streams.meeting
        mine = object()
        try:
            if self._hearing.setdefault("", mine) is not mine:
                return False
            while self._comm.is_told():
                if meeting is not None:
                    meeting.hold_on()
                if (heard := self._comm.hear()) is not None:
                    self._take(*heard)
            if self._closed and self._is_inside():
                self._look_for_closed()
            if meeting is not None and self._failure is None:
                meeting.go_on()
        finally:
            if self._hearing.get("") is mine:
                self._hearing.clear()
        return True

    def _look_for_closed(self) -> None:
        """Fail an operation for which a rank that has closed the group will not come."""
        self._note()
        for rank, begun in self._closed.items():
            if self._begun > begun:
                text = f"rank {rank} has closed {self._name}, and others wait for it"
                self._fail(CollectiveError(text, ranks=(rank,), records=self._all_records()))

    def _take(self, sender: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ask" and self._is_inside():
            self._note()
            self._tell([sender], {"kind": "here", "records": [*self._records[self.rank]]})
        elif kind == "here":
            self._answers[sender] = message["records"]
        elif kind == "failed":
            records = {int(rank): steps for rank, steps in message["records"].items()}
            made = getattr(errors, message["class"], CollectiveError)
            self._was_told = self._was_told or self._failure is None
            self._fail(made(message["text"], ranks=message["ranks"], records=records))
        elif kind == "closed":
            self._ends[sender] = message["end"]
            self._closed[sender] = message["begun"]

    def _tell(self, peers: Sequence[int], message: dict[str, Any]) -> None:
        self._told += self._comm.tell(peers, message)

    def _apart(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function that uses MPI after a failure, which may hang if a process is gone."""
        mine = object()
        self._calls[mine] = None

        def call() -> None:
            function(*arguments)
            del self._calls[mine]

        with dropped(Exception):  # the others find out at their time-out
            _mpi.apart(call, 2 * closed.ANSWERS)

    def report(self) -> tuple[tuple[int, ...], Mapping[int, tuple[str, ...]]]:
        """Ask all where they are, and wait for the answers of those that are in an operation."""
        self._answers.clear()
        self._apart(self._ask)
        records = self._all_records()
        records |= {rank: tuple(steps) for rank, steps in list(self._answers.items())}
        # One that answers from an operation before this one is late, too.
        latest = [*self._records[self.rank]][-1:]
        missing = [
            rank
            for rank in self._peers
            if list(records[rank][-1:]) != latest or rank not in self._answers
        ]
        return tuple(missing), records

    def _ask(self) -> None:
        self._tell(self._peers, {"kind": "ask"})
        deadline = time.monotonic() + closed.ANSWERS
        while time.monotonic() < deadline and len(self._answers) < len(self._peers):
            self._hear()
            time.sleep(0.002)

    def stop(self, error: HalError) -> None:
        """Let the thread, or the stream's, leave what it waits for, and wait until it has."""
        if isinstance(error, CollectiveError):
            self._fail(error)
        if self._streams is not None:
            self._streams.meeting.stop()
        deadline = time.monotonic() + closed.ANSWERS  # MPI's blocking call cannot be ended
        while self._is_waiting and time.monotonic() < deadline:
            time.sleep(_BUSY)

    def abort(self, error: HalError) -> None:
        """Tell all, and let the streams go on."""
        if self._is_over:
            return
        if self._streams is not None:
            self.is_left = self._streams.meeting.end()
        if isinstance(error, CollectiveError) and not self._was_told:
            self._apart(self._tell, self._peers, _message_of(error))
        self._is_over = True
        closed.kept[self] = None

    # Other groups, and the end

    def split(self, color: int | None, key: int, name: str, timeout: float) -> NativeGroup | None:
        deadline = time.monotonic() + timeout
        table = _mpi.meet(self._comm.comm, range(self.size), name, [color, key], timeout)
        if color is None:
            return None
        chosen = sorted((pair[1], rank) for rank, pair in table.items() if pair[0] == color)
        return self._part(tuple(rank for _, rank in chosen), name, deadline)

    def rebuild(self, ranks: tuple[int, ...], name: str, timeout: float) -> NativeGroup:
        deadline = time.monotonic() + timeout
        _mpi.meet(self._comm.comm, ranks, name, list(ranks), timeout)
        return self._part(ranks, name, deadline)

    def _part(self, ranks: tuple[int, ...], name: str, deadline: float) -> NativeGroup:
        closed.free()
        was_unsure, self._is_unsure = self._is_unsure, True  # for good, if MPI is given up
        comm = _mpi.Communicator(self._comm.comm, ranks, name, deadline, self._meet)
        self._is_unsure = was_unsure
        return MpiGroup(comm, name, self._meet)

    def close(self, timeout: float) -> None:
        self._jobs.put(None)
        if self.rank not in self._ends:
            thread = self._thread
            if thread is not None:
                thread.join(min(timeout, 2 * closed.ANSWERS))
            is_idle = thread is None or not thread.is_alive()
            deadline = time.monotonic() + min(timeout, 2 * closed.ANSWERS)
            while self._calls and time.monotonic() < deadline:
                time.sleep(_BUSY)  # another thread tells the others of the failure
            is_sure = is_idle and not self._is_unsure and not self._calls
            end = [self._exchanged, self._moved] if is_sure else None
            if not self._is_leaving:
                self._is_leaving = True  # told once: more might meet another group's communicator
                self._note()
                message = {"kind": "closed", "begun": self._begun, "end": end}
                if self._is_over:
                    self._apart(self._tell, self._peers, message)
                else:
                    self._tell(self._peers, message)
            self._is_over = True
            closed.kept[self] = closed.leaving[self] = None
            self._ends[self.rank] = end
        closed.free()

    @property
    def has_failed(self) -> bool:
        """Whether it is broken: a process of its ranks may be gone."""
        return self._failure is not None

    def free(self) -> bool:
        """Free what it has if all ranks have closed it; return whether nothing is left to do."""
        if not self._hear():
            return False
        if len(self._ends) < self.size or self._calls:
            return False
        ends = [end for end in self._ends.values() if end is not None]
        if len(ends) < self.size or len({moved for _, moved in ends}) > 1:
            return True  # a call of MPI's hangs on a rank, or what it has sent comes to nobody
        mine, most, is_quiet = object(), max(exchanged for exchanged, _ in ends), False
        try:
            # Else a signal handler frees it, or has done so.
            is_quiet = self._hearing.setdefault("", mine) is mine and self._is_quiet(most)
            if is_quiet:
                self._comm.free()  # and nobody hears from now on
                closed.kept.pop(self, None)
        finally:
            if not is_quiet and self._hearing.get("") is mine:
                self._hearing.clear()
        return is_quiet

    def _is_quiet(self, exchanged: int) -> bool:
        """Return whether nothing is left in MPI of a group that all ranks have closed.

        After a failure that are messages to ranks that have given up, and exchanges of headers
        that some ranks have begun: the others come to them, too. No rank waits for that.
        """
        while self._exchanged < exchanged:
            self._exchange(b"")
        for _, sent, received in self._unended:
            self._rest += sent + received
        self._unended.clear()
        self._rest += self._comm.take_rest()
        requests = [request for request, _ in (*self._told, *self._exchanges)]
        is_settled = self._streams is None or self._streams.meeting.settle()
        return is_settled and _mpi.are_done([*requests, *self._rest])


def _message_of(error: CollectiveError) -> dict[str, Any]:
    """Return an error as the others are told, with the records that there is room for."""
    text, _, _ = str(error).partition("\nThe last operations")
    records: dict[str, list[str]] = {}
    message = {
        "kind": "failed",
        "class": type(error).__name__,
        "text": text[:_WORDS],
        "ranks": list(error.ranks),
        "records": records,
    }
    for rank in sorted(error.records, key=lambda rank: (rank not in error.ranks, rank)):
        records[str(rank)] = list(error.records[rank][-_LAST:])
        if len(json.dumps(message)) > _MOST:
            del records[str(rank)]
            break
    return message


def _essence(step: CollectiveStep) -> bytes:
    """Return what a message's two ends must agree on, as a header."""
    text = f"{step.elements} {step.dtype}"
    return text.encode().ljust(_mpi.HEADER)[: _mpi.HEADER]


def _bytes_of(work: Collective) -> np.ndarray[Any, Any]:
    assert work.source is not None  # noqa: S101 - the core has checked it
    return work.source.read()
