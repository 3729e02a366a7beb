"""Host arrays that transfers read and fill: held, given back, not changed unnoticed, not kept."""

import gc
import itertools
import mmap
import sys
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, wait_until
from interrupts import Interrupts

import hal
from hal.errors import ClosedError, HalError, InvalidArgumentError, OperationError, OutOfMemoryError
from hal.flow import Flow, virtual_devices
from hal.flow.host_arrays import ReadsInFlight, _held


@pytest.mark.parametrize("shape", [(0, 3), (2, 3)])
def test_memory_of_any_shape_is_taken(flow, shape):
    numbers = np.arange(shape[0] * 3, dtype=np.float32).reshape(shape)
    target = flow.allocate(32)
    flow.write(target, memoryview(numbers)).wait(LIMIT)
    assert target.numpy()[: numbers.nbytes].tobytes() == numbers.tobytes()


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_copied_array_may_change_at_once(flow, gate, size):
    """Also below a view, and in memory that is not numpy's."""
    whole = np.ones(size + 8, np.uint8)
    memory = mmap.mmap(-1, size)
    memory[:] = bytes([3]) * size
    foreign, view = np.frombuffer(memory, np.uint8), whole[8:]
    raw = bytearray([5]) * size
    buffers = [flow.allocate(size) for _ in range(3)]
    for buffer, array in zip(buffers, (view, foreign, raw), strict=True):
        flow.write(buffer, array, wait=gate.at(1))
    whole[:] = foreign[:] = 0
    raw[:] = bytes(size)
    gate.signal(1)
    assert [set(each.numpy(timeout=LIMIT).tolist()) for each in buffers] == [{1}, {3}, {5}]
    del foreign


def test_an_array_is_held_by_all_its_transfers(flow, gate):
    array, buffer, other = np.ones(1000, np.uint8), flow.allocate(1000), flow.allocate(1000)
    late = flow.write(buffer, array, hold=True, wait=gate.at(1), queue="compute")
    flow.write(other, array, hold=True).wait(LIMIT)
    assert not array.flags.writeable
    gate.signal(1)
    late.wait(LIMIT)
    assert array.flags.writeable


def test_large_arrays_are_held_by_themselves(device, gate):
    flow = Flow(device, snapshot=500)
    small, large = np.ones(500, np.uint8), np.ones(501, np.uint8)
    flow.from_host(small, wait=gate.at(1))
    buffer = flow.from_host(large, wait=gate.at(1))
    assert (small.flags.writeable, large.flags.writeable) == (True, False)
    gate.signal(1)
    buffer.written.wait(LIMIT)  # that includes the array
    assert large.flags.writeable
    flow.close()


def test_a_read_only_array_stays_read_only(flow):
    array = np.ones(1000, np.uint8)
    array.flags.writeable = False
    flow.write(flow.allocate(1000), array, hold=True).wait(LIMIT)
    assert not array.flags.writeable


@pytest.mark.parametrize("way", ["view", "flag", "foreign"])
def test_a_change_of_a_held_array_is_found(flow, gate, way):
    """Through a view that was there before, by force, and where no flag can help."""
    array = np.ones(100_003, np.uint8)
    if way == "foreign":
        array = np.frombuffer(mmap.mmap(-1, 100_003), np.uint8)
    other = array[:]
    buffer = flow.allocate(array.size)
    done = flow.write(buffer, array, hold=True, wait=gate.at(1))
    if way == "flag":
        array.flags.writeable = True
    (array if way == "foreign" else other)[99_999] = 7
    gate.signal(1)
    with pytest.raises(OperationError, match="was changed while it was read"):
        done.wait(LIMIT)
    with pytest.raises(OperationError):
        buffer.numpy(timeout=LIMIT)  # nobody takes it for good
    assert array.flags.writeable
    buffer.recover()
    flow.write(buffer, array).wait(LIMIT)


