"""Pipelines: a recording that runs over many inputs, several of them in flight."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Self, SupportsFloat, SupportsIndex

import numpy as np

import hal
from hal.arguments import as_instance, as_int, as_mapping, as_seconds, shown
from hal.errors import ClosedError, HalError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.recordings import Recording, bound, direct_accesses
from hal.flow.tracking import Lanes, TrackedAccess
from hal.flow.transfers import Transfers
from hal.handlers import own

_DEEPEST: Final = 1024


class BufferSet:
    """The buffers that one input in flight uses, and their last users.

    Nobody else has these buffers, so the waits are known beforehand, and cost no more than by hand:
    an upload comes after the execution before, or the download of what it writes; an execution
    after its uploads and the downloads before; a download after its execution.
    """

    __slots__ = ("buffers", "execution", "is_doubtful", "others", "reads", "uploads")

    def __init__(self, device: hal.Device, slots: Sequence[hal.Slot]) -> None:
        self.buffers: list[Any] = [
            None if slot.size is None else device.allocate(slot.size, dtype=slot.dtype)
            for slot in slots
        ]
        self.uploads: list[hal.Submission] = []  # since the last execution
        self.execution: tuple[hal.Submission, ...] = ()  # the last one, if any
        # By slot: of the last execution's results
        self.reads: list[hal.Submission | None] = [None for _ in slots]
        self.others: list[hal.Submission] = []  # reads of buffers that are not its own
        self.is_doubtful = False

    def downloads(self) -> list[hal.Submission]:
        """Return the reads of the last execution's results."""
        return [read for read in self.reads if read is not None]

    def ends(self) -> list[hal.Submission]:
        """Return the submissions that end after all uses of the set."""
        # A failure stops all later work in the same set, so these tell of every failure.
        return [*self.others, *self.downloads(), *self.uploads, *self.execution]

    def follow(self, execution: hal.Submission) -> None:
        """Note an execution, which comes after all uses of the set."""
        self.uploads, self.execution, self.others = [], (execution,), []
        self.reads = [None for _ in self.reads]

    def settle(self, lanes: Lanes) -> None:
        """Come after everything: after an error, what was submitted is unknown."""
        others = [lanes.upload.barrier(), lanes.download.barrier()]
        self.follow(lanes.compute.barrier(wait=[*others, *self.ends()]))
        self.is_doubtful = False


