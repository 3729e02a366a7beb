"""Keep a CUDA device behind the host, by as many steps whatever the library costs.

An allocator that reuses memory in the order of streams is only told from one that reuses it
once the host has seen the end where the device is behind. Nothing of the library's own does
that alike for all, so the driver's stream memory operations on the library's streams do.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["Gate"]

_LONGEST: Final = 0.25

_clock = time.monotonic


class Gate:
    """Let streams come no further than the host has been the time before.

    A gate is opened after `longest` seconds though the host has not come to the next one: a call
    of the driver may wait for the device.

    Attributes
    ----------
    forced
        How often the host did not go on while a gate was closed.
    """

    def __init__(self, ordinal: int, longest: float = _LONGEST) -> None:
        cu = self._cu = importlib.import_module("cuda.bindings.driver")
        self._call(cu.cuInit(0))
        self._device = self._call(cu.cuDeviceGet(ordinal))
        self._call(cu.cuCtxSetCurrent(self._call(cu.cuDevicePrimaryCtxRetain(self._device))))
        self._memory = self._call(cu.cuMemHostAlloc(64, cu.CU_MEMHOSTALLOC_DEVICEMAP))
        self._flag = ctypes.c_uint32.from_address(int(self._memory))
        self._flag.value = 0
        self._address = self._call(cu.cuMemHostGetDevicePointer(self._memory, 0))
        self._longest = longest
        self._lock = threading.Lock()
        self._placed = 0
        self._since = 0.0
        self.forced = 0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def step(self, streams: Iterable[int]) -> None:
        """Put a closed gate on all streams, and open the one before."""
        cu = self._cu
        with self._lock:
            before, self._placed = self._placed, self._placed + 1
            self._since = _clock()
        at_least = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        for stream in streams:
            handle = cu.CUstream(stream)
            self._call(cu.cuStreamWaitValue32(handle, self._address, before + 1, at_least))
        self._open(before)

    def open(self) -> None:
        """Open all that were placed."""
        self._open(self._placed)

    def close(self) -> None:
        """Open all and end; the streams have come past them."""
        self.open()
        self._ended.set()
        self._watcher.join()
        self._call(self._cu.cuMemFreeHost(self._memory))
        self._call(self._cu.cuDevicePrimaryCtxRelease(self._device))

    def _open(self, number: int) -> None:
        with self._lock:
            self._flag.value = max(self._flag.value, number)

    def _watch(self) -> None:
        while not self._ended.wait(self._longest / 5):
            with self._lock:
                is_stuck = (
                    self._flag.value < self._placed and _clock() - self._since > self._longest
                )
                if is_stuck:
                    self.forced += 1
                    self._flag.value = self._placed

    def _call(self, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - as the bindings give it
        if answer[0]:
            raise RuntimeError(str(answer[0]))
        return answer[1] if len(answer) > 1 else None
