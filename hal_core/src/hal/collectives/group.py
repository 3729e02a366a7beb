"""Groups: the order, the batches, the time-outs and the failure of a rank's collectives."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NoReturn, Self, SupportsFloat

import numpy as np

import hal
from hal.arguments import as_int, as_items, as_seconds
from hal.collectives import group_watch
from hal.collectives.texts import RECORDS, again, timed_out, withdrawn
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    CollectiveError,
    HalError,
    InvalidArgumentError,
    OperationError,
    ReentrantCallError,
)
from hal.handlers import dropped, own
from hal.locks import RLock
from hal.native_collectives import (
    MESSAGES,
    Collective,
    CollectiveStep,
    GroupCall,
    Launch,
    NativeGroup,
    Participant,
)

_MOST: Final = 2**31 - 1  # the highest color and key; MPI takes no more

_ALL: Final = (-1, False)


class _OpenBatch:
    """The launch that a thread fills inside ``with group.batch()``."""

    __slots__ = ("launch", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.launch: Launch | None = None


class Group(Participant):
    """One rank's membership in a group of ranks; made by `join`, `join_all` and `split`.

    Queues take it: ``queue.all_reduce(buffer, group=group)``. All ranks submit the same
    collectives in the same order; a rank's run in that order, one after the other, on whatever
    queues. Any thread may submit; a signal handler that has interrupted a submission to the same
    group gets `ReentrantCallError`.

    A group breaks if a rank does not run an operation (a failed wait, a cancel, an error), submits
    another one than the others, or does not come within `timeout` seconds after the first: all
    unended operations fail on every rank, with a `CollectiveError` that names ranks and operations,
    and so do later ones. The device goes on; `rebuild` makes a new group.
    """

    __slots__ = (
        "__weakref__",
        "_batch",
        "_broken",
        "_closed",
        "_closer",
        "_counts",
        "_device",
        "_direct",
        "_flights",
        "_generation",
        "_is_aborted",
        "_name",
        "_native",
        "_process",
        "_provider",
        "_rank",
        "_records",
        "_refused",
        "_size",
        "_timeout",
        "_turn",
        "_turns",
    )

    def __init__(
        self, native: NativeGroup, device: hal.Device, provider: str, name: str, timeout: float
    ) -> None:
        self._native = native
        self._device = device
        self._provider = provider
        self._name = name
        self._timeout = timeout
        self._rank, self._size = native.rank, native.size
        self.lock = RLock()  # a signal handler may ask for its error
        # The launches that are not known to have ended well, oldest first
        self._flights: deque[Launch] = deque()
        # The last number of each line that has its own numbers; in a list, which C can raise, too
        self._counts: dict[tuple[int, bool], list[int]] = {}
        self._turns = 0  # submissions so far
        self._turn = 0  # those that were issued
        self._records: deque[CollectiveStep] = deque(maxlen=RECORDS)
        self._broken: CollectiveError | None = None
        self._is_aborted = False
        self._closed = False
        self._closer: object = None  # the call that closes it, or has done so
        self._batch: _OpenBatch | None = None
        self._generation = 0
        self._process = os.getpid()
        # Of the C extension: what it remembers of `call_for`, and the status of a call that failed
        self._direct: dict[tuple[object, ...], object] | None = {} if native.on_stream else None
        self._refused = 0
        group_watch.watch.start()

    @property
    def rank(self) -> int:
        """The number of this member, from 0 on."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of members."""
        return self._size

    @property
    def device(self) -> hal.Device:
        """The device of this member."""
        return self._device

    @property
    def name(self) -> str:
        """Its name in errors."""
        return self._name

    @property
    def provider(self) -> str:
        """The name of the provider that moves the data: ``"embedded"``, ``"mpi"``, ``"nccl"``."""
        return self._provider

    @property
    def timeout(self) -> float:
        """The seconds that an operation may take from its issue on, before the group breaks."""
        return self._timeout

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def error(self) -> CollectiveError | None:
        """Why the group is broken, as a fresh exception; None if it is not."""
        self._check_process()
        self.look()
        broken = self._broken
        return None if broken is None else again(broken)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ", broken" if self._broken else ""
        return f"<Group {self._name!r} rank {self.rank} of {self.size}, {self._provider}{state}>"

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a Group is one rank's membership, in this process: it can be neither copied nor "
            "pickled; join a group there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Submission

    def enter(self, launch: Launch) -> hal.Submission:
        """Submit an operation in the order of the group; for queues."""
        self._native.check(launch.work[0].step)
        with self.hold():
            batch = self._batch
            if batch is None or batch.thread != threading.get_ident():
                self.make(launch)
                self._start(launch)
            else:
                launch = self._collect(batch, launch)
        made: hal.Submission = launch.submission
        return made

    def hold(self) -> AbstractContextManager[object]:
        """Return the lock that is held while launches are lined up and submitted; see the base."""
        lock: Any = self.lock
        if lock._is_owned():  # noqa: SLF001 - the name that `threading.Condition` uses
            raise ReentrantCallError(
                f"a signal handler or a finaliser interrupted a submission of {self._name}, and "
                "submits another one, which would come first; submit it when the handler has "
                "returned"
            )
        return self.lock

    def check(self, step: CollectiveStep) -> object:
        """Check an operation; return the batch that this thread has open; for recordings."""
        self._native.check(step)
        with self.lock:
            self._live()
            batch = self._batch
            return batch if batch is not None and batch.thread == threading.get_ident() else None

    def _collect(self, batch: _OpenBatch, launch: Launch) -> Launch:
        """Add an operation to the open batch; return the launch of that."""
        self._live()
        first = batch.launch
        if first is None:
            self.make(launch, is_batch=True)
            batch.launch = launch
            return launch
        if first.queue is not launch.queue:
            raise InvalidArgumentError(
                f"the batch of {self._name} is on {first.queue!r}, and {launch.work[0].step.kind} "
                f"on {launch.queue!r}: a batch is one launch on one queue"
            )
        first.absorb(launch)
        return first

    def make(self, launch: Launch, *, is_batch: bool = False) -> None:
        """Make a launch's submission."""
        on_stream = self._native.takes(launch.work, is_batch=is_batch)
        launch.make(self._enqueue if on_stream else self._run, on_stream=on_stream)

    def _start(self, launch: Launch) -> None:
        """Submit a launch behind the group's others; with the lock."""
        also = self.line_up(launch)
        try:
            launch.start(also)
            self.settle(launch)
        except BaseException as error:
            self.withdraw(launch, error)
            raise

    def line_up(self, launch: Launch) -> tuple[hal.Submission, ...]:
        """Make a launch the next of the group; return the submissions that it waits for."""
        self._live()
        launch.step = launch.work[0].step
        try:
            flights = self._flights
            while flights and flights[0].outcome():
                flights.popleft()
            also: tuple[hal.Submission, ...] = ()
            if flights:
                before = flights[-1]
                if before.queue is not launch.queue or not before.ordered:
                    also = (before.submission,)  # one after the other, also across queues
            for work in launch.work:
                work.step = step = self._numbered(work.step)
                self._records.append(step)
            launch.step = launch.work[0].step
            launch.turn = self._turns
            if self._broken is None:
                self._turns += 1
            flights.append(launch)
        except BaseException as error:
            self._give_up(launch, error)
            raise
        return also

    def withdraw(self, launch: Launch, error: BaseException) -> None:
        """Undo `line_up` if the submission was refused; else it fails, and so does the group."""
        if not isinstance(error, HalError):
            self._give_up(launch, error)
            return
        self._flights.remove(launch)
        self._turns = launch.turn
        for work in launch.work:
            self._line_of(work.step)[0] -= 1
            self._records.pop()
        launch.fail(OperationError("the submission was refused"))

    def _give_up(self, launch: Launch, error: BaseException) -> None:
        """Break the group: nobody knows how far an interrupted submission has come."""
        cause = OperationError(f"the submission was interrupted by {error!r}")
        broken = withdrawn(self._name, self._rank, launch.step, cause, self._told())
        self._broken = self._broken or broken
        group_watch.watch.add(self)
        launch.fail(cause)

    def settle(self, launch: Launch) -> None:
        """Watch over a launch that was submitted."""
        group_watch.watch.add(self)
        if self._broken is not None:
            launch.fail(again(self._broken))

    def call_for(
        self, step: CollectiveStep, dtype: np.dtype[Any] | None
    ) -> tuple[list[int], GroupCall] | None:
        """Return what a step is numbered in, and the one call that it is; else None."""
        self._native.check(step)
        call = self._native.call_for(step, dtype)
        return None if call is None else (self._line_of(step), call)

    def _numbered(self, step: CollectiveStep) -> CollectiveStep:
        line = self._line_of(step)
        line[0] += 1
        return CollectiveStep(step.kind, line[0], step.op, step.dtype, step.elements, step.root)

    def _line_of(self, step: CollectiveStep) -> list[int]:
        """Return what a step is numbered in: the collectives, or the messages to or from a rank."""
        line = (step.root, step.kind == "send") if step.kind in MESSAGES else _ALL
        return self._counts.setdefault(line, [0])

    def _live(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._name} is closed; join a group again")

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Fuse the operations that this thread submits inside ``with`` into one launch.

        They are on one queue, wait together for all their waits, and make all their signals at
        the end of all. Each call returns the same submission, which is in the queue at the end
        of ``with``: do not wait for it before. Sends and receives between two ranks in both
        directions need a batch. If the body raises nothing is submitted, and that
        submission fails.
        """
        batch = _OpenBatch()
        try:
            self._open(batch)
            yield  # without the lock: other threads submit meanwhile
            with self.hold():
                self._batch = None
                if batch.launch is not None:
                    self._start(batch.launch)
        except BaseException as error:
            if self._batch is batch:
                self._batch = None
            if batch.launch is not None:
                reason = OperationError(f"the batch of {self._name} was left by {error!r}")
                batch.launch.fail(error if isinstance(error, ClosedError) else reason)
            raise

    def _open(self, batch: _OpenBatch) -> None:
        self._check_process()
        with self.lock:
            self._live()
            if self._batch is not None:
                raise InvalidArgumentError(f"a batch of {self._name} is open already; end it first")
            self._batch = batch

    # Issue

    def _take_turn(self, launch: Launch) -> None:
        """Raise unless it is an operation's turn; one that did not run has broken the group."""
        # No lock, since it may run inside the submission of another group. No two threads get here
        # at once: each operation waits for the one before it.
        if self._broken is not None:
            raise again(self._broken)
        if launch.turn != self._turn:
            raise self._out_of_turn(launch)
        self._turn += 1
        launch.begun = time.monotonic()

    def _out_of_turn(self, launch: Launch) -> CollectiveError:
        """Return why one before an operation did not run."""
        for other in list(self._flights):
            error = other.submission.error if other.turn < launch.turn else None
            if error is not None:
                return withdrawn(self._name, self._rank, other.step, error, self._told())
        words = "an operation before it did not run"
        return withdrawn(self._name, self._rank, launch.step, CollectiveError(words), self._told())

    def _enqueue(self, stream: int, launch: Launch, work: Sequence[Collective]) -> None:
        self._take_turn(launch)
        if self._refused:
            status, self._refused = self._refused, 0
            raise self._native.refusal(work[0], status)
        self._native.enqueue(stream, work)

    def _run(self, launch: Launch, work: Sequence[Collective]) -> object:
        """Begin operations on a thread of hal's; return what their end waits for."""
        ended = hal.create_semaphore(name=f"{self._name}: {launch.step}")
        launch.ended = ended
        self._take_turn(launch)
        self._native.begin(work, partial(_finish, ended))
        return (ended.at(1),)

    # Failure

    def look(self) -> bool:
        """Look for failures and time-outs; return whether work is in flight."""
        now = time.monotonic()
        with self.lock:
            flights = [*self._flights]
        ended: set[Launch] = set()
        failed: Launch | None = None
        oldest: Launch | None = None
        for flight in flights:
            # They end in their order. So the device is asked about the oldest alone.
            if flight.outcome() is not None or (oldest is None and flight.submission.done):
                ended.add(flight)
                failed = failed or (None if flight.outcome() else flight)
            else:
                oldest = oldest or flight
        broken = self._broken or self._fault()
        if broken is None and failed is not None:
            error: HalError = failed.submission.error
            broken = error if isinstance(error, CollectiveError) else None
            broken = broken or withdrawn(self._name, self._rank, failed.step, error, self._told())
        begun = None if oldest is None else oldest.begun
        if broken is None and oldest and begun is not None and now - begun > self._timeout:
            missing, records = self._report()
            known = records or self._told()
            if not oldest.submission.done:
                step, seconds = oldest.step, self._timeout
                broken = timed_out(self._name, self._rank, step, seconds, missing, known)
        if broken is not None:
            self._break(broken)
        with self.lock:
            self._flights = deque([each for each in self._flights if each not in ended])
            return bool(self._flights)

    def _fault(self) -> CollectiveError | None:
        """Return why the provider says that the group is broken; it may fail as it looks."""
        try:
            return self._native.failure()
        except own(Exception) as raised:  # it must not end the watch over all groups
            text = f"{self._provider} failed on rank {self._rank} of {self._name}: {raised}"
            error = CollectiveError(text, ranks=(self._rank,), records=self._told())
            error.__cause__ = raised
            return error

    def _report(self) -> tuple[Sequence[int], Mapping[int, Sequence[str]]]:
        """Return what the provider knows of the ranks; nothing if it fails as it asks them."""
        with dropped(Exception):
            return self._native.report()
        return (), {}

    def _end(self, function: Callable[[HalError], object], broken: CollectiveError) -> None:
        """Have the provider end what runs; how it fails in that is told with the group's error."""
        try:
            function(broken)
        except own(Exception) as raised:  # the group's work must fail all the same
            broken.add_note(f"{self._provider} failed in {function.__name__}(): {raised!r}")

    def _told(self) -> dict[int, tuple[str, ...]]:
        # A copy: others submit while this makes words.
        return {self._rank: tuple(map(str, self._records.copy()))}

    def _break(self, error: CollectiveError) -> None:
        """Break the group, or fail what was submitted since it broke."""
        with self.lock:
            broken = self._broken = self._broken or error
            flights = [*self._flights]
        memory = [flight.memory() for flight in flights]  # before they fail, which drops it
        if not self._is_aborted:
            # Once an operation has failed its buffer may be used again, where no peer may write.
            self._end(self._native.stop, broken)
        # Before `abort`: what that ends on a stream would count as done.
        for flight in flights:
            if flight.ended is not None:
                flight.ended.fail(again(broken))
            flight.fail(again(broken))
        if not self._is_aborted:
            self._end(self._native.abort, broken)
            if self._native.is_left:
                _left.append(memory)
            self._is_aborted = True  # last: after a Ctrl-C the next look aborts it

    # Other groups, and the end

    def split(
        self, color: int | None, *, key: int = 0, timeout: SupportsFloat | None = None
    ) -> Group | None:
        """Return a group of the ranks with the same `color`, in the order of `key`, then rank.

        Every rank calls it, and it blocks until they have; None for those whose `color` is None.
        At most `timeout` seconds, by default the group's. Raises `RendezvousError` then, and the
        group's failure.
        """
        chosen = None if color is None else as_int(color, "split: color is an int or None")
        place = as_int(key, "split: key is an int")
        if abs(place) > _MOST or not 0 <= (chosen or 0) <= _MOST:
            message = f"split: color is from 0 to {_MOST}, and key at most that, either way"
            raise InvalidArgumentError(message)
        seconds = self._timeout if timeout is None else as_seconds(timeout)
        name = self._derived()
        made = self._native.split(chosen, place, name, seconds)
        if made is None:
            return None
        return Group(made, self._device, self._provider, f"{name}:{chosen}", self._timeout)

    def rebuild(self, ranks: Iterable[int], *, timeout: SupportsFloat | None = None) -> Group:
        """Return a new group of the `ranks` that are left, also of a group that is broken.

        All of those call it, with the same ranks of this group, and it blocks until they have, for
        at most `timeout` seconds. `CollectiveError.ranks` says who is not left. Their order is
        that of the list. Raises `RendezvousError` at the time-out.
        """
        rule = "rebuild takes the ranks that are left"
        left = tuple([as_int(each, rule) for each in as_items(ranks, rule)])
        if self.rank not in left or len(set(left)) < len(left):
            message = f"{rule}, this one, {self.rank}, among them, and each once; not {left}"
            raise InvalidArgumentError(message)
        if not all(0 <= each < self.size for each in left):
            raise InvalidArgumentError(f"{rule}, from 0 to {self.size - 1}, not {left}")
        seconds = self._timeout if timeout is None else as_seconds(timeout)
        name = self._derived()
        made = self._native.rebuild(left, name, seconds)
        return Group(made, self._device, self._provider, name, self._timeout)

    def _derived(self) -> str:
        """Return the name of a group that is made of this one; the same on all ranks."""
        self._check_process()
        with self.lock:
            self._live()
            self._generation += 1
            return f"{self._name}/{self._generation}"

    def close(self, timeout: SupportsFloat = 10.0) -> None:
        """Wait for the work in flight, and free the provider's objects.

        What is not issued is cancelled; what has not ended after `timeout` seconds
        fails. May be called twice. Every rank closes the group: one that others wait for fails
        them.
        """
        self._check_process()
        seconds = as_seconds(timeout)
        mine = object()
        try:
            with self.lock:
                self._closed = True
                self._closer = self._closer or mine
                if self._closer is not mine:
                    return
                flights = [*self._flights]
            deadline = time.monotonic() + seconds
            # The last one first: one that stood behind a cancelled one would be issued, and fail
            # because it is not its turn, instead of being cancelled.
            for flight in reversed(flights):
                flight.submission.cancel()
            for flight in flights:
                with dropped(HalError):
                    flight.submission.wait(max(deadline - time.monotonic(), 0.0))
            if self.look():
                words = f"rank {self.rank} has closed {self._name} before its work had ended"
                self._break(CollectiveError(words, ranks=(self._rank,), records=self._told()))
            self._native.close(max(deadline - time.monotonic(), 0.0))
        except BaseException:
            if self._closer is mine:
                self._closer = None  # another call completes what a Ctrl-C has left
            raise

    def _check_process(self) -> None:
        """Raise in a forked child, which must not call the library of its parent."""
        if os.getpid() != self._process:
            raise ClosedError(
                f"process {os.getpid()} was forked from a member of {self._name}, and is none; "
                "start it with the 'spawn' method, and join a group there"
            )


_left: Final[list[object]] = []
"""The memory of operations that a library may still use at the end of the process."""


def _finish(ended: hal.Semaphore, error: BaseException | None) -> None:
    with dropped(HalError):  # it has failed meanwhile
        if error is None:
            ended.signal(1)
        else:
            ended.fail(again(error) if isinstance(error, CollectiveError) else error)