class Pipeline:
    """A recording that runs over many inputs, while others are uploaded and results come back.

    Made by `Flow.pipeline`, to run a `recording`. It has `depth` sets of buffers, of which each
    `run` takes the next: so the upload queue fills one while the kernels use another
    and a third is downloaded. A set is reused as soon as its bytes are
    free. One thread at a time. Close it, or use it in a with-statement, before
    the flow.
    """

    __slots__ = (
        "_closed",
        "_flow",
        "_lanes",
        "_most",
        "_needed",
        "_reads",
        "_runs",
        "_sets",
        "_slots",
        "depth",
        "recording",
    )

    def __init__(self, flow: Transfers, recording: Recording, depth: SupportsIndex) -> None:
        self._flow = flow
        self.recording: Final = as_instance(
            recording, Recording, "pipeline takes a recording (flow.record())"
        )
        number = as_int(depth, "depth is how many inputs are on their way", 1, _DEEPEST)
        self.depth: Final = number
        device = recording.commands.device
        self._lanes: Final = flow.lanes_of(device)
        # The C extension reads these.
        self._most = flow.most_captured
        self._reads = flow.reads_in_flight
        self._sets = [BufferSet(device, recording.slots) for _ in range(number)]
        self._slots = {slot: slot for slot in range(len(recording.slots))}
        self._needed = tuple(sorted(recording.read_first))  # nothing else gives them content
        self._runs = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pipeline of {self.recording!r}, {self.depth} deep>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, inputs: Mapping[int, object], outputs: Mapping[int, object]
    ) -> list[hal.Submission]:
        """Upload inputs, run the recording, download outputs; return at once.

        Both by slot. An input is an array, which `Flow.write` copies into the buffer of the slot
        (bytes behind a shorter one keep what an earlier run left there), or a tracked buffer
        (for the output of kernels a `hal.Output`), which is bound instead; a slot without a size
        needs one of those, and one for a number that. An output is a target of `Flow.read`.
        Returns the downloads, in order, or if there are none the execution. Raises as those
        methods do, `InvalidArgumentError` without an input that the recording reads, and
        `ClosedError` after `close`; work submitted before an error goes on, and the next run of
        that set comes after it.
        """
        if self._closed:
            raise ClosedError("the pipeline is closed; make another with flow.pipeline(recording)")
        if type(inputs) is not dict or type(outputs) is not dict:
            inputs = as_mapping(inputs, "run: inputs are a mapping of slots to what they take")
            outputs = as_mapping(outputs, "run: outputs are a mapping of slots to arrays")
        try:
            inputs = {self._slots[slot]: each for slot, each in inputs.items()}
            outputs = {self._slots[slot]: each for slot, each in outputs.items()}
        except own(KeyError):
            raise _not_bound(self._slots, (*inputs, *outputs)) from None
        mine, recording = self._sets[self._runs % self.depth], self.recording
        self._runs += 1
        table: list[Any] = [*mine.buffers]
        accesses = direct_accesses(self._flow, recording) if recording.direct else []
        for slot, value in inputs.items():
            use = recording.uses[slot]
            is_bound = type(value) is not np.ndarray and isinstance(
                value, (TrackedBuffer, hal.Output)
            )
            if is_bound or use < 0:  # a number
                table[slot] = bound(self._flow, slot, value, use, accesses)
        unbound = [slot for slot, each in enumerate(table) if each is None]
        if unbound:
            raise _not_bound(self._slots, unbound)
        missing = [slot for slot in self._needed if slot not in inputs]
        if missing:
            message = f"pipeline: the recording reads slots {missing}; give each an input"
            raise InvalidArgumentError(message)
        try:
            return self._submit(mine, table, accesses, inputs, outputs)
        except BaseException:
            # A flow's own methods call the trace before they return what they have submitted.
            mine.is_doubtful = True
            raise

    def _submit(
        self,
        mine: BufferSet,
        table: Sequence[Any],
        accesses: Sequence[TrackedAccess],
        inputs: Mapping[int, Any],
        outputs: Mapping[int, object],
    ) -> list[hal.Submission]:
        """Submit a run with these buffers; `accesses` are to those that are not the set's own."""
        own = mine.buffers
        if mine.is_doubtful:
            mine.settle(self._lanes)
        for slot, value in inputs.items():
            if table[slot] is own[slot]:
                self._upload(mine, slot, value)
        execution = self._execute(mine, table, accesses)
        ends = []
        for slot, array in outputs.items():
            if table[slot] is own[slot]:
                end = self._download(mine, slot, array)
            else:
                end = self._flow.read(inputs[slot], array)
                mine.others.append(end)
            ends.append(end)
        return ends or [execution]

    def _upload(self, mine: BufferSet, slot: int, array: object) -> hal.Submission:
        """Write to a buffer of the set, behind what used it last."""
        read = mine.reads[slot]
        wait = mine.execution if read is None else (read,)
        operation = self._flow.write_raw(mine.buffers[slot], array, self._lanes.upload, wait)
        mine.uploads.append(operation)
        return operation

    def _execute(
        self, mine: BufferSet, table: Sequence[Any], accesses: Sequence[TrackedAccess]
    ) -> hal.Submission:
        """Execute the recording, behind all uses of the set."""
        compute, commands = self._lanes.compute, self.recording.commands

        def submit(waits: list[Any]) -> hal.Submission:
            execution = compute.execute(commands, bindings=table, wait=waits)
            mine.follow(execution)  # in here: after this the trace is called, which may raise
            return execution

        after = [*mine.uploads, *mine.downloads()] or mine.execution
        return self._flow.run(accesses, submit, (*after, *mine.others))

    def _download(self, mine: BufferSet, slot: int, array: object) -> hal.Submission:
        """Read a buffer of the set, behind its execution, as `Flow.read` does."""
        flow, lane = self._flow, self._lanes.download

        def submit(waits: list[Any]) -> hal.Submission:
            read = mine.reads[slot] = lane.read(mine.buffers[slot], array, wait=waits)
            if not isinstance(array, hal.File):
                flow.reads_in_flight.add(array, read)
            return read

        return flow.run((), submit, mine.execution)

    def wait(self, timeout: SupportsFloat | None = None) -> None:
        """Block until all runs so far have ended, at most `timeout` seconds; None means forever.

        Raises the failure of one of them, now and in every later call, or
        `DeadlineExceededError`.
        """
        deadline = None if timeout is None else time.monotonic() + as_seconds(timeout)
        for each in self._sets:
            if each.is_doubtful:
                each.settle(self._lanes)
        # The last run first: those before it in its queues have ended then.
        for index in range(self.depth):
            for end in self._sets[(self._runs - 1 - index) % self.depth].ends():
                end.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Release its buffers, once all that uses them has ended. May be called twice."""
        self._closed = True
        for buffer in itertools.chain(*(each.buffers for each in self._sets)):
            if buffer is not None:
                buffer.close()


def _not_bound(slots: Collection[int], unbound: Sequence[object]) -> HalError:
    """Return what is wrong with slots: an unknown number, or no buffer."""
    unknown = [slot for slot in unbound if slot not in slots]
    if unknown:
        return InvalidArgumentError(
            f"pipeline: the recording has {len(slots)} slots, and {shown(unknown)} are none of them"
        )
    return InvalidArgumentError(
        f"pipeline: slots {unbound} have no size; give each a tracked buffer, or its number if it "
        "is for one, or a size where they are recorded: slots=[(dtype, bytes)]"
    )
