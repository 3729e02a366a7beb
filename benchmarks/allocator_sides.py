"""Take temporaries from hal, and from what else allocates on a CUDA device, in the same order.

What crosses to another queue is given back there, behind its last use. That is what hal and
the driver's pool mean by it; PyTorch is told by `record_stream`, and CuPy, whose blocks
belong to the stream that they were allocated on, lets that stream wait first. Nothing else is
synchronised.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from temporaries import ALLOCATE, FREE, Step

import hal

__all__ = ["LIBRARIES", "AllocatorSide", "HalSide", "RecordedSide"]

_NO_LIMIT: Final = 2**64 - 1


class AllocatorSide(Protocol):
    """Do one step of a sequence; temporaries are numbers.

    `enter` comes before the steps of another queue than before.
    """

    def enter(self, queue: int) -> None:
        """Make a queue the one that the library's next calls go to."""

    def allocate(self, tensor: int, queue: int, size: int) -> None:
        """Allocate a temporary."""

    def free(self, tensor: int, queue: int) -> None:
        """Give it back, behind what the queue was given so far."""

    def touch(self, tensor: int, queue: int, size: int, source: int | None) -> None:
        """Fill so many bytes of a temporary, or copy them from another one."""

    def after(self, queue: int, other: int) -> None:
        """Let all that follows on a queue wait for all that another one was given so far."""

    def streams(self) -> Sequence[int]:
        """Return the vendor's handles of the queues."""

    def finish(self) -> None:
        """Wait for all of it; raise what failed."""

    def held(self) -> int:
        """Return the bytes that the allocator holds now, used or not."""

    def peak(self) -> int:
        """Return the most that it held, where it counts that itself; else 0."""

    def close(self) -> None:
        """Give everything back to the device."""


class HalSide:
    """Use the public interface of hal: `Queue.alloca` and `Queue.dealloca`."""

    def __init__(self, device: str, queues: int, **parameters: str) -> None:
        self.device = hal.create_device(device, **parameters)
        self._queues = [self.device.create_queue() for _ in range(queues)]
        self._semaphores = [self.device.create_semaphore() for _ in range(queues)]
        self._signalled = [0] * queues
        self._buffers: dict[int, hal.Buffer] = {}
        self._touches: list[hal.Submission] = []

    def enter(self, queue: int) -> None:
        """Implement `AllocatorSide.enter`."""

    def allocate(self, tensor: int, queue: int, size: int) -> None:
        """Implement `AllocatorSide.allocate`."""
        self._buffers[tensor] = self._queues[queue].alloca(size)

    def free(self, tensor: int, queue: int) -> None:
        """Implement `AllocatorSide.free`."""
        self._queues[queue].dealloca(self._buffers.pop(tensor))

    def touch(self, tensor: int, queue: int, size: int, source: int | None) -> None:
        """Implement `AllocatorSide.touch`."""
        target, here = self._buffers[tensor], self._queues[queue]
        if source is None:
            self._touches.append(here.fill(target, b"\1", size=size))
        else:
            self._touches.append(here.copy(self._buffers[source], target, size=size))

    def after(self, queue: int, other: int) -> None:
        """Implement `AllocatorSide.after`."""
        self._signalled[other] += 1
        point = self._semaphores[other].at(self._signalled[other])
        self._queues[other].barrier(signal=point)
        self._queues[queue].barrier(wait=point)

    def streams(self) -> Sequence[int]:
        """Implement `AllocatorSide.streams`."""
        return [queue.stream_handle for queue in self._queues]

    def renew_queues(self) -> None:
        """Take other queues: work on a stream that others have seen costs more."""
        for queue in self._queues:
            queue.close()
        self._queues = [self.device.create_queue() for _ in self._queues]

    def finish(self) -> None:
        """Implement `AllocatorSide.finish`."""
        for queue in self._queues:
            queue.wait_idle()
        touches, self._touches = self._touches, []
        for touch in touches:  # one fails whose alloca has failed
            if touch.error is not None:
                raise touch.error

    def held(self) -> int:
        """Implement `AllocatorSide.held`."""
        return self.device.statistics().bytes_held

    def peak(self) -> int:
        """Implement `AllocatorSide.peak`."""
        return 0

    def close(self) -> None:
        """Implement `AllocatorSide.close`."""
        self._buffers.clear()
        self.device.close()


