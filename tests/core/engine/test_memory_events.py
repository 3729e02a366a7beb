"""Events that are numbers in pinned memory (``semaphores=memory``), on streams made for a test."""

import ctypes
import itertools
import threading
from types import SimpleNamespace

import pytest

import hal
from hal._engine import memory_events
from hal._engine.memory_events import open_memory_events
from hal.errors import DeviceLostError, InvalidArgumentError, OperationError, UnimplementedError


class Streams:
    """A native device: streams that run when they are told to, with events and numbers."""

    features = frozenset({"stream_values"})
    works = True
    moved = 0

    def __init__(self):
        self.numbers = itertools.count(1)
        self.streams = {}  # what is enqueued and has not run
        self.events = {}  # whether each is complete
        self.memory = {}
        self.error = None
        self.made = []  # the calls that enqueue

    def bind(self):
        pass

    def allocate(self, size, _memory):
        block = ctypes.create_string_buffer(size + 64)
        address = (ctypes.addressof(block) + 63) & -64
        self.memory[address] = block
        return address

    def host_pointer(self, address, _memory):
        return address + self.moved

    def free(self, address, _memory):
        del self.memory[address]

    def create_stream(self):
        stream = next(self.numbers)
        self.streams[stream] = []
        return stream

    def destroy_stream(self, stream):
        assert not self.streams.pop(stream)

    def create_event(self):
        event = next(self.numbers)
        self.events[event] = []
        return event

    def destroy_event(self, event):
        del self.events[event]

    def query_event(self, event):
        if self.error:
            raise self.error
        return all(entry[3] for entry in self.events[event])

    def synchronize_stream(self, stream):
        self.run()
        assert not self.streams[stream], "it never ends"

    def record_event(self, event, stream):
        entry = self._enqueue(stream, "record", event)
        self.events[event] = [entry]

    def wait_event(self, stream, event):
        self._enqueue(stream, "wait event", list(self.events.get(event, ())))

    def write_value(self, stream, address, value):
        self._enqueue(stream, "write", (address, value))

    def wait_value(self, stream, address, value):
        self._enqueue(stream, "wait", (address, value))

    def hold(self, stream):
        """Put work on a stream; return a function that ends it."""
        gate = self._enqueue(stream, "work", [])
        return lambda: gate[2].append("over")

    def run(self):
        """Run all that can run; what was last on its stream and first made is no different."""
        before = -1
        while before != (before := sum(map(len, self.streams.values()))):
            for queued in self.streams.values():
                while queued and self._may_run(queued[0]):
                    queued.pop(0)[3] = True

    def _enqueue(self, stream, kind, what):
        entry = [stream, kind, what, False]
        self.made.append((stream, kind))
        if self.works:
            self.streams[stream].append(entry)
        return entry

    def _may_run(self, entry):
        _, kind, what, _ = entry
        if kind == "work":
            return bool(what)
        if kind == "wait event":
            return all(each[3] for each in what)
        if kind in {"wait", "write"}:
            word = ctypes.c_uint64.from_address(what[0])
            if kind == "wait":
                return word.value >= what[1]
            word.value = what[1]
        return True


@pytest.fixture
def device(monkeypatch):
    """A device whose streams run by themselves only while the core tries them out."""
    made, own, others = Streams(), threading.get_ident(), memory_events.sync.yield_thread

    def yield_thread():
        made.run() if threading.get_ident() == own else others()

    monkeypatch.setattr(memory_events.sync, "yield_thread", yield_thread)
    return made


@pytest.fixture
def events(device):
    opened = open_memory_events(device, "acme:0")
    device.made.clear()
    return opened


def kinds(device, stream):
    return [kind for each, kind in device.made if each == stream]


def operation(event, queue=1, sequence=1):
    """Return a stand-in for an operation of a queue, with its event."""
    return SimpleNamespace(
        _event=SimpleNamespace(handle=event), _queue=SimpleNamespace(_id=queue), _sequence=sequence
    )


