"""Hold native devices on the software driver, for the tests of the CUDA backend."""

import ctypes
import struct

import numpy as np

from hal.native import MemoryType


class Lab:
    """Make streams, memory and graphs on one native device, and give all of it back at the end."""

    def __init__(self, driver, index=0):
        self.device = driver.open_device(index, {})
        self._streams = []
        self._memory = []
        self._keep = []

    def stream(self):
        self._streams.append(self.device.create_stream())
        return self._streams[-1]

    def array(self, values, memory=MemoryType.MANAGED):
        """Return memory that host and device see, as an array that shares it."""
        values = np.ascontiguousarray(values)
        address = self.device.allocate(max(values.nbytes, 1), memory)
        self._memory.append((address, memory))
        host = self.device.host_pointer(address, memory)
        raw = (ctypes.c_char * max(values.nbytes, 1)).from_address(host)
        array = np.frombuffer(raw, values.dtype, values.size).reshape(values.shape)
        array[...] = values
        return array

    def parameters(self, *values):
        """Return the address of an array with one pointer to each argument's bytes."""
        held = [
            ctypes.c_uint64(each.ctypes.data) if isinstance(each, np.ndarray) else each
            for each in values
        ]
        pointers = (ctypes.c_void_p * max(len(held), 1))(*map(ctypes.addressof, held))
        self._keep.append((held, pointers))
        return ctypes.addressof(pointers)

    def finish(self):
        for stream in self._streams:
            self.device.synchronize_stream(stream)

    def close(self):
        self.device.bind()  # as the core does before each batch of calls
        for stream in self._streams:
            self.device.destroy_stream(stream)
        for address, memory in self._memory:
            self.device.free(address, memory)
        self.device.close()


def fatbin(*parts):
    """Return a fat binary of parts, each a kind and an architecture's number."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, 16)
        + bytes(12)
        + struct.pack("<I", number)
        + bytes(48)
        for kind, number in parts
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