class RecordedSide:
    """Use temporaries of recordings, each pass of a sequence being one, on one queue.

    Every touch is ordered behind the one before, as on a queue.
    """

    def __init__(self, device: str) -> None:
        self.device = hal.create_device(device)
        self._last: hal.Submission | None = None

    def record(self, steps: Sequence[Step], most: int) -> hal.CommandBuffer:
        """Record a pass that touches so many bytes of each temporary at the most."""
        tensors: dict[int, Any] = {}
        with self.device.record() as commands:
            for act, _, tensor, size, source in steps:
                if act == ALLOCATE:
                    tensors[tensor] = commands.alloca(size)
                elif act == FREE:
                    commands.dealloca(tensors.pop(tensor))
                elif source is None:
                    commands.fill(tensors[tensor], b"\1", size=min(size, most))
                    commands.barrier()
                else:
                    commands.copy(tensors[source], tensors[tensor], size=min(size, most))
                    commands.barrier()
        return commands

    def execute(self, commands: hal.CommandBuffer) -> None:
        """Submit a pass."""
        self._last = self.device.queue.execute(commands)

    def streams(self) -> Sequence[int]:
        """Return the vendor's handle of the queue."""
        return [self.device.queue.stream_handle]

    def finish(self) -> None:
        """Wait for all passes; raise what the last one failed with."""
        if self._last is not None:
            self._last.wait()

    def held(self) -> int:
        """Return the bytes that hal holds now, used or not."""
        return self.device.statistics().bytes_held

    def close(self) -> None:
        """Give everything back to the device."""
        self.device.close()