def test_a_held_array_is_given_back_when_its_transfer_fails(flow):
    array, broken = np.ones(1000, np.uint8), hal.create_semaphore()
    buffer = flow.allocate(1000)
    done = flow.write(buffer, array, hold=True, wait=broken.at(1))
    broken.fail(RuntimeError("no power"))
    with pytest.raises(HalError, match="no power"):
        done.wait(LIMIT)
    flow.wait_idle(LIMIT)
    with pytest.raises(HalError):
        flow.write(flow.allocate(10), array, hold=True)
    assert array.flags.writeable


def test_closing_the_device_gives_held_arrays_back(gate):
    device = hal.create_device("cpu")
    flow, array = Flow(device), np.ones(1000, np.uint8)
    flow.write(flow.allocate(1000), array, hold=True, wait=gate.at(1))
    noticed = hal.create_semaphore()
    device.close(LIMIT)
    # The callbacks of one thread, in order.
    hal.create_semaphore(1).on_reached(1, lambda _: noticed.signal(1))
    noticed.wait(1, LIMIT)
    assert array.flags.writeable
    flow.close()


def test_bytes_are_neither_copied_nor_held(flow, gate, monkeypatch):
    allocated = []
    allocate = hal.Device.allocate
    buffer = flow.allocate(200_000)
    monkeypatch.setattr(
        hal.Device, "allocate", lambda *a, **k: allocated.append(a) or allocate(*a, **k)
    )
    flow.write(buffer, bytes([4]) * 200_000, wait=gate.at(1))
    assert allocated == []
    gate.signal(1)
    assert (buffer.numpy(timeout=LIMIT) == 4).all()


def test_an_array_that_is_being_filled_is_refused(flow, gate):
    buffer, array = flow.from_host(np.ones(100, np.uint8)), np.zeros(100, np.uint8)
    read = flow.read(buffer, array, wait=gate.at(1))
    for part in (array, array[50:]):
        with pytest.raises(InvalidArgumentError, match="still being filled"):
            flow.from_host(part)
    gate.signal(1)
    read.wait(LIMIT)
    flow.from_host(array)


def test_a_source_array_is_dropped_in_the_end(flow):
    array = np.ones(1000, np.uint8)
    gone = weakref.ref(array)
    flow.write(flow.allocate(1000), array, hold=True).wait(LIMIT)
    flow.wait_idle(LIMIT)
    del array
    gc.collect()
    ended = hal.create_semaphore()
    flow.call(ended.signal, 1).wait(LIMIT)
    assert gone() is None or len(gc.get_referrers(gone())) <= 1


def test_parts_of_an_array_are_held_apart(flow, gate):
    """In any order of their ends, each is given back once what it is a part of can be."""
    for first in (1, 2):
        whole = np.zeros(1000, np.uint8)
        parts = whole[:500], whole[500:]
        buffer, other = flow.allocate(1000), hal.create_semaphore()
        ends = [
            flow.write(buffer, parts[0], hold=True, wait=gate.at(first)),
            flow.write(buffer, parts[1], offset=500, hold=True, wait=other.at(1)),
        ]
        gate.signal(first)
        ends[0].wait(LIMIT)
        assert not any(each.flags.writeable for each in (whole, *parts))
        other.signal(1)
        ends[1].wait(LIMIT)
        assert all(each.flags.writeable for each in (whole, *parts))
    assert _held == {}


def test_an_array_that_was_locked_meanwhile_stays_so(flow, gate):
    """And the transfer ends all the same."""
    whole = np.zeros(1000, np.uint8)
    part = whole[100:]
    done = flow.write(flow.allocate(900), part, hold=True, wait=gate.at(1))
    del _held[id(whole)][id(whole)]  # as if that were another's: it is not given back
    gate.signal(1)
    done.wait(LIMIT)
    assert not part.flags.writeable
    assert _held == {}


