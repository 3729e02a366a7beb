"""The C functions of a device's call table do what its primitives do.

A device without a table has nothing to compare: the tests compare its primitives with themselves.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pytest

import hal
from hal.native import FillNode, LaunchNode, NativeDevice
from hal_conformance.calls import Calls, Holds, arguments_of
from hal_conformance.suite.support import pattern

_GRID: Final = struct.Struct("=3I")


class Streams:
    """Native streams and events of the test's own, and two ways to call each primitive."""

    def __init__(self, device: hal.Device) -> None:
        context = device._context  # noqa: SLF001 - the table is for the core alone
        self.native: NativeDevice = context.native
        self.native.bind()
        self.calls = None if context.calls is None else Calls(context.calls)
        self.holds = Holds(self.native)
        self._made: list[int] = []
        self._events: list[int] = []

    def stream(self) -> int:
        """Return a new stream."""
        self._made.append(self.native.create_stream())
        return self._made[-1]

    def event(self) -> int:
        """Return a new event."""
        self._events.append(self.native.create_event())
        return self._events[-1]

    def finish(self) -> None:
        """Wait until all is done."""
        self.holds.open()
        for stream in self._made:
            self.native.synchronize_stream(stream)

    def close(self) -> None:
        """End all of it."""
        self.native.bind()
        self.finish()
        for event in self._events:
            self.native.destroy_event(event)
        for stream in self._made:
            self.native.destroy_stream(stream)

    def record(self, event: int, stream: int, *, table: bool) -> None:
        """Record an event through the table, or the primitive."""
        if table and self.calls:
            assert self.calls.record_event(event, stream) == 0
        else:
            self.native.record_event(event, stream)

    def wait(self, stream: int, event: int, *, table: bool) -> None:
        """Let a stream wait through the table, or the primitive."""
        if table and self.calls:
            assert self.calls.wait_event(stream, event, 0) == 0
        else:
            self.native.wait_event(stream, event)

    def is_complete(self, event: int) -> bool:
        """Return whether an event is complete, as the primitive and the table both say."""
        said = self.native.query_event(event)
        if self.calls:
            status = self.calls.query_event(event)
            assert status in {0, self.calls.table.not_ready}
            # The work may have ended in between.
            assert (status == 0) >= said
            if self.calls.await_event:
                assert self.calls.await_event(event, 1000) in {0, status}
            return status == 0
        return said

    def check_idle(self, stream: int, *, idle: bool) -> None:
        """Compare what the table says of a stream, if it has a function for that."""
        if self.calls and self.calls.table.query_stream:
            expected = 0 if idle else self.calls.table.not_ready
            assert self.calls.query_stream(stream) == expected

    def fill(self, stream: int, address: int, value: int, width: int, count: int) -> None:
        """Fill through the table."""
        if not self.calls:
            self.native.fill(stream, address, value, width, count)
            return
        function: Callable[..., int] = getattr(self.calls, f"fill_{8 * width}")
        assert function(address, value, count, stream) == 0

    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Copy through the table, if it has a function for it."""
        if self.calls is None or self.calls.copy is None:
            self.native.copy(stream, target, source, size)
            return
        assert self.calls.copy(target, source, size, stream) == 0


@pytest.fixture
def streams(device: hal.Device) -> Iterator[Streams]:
    """Streams of the shared device."""
    made = Streams(device)
    yield made
    made.close()


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_table_fills_as_the_primitive_q4(device, streams, width):
    """A fill of each width writes the same bytes through the table, and none beside them (Q4)."""
    value = 0xA1B2C3D4 & ((1 << 8 * width) - 1)
    start = np.arange(256, dtype=np.uint8)
    one, two = device.upload(start), device.upload(start)
    stream = streams.stream()
    for offset, count in ((0, 1), (4 * width, 7), (128, 128 // width)):
        streams.native.fill(stream, one.address + offset, value, width, count)
        streams.fill(stream, two.address + offset, value, width, count)
    streams.finish()
    assert one.numpy().tobytes() == two.numpy().tobytes() != start.tobytes()
    one.close()
    two.close()


def test_a_table_copies_as_the_primitive_q4(device, streams):
    """Copies within the device, and from and to pinned memory, have the same bytes (Q4)."""
    start = np.arange(256, dtype=np.uint8)
    pinned = device.allocate(256, memory="host")
    pinned.map("discard")[:] = start
    one, two = device.upload(start[::-1]), device.upload(start[::-1])
    stream, native = streams.stream(), streams.native
    for copy, buffer in ((native.copy, one), (streams.copy, two)):
        pinned.map("write")[200:] = 0
        copy(stream, buffer.address + 3, pinned.address, 100)
        copy(stream, buffer.address + 128, buffer.address, 128)
        copy(stream, pinned.address + 200, buffer.address + 130, 7)
        native.synchronize_stream(stream)
        assert pinned.map("read")[200:207].tolist() == [253, 0, 1, 2, 3, 4, 5]
    assert one.numpy().tobytes() == two.numpy().tobytes() != start[::-1].tobytes()
    for buffer in (one, two, pinned):
        buffer.close()


@pytest.mark.parametrize("waits", [False, True], ids=["primitive waits", "table waits"])
@pytest.mark.parametrize("records", [False, True], ids=["primitive records", "table records"])
def test_events_of_a_table_order_streams_s7(device, streams, records, waits):
    """A record and a wait order streams, whoever of table and primitive makes either (S7).

    The wait captures the last record. Nothing blocks, and nothing runs ahead.
    """
    buffer = device.upload(np.zeros(64, np.uint8))
    first, second, idle = streams.stream(), streams.stream(), streams.stream()
    event, last = streams.event(), streams.event()
    assert streams.is_complete(event)
    streams.holds.hold(first)
    streams.fill(first, buffer.address, 1, 1, 64)
    streams.record(event, first, table=records)
    assert not streams.is_complete(event)
    streams.check_idle(first, idle=False)
    streams.wait(second, event, table=waits)
    streams.record(event, idle, table=records)
    streams.fill(second, buffer.address, 2, 1, 64)
    streams.record(last, second, table=records)
    streams.native.synchronize_stream(idle)
    assert streams.is_complete(event)
    assert not streams.is_complete(last)
    streams.finish()
    streams.check_idle(first, idle=True)
    assert streams.is_complete(last)
    assert set(buffer.numpy()) == {2}
    buffer.close()


@pytest.mark.feature("kernels")
def test_a_table_launches_as_the_primitive_c5(device, streams, program):
    """A launch has grid, block, shared memory and arguments; arguments are copied (C5)."""
    native = streams.native
    module = native.load_module(program.image)
    ids = native.get_function(module, "write_block_ids")
    total = native.get_function(module, "sum_dynamic")
    source = device.upload(pattern(64).view(np.uint8).astype(np.int32))
    outputs = [device.upload(np.zeros(61, np.int32)) for _ in range(2)]
    stream = streams.stream()
    for output, calls in zip(outputs, (None, streams.calls), strict=True):
        for function, grid, block, shared, values in (
            (ids, (5, 4, 3), (2, 1, 1), 0, [output.address, 5, 4]),
            (total, (1, 1, 1), (64, 1, 1), 256, [source.address, output.address + 240, 64]),
        ):
            kinds = [ctypes.c_uint64 if value > 64 else ctypes.c_uint32 for value in values]
            held = [kind(value) for kind, value in zip(kinds, values, strict=True)]
            address, kept = arguments_of(*held)
            if calls is None:
                native.launch(stream, function, grid, block, shared, address)
            else:
                assert calls.launch(function, *grid, *block, shared, stream, address, None) == 0
            for each in held:
                each.value = 0
            del kept
    streams.finish()
    native.unload_module(module)
    expected = outputs[0].numpy()
    assert list(expected) == [*range(1, 61), source.numpy().sum()]
    if streams.calls:
        assert outputs[1].numpy().tobytes() == expected.tobytes()
    for buffer in (source, *outputs):
        buffer.close()


@pytest.mark.feature("graphs")
def test_a_table_launches_graphs_c4(device, streams):
    """An instance is launched as the primitive launches it, in the order of the stream (C4)."""
    native = streams.native
    buffer = device.upload(np.zeros(64, np.uint8))
    stream = streams.stream()
    graph = native.create_graph([FillNode(buffer.address + 8, 7, 1, 48)], [()])
    instance = native.instantiate_graph(graph)
    streams.holds.hold(stream)
    streams.fill(stream, buffer.address, 1, 1, 64)
    if streams.calls:
        assert streams.calls.launch_graph(instance, stream) == 0
    else:
        native.launch_graph(stream, instance)
    streams.fill(stream, buffer.address, 2, 1, 16)
    streams.finish()
    native.destroy_graph_instance(instance)
    native.destroy_graph(graph)
    assert list(buffer.numpy()) == [2] * 16 + [7] * 40 + [1] * 8
    buffer.close()


@pytest.mark.feature("graphs")
@pytest.mark.feature("kernels")
def test_a_table_updates_launches_c4(device, streams, program):
    """An update gives a launch other arguments, which are copied, and a grid, from then on (C4)."""
    native, stream = streams.native, streams.stream()
    module = native.load_module(program.image)
    outputs = [device.upload(np.zeros(60, np.int32)) for _ in range(3)]
    target, width, height = ctypes.c_uint64(outputs[0].address), ctypes.c_uint32(5), 4
    address, kept = arguments_of(target, width, ctypes.c_uint32(height))
    function = native.get_function(module, "write_block_ids")
    launch = LaunchNode(function, (5, 4, 3), (2, 1, 1), 0, address)
    graph = native.create_graph([launch], [()])
    instance = native.instantiate_graph(graph)
    streams.holds.hold(stream)
    native.launch_graph(stream, instance)
    target.value = outputs[1].address
    if streams.calls and streams.calls.table.update_launch:
        node, structure, place = native.launch_update(instance, 0, launch)
        end = place + _GRID.size
        changed = structure[:place] + _GRID.pack(5, 4, 1) + structure[end:]
        assert _GRID.unpack(structure[place:end]) == launch.grid
        assert streams.calls.update_launch(instance, node, changed) == 0
    else:
        native.update_graph(instance, 0, launch._replace(grid=(5, 4, 1)))
    target.value = outputs[2].address
    native.launch_graph(stream, instance)
    streams.finish()
    del kept
    native.destroy_graph_instance(instance)
    native.destroy_graph(graph)
    native.unload_module(module)
    written = [[int(each) for each in buffer.numpy() if each] for buffer in outputs]
    assert written == [[*range(1, 61)], [*range(1, 21)], []]
    for buffer in outputs:
        buffer.close()


def test_a_table_knows_the_current_context_q1(second_device, streams):
    """After `NativeDevice.bind` the table finds its own context on the thread, each time (Q1)."""
    other = Streams(second_device)
    for each in (streams, other, streams):
        each.native.bind()
        if each.calls:
            assert each.calls.current() == each.calls.table.context
    other.close()
