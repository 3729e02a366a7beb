"""The interface of a provider of collectives, and its arguments (docs/collectives.md).

A provider is an entry point in the group ``hal.collectives`` whose object is a function, marked
with `hal.plugin.hookimpl` and called ``hal_collectives``, that returns a `Provider`. The core
checks arguments, keeps the order, and watches over time-outs and failures; a provider moves
the data. Every method may assume valid input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pluggy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hal.errors import CollectiveError, HalError

__all__ = [
    "ENTRY_POINT_GROUP",
    "MESSAGES",
    "OPERATIONS",
    "REDUCTIONS",
    "SOURCE",
    "STREAM",
    "TARGET",
    "Collective",
    "CollectiveStep",
    "GroupCall",
    "HookSpecification",
    "Join",
    "Launch",
    "Meet",
    "NativeGroup",
    "Participant",
    "Place",
    "Provider",
    "Region",
]

ENTRY_POINT_GROUP: Final = "hal.collectives"

REDUCTIONS: Final = ("sum", "product", "min", "max", "average")
"""The values of ``op``."""

MESSAGES: Final = frozenset({"send", "receive"})
"""The kinds that only two ranks take part in."""

OPERATIONS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send",
    "receive",
    "barrier",
)
"""Every kind of operation of a group."""


class CollectiveStep(NamedTuple):
    """The part of an operation that all ranks must agree on."""

    kind: str
    """One of `OPERATIONS`."""
    number: int
    """Its place, from 1 on, in the order of the group's collectives; of a message, in that of the
    messages from the one rank to the other."""
    op: str = ""
    """One of `REDUCTIONS`, or empty."""
    dtype: str = ""
    """The name of the elements' type."""
    elements: int = 0
    """How many elements one rank gives or, in a ``reduce_scatter``, gets; in an ``all_to_all``,
    what it gives to one other."""
    root: int = -1
    """The root, or the other rank of a message; -1 for none."""

    def __str__(self) -> str:
        words = f"{self.kind} #{self.number}"
        if self.kind != "barrier":
            words += f" of {self.elements} {self.dtype}"
        if self.op:
            words += f", {self.op}"
        if self.root >= 0:
            role = {"send": "to", "receive": "from"}.get(self.kind, "root")
            words += f", {role} rank {self.root}"
        return words


class Region(ABC):
    """The bytes of a buffer that an operation reads or writes, `size` of them."""

    __slots__ = ("size",)

    size: int

    @abstractmethod
    def address(self) -> int:
        """Return the device's address, once the operation is issued."""

    @abstractmethod
    def read(self) -> NDArray[np.uint8]:
        """Return the bytes on the host: the memory itself where the host sees it, else a copy.

        Blocks while the device copies. A copy is not written back: see `write`.
        """

    @abstractmethod
    def write(self, data: NDArray[np.uint8]) -> None:
        """Copy bytes in, and block until they are there; nothing if `data` is the memory itself."""

    @property
    @abstractmethod
    def is_visible(self) -> bool:
        """Whether `read` returns the memory itself."""


@dataclass(slots=True, eq=False)
class Collective:
    """One operation of one rank. A source or target that has no part in it is None."""

    step: CollectiveStep
    dtype: np.dtype[Any] | None
    source: Region | None
    target: Region | None


SOURCE: Final = -1
"""An argument of a `GroupCall`: the source's address."""
TARGET: Final = -2
"""The target's, which may be the source's."""
STREAM: Final = -3
"""The stream, as `hal.native.CallTable`'s functions take it."""


class GroupCall(NamedTuple):
    """The one call of a C function that an operation of a group is.

    The core's C code makes it in the place of `NativeGroup.enqueue`, without the interpreter lock.
    """

    function: int
    """The function's address: ``int (...)``, a status, 0 for success."""
    arguments: tuple[int, ...]
    """At most 8 integers and pointers; for a negative one `SOURCE`, `TARGET` or `STREAM` tells
    what comes there."""
    fine: int = 0
    """Another status that is success."""


