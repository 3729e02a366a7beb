"""The only module that touches mpi4py."""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import mpi4py
import numpy as np
from numpy.typing import NDArray

mpi4py.rc.initialize = False  # `world` does that, for a limited time
mpi4py.rc.finalize = mpi4py.rc.finalize is not False

from mpi4py import MPI  # noqa: E402 - it reads these two

from hal.collectives.texts import not_all_came  # noqa: E402
from hal.errors import BackendUnavailableError, OperationError, RendezvousError  # noqa: E402
from hal.handlers import own  # noqa: E402
from hal.locks import Lock  # noqa: E402
from hal.native_collectives import Meet  # noqa: E402

HEADER: Final = 96
"""Bytes of the header of an operation."""

_MEETING: Final = 22_000
_CREATING: Final = 13_000
_TELLING: Final = 21_999
_MESSAGE: Final = 21_998
_QUICK: Final = 50e-6
"""Seconds that a wait asks over and over before it lets others have the processor in between."""
_SPIN: Final = 0.2
"""And before it naps."""
_NAP: Final = 0.0005
_OPS: Final = {
    "sum": MPI.SUM,
    "average": MPI.SUM,
    "product": MPI.PROD,
    "min": MPI.MIN,
    "max": MPI.MAX,
}
_OWN: Final[dict[str, Any]] = {"min": np.minimum, "max": np.maximum, "sum": np.add}

_MAKING: Final = 1.0
"""Seconds that the ranks have at least to make a communicator, once all have come."""

Request = Any
Array = NDArray[Any]
_Result = TypeVar("_Result")


def world(name: str, rank: int, timeout: float) -> MPI.Intracomm:
    """Return the communicator of all ranks; raise if MPI cannot be used by several threads.

    MPI starts when the processes of all ranks have come; raises `RendezvousError` at the time-out.
    """
    # On a thread that can be given up: no MPI can be told to give up by itself.
    thread = threading.Thread(target=_initialise, name="hal-mpi start", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise not_all_came(name, rank, (), timeout)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        message = (
            "MPI was initialised without MPI_THREAD_MULTIPLE, which hal needs: leave "
            "mpi4py.rc.thread_level as it is, and use an MPI that was built with threads"
        )
        raise BackendUnavailableError(message)
    return MPI.COMM_WORLD


_starting: Final = Lock()
"""Taken on threads of `world` alone: a signal handler may join on a thread that is joining."""


def _initialise() -> None:
    """Start MPI, once."""
    with _starting:
        if MPI.Is_initialized():
            return
        # By ctypes, which lets the interpreter lock go; mpi4py would hold up all threads.
        level = ctypes.c_int()
        _library().MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(level))
        for each in (MPI.COMM_WORLD, MPI.COMM_SELF):  # as mpi4py sets them
            each.Set_errhandler(MPI.ERRORS_RETURN)


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the MPI that mpi4py is linked to."""
    return ctypes.CDLL(MPI.__file__)


def _address_of(name: str) -> int:
    """Return the address of a function of MPI's."""
    return ctypes.cast(getattr(_library(), f"MPI_{name}"), ctypes.c_void_p).value or 0


def keep(thing: object) -> None:
    """Keep memory that MPI may use, at its own end at the latest: Python's is over by then."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def apart(
    function: Callable[..., _Result], timeout: float, *arguments: object
) -> tuple[_Result, ...]:
    """Call a function of MPI's that may never return, on a thread that is given up then.

    Returns its result, or nothing if it has not returned in time.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="hal-mpi", daemon=True)
    thread.start()
    thread.join(timeout)
    if errors:
        raise errors[0]
    return tuple(results)


def take_back(requests: Sequence[Request]) -> None:
    """Take back what would be received: no rank that comes later writes to a buffer."""
    for request in requests:
        if request != MPI.REQUEST_NULL:
            request.Cancel()


def wait(request: Request, is_broken: Callable[[], bool]) -> None:
    """Wait for a request; raise `OperationError` once the group is broken."""
    begin: float | None = None
    while not request.Test():
        if is_broken():
            message = "the group is broken"
            raise OperationError(message)
        now = time.monotonic()
        begin = begin or now
        if now - begin > _QUICK:
            time.sleep(0 if now - begin < _SPIN else _NAP)


