"""Take the samples through what else drives a CUDA device from Python, for comparison.

The same work, a fill of 256 bytes behind a wait and before a signal, in the
terms of each library: a recorded event stands for a signal, a stream's wait
for it for a wait. None of them has timelines: a signal is reserved by nobody,
and no work can be submitted before the event that it waits for was recorded
(but through `Raw`'s stream memory operations). What a library cannot do is not
in its class, and its cell stays empty. See `timeline_rows.TimelineSide`.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from timeline_rows import FILL_BYTES, PATTERN

__all__ = ["Driver", "DriverCopies", "EventSide", "RawMemorySide", "RawSide", "sides"]

_WORDS: Final = FILL_BYTES // 4
_WORD: Final = int.from_bytes(PATTERN, "little")

_NUMBERS: Final = 4096
"""More than any sample has events."""

_clock = time.perf_counter


class EventSide:
    """Measure a library by five of its calls, which its class binds once."""

    _wait: Callable[[Any], object]
    _fill: Callable[[], object]
    _record: Callable[[Any], object]
    _is_done: Callable[[Any], bool]
    _event: Callable[[], Any]

    def submit(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.submit`."""
        wait, fill, record = self._wait, self._fill, self._record
        met, events = self._event(), [self._event() for _ in range(count)]
        record(met)
        self._finish(met)
        start = _clock()
        for event in events:
            wait(met)
            fill()
            record(event)
        elapsed = _clock() - start
        self._finish(events[-1])
        return {"": elapsed / count * 1e6}

    def chain(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.chain`."""
        wait, fill, record = self._wait, self._fill, self._record
        events = [self._event() for _ in range(count + 1)]
        record(events[0])
        self._finish(events[0])
        start = _clock()
        before = events[0]
        for event in events[1:]:
            wait(before)
            fill()
            record(event)
            before = event
        self._finish(before)
        return {"": (_clock() - start) / count * 1e6}

    def round_trip(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.round_trip`; waits by asking again and again."""
        fill, record, event = self._fill, self._record, self._event()
        start = _clock()
        for _ in range(count):
            fill()
            record(event)
            self._finish(event)
        return {"": (_clock() - start) / count * 1e6}

    def _finish(self, event: object) -> None:
        is_done = self._is_done
        while not is_done(event):
            pass

    def check(self) -> None:
        """Implement `TimelineSide.check`."""


class Driver:
    """The bindings of the driver's own interface; its context is the calling thread's.

    Attributes
    ----------
    cu
        The module.
    context
        The device's primary one, which hal has as well.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.cu: Any = importlib.import_module("cuda.bindings.driver")
        self.call(self.cu.cuInit(0))
        device = self.call(self.cu.cuDeviceGet(ordinal))
        self.context = self.call(self.cu.cuDevicePrimaryCtxRetain(device))
        self.enter()

    def enter(self) -> None:
        """Make the context the calling thread's."""
        self.call(self.cu.cuCtxSetCurrent(self.context))

    def stream(self) -> Any:  # noqa: ANN401 - as the bindings give it
        """Return a new stream."""
        return self.call(self.cu.cuStreamCreate(self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def event(self) -> Any:  # noqa: ANN401 - as the bindings give it
        """Return a new event that takes no time stamp."""
        return self.call(self.cu.cuEventCreate(self.cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def call(self, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - as the bindings give it
        """Return what a call gave; raise `RuntimeError` if that is an error."""
        if answer[0] != self.cu.CUresult.CUDA_SUCCESS:
            raise RuntimeError(str(answer[0]))
        return answer[1] if len(answer) > 1 else None


class RawSide(EventSide):
    """Measure the bindings of the driver's own interface, with nothing around them."""

    def __init__(self, ordinal: int = 0) -> None:
        driver = Driver(ordinal)
        cu, self._call, stream = driver.cu, driver.call, driver.stream()
        address = self._call(cu.cuMemAlloc(FILL_BYTES))
        flags = self._call(cu.cuMemHostAlloc(64, cu.CU_MEMHOSTALLOC_DEVICEMAP))
        self._flags = (ctypes.c_uint32 * 2).from_address(int(flags))
        self._flag = int(self._call(cu.cuMemHostGetDevicePointer(flags, 0)))
        self._cu, self._stream, self._address = cu, stream, address
        done = cu.CUresult.CUDA_SUCCESS
        self._wait = lambda event: cu.cuStreamWaitEvent(stream, event, 0)
        self._fill = lambda: cu.cuMemsetD32Async(address, _WORD, _WORDS, stream)
        self._record = lambda event: cu.cuEventRecord(event, stream)
        self._is_done = lambda event: cu.cuEventQuery(event)[0] == done
        self._event = driver.event

    def submit(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.submit`: the three calls, written out."""
        cu, stream, address = self._cu, self._stream, self._address
        met, events = self._event(), [self._event() for _ in range(count)]
        self._record(met)
        self._finish(met)
        start = _clock()
        for event in events:
            cu.cuStreamWaitEvent(stream, met, 0)
            cu.cuMemsetD32Async(address, _WORD, _WORDS, stream)
            cu.cuEventRecord(event, stream)
        elapsed = _clock() - start
        self._finish(events[-1])
        return {"": elapsed / count * 1e6}

    @property
    def stream(self) -> object:
        """Return the stream that all work is put on."""
        return self._stream

    def host_signal(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.host_signal`, by stream memory operations."""
        cu, flags, flag = self._cu, self._flags, self._flag
        at_least = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        flags[0] = flags[1] = 0
        samples = []
        for value in range(1, count + 1):
            self._call(cu.cuStreamWaitValue32(self._stream, flag, value, at_least))
            self._fill()
            self._call(cu.cuStreamWriteValue32(self._stream, flag + 4, value, 0))
            start = _clock()
            flags[0] = value
            while flags[1] < value:
                pass
            samples.append(_clock() - start)
        return {"": statistics.median(samples) * 1e6}

    def alloca(self, count: int) -> Mapping[str, float]:
        """Allocate and free 4 KiB in the order of the stream; one pair."""
        cu, stream = self._cu, self._stream
        start = _clock()
        for _ in range(count):
            _, address = cu.cuMemAllocAsync(4096, stream)
            cu.cuMemFreeAsync(address, stream)
        elapsed = _clock() - start
        self._call(cu.cuStreamSynchronize(stream))
        return {"": elapsed / count * 1e6}

    def check(self) -> None:
        """Implement `TimelineSide.check`."""
        found = bytearray(FILL_BYTES)
        self._call(self._cu.cuMemcpyDtoH(found, self._address, FILL_BYTES))
        if bytes(found) != PATTERN * (FILL_BYTES // len(PATTERN)):
            message = f"the driver left {bytes(found[:8])!r} in the buffer, not {PATTERN!r}"
            raise AssertionError(message)


class RawMemorySide(RawSide):
    """Measure the driver's stream memory operations: an event is a number in pinned memory.

    What streams write and await are numbers of 64 bits, as hal does with ``semaphores=memory``.
    """

    submit = EventSide.submit

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__(ordinal)
        cu, stream = self._cu, self._stream
        size = 8 * _NUMBERS
        memory = self._call(cu.cuMemHostAlloc(size, cu.CU_MEMHOSTALLOC_DEVICEMAP))
        words = (ctypes.c_uint64 * _NUMBERS).from_address(int(memory))
        ctypes.memset(words, 0, size)
        base = int(self._call(cu.cuMemHostGetDevicePointer(memory, 0)))
        places = itertools.cycle(range(_NUMBERS))

        def event() -> list[int]:
            place = next(places)
            return [place, base + 8 * place, words[place]]

        def record(event: list[int]) -> object:
            event[2] += 1
            return cu.cuStreamWriteValue64(stream, event[1], event[2], 0)

        self._event = event
        self._record = record
        self._wait = lambda event: cu.cuStreamWaitValue64(stream, event[1], event[2], 0)
        self._is_done = lambda event: words[event[0]] >= event[2]


class DriverCopies:
    """Copy between host and device memory by the driver's own calls."""

    def __init__(self, raw: RawSide, size: int) -> None:
        cu = raw._cu  # noqa: SLF001 - one module
        self._cu, self._raw, self._size = cu, raw, size
        self._host = raw._call(cu.cuMemHostAlloc(size, 0))  # noqa: SLF001
        self._device = raw._call(cu.cuMemAlloc(size))  # noqa: SLF001

    def upload(self) -> None:
        """Enqueue a copy to the device."""
        self._cu.cuMemcpyHtoDAsync(self._device, int(self._host), self._size, self._raw.stream)

    def download(self) -> None:
        """Enqueue a copy to the host."""
        self._cu.cuMemcpyDtoHAsync(int(self._host), self._device, self._size, self._raw.stream)

    def finish(self) -> None:
        """Wait for all of them."""
        self._cu.cuStreamSynchronize(self._raw.stream)

    def upload_now(self, source: NDArray[np.uint8]) -> None:
        """Copy an array to the device, and wait until its bytes were taken."""
        self._cu.cuMemcpyHtoD(self._device, source.ctypes.data, self._size)

    def upload_to_end(self, source: NDArray[np.uint8]) -> None:
        """Copy an array to the device, and wait until it is there for every stream."""
        stream = self._raw.stream
        self._cu.cuMemcpyHtoDAsync(self._device, source.ctypes.data, self._size, stream)
        self._cu.cuStreamSynchronize(stream)

    def download_now(self, target: NDArray[np.uint8]) -> None:
        """Copy to an array, and wait."""
        self._cu.cuMemcpyDtoH(target.ctypes.data, self._device, self._size)

    def close(self) -> None:
        """Give the memory back."""
        self._cu.cuMemFreeHost(self._host)
        self._cu.cuMemFree(self._device)


class _TorchSide(EventSide):
    def __init__(self) -> None:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device")
        stream = torch.cuda.Stream()
        tensor = torch.empty(_WORDS, dtype=torch.int32, device="cuda")
        torch.cuda.set_stream(stream)
        self._torch = torch
        self._wait = stream.wait_event
        self._fill = lambda: tensor.fill_(_WORD)
        self._record = lambda event: event.record(stream)
        self._is_done = lambda event: bool(event.query())
        self._event = torch.cuda.Event

    def alloca(self, count: int) -> Mapping[str, float]:
        """Make and drop a tensor of 4 KiB; one pair."""
        empty, kind = self._torch.empty, self._torch.uint8
        start = _clock()
        for _ in range(count):
            empty(4096, dtype=kind, device="cuda")
        return {"": (_clock() - start) / count * 1e6}


class _CupySide(EventSide):
    def __init__(self) -> None:
        cupy = importlib.import_module("cupy")
        stream = cupy.cuda.Stream(non_blocking=True)
        memory = cupy.cuda.alloc(FILL_BYTES)
        self._cupy = cupy
        self._wait = stream.wait_event
        self._fill = lambda: memory.memset_async(1, FILL_BYTES, stream)
        self._record = lambda event: event.record(stream)
        self._is_done = lambda event: bool(event.done)
        self._event = lambda: cupy.cuda.Event(disable_timing=True)

    def alloca(self, count: int) -> Mapping[str, float]:
        """Take and give back 4 KiB of the memory pool; one pair."""
        alloc = self._cupy.cuda.alloc
        start = _clock()
        for _ in range(count):
            alloc(4096)
        return {"": (_clock() - start) / count * 1e6}


class _CudaCoreSide(EventSide):
    def __init__(self) -> None:
        core = importlib.import_module("cuda.core")
        if not hasattr(core, "Device"):
            core = importlib.import_module("cuda.core.experimental")
        device = core.Device()
        device.set_current()
        stream = device.create_stream()
        buffer = device.allocate(FILL_BYTES, stream=stream)
        self._device, self._stream = device, stream
        self._wait = stream.wait
        self._fill = lambda: buffer.fill(PATTERN, stream=stream)
        self._record = stream.record
        self._is_done = lambda event: bool(event.is_done)
        self._event = lambda: stream.record()  # noqa: PLW0108 - it takes an event or none

    def alloca(self, count: int) -> Mapping[str, float]:
        """Allocate and free 4 KiB in the order of the stream; one pair."""
        allocate, stream = self._device.allocate, self._stream
        start = _clock()
        for _ in range(count):
            allocate(4096, stream=stream).close(stream)
        elapsed = _clock() - start
        stream.sync()
        return {"": elapsed / count * 1e6}


def sides() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Return what else can be measured: a name, and a class that raises what is missing."""
    yield "raw", RawSide
    yield "raw, memory", RawMemorySide
    yield "torch", _TorchSide
    yield "cupy", _CupySide
    yield "cuda.core", _CudaCoreSide
