"""The state of one native stream, and of the queue that is issued on it.

The algorithms stand beside it, a module for each: `hal._engine.backlog` (what is not issued),
`hal._engine.issuing` (native calls), `hal._engine.host_calls` (what runs on the host),
`hal._engine.retiring` (what has completed) and `hal._engine.ending` (what fails).
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

from hal._base.numbers import QueueNumbers
from hal._engine.notifier import Notifier
from hal._engine.operation import STARVED, Operation

if TYPE_CHECKING:
    from hal._engine.device_context import DeviceContext
    from hal._engine.steps import CallStep, Closer


_ids = itertools.count()


class StreamQueue(QueueNumbers):
    """The order of operations on one native stream; the engine under `hal.Queue`."""

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_borrowed",
        "_calls",
        "_cancelled",
        "_closed",
        "_closer",
        "_context",
        "_contexts",
        "_dead",
        "_domain",
        "_gone",
        "_hosts",
        "_id",
        "_issuing",
        "_leader",
        "_limit",
        "_name",
        "_native",
        "_notifier",
        "_ordered",
        "_owner",
        "_pending",
        "_recalled",
        "_record",
        "_ring",
        "_seen",
        "_shown",
        "_stream",
        "_unanswered",
        "_wanted",
        "_watched",
    )

    def __init__(
        self,
        context: DeviceContext,
        name: str,
        *,
        ordered: bool,
        borrowed: tuple[int, object] | None = None,
    ) -> None:
        # What never changes
        self._context = context
        self._contexts = (context,)  # as `CallStep.contexts` takes it
        self._native = context.native
        self._calls = context.direct
        self._domain = context.native.domain
        events = context.events
        self._record = events.own.record_event if borrowed is None else events.record_foreign
        self._limit = context.max_in_flight
        self._name = name
        self._ordered = ordered
        self._id = next(_ids)  # never reused, unlike id()

        # The timeline lock guards all the rest, but for what goes with the baton.

        # What is not issued. If ordered, the backlog holds all of it, in order; if unordered
        # only what is ready, and `_pending` holds all.
        self._backlog: deque[Operation] = deque()
        self._pending: dict[Operation, None] = {}
        # How many users have cancelled since the backlog was cleared of such, and the operation
        # that one wanted to cancel while it was being issued
        self._cancelled = 0
        self._recalled: Operation | None = None

        # The baton: the operation that is being issued, and the step that took it last. No flag: if
        # the step breaks off, the operation tells what to repeat or to fail. Its holder owns the
        # native stream, and `_seen`: queue id -> highest sequence of that queue that the stream has
        # waited for.
        self._issuing: Operation | None = None
        self._owner: CallStep | None = None
        self._seen: dict[int, int] = {}

        # The operations that are issued and have not retired: those on the stream, in its order and
        # with no sequence left out, so that a sequence tells the place; and those on the host, in
        # the order of issue
        self._ring: deque[Operation] = deque()
        self._hosts: dict[Operation, None] = {}
        self._sequence = 0  # of the last operation that entered the ring; from 1 on
        # Native launches that were put on the stream, and how many of them have retired
        self._launched = 0
        self._retired = 0
        self._unanswered = 0  # errors in a row from asking events

        # The waiters: the one that polls, the sequences that sleeping ones want, whether the
        # progress thread looks after these, and what wakes it
        self._leader: object | None = None
        self._wanted: set[int] = set()
        self._watched = False
        self._notifier = Notifier(context.native, context.events.own)

        # Its end
        self._closed = False  # it takes no more operations
        self._closer: Closer | None = None  # the call that closes it
        self._dead = False  # the native stream is being destroyed
        self._gone = False  # the native stream is destroyed, or was left behind

        # The vendor's handle of a borrowed stream, and what keeps it alive
        self._borrowed = borrowed
        # Whether others have the stream's handle, and may put work of theirs between ours
        self._shown = borrowed is not None
        self._native.bind()
        # Last: nothing that fails behind it leaves a stream that nobody knows.
        self._stream = (
            self._native.create_stream()
            if borrowed is None
            else self._native.adopt_stream(borrowed[0])
        )

    @property
    def name(self) -> str:
        """The queue's name, with its device's in front."""
        return self._name

    @property
    def ordered(self) -> bool:
        """Whether the queue is first-in first-out (Q2)."""
        return self._ordered

    def _running(self) -> list[Operation]:
        """Return the operations that are issued, or being issued, and unretired; under the lock."""
        found = [*self._ring, *self._hosts]
        if self._issuing is not None:
            found.append(self._issuing)
        return found

    def _unissued(self) -> list[Operation]:
        """Return every operation that is not issued, in order; under the lock."""
        source = self._backlog if self._ordered else self._pending
        return [each for each in source if each._state <= STARVED]
