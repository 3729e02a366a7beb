"""Shared by the tests: limits, latches, threads, deterministic bytes, operations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, Self

import numpy as np
import pytest
from numpy.typing import NDArray

import hal
from hal.errors import HalError, OperationError

__all__ = [
    "LIMIT",
    "OPERATIONS",
    "PRODUCERS",
    "SHORT",
    "Hold",
    "Latch",
    "MakeLatch",
    "MakeQueue",
    "MakeSemaphore",
    "OpenDevice",
    "Operations",
    "Producers",
    "assert_fails",
    "broken",
    "callbacks_done",
    "first_difference",
    "in_threads",
    "pattern",
]

LIMIT: Final = 10.0
"""Seconds that a wait may take which must succeed; it is only ever reached by a failing test."""

SHORT: Final = 0.02
"""Seconds of a wait that must time out."""


class Latch:
    """A host call that holds an ordered queue until it is opened.

    Attributes
    ----------
    submission
        The host call.
    running
        An event that is set once the call runs.
    """

    def __init__(self, queue: hal.Queue, **lists: Any) -> None:  # noqa: ANN401 - as the queue's
        self._gate = threading.Event()
        self.running = threading.Event()
        self.submission = queue.call(self._hold, **lists)

    def _hold(self) -> None:
        self.running.set()
        if not self._gate.wait(2 * LIMIT):
            message = "nobody opened the latch"
            raise TimeoutError(message)

    def wait_running(self) -> None:
        """Block until the queue is held."""
        assert self.running.wait(LIMIT), "the host call did not begin"

    def open(self) -> None:
        """Release the queue."""
        self._gate.set()


class MakeLatch(Protocol):
    """Makes latches that are opened at the end of the test."""

    def __call__(self, queue: hal.Queue, **lists: Any) -> Latch: ...  # noqa: ANN401


class Hold:
    """A kernel that holds a native stream until its flag is set.

    Work behind it is issued to the driver; work behind a `Latch` is not. The
    kernel gives up after `turns` polls of the flag, which take seconds at least.
    """

    def __init__(
        self, device: hal.Device, program: hal.Executable, queue: hal.Queue, turns: int = 1 << 30
    ) -> None:
        self._flag = device.allocate(4, dtype=np.uint32, memory="host")
        self._seen = device.upload(np.zeros(1, np.uint32))
        self._flag.map(wait=())[:] = 0
        arguments = (self._flag, self._seen, turns)
        self.submission = queue.dispatch(program["hold"], grid=1, block=1, args=arguments)

    def open(self) -> None:
        """Let it go."""
        self._flag.map(wait=())[:] = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has_seen(self) -> bool:
        """Block until it has ended; return whether it was released and did not give up."""
        return bool(self._seen.numpy(wait=self.submission, timeout=LIMIT)[0])

    def close(self) -> None:
        """Release it and wait for its end."""
        self.open()
        self.submission.wait(LIMIT)
        self._flag.close()
        self._seen.close()


class MakeSemaphore(Protocol):
    """Makes semaphores that hold up nothing after the test."""

    def __call__(self, initial: int = 0, *, name: str | None = None) -> hal.Semaphore: ...


class MakeQueue(Protocol):
    """Makes queues, of `device` if given, that are closed at the end of the test."""

    def __call__(self, *, ordered: bool = True, device: hal.Device | None = None) -> hal.Queue: ...


class OpenDevice(Protocol):
    """Opens devices of the backend, closed at the end of the test."""

    def __call__(self, **parameters: object) -> hal.Device: ...


PRODUCERS: Final = ("host", "device", "call", "other_queue", "other_device")
"""Everyone who can bring a value about: see `Producers`."""


class Producers:
    """Signals semaphores in each possible way.

    ``host``: from this thread. ``device``: with an operation of the queue.
    ``call``: with a host call. ``other_queue`` and ``other_device``: with an
    operation of theirs.
    """

    def __init__(self, queue: hal.Queue, second: hal.Queue, foreign: hal.Queue) -> None:
        self._queues = {
            "device": queue,
            "call": queue,
            "other_queue": second,
            "other_device": foreign,
        }
        self._buffers: list[hal.Buffer] = []

    def signal(self, producer: str, *timepoints: hal.Timepoint) -> None:
        """Signal the timepoints: at once from the host, later from anything else."""
        if producer == "host":
            for semaphore, value in timepoints:
                semaphore.signal(value)
            return
        queue = self._queues[producer]
        if producer == "call":
            queue.call(threading.get_ident, signal=timepoints)
            return
        buffer = queue.device.allocate(4096)
        self._buffers.append(buffer)
        queue.fill(buffer, 1, signal=timepoints)

    def close(self) -> None:
        """Let the buffers go."""
        for buffer in self._buffers:
            buffer.close()


OPERATIONS: Final = ("fill", "update", "copy", "write", "read", "call", "execute", "barrier")
"""Every operation that needs no kernel."""


class Operations:
    """Submits each kind of operation, and tells whether it has run."""

    def __init__(self, device: hal.Device) -> None:
        self.device = device
        self.buffer = device.upload(np.zeros(64, np.uint8))
        self.source = device.upload(np.full(64, 7, np.uint8))
        self.host = np.full(64, 7, np.uint8)
        self.out = np.zeros(64, np.uint8)
        self.called = 0
        with device.record() as self.commands:
            self.commands.fill(self.buffer, 7)

    def submit(self, kind: str, queue: hal.Queue, **lists: Any) -> hal.Submission:  # noqa: ANN401
        """Submit one."""
        arguments: dict[str, tuple[Any, ...]] = {
            "fill": (self.buffer, 7),
            "update": (self.buffer, self.host),
            "copy": (self.source, self.buffer),
            "write": (self.buffer, self.host),
            "read": (self.source, self.out),
            "call": (self._call,),
            "execute": (self.commands,),
            "barrier": (),
        }
        submission: hal.Submission = getattr(queue, kind)(*arguments[kind], **lists)
        return submission

    def _call(self) -> None:
        self.called += 1

    def has_run(self, kind: str) -> bool:
        """Return whether one of the kind has had its effect; a barrier has none."""
        if kind == "call":
            return self.called > 0
        if kind == "read":
            return bool((self.out == 7).all())
        return kind == "barrier" or bool((self.buffer.numpy(wait=(), timeout=LIMIT) == 7).all())

    def nothing_has_run(self) -> bool:
        """Return whether no operation has had any effect."""
        return not (
            self.called or self.out.any() or self.buffer.numpy(wait=(), timeout=LIMIT).any()
        )


def pattern(size: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return bytes with a long period, no leading zero, and a seed of their own."""
    index = np.arange(min(size, 1 << 15), dtype=np.uint64)  # the period at most
    mixed = index * 131 + (index >> np.uint64(7)) * 17 + 0x5A + 61 * seed
    return np.resize(mixed.astype(np.uint8), size)


