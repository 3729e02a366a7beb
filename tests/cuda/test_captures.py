"""Captures of others: neither broken by our calls nor refusing them (O1)."""

from __future__ import annotations

import ctypes
import queue
import signal
import threading

import gpusim
import numpy as np
import pytest
from child_processes import run_alone
from compile_requests import compiled, request
from cuda.bindings import driver as cu

from hal.errors import OperationError
from hal.native import EmptyNode, FillNode, MemoryType

MODES = (0, 1, 2)
"""Global, thread-local, relaxed."""
SOURCE = """
__global__ void add(unsigned *data, unsigned value, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += value;
}
__device__ unsigned total;
"""
EXCHANGE = "cuThreadExchangeStreamCaptureMode"


def get(result):
    error, *values = result
    assert not error, error
    return values[0] if values else None


def exchange(mode):
    """Set the thread's capture mode; return the one before."""
    return int(get(cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode(mode))))


class Other:
    """Another library: a thread that captures on a stream of its own."""

    def __init__(self, context):
        self._context = context
        self._asked, self._done = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.stream = self.run(lambda: get(cu.cuStreamCreate(1)))

    def _work(self):
        cu.cuCtxSetCurrent(self._context)
        while (function := self._asked.get()) is not None:
            try:
                self._done.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
                self._done.put((None, error))

    def run(self, function):
        self._asked.put(function)
        result, error = self._done.get(timeout=20)
        if error is not None:
            raise error
        return result

    def begin(self, mode, address, run=None):
        def work():
            get(cu.cuStreamBeginCapture(self.stream, cu.CUstreamCaptureMode(mode)))
            get(cu.cuMemsetD8Async(address, 1, 16, self.stream))

        (run or self.run)(work)

    def end(self, run=None):
        """End the capture; return how many nodes its graph has."""
        graph = (run or self.run)(lambda: get(cu.cuStreamEndCapture(self.stream)))
        error, _, count = cu.cuGraphGetNodes(graph)
        assert not error
        get(cu.cuGraphDestroy(graph))
        return count

    def close(self):
        self.run(lambda: get(cu.cuStreamDestroy(self.stream)))
        self._asked.put(None)
        self._thread.join(20)


@pytest.fixture
def other(lab):
    found = Other(lab.device.context)
    yield found
    lab.device.bind()
    found.close()


def use(device, image, host):
    """Call everything that a backend has, but for what needs a second device."""
    stream = device.create_stream()
    event, timers = device.create_event(), [device.create_timer() for _ in range(2)]
    for memory in MemoryType:
        device.free(device.allocate(64, memory), memory)
    address = device.allocate(4096, MemoryType.DEVICE)
    pooled = device.allocate_async(stream, 64)
    module = device.load_module(image)
    function = device.get_function(module, "add")
    device.function_info(function)
    device.get_global(module, "total")
    device.occupancy(function, 32, 1 << 16)
    device.memory_info()
    device.locate(address)
    device.import_host(host.ctypes.data, host.nbytes)
    graph = device.create_graph([FillNode(address, 3, 1, 16), EmptyNode()], [(), (0,)])
    instance = device.instantiate_graph(graph)
    device.update_graph(instance, 0, FillNode(address, 4, 1, 16))
    device.record_timer(timers[0], stream)
    device.fill(stream, address, 1, 4, 16)
    device.copy(stream, address + 64, address, 64)
    device.copy_from_host(stream, address, host.ctypes.data, 64)
    device.copy_to_host(stream, host.ctypes.data, address, 64)
    device.launch_graph(stream, instance)
    device.record_timer(timers[1], stream)
    device.record_event(event, stream)
    device.wait_event(stream, event)
    device.query_event(event)
    device.free_async(stream, pooled)
    device.synchronize_stream(stream)
    assert device.query_event(event)
    device.elapsed(*timers)
    device.release_host(host.ctypes.data)
    device.destroy_graph_instance(instance)
    device.destroy_graph(graph)
    device.unload_module(module)
    device.free(address, MemoryType.DEVICE)
    for timer in timers:
        device.destroy_timer(timer)
    device.destroy_event(event)
    device.destroy_stream(stream)


@pytest.fixture(scope="module")
def image(driver):
    device = driver.open_device(0, {})
    found = compiled(device, request(SOURCE))
    device.close()
    return found


@pytest.mark.parametrize("mine", MODES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["another thread", "this thread"])
def test_no_call_of_ours_breaks_a_capture_or_is_refused_o1(lab, other, image, where, mode, mine):
    """And the thread's mode is as it was."""
    pages = np.zeros(3 * 4096, np.uint8)
    host = pages[-pages.ctypes.data % 4096 :][:4096]
    address = lab.device.allocate(64, MemoryType.DEVICE)
    run = None if where == "another thread" else lambda function: function()
    before = exchange(mine)
    try:
        other.begin(mode, address, run)
        use(lab.device, image, host)
        assert exchange(mine) == mine
        assert other.end(run) == 1
    finally:
        exchange(before)
    lab.device.free(address, MemoryType.DEVICE)


