"""Call gpusim's driver through ctypes, for programs that tests start in their own processes."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

import numpy as np

__all__ = ["Driver", "DriverError", "KernelNode", "MemcpyNode", "MemsetNode"]

HOST = ctypes.CFUNCTYPE(None, c_void_p)


class DriverError(Exception):
    """A call returned a code other than 0; `code` is it."""

    def __init__(self, name: str, code: int) -> None:
        """Keep the function's name and the code."""
        super().__init__(f"{name} returned {code}")
        self.code = code


class MemsetNode(ctypes.Structure):
    """The parameters of a fill in a graph."""

    _fields_ = [
        ("target", c_ulonglong),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class KernelNode(ctypes.Structure):
    """The parameters of a launch in a graph."""

    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("parameters", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    ]


class MemcpyNode(ctypes.Structure):
    """The parameters of a copy in a graph."""

    _fields_ = [
        *[(f"source_{n}", c_size_t) for n in ("x", "y", "z", "level")],
        ("source_type", c_uint),
        *[(f"source_{n}", c_void_p) for n in ("host", "device", "array", "reserved")],
        ("source_pitch", c_size_t),
        ("source_height", c_size_t),
        *[(f"target_{n}", c_size_t) for n in ("x", "y", "z", "level")],
        ("target_type", c_uint),
        *[(f"target_{n}", c_void_p) for n in ("host", "device", "array", "reserved")],
        ("target_pitch", c_size_t),
        ("target_height", c_size_t),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    ]


def _argument(value: object) -> object:
    """Widen a Python number: handles and addresses take 64 bits, and small ones survive it."""
    return c_ulonglong(value & (1 << 64) - 1) if isinstance(value, int) else value


class Driver:
    """Hold the loaded library; functions go by their exported names."""

    def __init__(self, path: str | None = None, *, devices: int = 1) -> None:
        """Load, initialise, retain the contexts of the first devices, and bind that of device 0."""
        self.library = ctypes.CDLL(path or os.environ["GPUSIM_LIBRARY"])
        self.library.gpusim_history.restype = c_size_t
        self.library.gpusim_calls.restype = ctypes.c_ulong
        self.library.gpusim_blocked.restype = ctypes.c_ulong
        self.kept: list[Any] = []
        self.call("cuInit", 0)
        self.contexts = [self.make("cuDevicePrimaryCtxRetain", i) for i in range(devices)]
        self.call("cuCtxSetCurrent", self.contexts[0])

    def code(self, name: str, *arguments: object) -> int:
        """Call, and return the code."""
        return int(self.library[name](*map(_argument, arguments)))

    def call(self, name: str, *arguments: object) -> None:
        """Call; raise `DriverError` for a code other than 0."""
        if code := self.code(name, *arguments):
            raise DriverError(name, code)

    def make(self, name: str, *arguments: object) -> int:
        """Call a function that writes a handle or an address through its first argument."""
        made = c_ulonglong()
        self.call(name, byref(made), *arguments)
        return made.value

    def stream(self, flags: int = 1) -> int:
        """Create a stream, by default one that does not wait for the default stream."""
        return self.make("cuStreamCreate", flags)

    def event(self, flags: int = 2) -> int:
        """Create an event, by default without timing."""
        return self.make("cuEventCreate", flags)

    def allocate(self, size: int) -> int:
        """Allocate device memory."""
        return self.make("cuMemAlloc_v2", size)

    def pinned(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Allocate pinned memory, and return it as bytes."""
        address = self.make("cuMemHostAlloc", size, 0)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def read(self, address: int, size: int) -> bytes:
        """Copy device memory back, when the default stream gets there."""
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, address, size)
        return data.raw

    def host(self, stream: int, function: Any) -> None:
        """Enqueue a Python function of no arguments as a host function."""
        wrapped = HOST(lambda _: function())
        self.kept.append(wrapped)
        self.call("cuLaunchHostFunc", stream, wrapped, None)

    def history(self) -> str:
        """Return gpusim's history as text."""
        size = int(self.library.gpusim_history(None, c_size_t(0)))
        text = ctypes.create_string_buffer(size + 4096)
        self.library.gpusim_history(text, c_size_t(len(text)))
        return text.value.decode()

    def leaks(self, device: int = -1) -> tuple[int, str]:
        """Return how many objects and allocations live, and what they are."""
        text = ctypes.create_string_buffer(1024)
        count = self.library.gpusim_leaks(c_int(device), text, c_size_t(len(text)))
        return int(count), text.value.decode()

    def fail(self, name: str, n: int, code: int) -> None:
        """Let the n-th call of a function from now on fail."""
        self.library.gpusim_fail(c_char_p(name.encode()), ctypes.c_ulong(n), c_int(code))

    def module(self, image: bytes) -> int:
        """Load an image."""
        return self.make("cuModuleLoadData", c_char_p(image))

    def function(self, module: int, name: str) -> int:
        """Return a kernel of a module."""
        return self.make("cuModuleGetFunction", module, c_char_p(name.encode()))

    def parameters(self, *values: Any) -> ctypes.Array[c_void_p]:
        """Lay out ctypes values as a launch takes them; they live as long as this driver."""
        array = (c_void_p * max(len(values), 1))(*[ctypes.addressof(v) for v in values])
        self.kept.append((values, array))
        return array

    def launch(
        self, function: int, stream: int, *values: Any, grid: int = 1, block: int = 1
    ) -> None:
        """Launch a kernel over `grid` blocks of `block` threads."""
        array = self.parameters(*values)
        self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, array, None)