class Communicator:
    """The communicator of a group: tags keep data apart from what ranks tell each other."""

    def __init__(
        self,
        parent: MPI.Intracomm,
        ranks: Sequence[int],
        name: str,
        deadline: float,
        meet: Meet | None,
    ) -> None:
        """Make it; raises `RendezvousError` if a rank that has come does not do so, too."""
        begin = time.monotonic()
        timeout = max(deadline - begin, _MAKING)
        try:
            given = parent, ranks, name, meet, begin + timeout
            made = [each for each in apart(_make, timeout, *given) if each]
        except own(MPI.Exception) as error:
            message = (
                f"MPI makes no communicator for {name}; it may have 2,000, one for each group: "
                "close groups on all ranks, also those that have failed (one of which a rank has "
                "ended or hangs keeps its own until the processes end)"
            )
            raise OperationError(message) from error
        if not made:
            raise RendezvousError(
                f"rank {parent.Get_rank()} waited {timeout:.3g} s for the others to make {name}, "
                "to which all had come; see whether a process has ended or hangs"
            )
        ((self.comm, self.meeting),) = made
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()

    def take_rest(self) -> list[Request]:
        """Begin to receive the messages that are left: who gets its number next would.

        Without waiting for them: the sender of a large one may be busy.
        """
        status, taken = MPI.Status(), []
        while self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            data = bytearray(status.Get_count(MPI.BYTE))
            taken.append(self.comm.Irecv(data, status.Get_source(), status.Get_tag()))
        return taken

    def free(self) -> None:
        """Free it, once all ranks have closed the group and no message is left."""
        self.comm.Free()

    # Data. The calls of all ranks block, without the interpreter lock: the algorithms behind them
    # are several times as fast as those that go on while somebody asks.

    def headers(self, header: bytes) -> tuple[Request, NDArray[np.uint8]]:
        """Exchange headers; return the request, and where they will stand."""
        mine = np.frombuffer(header.ljust(HEADER)[:HEADER], np.uint8)
        every = np.empty((self.size, HEADER), np.uint8)
        return self.comm.Iallgather(mine, every), every

    def all_reduce(self, source: Array, target: Array, op: str) -> None:
        """Reduce; the two may be the same memory."""
        is_same = source.ctypes.data == target.ctypes.data
        given = MPI.IN_PLACE if is_same else _typed(source)
        self.comm.Allreduce(given, _typed(target), _op(target.dtype, op))

    def reduce(self, source: Array, target: Array | None, op: str, root: int) -> None:
        """Reduce to the root, which alone has a target; the two may be the same memory."""
        is_same = target is not None and source.ctypes.data == target.ctypes.data
        given = MPI.IN_PLACE if is_same else _typed(source)
        to = None if target is None else _typed(target)
        self.comm.Reduce(given, to, _op(source.dtype, op), root)

    def reduce_scatter(self, source: Array, target: Array, op: str) -> None:
        """Reduce, and get this rank's part."""
        self.comm.Reduce_scatter_block(_typed(source), _typed(target), _op(source.dtype, op))

    def broadcast(self, array: Array, root: int) -> None:
        """Send the root's array to all."""
        self.comm.Bcast(array, root)

    def all_gather(self, source: Array | None, target: Array) -> None:
        """Gather the sources; None stands for this rank's part of the target."""
        self.comm.Allgather(MPI.IN_PLACE if source is None else source, target)

    def all_to_all(self, source: Array, target: Array) -> None:
        """Exchange parts."""
        self.comm.Alltoall(source, target)

    def send(self, array: Array, peer: int, tag: int) -> Request:
        """Send to a rank."""
        return self.comm.Isend(array, peer, tag)

    def receive(self, array: Array, peer: int, tag: int) -> Request:
        """Receive from a rank."""
        return self.comm.Irecv(array, peer, tag)

    # The same for C, which calls MPI's functions by address

    def how(self, dtype: np.dtype[Any], op: str) -> tuple[int, int]:
        """Return the handles of MPI's type and of its reduction; zeros for data that is moved."""
        if not op:
            return 0, 0
        return MPI.Datatype.fromcode(dtype.char).handle, _OPS[op].handle

    # What ranks tell each other

    def tell(self, peers: Sequence[int], message: dict[str, Any]) -> list[tuple[Request, bytes]]:
        """Send a message to some ranks; return the objects to keep until they have it."""
        data = json.dumps(message).encode()
        return [(self.comm.Isend(data, peer, _TELLING), data) for peer in peers]

    def is_told(self) -> bool:
        """Return whether a message has come.

        Each look has MPI take one message or so, and what a rank tells comes behind its header.
        """
        return any(self.comm.Iprobe(MPI.ANY_SOURCE, _TELLING) for _ in range(self.size + 1))

    def hear(self) -> tuple[int, dict[str, Any]] | None:
        """Return a message and its sender, if one has come."""
        return _take(self.comm, _TELLING)


