"""Tracked buffers beside raw ones: handing over, and what is refused."""

import gc
import weakref

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError
from hal.flow import Flow, TrackedBuffer


def test_a_released_buffer_says_what_to_wait_for(flow, device, gate):
    tracked = flow.from_host(np.array([1], np.int32))
    tracked.used.wait(LIMIT)
    out = np.zeros(1, np.int32)
    flow.read(tracked, out, wait=gate.at(1))
    part = tracked.subspan(0, 4)
    raw, after = tracked.release()
    late = device.queue.fill(raw, 5, wait=after)
    assert late.state == "pending"
    gate.signal(1)
    late.wait(LIMIT)
    assert out.tolist() == [1]
    assert raw.numpy().tolist() == [5]
    for closed in (tracked, part):
        assert closed.closed
        with pytest.raises(ClosedError, match="released"):
            flow.fill(closed, 0)
        with pytest.raises(ClosedError):
            closed.numpy()
    with pytest.raises(ClosedError):
        tracked.release()
    assert flow.adopt(raw).numpy(timeout=LIMIT).tolist() == [5]


def test_raw_and_tracked_are_not_mixed_up(flow, device):
    raw, tracked = device.allocate(64), flow.allocate(64)
    kernel = device.compile('extern "C" __global__ void HAL_BLOCK(1) f(int *x) {}')["f"]
    with device.record(slots=1) as commands:
        commands.fill(commands.slots[0], 0, size=4)
    for wrong in (
        lambda: flow.fill(raw, 0),
        lambda: flow.write(raw, bytes(4)),
        lambda: flow.copy(raw, tracked),
        lambda: flow.copy(tracked, raw),
        lambda: flow.dispatch(kernel, grid=1, args=(raw,)),
        lambda: flow.dispatch(kernel, grid=1, args={"x": raw}),
        lambda: flow.dispatch(kernel, grid=raw, args=(tracked,)),
        lambda: flow.execute(commands, bindings=[raw]),
        lambda: flow.call(print, reads=[raw]),
    ):
        with pytest.raises(ArgumentTypeError, match="raw: nobody knows"):
            wrong()
    for wrong in (
        lambda: device.queue.fill(tracked, 0),
        lambda: flow.adopt(tracked),
        lambda: flow.execute(3),
        lambda: flow.execute(commands, bindings=3),
        lambda: flow.dispatch("f", grid=1),
        lambda: flow.dispatch(kernel, grid=1, args=3),
        Flow,
        lambda: Flow("cpu"),
    ):
        with pytest.raises(ArgumentTypeError):
            wrong()
    with pytest.raises(InvalidArgumentError, match="slots"):
        flow.execute(commands, bindings=[tracked], reads=[1])


def test_memory_is_tracked_once(flow, device):
    raw = device.allocate(256)
    low, high = raw.subspan(0, 128), raw.subspan(128, 128)
    first = flow.adopt(low)
    for again in (raw, low, raw.subspan(100, 50)):
        with pytest.raises(InvalidArgumentError, match="tracked already"):
            flow.adopt(again)
    second = flow.adopt(high)
    first.release()
    second.close()
    flow.adopt(raw)


def test_memory_of_a_tracked_buffer_is_tracked_by_whomever_it_was_made(flow, device):
    made = [flow.allocate(64), flow.from_host(np.zeros(64, "u1")), flow.adopt(device.allocate(64))]
    made.append(flow.device_to_device(made[0], device))
    merge = flow.merge_buffer()
    merge.load(made[0])
    made.append(merge.expect(made[0]))
    for each in made:
        for raw in (each.raw, each.raw.subspan(8, 8), each.subspan(63, 1).raw):
            for other in (flow, Flow(device)):
                with pytest.raises(InvalidArgumentError, match="tracked already"):
                    other.adopt(raw)
    for each in made[:4]:
        raw, after = each.release()
        other = Flow(device).adopt(raw, after=after)
        with pytest.raises(InvalidArgumentError, match="tracked already"):
            flow.adopt(raw)
        other.close()


def test_memory_that_is_tracked_no_more_is_forgotten(flow, device):
    """By whomever: nothing is kept alive, and what is remembered is bounded."""
    addresses = flow.lanes_of(None).addresses
    raw = device.allocate(4096)
    before = device.statistics().bytes_now
    for index in range(1000):
        flow.allocate(1 << 20)
        flow.adopt(raw.subspan(index, 1))
    flow.wait_idle(LIMIT)
    device.trim()
    assert device.statistics().bytes_now == before
    assert len(addresses) <= 128
    flow.adopt(raw)
    kept = [flow.allocate(64) for _ in range(200)]
    for each in kept:
        with pytest.raises(InvalidArgumentError, match="tracked already"):
            flow.adopt(each.raw)


def test_devices_are_not_kept_alive_by_what_they_tracked():
    device = hal.create_device("cpu")
    Flow(device).allocate(64)
    device.close()
    forgotten = weakref.ref(device)
    del device
    gc.collect()
    assert forgotten() is None


def test_memory_of_no_bytes_is_nobodys(flow, device):
    empty, tracked = flow.allocate(0), flow.allocate(64)
    for raw in (empty.raw, tracked.raw.subspan(8, 0)):
        flow.adopt(raw)


def test_memory_of_alloca_is_tracked_once(flow, device, gate):
    raw = device.queue.alloca(64, wait=gate.at(1))
    tracked = flow.adopt(raw)
    with pytest.raises(InvalidArgumentError, match="tracked already"):
        Flow(device).adopt(raw)  # it has no address yet
    gate.signal(1)
    raw.allocation.wait(LIMIT)
    for again in (raw, raw.subspan(32, 32)):
        with pytest.raises(InvalidArgumentError, match="tracked already"):
            flow.adopt(again)
    tracked.release()
    flow.adopt(raw)


