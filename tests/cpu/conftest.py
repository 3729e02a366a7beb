"""Give the tests of the CPU backend a native device and something to hold its streams with."""

import contextlib
import ctypes
import os
import sys

import numpy as np
import pytest
from child_processes import run_command
from native_graphs import Graphs

import hal
from hal._base.sync import Doorbell
from hal._programs.scanner import scan
from hal._programs.type_table import type_table
from hal.native import CompileRequest, MemoryType
from hal_cpu.compiler import CpuCompiler
from hal_cpu.driver import CpuDriver


class Gate:
    """Hold a stream until it is opened: the stream's thread sleeps on a POSIX semaphore."""

    _wait = ctypes.cast(ctypes.CDLL(None).sem_wait, ctypes.c_void_p).value

    def __init__(self, lab, stream):
        self._bell = Doorbell()
        lab.device.notify(stream, self._wait, self._bell.argument)
        self._open = False

    def open(self):
        if not self._open:
            self._open = True
            self._bell.ring()


class Lab:
    """Make streams, memory and kernels, and give all of it back at the end."""

    def __init__(self, driver, index=0, **parameters):
        self.device = driver.open_device(index, parameters)
        self._streams = []
        self._memory = []
        self._modules = []
        self._gates = []

    def stream(self):
        stream = self.device.create_stream()
        self._streams.append(stream)
        return stream

    def gate(self, stream):
        gate = Gate(self, stream)
        self._gates.append(gate)
        return gate

    def memory(self, size):
        address = self.device.allocate(size, MemoryType.DEVICE)
        self._memory.append(address)
        return address

    def array(self, values, dtype=None):
        """Return device memory with these values, as an array that shares it."""
        values = np.ascontiguousarray(values, dtype=dtype)
        size = max(values.nbytes, 1)
        raw = (ctypes.c_char * size).from_address(self.memory(size))
        array = np.frombuffer(raw, values.dtype, values.size).reshape(values.shape)
        array[...] = values
        return array

    def event(self, stream):
        event = self.device.create_event()
        self.device.record_event(event, stream)
        return event

    def finish(self, *streams):
        for stream in streams or self._streams:
            self.device.synchronize_stream(stream)

    def image(self, source, *, table=False, filename="user.cpp", **request):
        entries = scan(source, filename=filename)
        text = type_table(entries) if table else ""
        asked = CompileRequest(source, filename, entries, text, **request)
        return CpuCompiler().compile(asked, "").image

    def load(self, image):
        module = self.device.load_module(image)
        self._modules.append(module)
        return module

    def unload(self, module):
        self._modules.remove(module)
        self.device.unload_module(module)

    def build(self, source, **request):
        return self.load(self.image(source, **request))

    def function(self, source, name="kernel", **request):
        return self.device.get_function(self.build(source, **request), name)

    def launch(self, stream, function, grid, block, *arguments, shared=0):
        """Launch with arrays as pointers, and numpy scalars or ctypes objects by value."""
        values = [
            ctypes.c_void_p(each.ctypes.data)
            if isinstance(each, np.ndarray)
            else each
            if isinstance(each, (ctypes._SimpleCData, ctypes.Structure))
            else ctypes.create_string_buffer(each.tobytes(), each.nbytes)
            for each in arguments
        ]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        self.device.launch(
            stream, function, triple(grid), triple(block), shared, ctypes.addressof(pointers)
        )

    def run(self, function, grid, block, *arguments, shared=0):
        """Launch on a stream of its own and wait."""
        if not self._streams:
            self.stream()
        self.launch(self._streams[0], function, grid, block, *arguments, shared=shared)
        self.finish(self._streams[0])

    def close(self):
        for gate in self._gates:
            gate.open()
        for stream in self._streams:
            self.device.destroy_stream(stream)
        for module in self._modules:
            self.device.unload_module(module)
        for address in self._memory:
            self.device.free(address, MemoryType.DEVICE)
        self.device.close()


def triple(size):
    size = (size,) if isinstance(size, int) else tuple(size)
    return size + (1,) * (3 - len(size))


@pytest.fixture(scope="session")
def driver():
    return CpuDriver()


@pytest.fixture
def open_lab(driver):
    """Open devices with parameters, as ``open_lab(threads="2")``."""
    with contextlib.ExitStack() as opened:
        yield lambda **more: opened.enter_context(contextlib.closing(Lab(driver, **more)))


@pytest.fixture
def lab(open_lab):
    return open_lab()


@pytest.fixture
def other_lab(open_lab):
    """Give a second device of the same driver, which works alone on each operation."""
    return open_lab(threads="1")


@pytest.fixture(scope="module")
def device():
    """The device of the core, for all tests of a module."""
    with hal.create_device("cpu") as device:
        yield device


@pytest.fixture
def python():
    """Run a program in a fresh interpreter; returns the completed process, output as text."""

    def run(program, **environment):
        command = [sys.executable, "-X", "faulthandler", "-c", program]
        return run_command(command, env={**os.environ, **environment})

    return run


@pytest.fixture
def open_graphs(open_lab):
    """Open devices with parameters of the test's choice, for graphs."""
    with contextlib.ExitStack() as opened:
        yield lambda **more: opened.enter_context(contextlib.closing(Graphs(open_lab(**more))))


@pytest.fixture(params=["1", "2", "3"], ids=lambda threads: f"threads{threads}")
def graphs(request, open_graphs):
    """Give graphs on a device that works with one, two or three threads."""
    return open_graphs(threads=request.param)
