"""The call table of CUDA and of HIP: the driver's own functions, with its statuses."""

import ctypes

import pytest
from core_harness import Running, wait_until
from hip_harness import Arguments

from hal.errors import DeviceLostError, OperationError
from hal.native import CallTable, FillNode, LaunchNode, MemoryType
from hal_conformance.calls import Calls, Holds

FUNCTIONS = {
    "record_event": "EventRecord",
    "wait_event": "StreamWaitEvent",
    "query_event": "EventQuery",
    "fill_8": "MemsetD8Async",
    "fill_16": "MemsetD16Async",
    "fill_32": "MemsetD32Async",
    "launch": "LaunchKernel",
    "launch_graph": "GraphLaunch",
    "current": "CtxGetCurrent",
    "exchange_capture_mode": "ThreadExchangeStreamCaptureMode",
    "allocate_async": "MemAllocFromPoolAsync",
    "free_async": "MemFreeAsync",
    "update_launch": "GraphExecKernelNodeSetParams",
    "make_current": "CtxSetCurrent",
    "query_stream": "StreamQuery",
}
OF_HIP = {
    "launch": "ModuleLaunchKernel",
    "current": "GetDevice",
    "make_current": "SetDevice",
    "allocate_async": "MallocFromPoolAsync",
    "free_async": "FreeAsync",
}


VERSIONS = {"cuGraphExecKernelNodeSetParams": "cuGraphExecKernelNodeSetParams_v2"}
"""Symbols in the library of functions with several forms."""


def name_of(vendor, field):
    """Return the vendor's name of a function of the table."""
    name = OF_HIP.get(field) if vendor.name == "hip" else None
    return vendor.name_of(name or FUNCTIONS[field])


@pytest.fixture
def calls(device):
    return Calls(device.call_table())


class Uses:
    """One use of each function of a table that enqueues or asks, through it and its primitive."""

    def __init__(self, device, calls, stream, shared, image):
        self.device, self.calls = device, calls
        self.event = device.create_event()
        device.record_event(self.event, stream)
        self.module = device.load_module(image)
        function = device.get_function(self.module, "add")
        self._arguments = Arguments(shared, ctypes.c_uint(1), ctypes.c_uint(16))
        address = self._arguments.address
        launch = LaunchNode(function, (1, 1, 1), (16, 1, 1), 0, address)
        self.graph = device.create_graph([FillNode(shared, 3, 4, 16), launch], [(), (0,)])
        self.instance = device.instantiate_graph(self.graph)
        node, structure, _ = device.launch_update(self.instance, 1, launch)
        fills = {8: 1, 16: 2, 32: 4}
        self.of = {
            "record_event": (
                lambda: calls.record_event(self.event, stream),
                lambda: device.record_event(self.event, stream),
            ),
            "wait_event": (
                lambda: calls.wait_event(stream, self.event, 0),
                lambda: device.wait_event(stream, self.event),
            ),
            "query_event": (
                lambda: calls.query_event(self.event),
                lambda: device.query_event(self.event),
            ),
            "launch": (
                lambda: calls.launch(function, 1, 1, 1, 16, 1, 1, 0, stream, address, None),
                lambda: device.launch(stream, function, (1, 1, 1), (16, 1, 1), 0, address),
            ),
            "launch_graph": (
                lambda: calls.launch_graph(self.instance, stream),
                lambda: device.launch_graph(stream, self.instance),
            ),
            "update_launch": (
                lambda: calls.update_launch(self.instance, node, structure),
                lambda: device.update_graph(self.instance, 1, launch),
            ),
        }
        for bits, width in fills.items():
            self.of[f"fill_{bits}"] = (
                lambda bits=bits: getattr(calls, f"fill_{bits}")(shared, 5, 4, stream),
                lambda width=width: device.fill(stream, shared, 5, width, 4),
            )

    def close(self):
        self.device.destroy_graph_instance(self.instance)
        self.device.destroy_graph(self.graph)
        self.device.unload_module(self.module)
        self.device.destroy_event(self.event)


@pytest.fixture
def uses(vendor, device, calls, simulator, stream, shared, image):
    made = Uses(device, calls, stream, shared, image)
    yield made
    simulator.reset()
    device.bind()
    device.synchronize_stream(stream)
    made.close()


def test_the_functions_are_the_drivers_own(vendor, device, simulator):
    table = device.call_table()
    for field in FUNCTIONS:
        name = name_of(vendor, field)
        function = getattr(simulator._library, VERSIONS.get(name, name))
        assert getattr(table, field) == ctypes.cast(function, ctypes.c_void_p).value, field
    assert table.not_ready == 600


def test_the_driver_sees_each_call(vendor, simulator, uses):
    """It sees it as a call of that function, so its faults, counts and rules hold for the table."""
    for field, (through_table, primitive) in uses.of.items():
        name, counts = name_of(vendor, field), []
        for use in (through_table, primitive):
            before = simulator.calls(name)
            use()
            counts.append(simulator.calls(name) - before)
        assert counts == [1, 1], field


@pytest.mark.parametrize("code", [1, 719, 801, 2])
def test_a_status_is_the_primitives_error(vendor, simulator, uses, code):
    """And the call has changed nothing: the primitive then works, or raises that error."""
    for field, (through_table, primitive) in uses.of.items():
        name = name_of(vendor, field)
        simulator.fail(name, 1, code)
        assert through_table() == code, field
        primitive()
        simulator.fail(name, 1, code)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of the class for the code
            primitive()
        assert caught.value.native_code == code, field
        assert through_table() == 0 or field == "query_event"