def test_a_record_is_a_number_that_the_host_reads_and_another_stream_awaits(device, events):
    first, second = device.create_stream(), device.create_stream()
    event, other = events.create_event(), events.create_event()
    assert events.query_event(event), "never recorded"
    end = device.hold(first)
    events.record_event(event, first)
    events.wait_event(second, event)
    events.record_event(other, second)
    device.run()
    assert not events.query_event(event)
    assert not events.query_event(other)
    end()
    device.run()
    assert events.query_event(event)
    assert events.query_event(other)
    assert kinds(device, first) == ["work", "write"]
    assert kinds(device, second) == ["wait", "write"]
    events.wait_event(second, event)  # over: there is nothing to wait for
    assert kinds(device, second) == ["wait", "write"]


def test_an_event_whose_write_is_under_way_is_recorded_natively(device, events):
    """A late write of the first record must not undo that of the second."""
    first, second = device.create_stream(), device.create_stream()
    event = events.create_event()
    end = device.hold(first)
    events.record_event(event, first)
    events.record_event(event, second)  # as one that a finaliser has given back
    assert kinds(device, second) == ["record"]
    device.run()
    assert events.query_event(event), "the record of the second stream is complete"
    end()
    device.run()
    assert events.query_event(event)
    events.record_event(event, second)
    assert kinds(device, second) == ["record", "write"]
    device.run()
    assert events.query_event(event)


def test_streams_of_others_get_native_events_only(device, events):
    ours, theirs = device.create_stream(), device.create_stream()
    event, captured = events.create_event(), events.create_event()
    end = device.hold(ours)
    events.record_event(event, ours)
    events.let_wait(device, theirs, operation(event))
    events.record_natively(captured, theirs)
    events.wait_event(ours, captured)
    assert kinds(device, theirs) == ["wait event", "record"]
    assert kinds(device, ours) == ["work", "write", "wait event"]
    device.run()
    assert device.streams[theirs]
    assert not events.query_event(captured)
    end()
    device.run()
    assert not device.streams[theirs]
    assert events.query_event(captured)


@pytest.mark.parametrize("other", [(2, 1), (1, 1)], ids=["another queue", "an earlier operation"])
def test_nobody_elsewhere_waits_behind_a_longer_wait(device, events, other):
    """Work that waits for the host must not hold up streams that wait for other work."""
    first, second = device.create_stream(), device.create_stream()
    theirs, others = device.create_stream(), device.create_stream()
    slow, fast = events.create_event(), events.create_event()
    end, soon = device.hold(first), device.hold(second)
    events.record_event(slow, first)
    events.record_event(fast, second)
    events.let_wait(device, theirs, operation(slow, 1, 2))
    events.let_wait(device, others, operation(fast, *other))
    soon()
    device.run()
    assert device.streams[theirs]
    assert not device.streams[others]
    end()
    device.run()
    assert not device.streams[theirs]
    known = len(device.streams)
    for sequence in range(3, 9):  # one stream serves the rest
        end = device.hold(first)
        events.record_event(slow, first)
        events.let_wait(device, theirs, operation(slow, 1, sequence))
        end()
        device.run()
    assert len(device.streams) == known


def test_another_device_waits_for_a_native_event(device, events):
    other, stream = Streams(), device.create_stream()
    theirs, event = other.create_stream(), events.create_event()
    end = device.hold(stream)
    events.record_event(event, stream)
    events.let_wait(other, theirs, operation(event))
    assert kinds(other, theirs) == ["wait event"]
    assert kinds(device, stream) == ["work", "write"]
    end()
    device.run()
    events.let_wait(other, theirs, operation(event))  # over: there is nothing to wait for
    assert kinds(other, theirs) == ["wait event"]


