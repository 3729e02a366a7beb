"""The operations of queues that several ranks take part in (docs/collectives.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

from hal._engine.fence import Waits
from hal._engine.submission import Submission
from hal._engine.wait_lists import Signals
from hal._transfers.collectives import enter
from hal.native_collectives import Participant

if TYPE_CHECKING:
    from hal._buffers.buffer import Buffer
    from hal._devices.device import Device


class GroupOperations:
    """Collectives and messages, for `Queue`.

    `group` is what `hal.collectives.join` returned, for this queue's device. Every rank submits
    the same operations of a group in the same order, with the same types and sizes. An operation
    ends on a rank when that rank's buffers may be used again. Counts are in elements of the
    buffer's dtype. Reductions of float16 and bfloat16 are rounded as docs/collectives.md says.

    Errors besides those of every submission: the group's `CollectiveError`, which fails the
    submission; `ClosedError` for a closed group; and `UnimplementedError` for what the
    provider cannot do.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _device: Device

    def all_reduce(
        self,
        buffer: Buffer,
        target: Buffer | None = None,
        *,
        group: Participant,
        op: str = "sum",
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Reduce the elements of all ranks' buffers, and give every rank the result.

        `op` is ``"sum"``, ``"product"``, ``"min"``, ``"max"`` or ``"average"``. The result is
        in `target`, or in `buffer` itself unless that is given.
        """
        return self._enter(group, "all_reduce", buffer, target, op, None, wait, signal)

    def reduce(
        self,
        buffer: Buffer,
        target: Buffer | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        op: str = "sum",
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Do as `all_reduce`, with the result on `root` alone; others' targets are ignored."""
        return self._enter(group, "reduce", buffer, target, op, root, wait, signal)

    def broadcast(
        self,
        buffer: Buffer,
        target: Buffer | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Copy the root's `buffer` to every rank's `target`, which is `buffer` unless given."""
        return self._enter(group, "broadcast", buffer, target, None, root, wait, signal)

    def all_gather(
        self,
        buffer: Buffer,
        target: Buffer,
        *,
        group: Participant,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Put all ranks' buffers, in the order of the ranks, into every rank's `target`.

        In place if `buffer` is this rank's part of it.
        """
        return self._enter(group, "all_gather", buffer, target, None, None, wait, signal)

    def reduce_scatter(
        self,
        buffer: Buffer,
        target: Buffer,
        *,
        group: Participant,
        op: str = "sum",
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Reduce as `all_reduce`, and give each rank its part of the result.

        `buffer` has as many parts of the size of `target` as there are ranks. In place if `target`
        is this rank's part of it.
        """
        return self._enter(group, "reduce_scatter", buffer, target, op, None, wait, signal)

    def all_to_all(
        self,
        buffer: Buffer,
        target: Buffer,
        *,
        group: Participant,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Give part i of `buffer` to rank i, whose part goes to the same place of `target`.

        Both have as many parts of one size as there are ranks, and do not overlap.
        """
        return self._enter(group, "all_to_all", buffer, target, None, None, wait, signal)

    def send(
        self,
        buffer: Buffer,
        *,
        group: Participant,
        peer: SupportsIndex,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Send a buffer to rank `peer`, which receives it; may not end before it does.

        The messages from one rank to another are received in their order. A rank that sends to one
        that sends to it must have its send and its receive in one batch (`Group.batch`).
        """
        return self._enter(group, "send", buffer, None, None, peer, wait, signal)

    def receive(
        self,
        buffer: Buffer,
        *,
        group: Participant,
        peer: SupportsIndex,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Receive what rank `peer` sends, of the same size and dtype, into a buffer."""
        return self._enter(group, "receive", None, buffer, None, peer, wait, signal)

    def group_barrier(
        self, *, group: Participant, wait: Waits = (), signal: Signals = ()
    ) -> Submission:
        """Do nothing, and end when every rank of the group has come here."""
        return self._enter(group, "barrier", None, None, None, None, wait, signal)

    def _enter(
        self,
        group: object,
        kind: str,
        source: object,
        target: object,
        op: object,
        root: object,
        wait: Waits,
        signal: Signals,
    ) -> Submission:
        queue: Any = self
        return enter(queue, self._device, group, kind, source, target, op, root, wait, signal)