@pytest.mark.parametrize("mode", MODES)
def test_devices_open_and_close_beside_a_capture_o1(driver, lab, other, mode):
    address = lab.device.allocate(64, MemoryType.DEVICE)
    other.begin(mode, address)
    driver.open_device(0, {}).close()
    lab.device.bind()
    assert other.end() == 1
    lab.device.free(address, MemoryType.DEVICE)


def test_enqueueing_costs_no_exchange_and_a_query_two_o1(lab, simulator, image):
    device, stream = lab.device, lab.stream()
    module = device.load_module(image)
    function = device.get_function(module, "add")
    data = lab.array(np.zeros(16, np.uint32))
    parameters = lab.parameters(data, ctypes.c_uint(1), ctypes.c_uint(16))
    event = device.create_event()
    graph = device.create_graph([FillNode(data.ctypes.data, 3, 4, 16)], [()])
    instance = device.instantiate_graph(graph)
    before = simulator.calls(EXCHANGE)
    device.fill(stream, data.ctypes.data, 0, 4, 16)
    device.copy(stream, data.ctypes.data, data.ctypes.data + 32, 32)
    device.launch(stream, function, (1, 1, 1), (16, 1, 1), 0, parameters)
    device.launch_graph(stream, instance)
    device.record_event(event, stream)
    device.wait_event(stream, event)
    assert simulator.calls(EXCHANGE) == before
    device.query_event(event)
    assert simulator.calls(EXCHANGE) == before + 2
    device.synchronize_stream(stream)
    device.destroy_graph_instance(instance)
    device.destroy_graph(graph)
    device.destroy_event(event)
    device.unload_module(module)


def test_an_interrupted_call_leaves_the_threads_mode_as_it_was(lab):
    from hal_cuda import _driver  # noqa: PLC0415 - after the library

    def interrupted():
        raise KeyboardInterrupt

    assert lab.device
    with pytest.raises(KeyboardInterrupt):
        _driver.relaxed(interrupted)
    assert exchange(0) == 0


def test_a_call_inside_another_one_stays_relaxed(lab, other):
    """As a signal handler's does, which runs between two steps of a call."""
    from hal_cuda import _driver  # noqa: PLC0415 - after the library

    address = lab.device.allocate(64, MemoryType.DEVICE)
    event = lab.device.create_event()

    def handle(_number, _frame):
        assert lab.device.query_event(event)
        lab.device.free(lab.device.allocate(64, MemoryType.DEVICE), MemoryType.DEVICE)

    def step():
        signal.raise_signal(signal.SIGUSR1)
        return cu.cuEventQuery(event)

    old = signal.signal(signal.SIGUSR1, handle)
    try:
        other.begin(0, address)
        assert not _driver.relaxed(step)[0]
        assert other.end() == 1
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert exchange(0) == 0
    lab.device.destroy_event(event)
    lab.device.free(address, MemoryType.DEVICE)


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_of_others_is_refused_while_it_is_captured(lab, other, mode):
    """Otherwise our work became part of their graph, and our streams of the capture."""
    device = lab.device
    address = device.allocate(64, MemoryType.DEVICE)
    event, handle = device.create_event(), int(other.stream)
    stream = device.adopt_stream(handle)
    device.fill(stream, address, 1, 1, 64)
    other.begin(mode, address)
    for refused in (
        lambda: device.adopt_stream(handle),
        lambda: device.fill(stream, address, 1, 1, 64),
        lambda: device.record_event(event, stream),
    ):
        with pytest.raises(OperationError, match="is being captured into a graph"):
            refused()
    device.synchronize_stream(stream)
    assert other.end() == 1
    device.record_event(event, stream)
    device.synchronize_stream(stream)
    device.release_stream(stream)
    device.destroy_event(event)
    device.free(address, MemoryType.DEVICE)


CAPTURED = """
    import hal
    from cuda.bindings import driver as cu

    def get(result):
        assert not result[0], result
        return result[1] if len(result) > 1 else None

    device = hal.create_device("cuda")
    buffer = device.allocate(64)
    stream, memory = get(cu.cuStreamCreate(1)), get(cu.cuMemAlloc(64))
    theirs = device.create_queue(stream=int(stream))
    theirs.fill(buffer, 1).wait(20)
    get(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
    get(cu.cuMemsetD8Async(memory, 1, 64, stream))
    for attempt in (
        lambda: theirs.fill(buffer, 2).wait(20),
        lambda: device.queue.wait_external(int(stream)).wait(20),
        lambda: device.queue.notify_external(int(stream)),
        lambda: device.create_queue(stream=int(stream)),
    ):
        try:
            attempt()
        except hal.errors.OperationError as error:
            print("is being captured" in str(error))
    device.queue.fill(buffer, 4).wait(20)
    print(device.lost, cu.cuGraphGetNodes(get(cu.cuStreamEndCapture(stream)))[2])
    theirs.fill(buffer, 3).wait(20)
    print(buffer.numpy("u1")[:2], theirs.close(20), device.close())
"""


def test_work_on_a_stream_that_is_captured_fails_and_the_device_goes_on_o1(tmp_path):
    done = run_alone(tmp_path, CAPTURED, **gpusim.environment(quiet=True))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*["True"] * 4, "False 1", "[3 3] () ()"]
