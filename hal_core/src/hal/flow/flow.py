"""Flows: they send work to queues, and wait for exactly what it must come after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import hal
from hal.arguments import as_function, as_instance, as_items, as_seconds, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.merging import MergeBuffer
from hal.flow.pipelines import Pipeline
from hal.flow.recordings import Recording, bound_accesses, kernel_arguments
from hal.flow.scheduler import AnyDevice, QueueName, TraceFunction, doubt
from hal.flow.tracking import History, TrackedAccess
from hal.flow.transfers import Transfers
from hal.flow.virtual import name_of
from hal.protocols import Bindings, Signals, Waits


class Flow(Transfers):
    """An executor of work on one or several devices, in the order that the bytes require.

    Work goes to the upload, the compute or the download queue of its buffers'
    device, by its kind: `write` and `update` to the first,
    `read` to the last, everything else to the compute queue; ``queue=`` names
    another one of them, or is an ordered queue. It waits for the last writer
    of the bytes it reads, and for the last writer and all readers since of those it
    writes, on any device; also for ``wait=``; and for nothing else except
    the work before it in its queue. Every method that submits returns a
    `hal.Submission` at once, which may be waited for, and dropped.

    A failure stays with the bytes: work that comes after failed work fails
    with the same error, without running, until `TrackedBuffer.recover`.

    Any thread may use a flow, but finalisers and signal handlers may not; work is
    ordered as it is submitted. The submitting methods raise the errors of
    `hal.Queue`'s, and also `ArgumentTypeError` for a raw buffer,
    `InvalidArgumentError` for another flow's and `ClosedError` for one that
    was released; nothing has changed then.

    `devices` run the work; `allocate` and `from_host` use the first one by default. They stay
    the caller's, to close after the flow. A copy between devices that goes through the host is
    made in pieces of `chunk` bytes, 1 or more. `write` copies a host array of up to `snapshot`
    bytes, 0 or more, during the call unless told otherwise. With `peers`, devices that reach
    each other's memory copy directly; without, all copies go through the host. `trace` is called
    with each submission and the list of what it waits for, on the submitting thread, under no
    lock but that of a merge buffer which copies.
    """

    def __init__(
        self,
        *devices: AnyDevice,
        chunk: int = 4 << 20,
        snapshot: int = 64 << 20,
        peers: bool = True,
        trace: TraceFunction | None = None,
    ) -> None:
        super().__init__(devices, trace, chunk, snapshot, peers=peers)
        self._merges = {device: MergeBuffer(self, lanes) for device, lanes in self._lanes.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(map(name_of, self.devices))
        return f"<Flow on {names}{' closed' if self._closed else ''}>"

    # Buffers

    def adopt(self, raw: hal.Buffer, *, after: Waits = ()) -> TrackedBuffer:
        """Track a raw buffer, which must not be used in another way until `TrackedBuffer.release`.

        `after` is everything that was submitted for it and has not ended: all the flow's
        work on the bytes comes after that. Raises
        `InvalidArgumentError` for memory that is tracked already, by any flow,
        and for a device that is not the flow's.
        """
        as_instance(raw, hal.Buffer, "adopt takes a raw buffer")
        self.check_open()
        lanes = self.lanes_of(raw.device)
        origin = hal.Fence(after)
        if raw.allocation is not None:
            origin |= hal.Fence(raw.allocation)
        history = History(raw, lanes, tuple(origin))
        lanes.addresses.adopt(history)
        return TrackedBuffer(self, history, raw)

    def merge_buffer(self, device: AnyDevice | None = None) -> MergeBuffer:
        """Return the merge buffer of a device, always the same one; None means the first device."""
        self.check_open()
        return self._merges[self.lanes_of(device).device]

    def close(self, timeout: float = 10.0) -> None:
        """Free what the flow made for itself; work that was submitted goes on.

        Waits for at most `timeout` seconds until held arrays are given back.
        May be called twice. Buffers stay as they are, and can be released.
        """
        seconds = as_seconds(timeout)
        keepers = self._alone(self._end)  # first: a call that begins now finds it closed
        for merge in self._merges.values():
            merge.close()
        self._close_keepers(keepers, seconds)

    # Operations

    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int] | TrackedBuffer,
        block: int | Sequence[int] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int | None = None,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Launch a kernel as `hal.Queue.dispatch` does, on the compute queue, with tracked buffers.

        The kernel reads the whole of each buffer whose parameter is a pointer
        to const, and reads and writes every other one. `reads` names
        parameters that are only read, `writes` those that are written whatever
        their type says. Memory that a kernel finds in another way is not tracked.
        """
        accesses: list[TrackedAccess] = []
        given, used = kernel_arguments(kernel, args, reads, writes)
        where: Any = grid
        if grid.__class__ is not int and isinstance(grid, (TrackedBuffer, hal.Buffer)):
            used.append((None, grid, False))
        for key, value, is_written in used:
            if value.__class__ is not TrackedBuffer or value.flow is not self:
                self.check(value, f"dispatch of {kernel.name!r}")
            accesses.append(value.writing if is_written else value.reading)
            if key is None:
                where = value.raw
            else:
                given[key] = value.raw
        lanes = self._lanes.get(kernel.device) or self.lanes_of(kernel.device)
        lane = lanes.compute if queue is None else self.queue_of(queue, lanes)
        return self.launch(kernel, where, block, given, shared_memory, accesses, lane, wait, signal)

    def record(
        self,
        *,
        device: AnyDevice | None = None,
        slots: Any = 0,  # noqa: ANN401 - as `hal.Device.record`
        one_shot: bool = False,
        hazards: str = "auto",
        command_buffer: str | None = None,
    ) -> Recording:
        """Start a recording that takes tracked buffers, and tracks its reads and writes.

        As `hal.Device.record`, but ``hazards`` is ``"auto"`` unless given.
        """
        self.check_open()
        commands = self.lanes_of(device).device.record(
            slots=slots, one_shot=one_shot, hazards=hazards, command_buffer=command_buffer
        )
        return Recording(self, commands)

    def pipeline(self, recording: Recording, *, depth: int = 3) -> Pipeline:
        """Return a pipeline that runs a recording over many inputs, `depth` of them in flight.

        Allocates `depth` buffers for each slot that has a size.
        """
        self.check_open()
        return Pipeline(self, recording, depth)

    def execute(
        self,
        commands: Recording | hal.CommandBuffer,
        *,
        bindings: Bindings = (),
        reads: Iterable[int] = (),
        writes: Iterable[int] = (),
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Run a recording with tracked buffers in its slots, on the compute queue.

        One made by `record` knows its use of its slots. A raw command
        buffer reads and writes all of them, and must use tracked memory by
        slot only. `reads` are slots that are only read, `writes` those that are
        written, whatever was recorded. A slot for the output of kernels takes a
        `hal.Output`, one for each run.
        """
        given = commands.commands if commands.__class__ is Recording else commands
        rule = "execute takes a recording (flow.record())"
        recorded = as_instance(given, hal.CommandBuffer, rule)
        accesses: list[TrackedAccess] = []
        table = bound_accesses(self, commands, bindings, reads, writes, accesses)
        lanes = self._lanes.get(recorded.device) or self.lanes_of(recorded.device)
        lane = lanes.compute if queue is None else self.queue_of(queue, lanes)
        return self.run(
            accesses,
            lambda waits: lane.execute(recorded, bindings=table or None, wait=waits, signal=signal),
            wait,
        )

    def call(
        self,
        function: Callable[..., object],
        *arguments: object,
        reads: Iterable[TrackedBuffer] = (),
        writes: Iterable[TrackedBuffer] = (),
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Call a host function as `hal.Queue.call` does, in the order of these buffers."""
        as_function(function, "call")
        return self.submit(
            lambda lane, waits: lane.call(function, *arguments, wait=waits, signal=signal),
            reads=reads,
            writes=writes,
            queue=queue,
            wait=wait,
        )

    def submit(
        self,
        function: Callable[[hal.Queue, list[Any]], hal.Submission],
        *,
        reads: Iterable[TrackedBuffer] = (),
        writes: Iterable[TrackedBuffer] = (),
        queue: QueueName = None,
        wait: Waits = (),
    ) -> hal.Submission:
        """Have `function` submit one raw operation that uses these buffers.

        It is called during the call with the queue and a wait list, which it
        passes on, and returns the submission; it must not use the flow. Its
        exceptions are passed on; later work then comes after everything
        submitted so far. The queue is the compute queue of the first buffer's
        device unless given. The operation takes `TrackedBuffer.raw`.
        """
        as_function(function, "submit")
        accesses: list[TrackedAccess] = []
        for is_written, buffers in ((False, reads), (True, writes)):
            for buffer in as_items(buffers, "submit: reads and writes are lists of buffers"):
                self.check(buffer, "submit")
                accesses.append(buffer.writing if is_written else buffer.reading)
        lanes = accesses[0][0].lanes if accesses else self.lanes_of(None)
        lane = lanes.compute if queue is None else self.queue_of(queue, lanes)

        def guarded(waits: list[Any]) -> hal.Submission:
            submission = None
            try:
                submission = function(lane, waits)
            finally:
                if not isinstance(submission, hal.Submission):
                    doubt(accesses)  # whatever it raised, it may have submitted something
            if not isinstance(submission, hal.Submission):
                message = f"submit: the function returned no submission, but {shown(submission)}"
                raise ArgumentTypeError(message)
            if submission.queue is not lane:
                for access in accesses:
                    access[0].follow(submission)
                raise InvalidArgumentError(
                    f"submit: the function was given {lane.name}, whose order the flow relies on, "
                    f"and submitted to {submission.queue.name}; pass that one with queue="
                )
            return submission

        return self.run(accesses, guarded, wait)

    def launch(
        self,
        kernel: hal.Kernel,
        where: Any,  # noqa: ANN401 - a grid, or the raw buffer that it is in
        block: int | Sequence[int] | None,
        args: Any,  # noqa: ANN401 - with raw buffers
        shared_memory: int | None,
        accesses: Sequence[TrackedAccess],
        lane: hal.Queue,
        wait: Waits,
        signal: Signals,
    ) -> hal.Submission:
        """Launch a kernel with these accesses; for the modules of this package."""
        return self.run(
            accesses,
            lambda waits: lane.dispatch(
                kernel,
                grid=where,
                block=block,
                args=args,
                shared_memory=shared_memory,
                wait=waits,
                signal=signal,
            ),
            wait,
        )
