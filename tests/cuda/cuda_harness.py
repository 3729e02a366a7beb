"""Hold native devices on the software driver, for the tests of the CUDA backend."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

from hal.native import CompileRequest, MemoryType

GPUSIM = Path(__file__).parents[1] / "gpusim"
LIMIT = 300.0


def _gpusim():
    """Import the software driver's module."""
    spec = importlib.util.spec_from_file_location("gpusim", GPUSIM / "gpusim.py")
    module = sys.modules.setdefault("gpusim", importlib.util.module_from_spec(spec))
    if not hasattr(module, "load"):
        spec.loader.exec_module(module)
    return module


gpusim = _gpusim()


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


def request(source, **more):
    """Return a request to compile, as the core makes it."""
    from hal._programs.scanner import read_source, type_table  # noqa: PLC0415

    filename = more.pop("filename", "kernel.cpp")
    entries, plain = read_source(source, filename=filename)
    return CompileRequest(plain, filename, entries, type_table(entries), **more)


def run_python(folder, source, **environment):
    """Run a program in a child process, with this in the environment and no driver."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment},
    )
