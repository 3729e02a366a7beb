"""Give the tests of the CPU backend a native device and something to hold its streams with."""

import contextlib
import ctypes
import os
import sys

import native_lab
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


class Lab(native_lab.Lab):
    """The same with gates and kernels."""

    kind = MemoryType.DEVICE

    def __init__(self, driver, index=0, **parameters):
        super().__init__(driver, index, **parameters)
        self._gates = []

    def gate(self, stream):
        gate = Gate(self, stream)
        self._gates.append(gate)
        return gate

    def event(self, stream):
        event = self.device.create_event()
        self.device.record_event(event, stream)
        return event

    def image(self, source, *, table=False, filename="user.cpp", **request):
        entries = scan(source, filename=filename)
        text = type_table(entries) if table else ""
        asked = CompileRequest(source, filename, entries, text, **request)
        return CpuCompiler().compile(asked, "").image

    def build(self, source, **request):
        return self.load(self.image(source, **request))

    def function(self, source, name="kernel", **request):
        return self.device.get_function(self.build(source, **request), name)

    def launch(self, stream, function, grid, block, *arguments, shared=0):
        """Launch with arrays as pointers, and numpy scalars or ctypes objects by value."""
        address, _kept = native_lab.packed(arguments)
        self.device.launch(stream, function, triple(grid), triple(block), shared, address)

    def run(self, function, grid, block, *arguments, shared=0):
        """Launch on a stream of its own and wait."""
        if not self._streams:
            self.stream()
        self.launch(self._streams[0], function, grid, block, *arguments, shared=shared)
        self.finish(self._streams[0])

    def close(self):
        for gate in self._gates:
            gate.open()
        super().close()


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