class Launch(ABC):
    """One submission of a group: an operation, or a batch of them, with its queue and lists."""

    __slots__ = ("begun", "ended", "ordered", "queue", "step", "submission", "turn", "work")

    queue: object
    ordered: bool
    """Whether the queue is an ordered one."""
    work: list[Collective]
    """The operations, whose numbers the group gives; empty once it is submitted, so that the
    thread that watches over it holds no buffer."""
    submission: Any  # hal.Submission
    """The handle, once `make` has made it."""
    step: CollectiveStep
    """Its first operation; set by the group."""
    turn: int
    """Its place among the group's submissions; set by the group."""
    begun: float | None
    """When it was issued, by ``time.monotonic``; None before."""
    ended: Any  # hal.Semaphore | None
    """The semaphore that signals the end, where one does."""

    @abstractmethod
    def make(self, run: Callable[..., object], *, on_stream: bool) -> None:
        """Make the submission whose issue calls `run`; it is in no queue yet.

        On a stream ``run(stream, launch, work)``; else on a thread of ours ``run(launch, work)``,
        which may return timepoints to wait for, as the function of `hal.Queue.call`.
        """

    @abstractmethod
    def absorb(self, other: Launch) -> None:
        """Take in the work and the lists of another launch on the same queue."""

    @abstractmethod
    def start(self, also: Sequence[object]) -> None:
        """Submit it; it waits for the submissions in `also`, too."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Fail the submission, also one that is issued: what it has on a stream goes on."""

    @abstractmethod
    def memory(self) -> object:
        """Return what keeps its memory that the host sees, until it has ended."""

    @abstractmethod
    def outcome(self) -> bool | None:
        """Return whether it has ended well, or None before its end; asks no device."""


class Participant:
    """A group as queues and recordings see it: `hal.collectives.Group`.

    Not an `ABC`: every operation would pay for its `isinstance`.
    """

    __slots__ = ("lock",)

    lock: AbstractContextManager[object]
    """What `hold` returns; the same thread may take it again, to look at the group."""

    @abstractmethod
    def hold(self) -> AbstractContextManager[object]:
        """Return the lock that is held while launches are lined up and submitted.

        Raises `ReentrantCallError` in a signal handler or a finaliser that has interrupted its
        holder: what that lines up would come before what was lined up before.
        """

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of this member, from 0 on."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of members."""

    @property
    @abstractmethod
    def device(self) -> Any:  # noqa: ANN401 - hal.Device
        """The device of this member."""

    @abstractmethod
    def enter(self, launch: Launch) -> Any:  # noqa: ANN401 - hal.Submission
        """Submit an operation in the order of the group."""

    @abstractmethod
    def call_for(
        self, step: CollectiveStep, dtype: np.dtype[Any] | None
    ) -> tuple[list[int], GroupCall] | None:
        """Return the last number of a step's line, and the call that is all of it, if it is one.

        For the C extension, which raises the number.
        """

    # Recordings, which submit several launches in one step

    @abstractmethod
    def check(self, step: CollectiveStep) -> object:
        """Check an operation; return the batch that this thread has open, or None."""

    @abstractmethod
    def make(self, launch: Launch) -> None:
        """Make a launch's submission; it is in no queue yet."""

    @abstractmethod
    def line_up(self, launch: Launch) -> tuple[Any, ...]:
        """Make a launch the next of the group; return the submissions that it waits for.

        With the lock of `hold`, which is kept until `withdraw` or `settle`.
        """

    @abstractmethod
    def withdraw(self, launch: Launch, error: BaseException) -> None:
        """Undo `line_up`, of the last launch first, after the error of the submission.

        A `HalError` has refused it. Anything else has broken it off, and breaks the group.
        """

    @abstractmethod
    def settle(self, launch: Launch) -> None:
        """Watch over a launch that was submitted."""


