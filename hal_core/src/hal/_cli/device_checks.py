"""Check that a device does what everything else needs of it: the work of ``hal doctor``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

import hal
from hal.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    CompilationError,
    DeadlineExceededError,
    DeviceLostError,
    HalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfMemoryError,
    PluginError,
)

LIMIT: Final = 10.0
"""Seconds that one wait for the device may take; a healthy one needs milliseconds."""

_COUNT: Final = 1 << 16  # elements of the checks' buffers

_KERNEL: Final = """
__global__ void triple_and_add(const int *x, int *y, int offset, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 3 * x[i] + offset;
}
"""

_NEXT_STEPS: Final[tuple[tuple[type[HalError], str], ...]] = (
    (
        CompilationError,
        "see that the compiler that {backend} uses is installed, and is one its README names",
    ),
    (
        DeviceLostError,
        "read the driver's log (dmesg); a device lost each time needs a reset or another driver",
    ),
    (
        DeadlineExceededError,
        "see whether other work holds the device; if none does, run: hal conformance {backend}",
    ),
    (OutOfMemoryError, "end what holds the device's memory, and try again"),
    (BackendUnavailableError, "do what the reason says; hal devices shows what is here"),
    (PluginError, "install the plugin of {backend} again, in another version, or not at all"),
)
_NEXT_STEP: Final = "run: hal conformance {backend}; tell the authors of the plugin what it finds"
"""The next step for any other failure, including wrong results."""

_NO_CALLS: Final = (
    "neither the backend nor this version of its driver has a call table, which makes calls faster"
)
_MISTAKES: Final = (BackendNotFoundError, NotFoundError, InvalidArgumentError)
"""Errors from opening a device for a wrong specification."""


class _WrongResultError(Exception):
    """The error for a device that reports work as done that is not done."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one check.

    It is absent if the device declares no such feature, or has no call table, and skipped if a
    failure before left nothing to check.
    """

    check: str  # a key of `CHECKS`, or "open", "calls" or "close"
    status: Literal["passed", "failed", "absent", "skipped"]
    seconds: float = 0.0
    reason: str = ""  # why it did not pass, in one line
    next_step: str = ""  # what to do about a failure


def examine(spec: str, note: Callable[[str], object] = lambda _: None) -> Iterator[CheckOutcome]:
    """Open a device, make every check on it, close it; yield each outcome.

    `note` is called with the name of each check before it begins. Blocks for
    at most `LIMIT` seconds a wait, and as long as the compiler takes. Raises
    `BackendNotFoundError`, `NotFoundError` or `InvalidArgumentError` for an
    unknown device, and no error of a device or its plugin.
    """
    opened: list[hal.Device] = []
    note("open")
    backend = spec.partition("?")[0].partition(":")[0]
    outcome = _outcome("open", backend, lambda: opened.append(hal.create_device(spec)))
    yield outcome
    if not opened:
        return
    device = opened[0]
    if device._context.calls is None:  # noqa: SLF001 - nobody else asks
        yield CheckOutcome("calls", "absent", reason=_NO_CALLS)
    stopped = ""
    try:
        for name, (feature, check) in CHECKS.items():
            if feature and feature not in device.features:
                reason = f"the device does not declare the feature {feature!r}"
                yield CheckOutcome(name, "absent", reason=reason)
            elif stopped:
                yield CheckOutcome(name, "skipped", reason=stopped)
            else:
                note(name)
                outcome = _outcome(name, device.backend, lambda check=check: check(device))  # type: ignore[misc]
                yield outcome
                if outcome.status == "failed":
                    stopped = _why_stop(device)
    finally:
        note("close")
        closed = _outcome("close", device.backend, lambda: _close(device))
    if not stopped:
        yield closed


def _outcome(name: str, backend: str, work: Callable[[], object]) -> CheckOutcome:
    start = time.perf_counter()
    reason = next_step = ""
    try:
        work()
    except Exception as error:  # a plugin may raise anything, which is reported
        if name == "open" and isinstance(error, _MISTAKES):
            raise
        reason = _one_line(error)
        kinds = (step for kind, step in _NEXT_STEPS if isinstance(error, kind))
        next_step = next(kinds, _NEXT_STEP).format(backend=backend)
    seconds = time.perf_counter() - start
    return CheckOutcome(name, "failed" if reason else "passed", seconds, reason, next_step)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, _WrongResultError):
        return text
    if isinstance(error, HalError) and text:
        native = error.native_name
        return f"{text} ({native})" if native and native not in text else text
    return f"{type(error).__name__}: {text}"


def _why_stop(device: hal.Device) -> str:
    """Return why the checks after a failed one would tell nothing new; empty if they would."""
    if device.lost:
        return "the device was lost"
    try:
        device.wait_idle(1.0)
    except DeadlineExceededError:
        return "the device does not answer"
    except HalError:
        return "" if not device.lost else "the device was lost"
    return ""


def _close(device: hal.Device) -> None:
    left = device.close(LIMIT)
    if left:
        raise _WrongResultError(f"left behind: {'; '.join(left)}")


def _same(what: str, found: NDArray[np.int32], expected: NDArray[np.int32]) -> None:
    """Raise with the first difference unless the arrays are equal."""
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        i = int(wrong[0])
        raise _WrongResultError(
            f"{what}: {wrong.size} of {found.size} values are wrong; at {i}: {found[i]}, "
            f"which should be {expected[i]}"
        )


def _numbers() -> NDArray[np.int32]:
    """Return numbers that differ from their neighbours, also in each byte."""
    return np.arange(_COUNT, dtype=np.int32) * np.int32(7919) + np.int32(0x01020304)


def _allocate(device: hal.Device) -> hal.Buffer:
    return device.allocate(4 * _COUNT, dtype=np.int32)


def _check_fill(device: hal.Device) -> None:
    buffer = _allocate(device)
    filled = device.queue.fill(buffer, b"\x01\x02\x03\x04")
    expected = np.full(_COUNT, 0x04030201, np.int32)
    _same("fill", buffer.numpy(wait=[filled], timeout=LIMIT), expected)


def _check_copy(device: hal.Device) -> None:
    """Copy to the device, across it and back, on three queues."""
    numbers, found = _numbers(), np.zeros(_COUNT, np.int32)
    source, target = _allocate(device), _allocate(device)
    written = device.queues.upload.write(source, numbers)
    copied = device.queue.copy(source, target, wait=[written])
    device.queues.download.read(target, found, wait=[copied]).wait(LIMIT)
    _same("copy", found, numbers)


def _check_wait(device: hal.Device) -> None:
    """Hold work back until the host signals, and have it signal the host."""
    buffer, other = _allocate(device), _allocate(device)
    ready, done = hal.create_semaphore(), hal.create_semaphore()
    device.queue.fill(buffer, 0, wait=[ready.at(1)], signal=[done.at(1)])
    # While other work goes there and back, work that does not wait would end.
    device.queues.upload.fill(other, 0).wait(LIMIT)
    if done.query():
        raise _WrongResultError("wait: the device did not wait for the host's signal")
    ready.signal(1)
    done.wait(1, LIMIT)
    _same("wait", buffer.numpy(wait=(), timeout=LIMIT), np.zeros(_COUNT, np.int32))


def _check_kernel(device: hal.Device) -> None:
    numbers = _numbers()
    program = device.compile(_KERNEL, filename="doctor.cpp")
    kernel = program["triple_and_add"]
    block = min(64, kernel.max_threads_per_block)
    source, target = _allocate(device), _allocate(device)
    written = device.queues.upload.write(source, numbers)
    ran = device.queue.dispatch(
        kernel,
        grid=-(-_COUNT // block),
        block=block,
        args=(source, target, 5, _COUNT),
        wait=[written],
    )
    _same("kernel", target.numpy(wait=[ran], timeout=LIMIT), 3 * numbers + np.int32(5))


def _check_graph(device: hal.Device) -> None:
    """Record a fill and a copy that depends on it, and run them twice as a graph."""
    source, target = _allocate(device), _allocate(device)
    with device.record(command_buffer="graph") as commands:
        commands.fill(source, b"\x0a\x0b\x0c\x0d")
        commands.barrier()
        commands.copy(source, target)
    for _ in range(2):
        cleared = device.queue.fill(target, 0)
        ran = device.queue.execute(commands, wait=[cleared])
        found = target.numpy(wait=[ran], timeout=LIMIT)
        _same("graph", found, np.full(_COUNT, 0x0D0C0B0A, np.int32))


CHECKS: Final[dict[str, tuple[str, Callable[[hal.Device], None]]]] = {
    "fill": ("", _check_fill),
    "copy": ("", _check_copy),
    "wait": ("", _check_wait),
    "kernel": ("compile", _check_kernel),
    "graph": ("graphs", _check_graph),
}
"""The checks between opening a device and closing it: the feature each needs, and its function."""
