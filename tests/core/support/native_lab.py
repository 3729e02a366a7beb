"""Streams, memory and arguments on one native device, for the tests of backends."""

import ctypes

import numpy as np

from hal.native import MemoryType

__all__ = ["Lab", "packed"]


def packed(values):
    """Return the address of an array with one pointer to each argument's bytes, and its keeper.

    Arrays are passed as pointers, numpy's scalars and what ctypes makes by value.
    """
    held = [
        ctypes.c_void_p(each.ctypes.data)
        if isinstance(each, np.ndarray)
        else each
        if isinstance(each, (ctypes._SimpleCData, ctypes.Structure))
        else ctypes.create_string_buffer(each.tobytes(), each.nbytes)
        for each in values
    ]
    pointers = (ctypes.c_void_p * max(len(held), 1))(*map(ctypes.addressof, held))
    return ctypes.addressof(pointers), (held, pointers)


class Lab:
    """Make streams, memory and modules on one native device, and give all of it back at the end."""

    kind = MemoryType.MANAGED

    def __init__(self, driver, index=0, **parameters):
        self.device = driver.open_device(index, parameters)
        self._streams = []
        self._memory = []
        self._modules = []
        self._keep = []

    def stream(self):
        self._streams.append(self.device.create_stream())
        return self._streams[-1]

    def memory(self, size):
        self._memory.append(self.device.allocate(size, self.kind))
        return self._memory[-1]

    def array(self, values, dtype=None):
        """Return memory that host and device see, as an array that shares it."""
        values = np.ascontiguousarray(values, dtype=dtype)
        size = max(values.nbytes, 1)
        host = self.device.host_pointer(self.memory(size), self.kind)
        raw = (ctypes.c_char * size).from_address(host)
        array = np.frombuffer(raw, values.dtype, values.size).reshape(values.shape)
        array[...] = values
        return array

    def load(self, image):
        self._modules.append(self.device.load_module(image))
        return self._modules[-1]

    def unload(self, module):
        self._modules.remove(module)
        self.device.unload_module(module)

    def parameters(self, *values):
        """Return the address of a launch's parameters, which live as long as this."""
        address, keeper = packed(values)
        self._keep.append(keeper)
        return address

    def finish(self, *streams):
        for stream in streams or self._streams:
            self.device.synchronize_stream(stream)

    def close(self):
        self.device.bind()  # as the core does before each batch of calls
        for stream in self._streams:
            self.device.destroy_stream(stream)
        for module in self._modules:
            self.device.unload_module(module)
        for address in self._memory:
            self.device.free(address, self.kind)
        self.device.close()
