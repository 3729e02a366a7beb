"""Devices whose memory is said to be CUDA's, and tensors of another library there."""

import numpy as np
from core_harness import Latch
from interop_harness import Producer, memory_of

SIZE = 64
CUDA, ROCM = (2, 0), (10, 0)


def pretend(probe, monkeypatch, where=CUDA):
    """Make a device's memory a GPU's, which the host does not see."""
    monkeypatch.setattr(probe, "host_pointer", lambda address, memory: None)
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: where)
    monkeypatch.setattr(probe, "locate", lambda address: where)


class Tensor(Producer):
    """A tensor of the other library, whose last work is on a stream of its own."""

    def __init__(self, library, array, *, stream=None, device=CUDA, **options):
        super().__init__(array, device=device, **options)
        self.stream = stream or library.stream()

    def __dlpack__(self, *, stream=None, **asked):
        """Make the consumer's stream wait, as the standard says."""
        self.asked.append({**asked, "stream": stream})
        event = self.stream.record()
        self.stream.native.wait_event(stream, event.handle)
        if asked and not self.accepts_versions:
            message = "unexpected keyword arguments"
            raise TypeError(message)
        return super().__dlpack__()


class CudaArray:
    """An array with ``__cuda_array_interface__`` only."""

    def __init__(self, array, stream=None, **changes):
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": None,
            "stream": stream,
            **changes,
        }


def foreign(probe, array):
    """Let work touch an array, which is no allocation of hal's."""
    probe.foreign.append((array.ctypes.data, array.nbytes))
    return array


def hold(probe, device, queue=None, value=5):
    """Put a fill behind a latch on a queue; return its buffer and the latch."""
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    latch = Latch()
    probe.hold(latch)
    (queue or device.queue).fill(buffer, value)
    return buffer, latch


def content(buffer):
    """Return the bytes at a buffer's address, whatever its device says of them."""
    return memory_of(buffer.address, buffer.size)