def has_own(dtype: np.dtype[Any], op: str) -> bool:
    """Return whether MPI's own reduction gives another result than numpy's.

    Its least or greatest float drops a NaN or keeps it, as the ranks come. Open MPI's sums of
    integers of 8 and 16 bits stay at their bounds, where numpy's wrap around.
    """
    if dtype.kind == "f":
        return op in {"min", "max"}
    return op == "sum" and dtype.itemsize < 4  # noqa: PLR2004


def are_done(requests: Sequence[Request]) -> bool:
    """Return whether MPI has done what was asked for, and needs its memory no more."""
    return bool(MPI.Request.Testall(requests))


def meet(
    comm: MPI.Intracomm, ranks: Sequence[int], name: str, brings: object, timeout: float
) -> dict[int, Any]:
    """Have some ranks meet, and return what each has brought, by rank; blocks.

    Raises `RendezvousError` at the time-out, with those that did not come. A rank that leaves so
    tells the others, which wait for it to come again.
    """
    tag, rank = _tag(name), comm.Get_rank()
    peers = [peer for peer in ranks if peer != rank]
    deadline = time.monotonic() + timeout
    data = json.dumps([brings]).encode()
    sent = [comm.Isend(data, peer, tag) for peer in peers]
    found = {rank: brings}
    try:
        looks = 0  # since all had come: each has MPI take one message or so
        while looks <= len(ranks):
            heard = _take(comm, tag)
            if heard is not None:
                sender, told = heard
                found.pop(sender, None)
                if told:
                    found[sender] = told[0]
                looks = 0
            elif len(found) == len(ranks) and MPI.Request.Testall(sent):
                looks += 1
            else:
                if time.monotonic() > deadline:
                    _refuse(name, rank, sorted(set(ranks) - found.keys()), timeout)
                time.sleep(0.0002)
    except BaseException:
        keep((sent, data, [comm.Isend(_LEAVES, peer, tag) for peer in peers]))
        raise
    return found


_LEAVES: Final = json.dumps([]).encode()


def _refuse(name: str, rank: int, missing: Sequence[int], seconds: float) -> NoReturn:
    raise RendezvousError(
        f"rank {rank} waited {seconds:.3g} s for ranks {missing} to come to {name}; every "
        "rank must join, split and rebuild the same groups in the same order",
        ranks=missing,
    )


def _make(
    parent: MPI.Intracomm, ranks: Sequence[int], name: str, meet: Meet | None, deadline: float
) -> tuple[MPI.Intracomm, Any] | None:
    """Return the communicator of some ranks, all of which make it, and this one's meeting.

    MPI waits for all of them. None if that took too long.
    """
    whole = parent.Get_group()
    group = whole.Incl(list(ranks))
    try:
        # A tag of its own: Open MPI sends by it, and ranks that still meet would take that.
        made = parent.Create_group(group, _tag(name, _CREATING))
    finally:
        group.Free()
        whole.Free()
    if meet is None:
        return made, None
    if time.monotonic() > deadline:  # it was given up: the process may end beside it
        return None
    names = ("Isend", "Irecv", "Testall", "Cancel", "Reduce_local", "Iprobe")
    functions = tuple([_address_of(name) for name in names])
    constants, telling = (made.handle, MPI.BYTE.handle, _MESSAGE), (MPI.ANY_SOURCE, _TELLING)
    request = MPI._sizeof(MPI.Request)  # noqa: SLF001
    place = made.Get_rank(), made.Get_size()
    return made, meet(made.allgather, functions, constants, telling, request, *place)


@functools.cache
def _op(dtype: np.dtype[Any], op: str) -> MPI.Op:
    """Return MPI's reduction, or one by numpy."""
    if not has_own(dtype, op):
        return _OPS[op]
    function = _OWN[op]

    def reduce(given: Any, held: Any, _: object) -> None:  # noqa: ANN401 - MPI's buffers
        kept = np.frombuffer(held, dtype)
        function(np.frombuffer(given, dtype), kept, out=kept)

    return MPI.Op.Create(reduce, commute=True)


def _typed(array: Array) -> list[Any]:
    """Return an array as MPI takes it: mpi4py alone would refuse one at an odd address."""
    return [array, MPI.Datatype.fromcode(array.dtype.char)]


def _take(comm: MPI.Intracomm, tag: int) -> tuple[int, Any] | None:
    """Return a message and its sender, if one has come."""
    status = MPI.Status()
    if not comm.Iprobe(MPI.ANY_SOURCE, tag, status):
        return None
    found = bytearray(status.Get_count(MPI.BYTE))
    sender = status.Get_source()
    comm.Recv(found, sender, tag)
    return sender, json.loads(bytes(found))


def _tag(name: str, first: int = _MEETING) -> int:
    return first + zlib.crc32(name.encode()) % 8_000
