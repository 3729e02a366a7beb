"""The state that the queues of one native context share, and what starves for its memory.

What is done with it stands above it: `hal._engine.contexts` (what it has retired and lost) and
`hal._engine.closing` (its end).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NoReturn

from hal._base.failures import fresh
from hal._engine.calls import direct_calls, table_of
from hal._engine.events import EventPool
from hal._engine.memory_events import MemoryEvents
from hal._engine.operation import PARTLY, STARVED, Operation
from hal._engine.timelines import HOST, ISSUE, Work
from hal.errors import ClosedError
from hal.native import NativeDevice

if TYPE_CHECKING:
    from hal._engine.stream import StreamQueue


class MemoryProvider:
    """A search for memory for a context's starved operations, which also notes uses of such memory.

    A context has one from its first alloca on; `hal._buffers.alloca` has the only one there is.
    """

    def __init__(self) -> None:
        # Operations that have found no memory, and for which it has not searched yet
        self.wanted: deque[Operation] = deque()
        self.is_posted = False  # whether a thread searches, or is about to

    def note(self, operation: Operation, used: object) -> None:
        """Note an operation with the memory of allocas that it uses."""
        raise NotImplementedError


class DeviceContext:
    """One native context: its queues, its event pool, its call table, and whether it is lost."""

    __slots__ = (
        "_rotation",
        "calls",
        "direct",
        "epoch",
        "events",
        "guests",
        "lost",
        "max_in_flight",
        "name",
        "native",
        "provider",
        "queues",
        "refuses_visits",
        "starved",
        "together",
    )

    def __init__(
        self,
        native: NativeDevice,
        name: str,
        max_in_flight: int | None,
        memory: MemoryEvents | None = None,
    ) -> None:
        self.native = native
        self.calls = table_of(native, name)
        self.direct = direct_calls(self.calls, in_memory=memory is not None)
        self.name = name
        # How many launches each stream has in flight at the most (Q1)
        self.max_in_flight: int = max_in_flight or native.max_in_flight
        self.events = EventPool(native, memory)
        # Replaced, never changed in place: threads go through it without a lock
        self.queues: list[StreamQueue] = []
        self.lost: BaseException | None = None
        # The contexts that are lost at once, itself among them; replaced, never changed in place
        self.together: list[DeviceContext] = [self]
        # Devices whose operations have used our memory and that are open, see `hal._engine.visits`
        self.guests: dict[DeviceContext, None] = {}
        self.refuses_visits = False
        # Operations that wait for memory, and its provider from the first alloca on (M3)
        self.starved: dict[StreamQueue, dict[Operation, None]] = {}
        self.provider: MemoryProvider | None = None
        # Another one whenever operations have dropped their resources. No number: of two threads
        # that count at once, one would be missed.
        self.epoch = object()
        self._rotation = 0

    def refuse(self, what: str) -> NoReturn:
        """Raise why a closed queue takes no submission; under the lock."""
        if self.lost is not None:
            raise fresh(self.lost)
        message = f"{what} is closed; create another with hal.create_device or create_queue"
        raise ClosedError(message)

    def starve(self, operation: Operation, work: Work) -> None:
        """Note an operation that found no memory; under the lock."""
        self.search_memory(operation, work)
        self.starved.setdefault(operation._queue, {})[operation] = None

    def search_memory(self, operation: Operation, work: Work) -> None:
        """Have memory searched for an operation; under the lock."""
        provider = self.provider
        assert provider is not None  # noqa: S101 - the first alloca has made it
        provider.wanted.append(operation)
        # One search at a time: it looks at all that wait, and may block in a native allocation.
        if not provider.is_posted:
            work.append((HOST, provider))
            provider.is_posted = True

    def feed_some(self, work: Work) -> None:
        """Have the longest waiting operation of each queue try again; under the lock."""
        # One of each. If it finds memory its issue feeds again, if it fails its end does, and
        # otherwise running work will. To retry all at once was rejected: it would cost an unordered
        # queue the square of their number.
        for queue in list(self.starved):
            for operation in self.starved[queue]:
                self.feed_one(operation, work)
                break

    def feed_one(self, operation: Operation, work: Work) -> None:
        """Have an operation try again; under the lock. This order allows it to be repeated."""
        queue = operation._queue
        if operation._state == STARVED:
            work.append((ISSUE, queue))
            if not queue._ordered:
                queue._backlog.append(operation)
            operation._state = PARTLY  # its signals are reserved already: it is not claimed again
        self.forget(operation)

    def forget(self, operation: Operation) -> None:
        """Remove an operation from the starved ones; under the lock."""
        same = self.starved.get(operation._queue)
        if same is not None:
            same.pop(operation, None)
            if not same:
                self.starved.pop(operation._queue, None)

    def keep_loss(self) -> None:
        """Leave the contexts that are lost together: the device is being closed; under the lock."""
        rest = [each for each in self.together if each is not self]
        for each in rest:
            each.together = rest
        self.together = [self]