class NativeGroup(ABC):
    """A provider's end of one rank's group. Any thread may call, but no two `enqueue` at once."""

    __slots__ = ()

    on_stream: bool = False
    """Whether work is put on a native stream, by `enqueue`; else `begin` runs it."""
    is_left: bool = False
    """Whether a library may still use the memory of work that `abort` has ended."""

    def takes(self, work: Sequence[Collective], *, is_batch: bool) -> bool:
        """Return whether a launch, to which a batch adds more, is put on a stream."""
        return self.on_stream

    def check(self, step: CollectiveStep) -> None:  # noqa: B027 - most have nothing to refuse
        """Raise `UnimplementedError` for an operation or a dtype that the provider lacks."""

    def enqueue(self, stream: int, work: Sequence[Collective]) -> None:
        """Put operations on a stream, as one launch; never waits for peers or the device.

        `stream` is the vendor's handle (`NativeDevice.export_stream`); the device's context is
        current.
        """
        raise NotImplementedError

    def call_for(self, step: CollectiveStep, dtype: np.dtype[Any] | None) -> GroupCall | None:
        """Return the call that `enqueue` makes for an operation by itself, or None.

        Valid as long as the group, for every operation that is the same but for its number.
        """
        return None

    def refusal(self, work: Collective, status: int) -> HalError:
        """Return the error for a status of an operation's `GroupCall`, the last on this thread."""
        raise NotImplementedError

    def begin(
        self, work: Sequence[Collective], finish: Callable[[BaseException | None], None]
    ) -> None:
        """Begin operations; never waits for peers.

        Calls `finish` once, on any thread, at the end of all of them or with the error of one.
        """
        raise NotImplementedError

    def failure(self) -> CollectiveError | None:
        """Return why the group is broken, if a peer or the library says so; never blocks."""
        return None

    @abstractmethod
    def report(self) -> tuple[tuple[int, ...], Mapping[int, tuple[str, ...]]]:
        """Return the ranks that the group waits for, and each rank's last operations.

        As far as they are known. May ask the peers, for a second at most.
        """

    def stop(self, error: HalError) -> None:  # noqa: B027 - most libraries have no such call
        """Let peers write to no buffer of what runs, as far as there is a way.

        Called before that work fails, since its buffers may be used again then; `abort` follows.
        What is on a stream goes on until then. Returns within a second.
        """

    @abstractmethod
    def abort(self, error: HalError) -> None:
        """End what runs, and tell the peers if there is a way; the group is not used again.

        Returns within seconds. What runs on a stream ends; what `begin` was given need not
        be finished. Called again if an interrupt has ended the call.
        """

    @abstractmethod
    def split(self, color: int | None, key: int, name: str, timeout: float) -> NativeGroup | None:
        """Return this rank's part: the ranks of its color, by key and rank; None without a color.

        All ranks call it; blocks. Raises `RendezvousError` at the time-out.
        """

    @abstractmethod
    def rebuild(self, ranks: tuple[int, ...], name: str, timeout: float) -> NativeGroup:
        """Return a group of some ranks, this one among them, of one that is broken; blocks.

        Those ranks call it. Raises `RendezvousError` at the time-out.
        """

    @property
    @abstractmethod
    def rank(self) -> int:
        """The rank of this end."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ranks."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Free what it has; nothing runs. Never waits longer for peers than `timeout` seconds.

        Called again if an interrupt has ended the call.
        """


class Place(NamedTuple):
    """The place of a process among those that were launched together."""

    rank: int
    """Its number."""
    size: int
    """How many there are."""
    local_rank: int | None = None
    """Its number among those of its host, to choose a device by; None if that is unknown."""
    rendezvous: str | None = None
    """How the ranks find each other: ``"tcp://HOST:PORT"``, ``"file:///PATH"``, another text, the
    name of a group of threads in one process; or None."""
    launcher: str = "alone"
    """The launcher: ``"torchrun"``, ``"mpi"``, ``"slurm"``, ``"given"``, ``"alone"``."""


Meet = Callable[..., Any]
"""Makes a `hal._speedups.Meeting`, which runs a group's operations on streams that are threads.

Its first argument returns on each rank what all have given it, and is called twice; the others are
those of the class, behind its first one. The meetings of all ranks show their data in memory that
all map or, where one rank has none, in messages: as those of several hosts or users.
"""


class Join(NamedTuple):
    """The arguments of `Provider.join`.

    `exchange` gives every rank the bytes of rank 0, once for each name of a group, and is None
    where only `place` tells how ranks meet. `bind` makes the device's context current on a thread
    of the provider's own, at any time, also on a lost device.
    """

    device: Any
    place: Place
    name: str
    timeout: float
    bind: Callable[[], None]
    exchange: Callable[[bytes | None], bytes] | None = None
    meet: Meet | None = None
    """None where the device's streams are no threads of the process, or without the C extension."""


class Provider(NamedTuple):
    """The record of one provider."""

    name: str
    """The same as its entry point's: ``"nccl"``."""
    summary: str
    """One line."""
    suits: Callable[[Join], str]
    """Return why it cannot serve a `Join`, or an empty text; loads no more than it must."""
    join: Callable[[Join], NativeGroup]
    """Return a rank's group; blocks until all ranks have come. Raises `RendezvousError` at the
    time-out."""
    backends: tuple[str, ...] = ()
    """The backends on whose streams it puts work; empty for one that serves any device."""
    priority: int = 0
    """Of several that suit, the one with the highest is taken."""


class HookSpecification:
    """The hook of a provider."""

    @pluggy.HookspecMarker("hal")
    def hal_collectives(self) -> Provider:
        """Return the record of the provider; load nothing."""
        raise NotImplementedError
