"""A group over NCCL: work on the queue's own stream, like a kernel.

The library compares nothing between ranks: those that differ hang, and the time-out ends them by
aborting the communicator. What waits for other ranks (to make, to split) runs on a thread of its
own, so that it can be given up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from hal.collectives.texts import not_all_came
from hal.errors import CollectiveError, HalError, UnimplementedError
from hal.handlers import dropped
from hal.locks import Lock, RLock
from hal.native_collectives import (
    MESSAGES,
    SOURCE,
    STREAM,
    TARGET,
    Collective,
    CollectiveStep,
    GroupCall,
    Join,
    NativeGroup,
)
from hal_nccl import _nccl
from hal_nccl.provider import Flavour, find_library
from hal_nccl.rendezvous import Exchange, exchange_of

__all__ = ["join"]

_Result = TypeVar("_Result")
_ABORT_SECONDS: Final = 5.0
_FUNCTIONS: Final = {
    "all_reduce": "ncclAllReduce",
    "reduce": "ncclReduce",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "all_gather": "ncclAllGather",
    "send": "ncclSend",
    "receive": "ncclRecv",
}


def join(flavour: Flavour, request: Join) -> NativeGroup:
    """Make a communicator with the other ranks."""
    # Otherwise the first collective would connect: its submission would wait for the other ranks.
    os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
    library = _nccl.load(find_library(flavour) or flavour.files[0], flavour.name)
    place = request.place
    exchange = exchange_of(request)
    return _make(library, request, exchange, request.name, place.rank, place.size, request.timeout)


def _make(
    library: _nccl.Library,
    request: Join,
    exchange: Exchange,
    name: str,
    rank: int,
    size: int,
    timeout: float,
) -> NcclGroup:
    identity = exchange(name, rank, library.unique_id, timeout)

    def init() -> int:
        with exchange.listening(name, rank, timeout):
            return library.init(size, identity, rank)

    comm = _apart(request, init, name, rank, timeout, library.abort)
    return NcclGroup(library, request, exchange, comm, name, rank, size)


def _apart(
    request: Join,
    function: Callable[[], _Result],
    name: str,
    rank: int,
    timeout: float,
    undo: Callable[[_Result], object],
) -> _Result:
    """Call a function on a thread of its own, where the device's context is current.

    What it returns after the caller has given up is undone there.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []
    decided = Lock()  # the first to take it decides whether the caller gets the result

    def run() -> None:
        try:
            request.bind()
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)
        if not decided.acquire(blocking=False) and results:
            with dropped(HalError):  # nobody is left to report to
                undo(results[0])

    thread = threading.Thread(target=run, name=f"hal-nccl {name}", daemon=True)
    thread.start()
    try:
        thread.join(timeout)
    finally:  # also when an interrupt ends the wait
        is_late = decided.acquire(blocking=False)
    if is_late:
        raise not_all_came(name, rank, (), timeout)
    if errors:
        raise errors[0]
    return results[0]