class RawSide:
    """Use a pool of the CUDA driver by its bindings, with nothing around them."""

    def __init__(self, queues: int, ordinal: int) -> None:
        cu = self._cu = importlib.import_module("cuda.bindings.driver")
        self._call(cu.cuInit(0))
        self._device = self._call(cu.cuDeviceGet(ordinal))
        self._call(cu.cuCtxSetCurrent(self._call(cu.cuDevicePrimaryCtxRetain(self._device))))
        properties = cu.CUmemPoolProps()
        properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = ordinal
        self._pool = self._call(cu.cuMemPoolCreate(properties))
        names = cu.CUmemPool_attribute
        threshold = names.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._call(cu.cuMemPoolSetAttribute(self._pool, threshold, cu.cuuint64_t(_NO_LIMIT)))
        self._now = names.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        self._high = names.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
        flags = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        timing = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._streams = [self._call(cu.cuStreamCreate(flags)) for _ in range(queues)]
        self._events = [self._call(cu.cuEventCreate(timing)) for _ in range(queues)]
        self._tensors: dict[int, Any] = {}

    def enter(self, queue: int) -> None:
        """Implement `AllocatorSide.enter`."""

    def allocate(self, tensor: int, queue: int, size: int) -> None:
        """Implement `AllocatorSide.allocate`."""
        error, address = self._cu.cuMemAllocFromPoolAsync(size, self._pool, self._streams[queue])
        if error:
            raise RuntimeError(str(error))
        self._tensors[tensor] = address

    def free(self, tensor: int, queue: int) -> None:
        """Implement `AllocatorSide.free`."""
        (error,) = self._cu.cuMemFreeAsync(self._tensors.pop(tensor), self._streams[queue])
        if error:
            raise RuntimeError(str(error))

    def touch(self, tensor: int, queue: int, size: int, source: int | None) -> None:
        """Implement `AllocatorSide.touch`."""
        cu, address, stream = self._cu, self._tensors[tensor], self._streams[queue]
        if source is None:
            self._call(cu.cuMemsetD8Async(address, 1, size, stream))
        else:
            self._call(cu.cuMemcpyDtoDAsync(address, self._tensors[source], size, stream))

    def after(self, queue: int, other: int) -> None:
        """Implement `AllocatorSide.after`; a wait is for the event's last record."""
        event = self._events[other]
        self._call(self._cu.cuEventRecord(event, self._streams[other]))
        self._call(self._cu.cuStreamWaitEvent(self._streams[queue], event, 0))

    def streams(self) -> Sequence[int]:
        """Implement `AllocatorSide.streams`."""
        return [int(stream) for stream in self._streams]

    def finish(self) -> None:
        """Implement `AllocatorSide.finish`."""
        for stream in self._streams:
            self._call(self._cu.cuStreamSynchronize(stream))

    def held(self) -> int:
        """Implement `AllocatorSide.held`."""
        return int(self._call(self._cu.cuMemPoolGetAttribute(self._pool, self._now)))

    def peak(self) -> int:
        """Implement `AllocatorSide.peak`."""
        return int(self._call(self._cu.cuMemPoolGetAttribute(self._pool, self._high)))

    def close(self) -> None:
        """Implement `AllocatorSide.close`."""
        cu = self._cu
        for address in self._tensors.values():
            self._call(cu.cuMemFreeAsync(address, self._streams[0]))
        self.finish()
        for event in self._events:
            self._call(cu.cuEventDestroy(event))
        for stream in self._streams:
            self._call(cu.cuStreamDestroy(stream))
        self._call(cu.cuMemPoolDestroy(self._pool))
        self._call(cu.cuDevicePrimaryCtxRelease(self._device))

    def _call(self, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - as the bindings give it
        if answer[0]:
            raise RuntimeError(str(answer[0]))
        return answer[1] if len(answer) > 1 else None


class TorchSide:
    """Use PyTorch's caching allocator by `torch.empty`."""

    def __init__(self, queues: int, ordinal: int) -> None:
        torch = self._torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device")
        self._device = torch.device("cuda", ordinal)
        self._streams = [torch.cuda.Stream(self._device) for _ in range(queues)]
        self._events = [torch.cuda.Event() for _ in range(queues)]
        self._before = torch.cuda.current_stream(self._device)
        self._tensors: dict[int, tuple[Any, int]] = {}
        torch.cuda.reset_peak_memory_stats(self._device)

    def enter(self, queue: int) -> None:
        """Implement `AllocatorSide.enter`, as ``with torch.cuda.stream(...)`` would."""
        self._torch.cuda.set_stream(self._streams[queue])

    def allocate(self, tensor: int, queue: int, size: int) -> None:
        """Implement `AllocatorSide.allocate`."""
        torch = self._torch
        self._tensors[tensor] = torch.empty(size, dtype=torch.uint8, device=self._device), queue

    def free(self, tensor: int, queue: int) -> None:
        """Implement `AllocatorSide.free`."""
        memory, home = self._tensors.pop(tensor)
        if queue != home:
            memory.record_stream(self._streams[queue])

    def touch(self, tensor: int, queue: int, size: int, source: int | None) -> None:  # noqa: ARG002
        """Implement `AllocatorSide.touch`."""
        target = self._tensors[tensor][0][:size]
        if source is None:
            target.fill_(1)
        else:
            target.copy_(self._tensors[source][0][:size])

    def after(self, queue: int, other: int) -> None:
        """Implement `AllocatorSide.after`."""
        event = self._events[other]
        event.record(self._streams[other])
        self._streams[queue].wait_event(event)

    def streams(self) -> Sequence[int]:
        """Implement `AllocatorSide.streams`."""
        return [stream.cuda_stream for stream in self._streams]

    def finish(self) -> None:
        """Implement `AllocatorSide.finish`."""
        for stream in self._streams:
            stream.synchronize()

    def held(self) -> int:
        """Implement `AllocatorSide.held`."""
        return int(self._torch.cuda.memory_reserved(self._device))

    def peak(self) -> int:
        """Implement `AllocatorSide.peak`."""
        return int(self._torch.cuda.max_memory_reserved(self._device))

    def close(self) -> None:
        """Implement `AllocatorSide.close`."""
        self.finish()
        self._tensors.clear()
        self._torch.cuda.set_stream(self._before)
        self._torch.cuda.empty_cache()


class CupySide:
    """Use a memory pool of CuPy's, which has an arena for each stream."""

    def __init__(self, queues: int, ordinal: int) -> None:
        cupy = self._cupy = importlib.import_module("cupy")
        cupy.cuda.Device(ordinal).use()
        self._pool = cupy.cuda.MemoryPool()
        self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(queues)]
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(queues)]
        self._before = cupy.cuda.get_current_stream()
        self._tensors: dict[int, tuple[Any, int]] = {}

    def enter(self, queue: int) -> None:
        """Implement `AllocatorSide.enter`, as ``with stream`` would."""
        self._streams[queue].use()

    def allocate(self, tensor: int, queue: int, size: int) -> None:
        """Implement `AllocatorSide.allocate`."""
        self._tensors[tensor] = self._pool.malloc(size), queue

    def free(self, tensor: int, queue: int) -> None:
        """Implement `AllocatorSide.free`."""
        home = self._tensors[tensor][1]
        if queue != home:
            self.after(home, queue)
        del self._tensors[tensor]

    def touch(self, tensor: int, queue: int, size: int, source: int | None) -> None:
        """Implement `AllocatorSide.touch`."""
        target, stream = self._tensors[tensor][0], self._streams[queue]
        if source is None:
            target.memset_async(1, size, stream)
        else:
            target.copy_from_device_async(self._tensors[source][0], size, stream)

    def after(self, queue: int, other: int) -> None:
        """Implement `AllocatorSide.after`."""
        event = self._events[other]
        event.record(self._streams[other])
        self._streams[queue].wait_event(event)

    def streams(self) -> Sequence[int]:
        """Implement `AllocatorSide.streams`."""
        return [stream.ptr for stream in self._streams]

    def finish(self) -> None:
        """Implement `AllocatorSide.finish`."""
        for stream in self._streams:
            stream.synchronize()

    def held(self) -> int:
        """Implement `AllocatorSide.held`."""
        return int(self._pool.total_bytes())

    def peak(self) -> int:
        """Implement `AllocatorSide.peak`."""
        return 0

    def close(self) -> None:
        """Implement `AllocatorSide.close`."""
        self.finish()
        self._tensors.clear()
        self._before.use()
        self._pool.free_all_blocks()


LIBRARIES: Final[Mapping[str, Callable[[int, int], AllocatorSide]]] = {
    "raw": RawSide,
    "torch": TorchSide,
    "cupy": CupySide,
}
"""What else allocates on a CUDA device: of how many queues, and the device's number. Each raises
what is missing."""
