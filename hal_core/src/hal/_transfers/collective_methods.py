"""The methods of queues and recordings that several ranks take part in (docs/collectives.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, SupportsIndex, TypedDict, TypeVar, Unpack

from hal._engine.fence import Waits
from hal._engine.wait_lists import Signals
from hal.errors import ArgumentTypeError
from hal.native_collectives import Participant

_Memory = TypeVar("_Memory")
_Made = TypeVar("_Made")


class CollectiveOptions(TypedDict, total=False):
    """The other keyword arguments of collectives: a queue's two lists, and a command's name."""

    wait: Waits
    signal: Signals
    name: str | None


def check_options(kind: str, unknown: Mapping[str, object], known: str) -> None:
    """Raise unless all keyword arguments of a collective are those of its queue or recording."""
    for name in unknown:
        message = f"{kind} has no argument {name!r} here; besides what it works on it takes {known}"
        raise ArgumentTypeError(message)


class Collectives(Generic[_Memory, _Made]):
    """Collectives and messages, for `hal.Queue` and `hal.CommandBuffer`.

    `group` is what `hal.collectives.join` returned, for this device. Every rank submits
    the same operations of a group in the same order, with the same types and sizes. An operation
    ends on a rank when that rank's buffers may be used again. Counts are in elements of the
    buffer's dtype. Reductions of float16 and bfloat16 are rounded as docs/collectives.md says.

    A queue takes `wait` and `signal` as in every submission, and returns the `Submission`.

    A recording takes `name`, and buffers, slots or temporaries; slots have sizes and, for what is
    reduced, the dtype of the numbers. Every execution submits these operations in the order of the
    group, in which they were recorded, and every rank executes recordings with the same
    ones. Each is a part of the recording by itself (see `CommandBuffer.on`), those of one
    ``with group.batch()`` together, which stand next to each other.

    Errors besides those of every submission and command: the group's `CollectiveError`, which fails
    the submission; `ClosedError` for a closed group, also when a recording is executed; and
    `UnimplementedError` for what the provider cannot do. Executing raises `InvalidArgumentError`
    for slots that are bound to bytes that overlap.
    """

    __slots__ = ()

    def all_reduce(
        self,
        buffer: _Memory,
        target: _Memory | None = None,
        *,
        group: Participant,
        op: str = "sum",
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Reduce the elements of all ranks' buffers, and give every rank the result.

        `op` is ``"sum"``, ``"product"``, ``"min"``, ``"max"`` or ``"average"``. The result is
        in `target`, or in `buffer` itself unless that is given. The least and the greatest of a NaN
        and a number are NaN; NCCL takes the number.
        """
        return self._gather("all_reduce", group, buffer, target, op, None, **options)

    def reduce(
        self,
        buffer: _Memory,
        target: _Memory | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        op: str = "sum",
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Do as `all_reduce`, with the result on `root` alone; others' targets are ignored."""
        return self._gather("reduce", group, buffer, target, op, root, **options)

    def broadcast(
        self,
        buffer: _Memory,
        target: _Memory | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Copy the root's `buffer` to every rank's `target`, which is `buffer` unless given."""
        return self._gather("broadcast", group, buffer, target, None, root, **options)

    def all_gather(
        self,
        buffer: _Memory,
        target: _Memory,
        *,
        group: Participant,
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Put all ranks' buffers, in the order of the ranks, into every rank's `target`.

        In place if `buffer` is this rank's part of it.
        """
        return self._gather("all_gather", group, buffer, target, None, None, **options)

    def reduce_scatter(
        self,
        buffer: _Memory,
        target: _Memory,
        *,
        group: Participant,
        op: str = "sum",
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Reduce as `all_reduce`, and give each rank its part of the result.

        `buffer` has as many parts of the size of `target` as there are ranks. In place if `target`
        is this rank's part of it.
        """
        return self._gather("reduce_scatter", group, buffer, target, op, None, **options)

    def all_to_all(
        self,
        buffer: _Memory,
        target: _Memory,
        *,
        group: Participant,
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Give part i of `buffer` to rank i, whose part goes to the same place of `target`.

        Both have as many parts of one size as there are ranks, and do not overlap.
        """
        return self._gather("all_to_all", group, buffer, target, None, None, **options)

    def send(
        self,
        buffer: _Memory,
        *,
        group: Participant,
        peer: SupportsIndex,
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Send a buffer to rank `peer`, which receives it; may not end before it does.

        The messages from one rank to another are received in their order. A rank that sends to one
        that sends to it must have its send and its receive in one batch (`Group.batch`).
        """
        return self._gather("send", group, buffer, None, None, peer, **options)

    def receive(
        self,
        buffer: _Memory,
        *,
        group: Participant,
        peer: SupportsIndex,
        **options: Unpack[CollectiveOptions],
    ) -> _Made:
        """Receive what rank `peer` sends, of the same size and dtype, into a buffer."""
        return self._gather("receive", group, None, buffer, None, peer, **options)

    def group_barrier(self, *, group: Participant, **options: Unpack[CollectiveOptions]) -> _Made:
        """Do nothing, and end when every rank of the group has come here.

        It touches no bytes: in a recording with ``hazards="auto"`` a `CommandBuffer.barrier` before
        or after it orders it with other commands.
        """
        return self._gather("barrier", group, None, None, None, None, **options)

    def _gather(self, *arguments: Any, **options: Any) -> _Made:  # noqa: ANN401
        """Take (kind, group, source, target, op, root), all as given."""
        raise NotImplementedError