class NcclGroup(NativeGroup):
    """One rank's communicator."""

    on_stream = True

    def __init__(
        self,
        library: _nccl.Library,
        request: Join,
        exchange: Exchange,
        comm: int,
        name: str,
        rank: int,
        size: int,
    ) -> None:
        self._library = library
        self._request = request
        self._exchange = exchange
        self._comm = comm
        self._name = name
        self._rank, self._size = rank, size
        self._lock = RLock()  # a signal handler may ask for the group's error
        self._is_over = False
        try:
            self._scratch = request.device.upload(np.zeros(1, np.uint8))  # barriers reduce it
        except BaseException:
            self._end("ncclCommAbort", request.timeout)
            raise

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def check(self, step: CollectiveStep) -> None:
        if step.op and step.dtype not in _nccl.TYPES:
            message = f"{step.kind}: {self._library.name.upper()} does not reduce {step.dtype}"
            raise UnimplementedError(message)

    def enqueue(self, stream: int, work: Sequence[Collective]) -> None:
        call = self._library.call
        if len(work) == 1 and not self._has_parts(work[0].step):
            self._put(work[0], stream)
            return
        call("ncclGroupStart")
        try:
            for each in work:
                self._put(each, stream)
        finally:
            call("ncclGroupEnd")

    def _put(self, work: Collective, stream: int) -> None:
        """Put one operation on a stream."""
        source = 0 if work.source is None else work.source.address()
        target = source
        if work.target is not work.source:
            target = 0 if work.target is None else work.target.address()
        if self._has_parts(work.step):
            self._put_parts(work, source, target, stream)
            return
        function, arguments = self._call(work.step, work.dtype)
        if function:
            places = stream, target, source  # at STREAM, TARGET and SOURCE
            values = [places[each] if each < 0 else each for each in arguments]
            self._library.call(function, *values)

    def _has_parts(self, step: CollectiveStep) -> bool:
        """Whether an operation takes several calls."""
        return step.kind == "all_to_all" and not self._library.all_to_all

    def _call(
        self, step: CollectiveStep, dtype: np.dtype[Any] | None
    ) -> tuple[str, tuple[int, ...]]:
        """Return the function for an operation of one call, and its arguments; "" for none."""
        kind, count, root, comm = step.kind, step.elements, step.root, self._comm
        if kind == "barrier":
            place = self._scratch.address
            return "ncclAllReduce", (place, place, 1, _nccl.BYTE, 0, comm, STREAM)
        if not count or dtype is None or self._has_parts(step):
            return "", ()
        if step.op:
            to = (root,) if kind == "reduce" else ()
            target = 0 if to and root != self._rank else TARGET
            how = _nccl.TYPES[step.dtype], _nccl.OPS[step.op]
            return _FUNCTIONS[kind], (SOURCE, target, count, *how, *to, comm, STREAM)
        # Data that is only moved is moved as bytes, whatever its type.
        what = count * dtype.itemsize, _nccl.BYTE
        if kind in MESSAGES:
            place = SOURCE if kind == "send" else TARGET
            return _FUNCTIONS[kind], (place, *what, root, comm, STREAM)
        if kind in {"all_gather", "all_to_all"}:
            function = _FUNCTIONS.get(kind, self._library.all_to_all)
            return function, (SOURCE, TARGET, *what, comm, STREAM)
        given = SOURCE if root == self._rank else TARGET
        return _FUNCTIONS[kind], (given, TARGET, *what, root, comm, STREAM)

    def _put_parts(self, work: Collective, source: int, target: int, stream: int) -> None:
        """Put the sends and receives of an ``all_to_all`` on a stream."""
        call, comm = self._library.call, self._comm
        count = 0 if work.dtype is None else work.step.elements * work.dtype.itemsize
        for peer in range(self._size) if count else ():
            place = peer * count
            call("ncclSend", source + place, count, _nccl.BYTE, peer, comm, stream)
            call("ncclRecv", target + place, count, _nccl.BYTE, peer, comm, stream)

    def call_for(self, step: CollectiveStep, dtype: np.dtype[Any] | None) -> GroupCall | None:
        function, arguments = self._call(step, dtype)
        if not function:
            return None
        return GroupCall(self._library.address_of(function), arguments, _nccl.IN_PROGRESS)

    def refusal(self, work: Collective, status: int) -> HalError:
        function, _ = self._call(work.step, work.dtype)
        return self._library.error(function, status)

    # Failure

    def failure(self) -> CollectiveError | None:
        with self._lock:
            if self._is_over:
                return None
            found = self._library.failure(self._comm)
        return found if isinstance(found, CollectiveError) else None

    def report(self) -> tuple[tuple[int, ...], Mapping[int, tuple[str, ...]]]:
        return (), {}  # no rank knows where the others are

    def abort(self, error: HalError) -> None:  # noqa: ARG002 - the library tells nobody why
        self._end("ncclCommAbort", _ABORT_SECONDS)

    def _end(self, function: str, timeout: float) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True

        def end() -> None:
            # A handler may have interrupted a question: that is answered while the communicator is
            # there. Not with the lock: others would wait for it behind a library that hangs.
            with self._lock:
                pass
            self._library.call(function, self._comm)

        with dropped(HalError):  # a device that is lost, or a library that hangs
            _apart(self._request, end, self._name, self._rank, timeout, lambda _: None)

    # Other groups, and the end

    def split(self, color: int | None, key: int, name: str, timeout: float) -> NativeGroup | None:
        def split() -> tuple[int, int, int]:
            made = self._library.split(self._comm, color, key)
            return (made, *self._library.rank_of(made)) if made else (0, 0, 0)

        def undo(made: tuple[int, int, int]) -> None:
            self._library.abort(made[0])

        comm, rank, size = _apart(self._request, split, name, self._rank, timeout, undo)
        if not comm:
            return None
        exchange = self._exchange.among(None)
        return NcclGroup(self._library, self._request, exchange, comm, name, rank, size)

    def rebuild(self, ranks: tuple[int, ...], name: str, timeout: float) -> NativeGroup:
        rank, exchange = ranks.index(self._rank), self._exchange.among(ranks)
        return _make(self._library, self._request, exchange, name, rank, len(ranks), timeout)

    def close(self, timeout: float) -> None:
        self._end("ncclCommDestroy", timeout)
        self._scratch.close()
