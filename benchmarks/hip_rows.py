"""Take the samples through hip-python with nothing around it, for comparison; see `cuda_rows`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cuda_rows import EventSide
from timeline_rows import FILL_BYTES, PATTERN

__all__ = ["RawHipSide", "sides"]

_clock = time.perf_counter


class RawHipSide(EventSide):
    """Measure the bindings of HIP's runtime, with nothing around them."""

    def __init__(self, ordinal: int = 0) -> None:
        hip = importlib.import_module("rocm.bindings.hip")
        self._hip = hip
        self._call(hip.hipInit(0))
        self._call(hip.hipSetDevice(ordinal))
        stream = self._call(hip.hipStreamCreateWithFlags(hip.hipStreamNonBlocking))
        address = self._call(hip.hipMalloc(FILL_BYTES))
        self._stream, self._address = stream, address
        word, words = int.from_bytes(PATTERN, "little"), FILL_BYTES // len(PATTERN)
        self._wait = lambda event: hip.hipStreamWaitEvent(stream, event, 0)
        self._fill = lambda: hip.hipMemsetD32Async(address, word, words, stream)
        self._record = lambda event: hip.hipEventRecord(event, stream)
        self._is_done = lambda event: not hip.hipEventQuery(event)[0]
        timing = hip.hipEventDisableTiming
        self._event = lambda: self._call(hip.hipEventCreateWithFlags(timing))

    def alloca(self, count: int) -> Mapping[str, float]:
        """Allocate and free 4 KiB in the order of the stream; one pair."""
        hip, stream = self._hip, self._stream
        start = _clock()
        for _ in range(count):
            _, address = hip.hipMallocAsync(4096, stream)
            hip.hipFreeAsync(address, stream)
        elapsed = _clock() - start
        self._call(hip.hipStreamSynchronize(stream))
        return {"": elapsed / count * 1e6}

    def check(self) -> None:
        """Implement `TimelineSide.check`."""
        found = bytearray(FILL_BYTES)
        kind = self._hip.hipMemcpyKind.hipMemcpyDeviceToHost
        self._call(self._hip.hipMemcpyAsync(found, self._address, FILL_BYTES, kind, self._stream))
        self._call(self._hip.hipStreamSynchronize(self._stream))
        if bytes(found) != PATTERN * (FILL_BYTES // len(PATTERN)):
            message = f"the runtime left {bytes(found[:8])!r} in the buffer, not {PATTERN!r}"
            raise AssertionError(message)

    def _call(self, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - as the bindings give it
        if answer[0]:
            raise RuntimeError(str(answer[0]))
        return answer[1] if len(answer) > 1 else None


def sides() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Return what else can be measured: a name, and a class that raises what is missing."""
    yield "raw hip", RawHipSide