def test_a_lost_device_is_noticed_while_a_number_does_not_come(device, events, monkeypatch):
    now = itertools.count(1000)
    monkeypatch.setattr(memory_events.sync, "monotonic", lambda: next(now))
    stream, event = device.create_stream(), events.create_event()
    device.hold(stream)
    events.record_event(event, stream)
    assert not events.query_event(event)
    device.run()
    assert not events.query_event(event)
    device.error = DeviceLostError("gone", native_name="ACME_GONE", native_code=719)
    with pytest.raises(DeviceLostError, match="gone"):
        events.query_event(event)


def test_who_asks_while_an_event_is_recorded_waits_for_no_number_to_come(
    device, events, monkeypatch
):
    """A thread that has not seen that its operation is over may ask for the next record."""
    now = itertools.count(1000)
    monkeypatch.setattr(memory_events.sync, "monotonic", lambda: next(now))
    stream, event = device.create_stream(), events.create_event()
    events.record_event(event, stream)
    device.run()
    write = device.write_value

    def write_value(on, address, value):
        assert events.query_event(event)
        write(on, address, value)

    monkeypatch.setattr(device, "write_value", write_value)
    events.record_event(event, stream)
    assert {kind for _, kind in device.made} == {"write"}
    assert not events.query_event(event)


def test_an_event_whose_write_has_failed_is_native(device, events, monkeypatch):
    """It may come all the same, and undo a later one."""
    stream, event = device.create_stream(), events.create_event()

    def write_value(*_):
        raise OperationError("no")

    with monkeypatch.context() as patch:
        patch.setattr(device, "write_value", write_value)
        with pytest.raises(OperationError, match="no"):
            events.record_event(event, stream)
    events.record_event(event, stream)
    assert kinds(device, stream) == ["record"]


def test_events_beyond_the_pinned_memory_are_native(device, events):
    stream = device.create_stream()
    made = [events.create_event() for _ in range(4097)]
    for event in made:
        events.record_event(event, stream)
    assert kinds(device, stream).count("record") == 1
    device.run()
    assert all(map(events.query_event, made))


def test_nothing_is_left_when_they_are_closed_i7(device, events):
    stream = device.create_stream()
    made = [events.create_event() for _ in range(3)]
    for event in made:
        events.record_event(event, stream)
        events.let_wait(device, stream, operation(event))
        events.record_natively(event, stream)
        events.let_wait(device, stream, operation(event))
    device.run()
    for event in made:
        events.destroy_event(event)
    assert {events.create_event() for _ in made} == set(made), "their memory serves again"
    for event in made:
        events.destroy_event(event)
    events.close()
    device.destroy_stream(stream)
    assert (device.streams, device.events, device.memory) == ({}, {}, {})


def test_a_device_whose_streams_do_not_answer_is_refused(device, monkeypatch):
    monkeypatch.setattr(memory_events, "_PROBE_SECONDS", 0)
    device.works = False
    with pytest.raises(UnimplementedError, match=r"acme:0 says .* no answer came .*=events"):
        open_memory_events(device, "acme:0")


def test_a_device_whose_driver_refuses_is_refused_with_its_reason(device, monkeypatch):
    def refuse(*_):
        raise OperationError("no such operation", native_name="ACME_NO", native_code=801)

    monkeypatch.setattr(device, "wait_value", refuse)
    with pytest.raises(UnimplementedError, match=r"trial failed: no such operation; .*=events"):
        open_memory_events(device, "acme:0")
    assert not device.memory


def test_pinned_memory_with_two_addresses_is_refused(device):
    device.moved = 4096
    with pytest.raises(UnimplementedError, match="other addresses for pinned memory"):
        open_memory_events(device, "acme:0")
    assert not device.memory


def test_a_device_without_the_feature_and_a_wrong_word_are_refused():
    with pytest.raises(UnimplementedError, match=r"cpu:0 has no streams .*'stream_values'"):
        hal.create_device("cpu?semaphores=memory")
    with pytest.raises(InvalidArgumentError, match="semaphores"):
        hal.create_device("cpu?semaphores=timeline")
    hal.create_device("cpu?semaphores=events").close()
