"""Devices for the core's tests: the real CPU backend, plain and behind a probe."""

from __future__ import annotations

import threading

import pytest
from bare_image import build_bare
from child_processes import run_python
from core_harness import LIMIT, Latch, open_native
from device_tensor_harness import pretend
from foreign_library import Library
from native_probe import Probe

import hal
from hal._engine import progress
from hal._memory.heap import Heap
from hal._memory.settings import MemorySettings
from hal._transfers import files


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    """After each test, look for what closed devices have left in the core's own books (I7).

    A device that is open at the end is not looked at, nor is a lost one's memory.
    """
    heaps = []
    original = Heap.__init__

    def remember(heap, *arguments):
        original(heap, *arguments)
        heaps.append(heap)

    monkeypatch.setattr(Heap, "__init__", remember)
    yield
    pause = threading.Event()
    for _ in range(int(LIMIT * 100)):  # helper threads may be a moment behind
        left = [line for heap in heaps if heap.driver.is_closed for line in _left_in(heap)]
        if not left:
            return
        pause.wait(0.01)
    assert left == []


def _left_in(heap):
    """Name what a closed heap still has, and what the process has of its context."""
    context = heap._context
    if context.lost is None and not any(block.is_viewed() for block in heap.books.blocks):
        if heap.books.blocks or heap.reaper._handles:
            yield f"{context.name} keeps {len(heap.books.blocks)} blocks and {heap.reaper._handles}"
        if heap.driver._stream:
            yield f"{context.name} keeps its housekeeping stream"
        if context.events.size:
            yield f"{context.name} keeps {context.events.size} events"
        if context.queues:
            yield f"{context.name} keeps {context.queues}"
    for name in ("doomed", "_waste", "_returning"):
        if getattr(heap.reaper, name):
            yield f"{context.name} keeps {name} {getattr(heap.reaper, name)}"
    for queue in list(progress._progress._watched):
        if queue._context is context:
            yield f"the progress thread watches {queue.name}"


@pytest.fixture
def device():
    """The CPU backend's device, closed at the end, with nothing left running."""
    opened = hal.create_device("cpu")
    yield opened
    assert opened.close(LIMIT) == ()


@pytest.fixture
def second_device():
    """Another device of the same driver, whose events the first one's streams can wait for."""
    opened = hal.create_device("cpu")
    yield opened
    assert opened.close(LIMIT) == ()


@pytest.fixture
def small_device():
    """A device whose queues hold two operations in flight, so that backlogs form at once."""
    opened = hal.create_device("cpu", max_in_flight=2)
    yield opened
    assert opened.close(LIMIT) == ()


@pytest.fixture
def open_probe():
    """Open devices whose native calls are counted, checked, held up and made to fail.

    Returns ``(device, probe)``. With `features` the device has these only,
    with `without` all but those; the core does the rest itself. At the end
    every latch is opened and every device closed; no native rule may have been
    broken, and nothing native may be left unless the device was lost (I7).
    """
    opened: list[tuple[hal.Device, Probe]] = []
    driver = open_native()

    def open_one(*, max_in_flight=None, domain=None, features=None, without=(), settings=None):
        inner = driver.open_device(0, {})
        if features is None:
            features = inner.features | {"async_allocations"}
        probe = Probe(inner, domain, features - set(without))
        device = hal.Device("cpu", probe, max_in_flight, settings)
        opened.append((device, probe))
        return device, probe

    yield open_one
    for _, probe in opened:
        probe.heal()
    for device, _ in opened:
        device.close(LIMIT)
    pause = threading.Event()
    for device, probe in opened:
        assert probe.violations == []
        for _ in range(int(LIMIT * 100)):  # what a view held is freed by a thread of ours
            if device.lost or not probe.live():
                break
            pause.wait(0.01)
        assert device.lost or probe.live() == {}


@pytest.fixture
def latch():
    """A latch that holds a native stream up; open at the end, whatever happened."""
    made = Latch()
    yield made
    made.open(1000)


@pytest.fixture
def held(open_probe, latch):
    """A device, its probe, and a fill on its queue that runs once the latch is opened."""
    device, probe = open_probe()
    probe.hold(latch)
    return device, probe, device.queue.fill(device.allocate(16), 1)


@pytest.fixture
def gate():
    """An event for host functions to wait for, with `LIMIT`; set at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def shared(open_probe):
    """A device, its probe, and another library on it."""
    device, probe = open_probe()
    library = Library(probe.inner)
    yield device, probe, library
    library.close()


@pytest.fixture
def gpu(shared, monkeypatch):
    """The same, but the device passes for CUDA's."""
    _, probe, _ = shared
    pretend(probe, monkeypatch)
    return shared


@pytest.fixture
def open_blocking(open_probe):
    """Open a device without pageable copies; the probe reports any on a submitting thread."""

    def open_one(**options):
        return open_probe(without={"pageable_copies"}, **options)

    return open_one


@pytest.fixture(params=["emulated", "native"])
def async_mode(request):
    """The allocator in the order of a queue: the core, or the native device."""
    return request.param


@pytest.fixture
def opened(open_probe, async_mode):
    """Open a device that allocates in either way; native calls may be made to fail."""
    settings = MemorySettings(async_allocations=async_mode == "native")
    return open_probe(settings=settings)


@pytest.fixture
def small_chunks(monkeypatch):
    """Move a few bytes of a file at a time, so that small files take many system calls."""
    monkeypatch.setattr(files, "CHUNK", 7)


@pytest.fixture
def run_script(tmp_path):
    """Run a program in a child process and return its result."""
    return lambda source, **options: run_python(tmp_path, source, **options)


KERNELS = """
__global__ void add(const int *x, int *y, int amount) {
  y[threadIdx.x] = x[threadIdx.x] + amount;
}
__global__ void ids(unsigned *out) {
  out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] += 1;
}
__global__ void choose(unsigned *counts, unsigned x) {
  counts[0] = x; counts[1] = 2; counts[2] = 1;
}
"""


@pytest.fixture(scope="session")
def image():
    """The bytes of a program with `KERNELS`, compiled once."""
    with hal.create_device("cpu") as device:
        return device.compile(KERNELS, filename="kernels.cpp").image


@pytest.fixture(scope="session")
def bare_image(tmp_path_factory):
    """An image that tells no more of its kernel than the sizes of its parameters."""
    return build_bare(tmp_path_factory.mktemp("bare"))


@pytest.fixture(params=["stream", "graph"])
def mode(request):
    """How a recording is run."""
    return request.param
