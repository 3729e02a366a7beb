"""Define queues: the operations that users submit (rules Q1 to Q6).

Every argument is checked here, once; the engine and the backends may assume
valid input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeAlias

from hal import _sync, _transfers
from hal._buffer import Buffer
from hal._commands import CommandBuffer, execute
from hal._context import Context, wait_idle
from hal._dispatch import check_dispatch
from hal._fence import Fence, Waits, wait_entries
from hal._progress import BUDGET, drain
from hal._semaphore import Semaphore, Timepoint
from hal._stream import StreamQueue
from hal._submission import Submission
from hal._timeline import Work
from hal._wait import check_timeout
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._device import Device
    from hal._executable import Kernel

__all__ = ["Queue"]

Signals: TypeAlias = Iterable[Timepoint] | Timepoint


class Queue(StreamQueue):
    """Submit operations to one native stream of a device.

    Every method that submits returns a `Submission` at once, whatever its
    waits (Q1), and takes keyword-only ``wait`` (timepoints, submissions and
    fences, all of which the operation waits for) and ``signal`` (timepoints
    that it brings about when it has ended). Any thread may submit. What an
    operation uses is kept alive until it has retired (Q5).

    An ordered queue runs its operations first-in first-out; in an unordered
    one only waits order them (Q2).

    Errors of every submitting method: `ArgumentTypeError` and
    `InvalidArgumentError` for arguments, `ClosedError` for a closed queue,
    device or buffer; nothing has changed then. What fails later fails the
    submission and its signals.
    """

    __slots__ = ("_device",)

    def __init__(self, device: Device, context: Context, name: str, *, ordered: bool) -> None:
        super().__init__(context, name, ordered=ordered)
        self._device = device

    @property
    def device(self) -> Device:
        """Return the device that the queue belongs to."""
        return self._device

    @property
    def closed(self) -> bool:
        """Return whether the queue was closed."""
        return self._closed

    def __repr__(self) -> str:
        return f"<Queue {self._name!r} {'ordered' if self._ordered else 'unordered'}>"

    def fill(
        self,
        buffer: Buffer,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Write a pattern over `size` bytes of a buffer from `offset` on; None is the rest.

        `value` is 1, 2 or 4 bytes, a numpy scalar, or a number that is
        converted to the buffer's dtype. `offset` and `size` are multiples of
        the pattern's length; zero bytes are a no-op that still orders.
        """
        payload = _transfers.fill(self._device, buffer, value, offset, size)
        return self._submit("fill", payload, *_lists(wait, signal))

    def update(
        self,
        buffer: Buffer,
        data: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Write the bytes that `data` (bytes-like or an array) holds now, during the call."""
        payload = _transfers.update(self._device, buffer, data, offset)
        return self._submit("update", payload, *_lists(wait, signal))

    def copy(
        self,
        source: Buffer,
        target: Buffer,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Copy `size` bytes between buffers of this device; None is all of the source's rest.

        The ranges must not overlap.
        """
        payload = _transfers.copy(self._device, source, target, source_offset, target_offset, size)
        return self._submit("copy", payload, *_lists(wait, signal))

    def write(
        self,
        buffer: Buffer,
        array: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Copy a C-contiguous host array into a buffer, from `offset` bytes on.

        The array is kept alive, and must stay unchanged until the operation
        has ended; use `update` for bytes that change at once.
        """
        payload = _transfers.write(self._device, buffer, array, offset)
        return self._submit("write", payload, *_lists(wait, signal))

    def read(
        self,
        buffer: Buffer,
        array: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Copy a buffer, from `offset` bytes on, into a writable C-contiguous host array.

        The array's bytes are undefined until the operation has ended.
        """
        payload = _transfers.read(self._device, buffer, array, offset)
        return self._submit("read", payload, *_lists(wait, signal))

    def dispatch(
        self,
        kernel: Kernel,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Launch a kernel over `grid` blocks of `block` threads, up to three numbers each.

        `args` are checked against the kernel's signature by name (C5) and
        copied. `shared_memory` is the dynamic shared memory in bytes. A zero
        in the grid is a no-op that still orders.
        """
        payload = check_dispatch(self._device, kernel, grid, block, args, shared_memory)
        return self._submit("dispatch", payload, *_lists(wait, signal))

    def call(
        self,
        function: Callable[..., object],
        *arguments: object,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Call a host function, on a thread of ours, in the place of an operation.

        It may block and submit; it must not wait for what stands behind it in
        this queue. What it raises fails the submission and its signals.
        """
        if not callable(function):
            message = f"call() takes a function, not {type(function).__name__}"
            raise ArgumentTypeError(message)
        waits, signals = _lists(wait, signal)
        return self._submit("call", (function, arguments, None), waits, signals, True)  # noqa: FBT003

    def execute(
        self, commands: CommandBuffer, *, wait: Waits = (), signal: Signals = ()
    ) -> Submission:
        """Run a recorded command buffer; it may be submitted again at once (C1)."""
        payload = execute(self._device, commands)
        return self._submit("execute", payload, *_lists(wait, signal))

    def barrier(self, *, wait: Waits = (), signal: Signals = ()) -> Submission:
        """Do nothing, after `wait` and what the queue's order demands, and signal."""
        return self._submit("barrier", _transfers.NOTHING, *_lists(wait, signal))

    def flush(self) -> None:
        """Issue what is ready now; submissions make progress without it. Never blocks."""
        work: Work = []
        self._pump(work, BUDGET)
        drain(work)

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until every operation submitted so far has ended, well or not.

        For `timeout` seconds at most; None is for ever. Raises
        `DeadlineExceededError`; the operations' own errors are theirs.
        """
        wait_idle([self], None if timeout is None else check_timeout(timeout))

    def close(self, timeout: float = 10.0) -> tuple[str, ...]:
        """Cancel what is not issued, wait for what is, and give the stream back (Q6).

        If that takes more than `timeout` seconds the device is marked lost.
        Returns a line for every operation that had to be abandoned, none if
        all went well. May be called twice, and from ``with``.
        """
        deadline = _sync.monotonic() + check_timeout(timeout)
        return self._context.close_queues([self], deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Pairs: TypeAlias = tuple[tuple[Semaphore, int], ...]


def _lists(wait: Waits, signal: Signals) -> tuple[_Pairs, _Pairs]:
    """Check a wait and a signal list, and return them as pairs.

    Each semaphore stands once in each, and is signalled above what it is
    waited for (S1). On the hottest path: lists of one timepoint are looked
    at first.
    """
    waits: _Pairs = ()
    signals: _Pairs = ()
    if wait:
        kind = wait.__class__
        if (kind is list or kind is tuple) and len(wait) == 1:  # type: ignore[arg-type]
            first = wait[0]  # type: ignore[index]
            waits = (first,) if first.__class__ is Timepoint else wait_entries(wait)
        else:
            waits = Fence(wait_entries(wait))._entries
    if signal:
        kind = signal.__class__
        if (kind is list or kind is tuple) and len(signal) == 1:  # type: ignore[arg-type]
            first = signal[0]  # type: ignore[index]
            if first.__class__ is not Timepoint:
                raise ArgumentTypeError(_not_signal(first))
            signals = (first,)
        else:
            signals = _signal_entries(signal)
        for semaphore, value in signals:
            for waited, least in waits:
                if waited is semaphore and value <= least:
                    message = (
                        f"the operation waits for {semaphore.name}@{least} and signals "
                        f"{semaphore.name}@{value}: it would wait for itself; "
                        f"signal more than {least}"
                    )
                    raise InvalidArgumentError(message)
    return waits, signals


def _signal_entries(signal: Signals) -> _Pairs:
    """Return a signal list as pairs, or raise what is wrong with it."""
    if isinstance(signal, Timepoint):
        return (signal,)
    try:
        entries = tuple(signal)
    except TypeError:
        raise ArgumentTypeError(_not_signal(signal)) from None
    seen: set[Semaphore] = set()
    for entry in entries:
        if not isinstance(entry, Timepoint):
            raise ArgumentTypeError(_not_signal(entry))
        if entry[0] in seen:
            message = f"{entry[0].name} stands twice in the signal list"
            raise InvalidArgumentError(message)
        seen.add(entry[0])
    return entries


def _not_signal(entry: object) -> str:
    return f"a signal list takes timepoints (semaphore.at(value)), not {type(entry).__name__}"