def test_flows_and_devices_are_kept_apart(flow, device, second_device):
    other = Flow(second_device)
    buffer = other.allocate(4)
    with pytest.raises(InvalidArgumentError, match="another flow"):
        flow.fill(buffer, 0)
    with pytest.raises(InvalidArgumentError, match="not among this flow's devices"):
        flow.adopt(second_device.allocate(4))
    with pytest.raises(InvalidArgumentError, match="not among this flow's devices"):
        flow.fill(flow.allocate(4), 0, queue=second_device.create_queue())
    with pytest.raises(InvalidArgumentError, match="unordered"):
        flow.fill(flow.allocate(4), 0, queue=device.create_queue(ordered=False))


def test_named_queues(flow, device):
    own = device.create_queue(name="mine")
    buffer = flow.from_host(np.zeros(4, np.uint8))
    used = [
        flow.write(buffer, bytes(4)),
        flow.fill(buffer, 0),
        flow.to_host(buffer).submission,
        flow.fill(buffer, 0, queue="download"),
        flow.fill(buffer, 0, queue=own),
    ]
    queues = device.queues
    assert [each.queue for each in used] == [
        *(queues.upload, queues.compute, queues.download, queues.download),
        own,
    ]


def test_raw_operations_in_the_place_of_tracked_ones(flow, gate):
    buffer = flow.from_host(np.zeros(4, np.uint8))
    buffer.used.wait(LIMIT)
    flow.fill(buffer, 1, wait=gate.at(1))
    late = flow.submit(
        lambda queue, waits: queue.fill(buffer.raw, 2, wait=waits), writes=[buffer], queue="upload"
    )
    assert late.state == "pending"
    gate.signal(1)
    assert (buffer.numpy(timeout=LIMIT) == 2).all()


@pytest.mark.parametrize("way", ["raises", "returns nothing", "uses another queue"])
def test_a_raw_operation_that_goes_wrong_may_have_been_submitted(flow, gate, way):
    buffer = flow.from_host(np.zeros(4, np.uint8))
    buffer.used.wait(LIMIT)

    def submit(queue, waits):
        if way == "uses another queue":
            queue = queue.device.create_queue(ordered=False)
        submission = queue.fill(buffer.raw, 1, wait=[*waits, gate.at(1)])
        if way == "raises":
            raise InvalidArgumentError("too late")
        return submission if way == "uses another queue" else None

    with pytest.raises((InvalidArgumentError, ArgumentTypeError)):
        flow.submit(submit, writes=[buffer])
    late = flow.to_host(buffer)
    assert late.submission.state == "pending"
    gate.signal(1)
    assert late.result(LIMIT).tolist() == [1] * 4


def test_a_closed_flow_makes_nothing_new(device):
    flow = Flow(device)
    buffer = flow.from_host(np.ones(4, np.uint8))
    flow.close()
    flow.close()
    assert flow.closed
    for wrong in (
        lambda: flow.allocate(4),
        flow.record,
        lambda: flow.adopt(device.allocate(4)),
        lambda: flow.from_host(np.ones(4)),
    ):
        with pytest.raises(ClosedError, match="closed"):
            wrong()
    raw, after = buffer.release()
    after.wait(LIMIT)
    assert raw.numpy().tolist() == [1, 1, 1, 1]


def test_signals_and_waits_of_the_caller(flow, gate):
    done = hal.create_semaphore()
    buffer = flow.allocate(4)
    fence = hal.Fence([gate.at(1)])
    for index, wait in enumerate((gate.at(1), [gate.at(1)], fence, (each for each in [fence]))):
        flow.fill(buffer, 0, wait=wait, signal=done.at(index + 1))
    assert done.query() == 0
    gate.signal(1)
    done.wait(4, LIMIT)


def test_closing_a_buffer(flow):
    buffer = flow.from_host(np.ones(8, np.uint8))
    part = buffer.subspan(0, 4)
    part.close()
    assert (part.closed, buffer.closed) == (True, False)
    assert repr(buffer).startswith("<TrackedBuffer uint8[8] 8 bytes at 0x")
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert isinstance(buffer, TrackedBuffer)
    with pytest.raises(ClosedError):
        buffer.subspan(0, 4)
    with pytest.raises(ClosedError):
        flow.to_host(buffer)


@pytest.mark.parametrize("size", [0, 4, 8])
def test_closing_a_part_closes_nothing_else(flow, size):
    """That holds for a part as large as the whole, too, and for an empty one."""
    buffer = flow.from_host(np.ones(size, np.uint8))
    part, other = buffer.subspan(0, size), buffer.subspan(0, size)
    with pytest.raises(InvalidArgumentError, match="part"):
        part.release()
    part.close()
    part.close()
    assert (part.closed, other.closed, buffer.closed) == (True, False, False)
    with pytest.raises(ClosedError):
        flow.fill(part, 2)
    flow.fill(other, 3)
    assert buffer.numpy(timeout=LIMIT).tolist() == [3] * size
    buffer.close()
    assert other.closed
    with pytest.raises(ClosedError):
        flow.fill(other, 4)


def test_closing_an_empty_part_closes_nothing_else(flow):
    buffer = flow.from_host(np.ones(8, np.uint8))
    buffer.subspan(0, 0).close()
    assert buffer.numpy(timeout=LIMIT).tolist() == [1] * 8