def test_an_array_is_given_back_wherever_a_write_is_interrupted_o3(flow):
    """O3: at once, or once the transfer that was submitted has ended; the buffer is in order."""
    target = flow.allocate(1000)
    for place in itertools.count(1):
        array = np.zeros(1000, np.uint8)
        with Interrupts(place) as interrupts:
            flow.write(target, array, hold=True)
        if not interrupts.places:
            break
        flow.fill(target, 7)
        assert target.numpy(timeout=LIMIT).tolist() == [7] * 1000
        wait_until(lambda array=array: array.flags.writeable)
    assert place > 100
    wait_until(lambda: not _held)


@pytest.mark.parametrize("change", ["other constant", "turned round", "negated"])
def test_a_change_of_all_that_is_held_is_found(flow, gate, change):
    array = np.arange(1 << 18, dtype=np.float32).reshape(64, -1)
    if change == "other constant":
        array[:] = 1
    other = array[:]
    done = flow.write(flow.allocate(array.nbytes), array, hold=True, wait=gate.at(1))
    other[:] = {"other constant": 2 * array, "turned round": array[::-1].copy(), "negated": -array}[
        change
    ]
    gate.signal(1)
    with pytest.raises(OperationError, match="was changed while it was read"):
        done.wait(LIMIT)


def test_arrays_that_were_filled_are_not_kept(flow):
    buffer = flow.from_host(np.ones(1000, np.uint8))
    arrays = [flow.to_host(buffer).result(LIMIT) for _ in range(3)]
    arrays += [np.zeros(1000, np.uint8) for _ in range(3)]
    for array in arrays[3:]:
        flow.read(buffer, array).wait(LIMIT)
    gone = [weakref.ref(array) for array in arrays]
    del array, arrays
    flow.wait_idle(LIMIT)
    gc.collect()
    assert [each() for each in gone] == [None] * 6
    for _ in range(200):
        flow.read(buffer, np.zeros(1000, np.uint8)).wait(LIMIT)
    assert flow.reads_in_flight._total <= 65


class Counted(list):
    """A list that counts how often an item is looked at."""

    looks = 0

    def __getitem__(self, index):
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self):
        for each in super().__iter__():
            self.looks += 1
            yield each


def test_a_write_looks_at_few_of_many_reads_wherever_they_are(device, gate):
    reads, room = ReadsInFlight(), np.zeros(4000, np.uint8)
    read = device.queue.barrier(wait=gate.at(1))
    for start in range(0, 4000, 4):
        reads.add(room[start : start + 4], read)
    ((bits, known),) = reads._sizes.items()
    for start in (0, 2000, 3996):
        reads._sizes[bits] = counted = Counted(known)
        with pytest.raises(InvalidArgumentError, match="still being filled"):
            reads.check(room[start : start + 4], "write")
        assert 0 < counted.looks < 30