def test_memory_of_the_pool_is_the_primitives(vendor, device, simulator, calls, other, stream):
    """Allocated and freed by either, with the driver's statuses, beside another's capture."""
    names = {field: name_of(vendor, field) for field in ("allocate_async", "free_async")}
    before = {name: simulator.calls(name) for name in names.values()}
    status, first = calls.allocate_async(stream, 4096)
    second = device.allocate_async(stream, 4096)
    assert (status, device.pool_statistics()[1]) == (0, 8192)
    for code in (1, 719, 2):
        simulator.fail(names["allocate_async"], 1, code)
        assert calls.allocate_async(stream, 4096) == (code, 0)
        simulator.fail(names["free_async"], 1, code)
        assert calls.free_async(first, stream) == code
    assert device.pool_statistics()[1] == 8192
    other.begin(0, first)
    status, third = calls.allocate_async(stream, 64)
    assert (status, calls.free_async(third, stream)) == (0, 0)
    assert other.end() == 1
    device.free_async(stream, first)
    assert calls.free_async(second, stream) == 0
    assert {name: simulator.calls(name) - count for name, count in before.items()} == {
        names["allocate_async"]: 6,
        names["free_async"]: 6,
    }
    device.synchronize_stream(stream)
    assert device.pool_statistics()[1] == 0


def test_a_lost_device_has_its_status_everywhere(simulator, uses):
    simulator.lose_device(0, 700)
    for field, (through_table, primitive) in uses.of.items():
        assert through_table() == 700, field
        with pytest.raises(DeviceLostError) as caught:
            primitive()
        assert caught.value.native_code == 700


def test_a_wrong_launch_is_refused_as_by_the_primitive(device, calls, stream, image):
    module = device.load_module(image)
    function = device.get_function(module, "add")
    arguments = Arguments(0, ctypes.c_uint(1), ctypes.c_uint(0))
    for grid, block, shared in (((0, 1, 1), (1, 1, 1), 0), ((1, 1, 1), (4096, 1, 1), 0)):
        with pytest.raises(OperationError) as caught:
            device.launch(stream, function, grid, block, shared, arguments.address)
        status = calls.launch(function, *grid, *block, shared, stream, arguments.address, None)
        assert status == caught.value.native_code > 0
    device.synchronize_stream(stream)
    device.unload_module(module)


def test_a_query_leaves_others_captures_alone(device, calls, other, stream):
    """With the capture mode exchanged around it, as the table asks for; without, it ends one."""
    address, event = device.allocate(64, MemoryType.DEVICE), device.create_event()
    device.record_event(event, stream)
    device.synchronize_stream(stream)
    other.begin(0, address)
    assert calls.query_event(event) == 0
    assert calls.query_stream(stream) == 0
    assert calls.record_event(event, stream) == 0
    assert calls.wait_event(stream, event, 0) == 0
    assert calls.fill_32(address, 1, 4, stream) == 0
    assert calls.current() == calls.table.context
    assert other.end() == 1
    other.begin(0, address)
    assert calls._query_event(event) == 900
    with pytest.raises(AssertionError):
        other.end()
    device.synchronize_stream(stream)
    device.destroy_event(event)
    device.free(address, MemoryType.DEVICE)


def test_a_full_stream_blocks_a_call_of_the_table_too(device, calls, simulator, stream, shared):
    """The software driver counts it; the test releases the interpreter lock, as the core must."""
    fill = ctypes.CFUNCTYPE(
        *(ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
    )(calls.table.fill_32)

    def work():
        device.bind()
        assert fill(shared, 2, 4, stream) == 0

    before = simulator.blocked()
    simulator.launch_limit(8)
    with Holds(device) as holds:
        holds.hold(stream)
        for _ in range(7):
            assert calls.fill_32(shared, 1, 4, stream) == 0
        assert simulator.blocked() == before
        working = Running(work)
        wait_until(lambda: simulator.blocked() > before)
        assert working.is_alive()
        assert simulator.blocked() == before + 1
    working.result()
    device.synchronize_stream(stream)


def test_what_is_current_is_told_for_each_thread(open_device):
    """Only where a device's own context is current, its calls may be made directly."""
    devices = [open_device(0), open_device(1)]
    calls = [Calls(device.call_table()) for device in devices]
    assert calls[0].table.context != calls[1].table.context
    seen = []

    def work():
        for bound in (1, 0):
            devices[bound].bind()
            seen.append([each.current() == each.table.context for each in calls])

    Running(work).result()
    assert seen == [[False, True], [True, False]]


@pytest.mark.parametrize("field", FUNCTIONS)
def test_a_driver_without_one_of_the_functions_has_no_table(vendor, device, monkeypatch, field):
    entry = vendor.native._TABLE[field]
    missing = ("cuNoSuch", 2000) if vendor.name == "cuda" else "hipNoSuch"
    assert type(entry) is type(missing)
    monkeypatch.setitem(vendor.native._TABLE, field, missing)
    assert device.call_table() is None
    monkeypatch.undo()
    assert isinstance(device.call_table(), CallTable)