def first_difference(found: bytes, expected: bytes) -> int | None:
    """Return where two byte strings differ first, or None if they are equal.

    For long strings: pytest may take minutes to list all differences.
    """
    if found == expected:
        return None
    size = min(len(found), len(expected))
    differs = np.frombuffer(found, np.uint8, size) != np.frombuffer(expected, np.uint8, size)
    return int(differs.argmax()) if differs.any() else size


def in_threads(functions: Iterable[Callable[[], object]]) -> list[Any]:
    """Call each function on a thread of its own; return their results, or raise the first error."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run(index: int, function: Callable[[], object]) -> None:
        try:
            results[index] = function()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's thread
            errors.append(error)

    threads = []
    for index, function in enumerate(functions):
        results.append(None)
        threads.append(threading.Thread(target=run, args=(index, function), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
        assert not thread.is_alive(), "a thread of the test does not end"
    if errors:
        raise errors[0]
    return results


def broken(text: str = "broken on purpose") -> OperationError:
    """Return an error to fail something with."""
    return OperationError(text)


def assert_fails(waitable: Any, error: BaseException) -> None:  # noqa: ANN401 - any wait list
    """Check that a wait for something raises the class and the text of `error`, afresh."""
    kind = type(error) if isinstance(error, HalError) else hal.errors.SemaphoreFailedError
    with pytest.raises(kind) as caught:
        hal.wait_all(waitable, LIMIT)
    assert caught.value is not error
    assert str(error) in str(caught.value)


def callbacks_done() -> None:
    """Block until every callback that was sent off before has returned."""
    # One thread makes all callbacks, in order.
    last = threading.Event()
    hal.create_semaphore().on_reached(0, lambda _: last.set())
    assert last.wait(LIMIT), "callbacks do not come"