def lines_of(function):
    """Return how many lines of hal.flow a call runs."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if "flow" in frame.f_code.co_filename else None

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return count


def test_a_write_costs_the_same_however_many_reads_are_on_their_way(flow, gate):
    source, target = flow.from_host(np.ones(4, np.uint8)), flow.from_host(np.ones(4, np.uint8))
    flow.fill(source, 1, wait=gate.at(1))
    array, costs = np.ones(4, np.uint8), []
    arrays = [np.zeros(4, np.uint8) for _ in range(2000)]
    for part in (arrays[:10], arrays[10:]):
        for each in part:
            flow.read(source, each)
        costs.append(lines_of(lambda: flow.write(target, array)))
    assert costs[1] <= costs[0] + 20
    for each in arrays[::199]:
        with pytest.raises(InvalidArgumentError, match="still being filled"):
            flow.write(target, each)


def test_a_part_of_a_large_array_that_is_being_filled_is_refused(flow, gate):
    buffer, small = flow.from_host(np.ones(1 << 16, np.uint8)), flow.allocate(1)
    flow.fill(buffer, 1, wait=gate.at(1))
    array = np.zeros(1 << 16, np.uint8)
    flow.read(buffer, array)
    for place in (0, 1 << 15, (1 << 16) - 1):
        with pytest.raises(InvalidArgumentError, match="still being filled"):
            flow.write(small, array[place : place + 1])


@pytest.mark.parametrize("kind", ["gaps", "turned round", "bytearray", "datetime", "column"])
def test_whatever_is_being_filled_is_refused(flow, gate, kind):
    """Also where its bytes would be copied: they are not there yet."""
    filled = {
        "bytearray": bytearray(80),
        "datetime": np.zeros(10, "datetime64[ns]"),
        "column": np.zeros((10, 8), np.uint8),
    }.get(kind, np.zeros(80, np.uint8))
    part = {
        "gaps": lambda: filled[::2],
        "turned round": lambda: filled[::-1],
        "bytearray": lambda: memoryview(filled)[70:],
        "datetime": lambda: filled[9:],
        "column": lambda: filled[:, 3],
    }[kind]()
    read = flow.read(flow.from_host(np.ones(80, np.uint8)), filled, wait=gate.at(1))
    target = flow.allocate(80)
    with pytest.raises(InvalidArgumentError, match="still being filled"):
        flow.write(target, part)
    gate.signal(1)
    read.wait(LIMIT)
    flow.write(target, part)


def test_closing_a_flow_leaves_what_it_was_given_going_on(device, gate):
    """And takes no longer than it may, on however many devices."""
    flow = Flow(device)
    array, buffer = np.ones(1000, np.uint8), flow.allocate(1000)
    done = flow.write(buffer, array, hold=True, wait=gate.at(1))
    flow.close(0.01)
    assert done.state == "pending"
    gate.signal(1)
    done.wait(LIMIT)
    assert array.flags.writeable
    assert (buffer.raw.numpy(wait=buffer.written, timeout=LIMIT) == 1).all()


class Watched:
    """A lock that says when a thread is about to take it."""

    def __init__(self):
        self.lock, self.reached = threading.Lock(), threading.Event()

    def _is_owned(self):
        return False

    def __enter__(self):
        self.reached.set()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_a_flow_may_be_closed_while_another_thread_writes(device, second_device, gate):
    """The write goes on, or finds the flow closed."""
    flow, raised = Flow(device, second_device), []
    ones = np.ones(1000, np.uint8)
    first, second = flow.allocate(1000), flow.allocate(1000, device=second_device)
    flow.write(first, ones, hold=True, wait=gate.at(1))
    flow._lock = watched = Watched()

    def run(function):
        try:
            function()
        except Exception as error:  # noqa: BLE001 - whatever it is fails the test
            raised.append(type(error))

    def write():
        run(lambda: flow.write(second, ones[:500], hold=True))

    writer = threading.Thread(target=write)
    closer = threading.Thread(target=run, args=(lambda: flow.close(LIMIT),))
    with watched.lock:
        writer.start()
        assert watched.reached.wait(LIMIT)
        watched.reached.clear()
        closer.start()
        # Where closing takes no lock it has begun by now, and waits for the first array.
        wait_until(lambda: watched.reached.is_set() or flow.closed)
    writer.join(LIMIT)
    gate.signal(1)
    closer.join(LIMIT)
    assert raised in ([], [ClosedError])
    flow.wait_idle(LIMIT)
    assert ones.flags.writeable


def test_an_array_is_held_where_no_memory_for_a_copy_is_left(gate):
    (virtual,) = virtual_devices("cpu", 1, memory_limit="1M")
    array = np.ones(700_000, np.uint8)
    with virtual, Flow(virtual) as flow:
        buffer = flow.from_host(array, wait=gate.at(1))
        assert not array.flags.writeable
        with pytest.raises(OutOfMemoryError):
            flow.write(buffer, array, hold=False)
        gate.signal(1)
        assert (buffer.numpy(timeout=LIMIT) == 1).all()
