"""Queues: S2, Q1 (nothing blocks, backlogs), Q2 (order), Q3, Q4."""

from __future__ import annotations

import itertools
import random
import threading
import time

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import DeviceLostError, InvalidArgumentError, OperationError


def queues_of(device):
    return (device.queues.compute, device.queues.upload, device.queues.download)


# Every operation does what it says (Q4)


def test_fill_update_copy_read_write_q4(device):
    queue = device.queue
    source, target = device.allocate(16), device.allocate(16)
    out = np.zeros(16, np.uint8)
    queue.fill(source, b"\x01")
    queue.fill(source, b"\x02\x03", offset=4, size=4)
    queue.fill(source, np.uint32(0x07060504), offset=8, size=4)
    queue.update(source, b"\x09\x0a", offset=13)
    queue.write(target, np.full(16, 0xEE, np.uint8))
    queue.copy(source, target, source_offset=3, target_offset=1, size=12)
    queue.read(target, out).wait(LIMIT)
    expected = bytes([1, 1, 1, 1, 2, 3, 2, 3, 4, 5, 6, 7, 1, 9, 10, 1])
    assert source.numpy().tobytes() == expected
    assert out.tobytes() == b"\xee" + expected[3:15] + b"\xee\xee\xee"


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 255, 256, 257, 65537])
def test_fill_patterns_lengths_and_offsets_q4(device, width, length):
    """Every pattern, offset and length is right to the byte, or refused."""
    size = 65537 + 16
    pattern = bytes(range(1, width + 1))
    buffer = device.upload(np.full(size, 0xAA, np.uint8))
    for offset in range(8):
        if offset % width or length % width:
            with pytest.raises(InvalidArgumentError, match=str(width)):
                device.queue.fill(buffer, pattern, offset=offset, size=length)
            continue
        device.queue.fill(buffer, b"\xaa")
        done = device.queue.fill(buffer, pattern, offset=offset, size=length)
        result = buffer.numpy(wait=done, timeout=LIMIT).tobytes()
        expected = b"\xaa" * offset + pattern * (length // width)
        assert result == expected.ljust(size, b"\xaa")


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("u1", 255, b"\xff" * 4),
        ("i1", -1, b"\xff" * 4),
        ("i2", -2, b"\xfe\xff" * 2),
        ("u4", 2**32 - 1, b"\xff" * 4),
        ("f4", 1.0, b"\x00\x00\x80\x3f"),
        ("f4", 1, b"\x00\x00\x80\x3f"),
        ("f2", 1.0, b"\x00\x3c" * 2),
        ("?", True, b"\x01" * 4),
        ("u1", b"\x07", b"\x07" * 4),
        ("f4", b"\x07", b"\x07" * 4),
        ("u1", np.uint16(0x0201), b"\x01\x02" * 2),
        ("u1", np.float32(1), b"\x00\x00\x80\x3f"),
        ("u1", bytearray(b"\x01\x02\x03\x04"), b"\x01\x02\x03\x04"),
        ("f8", 0.0, b"\x00" * 8),
        ("i8", -1, b"\xff" * 8),
        ("u1", np.int64(0), b"\x00" * 4),
    ],
)
def test_fill_converts_numbers_to_the_buffers_type_q4(device, dtype, value, expected):
    buffer = device.allocate(len(expected), dtype=dtype)
    assert buffer.numpy("u1", wait=device.queue.fill(buffer, value)).tobytes() == expected


def test_zero_sizes_are_no_ops_that_order_and_signal(device):
    """C4: nothing is written, and waits and signals still hold."""
    buffer = device.upload(np.arange(16, dtype=np.uint8))
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    empty = device.allocate(0)
    operations = [
        device.queue.fill(buffer, b"\x01\x02\x03\x04", size=0, wait=gate.at(1)),
        device.queue.fill(empty, 1),
        device.queue.update(buffer, b"", offset=16),
        device.queue.copy(buffer, empty, size=0),
        device.queue.copy(empty, buffer),
        device.queue.write(buffer, np.zeros(0, np.uint8), offset=7),
        device.queue.read(buffer, np.zeros(0, np.float64), offset=3, signal=done.at(1)),
    ]
    assert [operation.state for operation in operations] == ["pending"] * 7
    gate.signal(1)
    done.wait(1, LIMIT)
    assert [operation.state for operation in operations] == ["done"] * 7
    assert buffer.numpy().tolist() == list(range(16))


def test_update_captures_its_bytes_q4(device):
    """Q4: what the array holds after the call changes nothing."""
    buffer = device.allocate(8)
    gate = hal.create_semaphore()
    array = np.arange(8, dtype=np.uint8)
    raw = bytearray(b"abcd")
    device.queue.update(buffer, array, wait=gate.at(1))
    last = device.queue.update(buffer, memoryview(raw), offset=4)
    array[:] = 0xFF
    raw[:] = b"zzzz"
    gate.signal(1)
    assert buffer.numpy(wait=last).tobytes() == b"\x00\x01\x02\x03abcd"


@pytest.mark.parametrize(
    "data",
    [
        b"abcdefgh",
        bytearray(b"abcdefgh"),
        memoryview(b"abcdefgh"),
        np.frombuffer(b"abcdefgh", np.float64),
        np.frombuffer(b"abcdefgh", np.uint16).reshape(2, 2),
        np.frombuffer(b"abcdefgh", "V8"),
        np.float64(np.frombuffer(b"abcdefgh", np.float64)[0]),
    ],
    ids=lambda data: type(data).__name__ + str(getattr(data, "dtype", "")),
)
def test_update_and_write_take_what_has_bytes_q4(device, data):
    buffer = device.allocate(8)
    assert buffer.numpy(wait=device.queue.update(buffer, data)).tobytes() == b"abcdefgh"
    device.queue.fill(buffer, 0).wait(LIMIT)
    assert buffer.numpy(wait=device.queue.write(buffer, data)).tobytes() == b"abcdefgh"


def test_call_passes_arguments_and_runs_elsewhere_q4(device):
    """Q4: a host function runs on another thread, with its arguments, once."""
    calls = []
    device.queue.call(
        lambda *arguments: calls.append((arguments, threading.get_ident())), 1, "a"
    ).wait(LIMIT)
    assert [arguments for arguments, _ in calls] == [(1, "a")]
    assert calls[0][1] != threading.get_ident()


def test_calls_may_submit_and_wait(device):
    """Q4: a host function may submit to queues and wait for other ones."""
    buffer = device.upload(np.zeros(4, np.uint8))

    def work():
        device.queues.upload.fill(buffer, 4).wait(LIMIT)
        return device.queue.fill(buffer, 5, size=2)

    inner = []
    device.queue.call(lambda: inner.append(work())).wait(LIMIT)
    inner[0].wait(LIMIT)
    assert buffer.numpy().tolist() == [5, 5, 4, 4]


def test_many_blocking_calls_run_side_by_side(device):
    """Q4: calls of different queues that wait for each other must not share one thread."""
    count = 12
    together = threading.Barrier(count, timeout=LIMIT)
    queues = [device.create_queue() for _ in range(count)]
    calls = [queue.call(together.wait) for queue in queues]
    hal.wait_all(calls, LIMIT)


def test_barrier_and_flush_q4(device):
    semaphore = hal.create_semaphore()
    barrier = device.queue.barrier(wait=semaphore.at(1))
    device.queue.flush()
    assert barrier.state == "pending"
    semaphore.signal(1)
    device.queue.flush()
    barrier.wait(LIMIT)


def test_submission_needs_no_flush_or_poke_q4(device):
    """Every entry point makes progress without another call of ours."""
    buffer, other = device.allocate(16), device.allocate(16)
    array = np.zeros(16, np.uint8)
    with device.record() as commands:
        commands.fill(buffer, 1)
    queue = device.queue
    for submit in (
        lambda **lists: queue.fill(buffer, 1, **lists),
        lambda **lists: queue.update(buffer, b"1", **lists),
        lambda **lists: queue.copy(buffer, other, **lists),
        lambda **lists: queue.write(buffer, array, **lists),
        lambda **lists: queue.read(buffer, array, **lists),
        lambda **lists: queue.call(list, **lists),
        lambda **lists: queue.execute(commands, **lists),
        queue.barrier,
    ):
        for gate in (None, hal.create_semaphore()):
            done, told = hal.create_semaphore(), threading.Event()
            done.on_reached(1, lambda _, told=told: told.set())
            submit(wait=gate.at(1) if gate else (), signal=done.at(1))
            if gate:
                gate.signal(1)
            assert told.wait(LIMIT), "nobody looked after it"


# A submission returns at once (Q1)


def test_submit_returns_while_waits_are_unmet_q1(device):
    """Q1: thousands of operations behind an unmet wait are taken without a word."""
    gate = hal.create_semaphore()
    buffer = device.allocate(4)
    last = None
    for index in range(3000):
        last = device.queue.fill(buffer, index % 256, wait=gate.at(1))
    assert last.state == "pending"
    gate.signal(1)
    assert buffer.numpy(wait=last, timeout=LIMIT).tolist() == [2999 % 256] * 4


@pytest.mark.parametrize("limit", [1, 2])
def test_submit_returns_while_the_stream_is_full_q1(open_probe, latch, limit):
    """Q1: N operations at most are in flight; the rest stand in line and start no native call."""
    device, probe = open_probe(max_in_flight=limit)
    buffer = device.allocate(4)
    probe.hold(latch)
    submissions = [device.queue.fill(buffer, index) for index in range(50)]
    assert probe.calls["fill"] == limit
    assert [each.state for each in submissions] == ["issued"] * limit + ["pending"] * (50 - limit)
    latch.open()
    hal.wait_all(submissions, LIMIT)
    assert probe.calls["fill"] == 50
    assert buffer.numpy().tolist() == [49] * 4


def test_never_more_in_flight_than_allowed_q1(open_probe, latch):
    """Q1: also when several threads submit at the same time."""
    device, probe = open_probe(max_in_flight=3)
    buffer = device.allocate(16)
    probe.hold(latch)
    submissions = []

    def submit():
        submissions.extend(device.queue.fill(buffer, 1) for _ in range(100))

    collect_in_threads([submit] * 4)
    assert probe.calls["fill"] == 3
    latch.open()
    hal.wait_all(submissions, LIMIT)
    assert probe.calls["fill"] == 400


@pytest.mark.parametrize("ordered", [True, False])
def test_backlog_moves_without_anyone_polling_q1(open_probe, ordered):
    """Q1: the progress thread issues the rest, if nobody else retires."""
    device, _ = open_probe(max_in_flight=2)
    queue = device.create_queue(ordered=ordered)
    buffer = device.allocate(4)
    semaphore, told = hal.create_semaphore(), threading.Event()
    semaphore.on_reached(300, lambda _: told.set())
    for value in range(1, 301):
        wait = semaphore.at(value - 1) if not ordered else ()
        queue.fill(buffer, value % 256, wait=wait, signal=semaphore.at(value))
    assert told.wait(LIMIT)
    assert buffer.numpy().tolist() == [300 % 256] * 4


def test_signal_issues_64_operations_itself_at_most_q1(open_probe):
    """Q1: a signal that releases 500 hands the rest over, whatever queues they stand in."""
    device, probe = open_probe()
    buffer, gate = device.allocate(4), hal.create_semaphore()
    queues = [device.create_queue(ordered=bool(index % 2)) for index in range(4)]
    fills = [queues[index % 4].fill(buffer, 1, wait=gate.at(1)) for index in range(500)]
    gate.signal(1)
    assert probe.callers["fill", threading.get_ident()] <= 64
    hal.wait_all(fills, LIMIT)
    assert probe.calls["fill"] == 500


def test_everything_that_a_signal_hands_over_runs_q1(device):
    """Q1: of 2000 released operations none is forgotten, with nobody polling for them."""
    gate, told = hal.create_semaphore(), threading.Event()
    queues = [device.create_queue(ordered=False) for _ in range(4)]
    submissions = [queues[index % 4].barrier(wait=gate.at(1)) for index in range(2000)]
    done = hal.create_semaphore()
    device.queue.barrier(wait=submissions, signal=done.at(1))
    done.on_reached(1, lambda _: told.set())
    gate.signal(1)
    assert told.wait(LIMIT)
    assert all(each.state == "done" for each in submissions)


def test_signal_from_many_threads_releases_each_once(open_probe):
    """I2: an operation whose two waits are met at the same time is issued once."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    rounds = 150
    lefts = [hal.create_semaphore() for _ in range(rounds)]
    rights = [hal.create_semaphore() for _ in range(rounds)]
    submissions = [
        device.queues.compute.fill(buffer, 1, wait=[left.at(1), right.at(1)])
        for left, right in zip(lefts, rights, strict=True)
    ]
    together = threading.Barrier(2, timeout=LIMIT)

    def signal(semaphores):
        together.wait()
        for semaphore in semaphores:
            semaphore.signal(1)

    collect_in_threads([lambda: signal(lefts), lambda: signal(rights)])
    hal.wait_all(submissions, LIMIT)
    assert probe.calls["fill"] == rounds


@pytest.mark.parametrize("count", [1, 32, 33, 100, 1000])
@pytest.mark.parametrize("last", ["first", "middle", "end"])
def test_many_waits_q1(device, count, last):
    """Any number of waits; the operation runs when the last one is met, once."""
    semaphores = [hal.create_semaphore() for _ in range(count)]
    runs = []
    pending = device.queue.call(runs.append, 1, wait=[each.at(1) for each in semaphores])
    on_stream = device.queues.upload.barrier(wait=[each.at(1) for each in semaphores])
    final = {"first": 0, "middle": count // 2, "end": count - 1}[last]
    for index, semaphore in enumerate(semaphores):
        if index != final:
            semaphore.signal(1)
    assert (pending.state, on_stream.state) == ("pending", "pending")
    semaphores[final].signal(1)
    pending.wait(LIMIT)
    on_stream.wait(LIMIT)
    assert runs == [1]


@pytest.mark.parametrize("count", [33, 1000])
def test_many_signals_and_waits_on_queues(device, count):
    """One operation signals a thousand semaphores; one waits for them all."""
    semaphores = [hal.create_semaphore() for _ in range(count)]
    device.queues.compute.barrier(signal=[each.at(1) for each in semaphores])
    device.queues.upload.barrier(wait=[each.at(1) for each in semaphores]).wait(LIMIT)
    assert all(each.query() == 1 for each in semaphores)


# S2 across queues: wait before signal


def test_host_signal_releases_a_queued_chain_s2(device):
    """S2: 12 chained submissions over three queues are queued first; one signal runs them all."""
    semaphore = hal.create_semaphore()
    buffer = device.upload(np.zeros(12, np.uint8))
    queues = queues_of(device)
    for step in range(1, 13):
        queues[step % 3].fill(
            buffer,
            step,
            offset=step - 1,
            size=13 - step,
            wait=semaphore.at(step),
            signal=semaphore.at(step + 1),
        )
    assert semaphore.query() == 0
    assert not semaphore.poll(1)
    semaphore.signal(1)
    semaphore.wait(13, LIMIT)
    assert buffer.numpy().tolist() == list(range(1, 13))


@pytest.mark.parametrize("kind", ["same driver", "another driver", "another domain"])
def test_wait_before_signal_across_devices_s2_s3(device, second_device, open_probe, kind):
    """S2, S3: the waiting device needs no other call to run."""
    other = second_device
    if kind != "same driver":
        other, _ = open_probe(domain=object() if kind == "another domain" else None)
    one, two, three = (hal.create_semaphore() for _ in range(3))
    mine, theirs = device.allocate(4, memory="host"), other.allocate(4, memory="host")
    view = mine.map()
    seen = []
    last = device.queue.call(lambda: seen.append(view[0]), wait=three.at(1))
    other.queue.fill(theirs, 2, wait=two.at(1), signal=three.at(1))
    device.queues.upload.fill(mine, 1, wait=one.at(1), signal=two.at(1))
    told = threading.Event()
    three.on_reached(1, lambda _: told.set())
    assert not told.is_set()
    one.signal(1)
    assert told.wait(LIMIT)
    last.wait(LIMIT)
    assert seen == [1]
    assert theirs.map().tolist() == [2, 2, 2, 2]


def test_work_of_another_domain_is_waited_for_on_the_host(open_probe, latch):
    """S3: no stream waits for an event of a domain that is not its own."""
    device, probe = open_probe(domain=object())
    other, _ = open_probe(domain=object())
    buffer, target = device.allocate(4), other.allocate(4)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    device.queue.fill(buffer, 1, signal=semaphore.at(1))
    follower = other.queue.fill(target, 2, wait=semaphore.at(1))
    assert follower.state == "pending"
    latch.open()
    follower.wait(LIMIT)  # the probe objects to an event of another domain


def test_work_of_the_same_domain_is_waited_for_on_the_stream(open_probe, latch):
    """Design 5: a recorded point of the same driver is a stream wait, not a host's."""
    device, probe = open_probe()
    buffer = device.allocate(8)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    device.queues.upload.fill(buffer, 1, size=4, signal=semaphore.at(1))
    follower = device.queues.compute.fill(buffer, 2, wait=semaphore.at(1))
    assert follower.state == "issued"
    assert probe.calls["wait_event"] == 1
    again = device.queues.compute.fill(buffer, 3, wait=semaphore.at(1))
    assert again.state == "issued"
    assert probe.calls["wait_event"] == 1, "the stream has waited for it already"
    third = device.queues.download.fill(buffer, 4, wait=[semaphore.at(1), again])
    assert probe.calls["wait_event"] == 3, "another stream has not"
    latch.open()
    third.wait(LIMIT)
    assert buffer.numpy().tolist() == [4] * 8


def test_the_smallest_covering_point_is_waited_for(open_probe, latch):
    """With 1 and 5 recorded, a wait for 1 does not wait for 5's work."""
    device, probe = open_probe()
    buffer = device.allocate(8)
    semaphore, gate = hal.create_semaphore(), hal.create_semaphore()
    five = device.queues.upload.fill(buffer, 5, wait=gate.at(1), signal=semaphore.at(5))
    one = device.queues.download.barrier(signal=semaphore.at(1))
    probe.hold(latch)
    gate.signal(1)
    assert five.state == "issued"
    waiting = device.queues.compute.barrier(wait=semaphore.at(1))
    waiting.wait(LIMIT)
    one.wait(LIMIT)
    assert not five.done
    assert semaphore.query() == 1
    latch.open()


@pytest.mark.parametrize("seed", range(8))
def test_submission_out_of_order_over_all_queues_s2(device, small_device, seed):
    """S2: a chain's links, submitted in any order over the queues of two devices, keep the data.

    Every link works on what the last one left, so that one that runs early,
    late, twice or never shows in the end.
    """
    generator = random.Random(seed)
    links = 24
    devices = (device, small_device)
    # An ordered queue would hold its own earlier links up, so each of those gets one link.
    queues = [each.create_queue(ordered=False) for each in devices]
    queues += [each.create_queue() for each in devices for _ in range(6)]
    semaphore = hal.create_semaphore()
    view = device.upload(np.zeros(links + 1, np.int64)).map()

    def run(step):
        view[step] = (int(view[step - 1]) * 3 + step) % 1_000_003

    order = list(range(1, links + 1))
    generator.shuffle(order)
    for step in order:
        queue = generator.choice(queues)
        if queue.ordered:
            queues.remove(queue)
        queue.call(run, step, wait=semaphore.at(step), signal=semaphore.at(step + 1))
    assert semaphore.query() == 0
    semaphore.signal(1)
    semaphore.wait(links + 1, LIMIT)
    steps = range(1, links + 1)
    expected = itertools.accumulate(steps, lambda a, step: (a * 3 + step) % 1_000_003, initial=0)
    assert view.tolist() == list(expected)


@pytest.mark.parametrize("seed", range(4))
def test_out_of_order_copies_keep_the_data_s2(device, seed):
    """S2: as above with native copies, on streams that wait for each other's events."""
    generator = random.Random(seed)
    links = 30
    buffers = [device.allocate(64) for _ in range(links + 1)]
    data = bytes(generator.randrange(256) for _ in range(64))
    device.queue.update(buffers[0], data).wait(LIMIT)
    queues = [device.create_queue(ordered=False) for _ in range(4)]
    semaphore = hal.create_semaphore()
    order = list(range(links))
    generator.shuffle(order)
    for step in order:
        generator.choice(queues).copy(
            buffers[step],
            buffers[step + 1],
            wait=semaphore.at(step + 1),
            signal=semaphore.at(step + 2),
        )
    semaphore.signal(1)
    semaphore.wait(links + 1, LIMIT)
    assert buffers[-1].numpy().tobytes() == data


def test_one_write_fans_out_to_every_queue_s2(device, second_device):
    """S2: one signal, many queues that wait for it; each sees the same bytes."""
    semaphore = hal.create_semaphore()
    source = device.allocate(256)
    queues = [*queues_of(device), *(device.create_queue() for _ in range(5))]
    outs = [np.zeros(256, np.uint8) for _ in queues]
    reads = [
        queue.read(source, out, wait=semaphore.at(1))
        for queue, out in zip(queues, outs, strict=True)
    ]
    foreign = second_device.queue.barrier(wait=semaphore.at(1))
    data = np.arange(256, dtype=np.uint8)
    device.create_queue().write(source, data, signal=semaphore.at(1))
    hal.wait_all([*reads, foreign], LIMIT)
    for out in outs:
        assert (out == data).all()


def test_twelve_rounds_between_host_and_device_s7(device):
    """Queue write, queue copy, queue read, each waiting for the last: bytes stay what they were."""
    semaphore = hal.create_semaphore()
    data = np.random.default_rng(1).integers(0, 256, 512, np.uint8)
    original = data.copy()
    one, two = device.allocate(512), device.allocate(512)
    for round_ in range(12):
        base = 3 * round_
        device.queues.upload.write(
            one, data, wait=semaphore.at(base), signal=semaphore.at(base + 1)
        )
        device.queues.compute.copy(
            one, two, wait=semaphore.at(base + 1), signal=semaphore.at(base + 2)
        )
        device.queues.download.read(
            two, data, wait=semaphore.at(base + 2), signal=semaphore.at(base + 3)
        )
    semaphore.wait(36, LIMIT)
    assert (data == original).all()


# In which order operations run


def test_an_ordered_queue_is_first_in_first_out_q2(device):
    """Q2: an unmet wait holds up all that stands behind it, of every kind."""
    gate = hal.create_semaphore()
    order = []
    queue = device.queue
    buffer = device.upload(np.zeros(4, np.uint8))
    operations = [
        queue.call(order.append, "gated", wait=gate.at(1)),
        queue.call(order.append, "call"),
        queue.fill(buffer, 1),
        queue.barrier(),
    ]
    device.queues.upload.barrier().wait(LIMIT)
    assert [each.state for each in operations] == ["pending"] * 4
    assert order == []
    gate.signal(1)
    hal.wait_all(operations, LIMIT)
    assert order == ["gated", "call"]


def test_host_calls_and_device_work_keep_the_order_q2(device):
    """Q2: a call sees what was filled before it, and what follows waits for the call."""
    queue = device.queue
    buffer = device.allocate(4096, memory="host")
    view = buffer.map()
    seen = []
    for value in range(1, 60):
        queue.fill(buffer, value)
        queue.call(lambda: seen.append((int(view[0]), int(view[-1]))))
        queue.call(lambda value=value: view.__setitem__(slice(None), 100 + value))
        queue.copy(buffer, buffer, target_offset=2048, size=2048)
    queue.wait_idle(LIMIT)
    assert seen == [(value, value) for value in range(1, 60)]
    assert (view == 159).all()


def test_callbacks_of_one_queue_come_in_order_q2(device):
    """Q2: 100 submissions end in the order of submission."""
    ended, told = [], threading.Event()
    for index in range(100):
        semaphore = hal.create_semaphore()
        semaphore.on_reached(1, lambda _, index=index: ended.append(index))
        device.queue.barrier(signal=semaphore.at(1))
    semaphore.on_reached(1, lambda _: told.set())
    assert told.wait(LIMIT)
    assert ended == list(range(100))


def test_what_enqueues_nothing_ends_with_what_is_before_it_q2(open_probe, latch):
    """Q2: behind work, a barrier makes no native call; whoever waits for it waits for that work."""
    device, probe = open_probe()
    buffer, done = device.allocate(4), hal.create_semaphore()
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    calls = probe.calls.copy()
    barriers = [device.queue.barrier(signal=done.at(value)) for value in (1, 2)]
    assert probe.calls == calls
    after = device.queues.upload.fill(buffer, 2, wait=done.at(1))
    assert [each.state for each in (*barriers, after)] == ["issued"] * 3
    assert done.query() == 0
    latch.open()
    after.wait(LIMIT)
    assert done.query() == 2
    assert buffer.numpy(timeout=LIMIT).tolist() == [2] * 4
    device.wait_idle(LIMIT)
    assert device._context.events.is_idle()


def test_what_enqueues_nothing_waits_on_its_stream_q2(open_probe, latch):
    """Q2: a barrier that waits for another queue ends after that, not with what is before it."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    device.queue.fill(buffer, 1)
    probe.hold(latch)
    other = device.queues.upload.fill(buffer, 2)
    barrier = device.queue.barrier(wait=other)
    device.queue.fill(buffer, 3)
    assert barrier.state == "issued"
    latch.open()
    barrier.wait(LIMIT)
    assert other.state == "done"
    device.wait_idle(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [3] * 4


@pytest.mark.parametrize("lost", [False, True])
def test_what_enqueues_nothing_fails_with_its_device_s5(open_probe, latch, lost):
    """S5: a lost device fails a barrier behind its work; an operation that failed does not."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    if lost:
        probe.fail_event(DeviceLostError("gone"))
    else:
        probe.fail_call(1, names={"fill"})
    device.queue.fill(buffer, 2)
    barrier = device.queue.barrier()
    latch.open()
    if lost:
        with pytest.raises(DeviceLostError):
            barrier.wait(LIMIT)
    else:
        barrier.wait(LIMIT)


def test_an_ordered_queue_needs_only_that_the_previous_was_issued_q2(open_probe, latch):
    """Q2: a host that waits for the second of two does not need the first's semaphore."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    probe.hold(latch)
    first = device.queue.fill(buffer, 1)
    second = device.queue.fill(buffer, 2)
    assert (first.state, second.state) == ("issued", "issued")
    latch.open()
    second.wait(LIMIT)
    assert first.state == "done", "in stream order"


def test_order_inherits_no_failure_q2(device):
    """Q2: what stands behind a failed operation runs all the same."""
    broken = hal.create_semaphore()
    buffer = device.upload(np.zeros(4, np.uint8))
    failing = [
        device.queue.fill(buffer, 1, wait=broken.at(1)),
        device.queue.call(lambda: 1 / 0),
    ]
    after = device.queue.fill(buffer, 2)
    broken.fail(OperationError("no"))
    after.wait(LIMIT)
    assert [each.state for each in failing] == ["failed", "failed"]
    assert buffer.numpy().tolist() == [2, 2, 2, 2]


def test_an_unordered_queue_overtakes_q2(device):
    """Q2: only waits order; what is ready runs past what is not, calls included."""
    queue = device.create_queue(ordered=False)
    gate = hal.create_semaphore()
    order = []
    gated = queue.call(order.append, "gated", wait=gate.at(1))
    free = queue.call(order.append, "free")
    barrier = queue.barrier()
    hal.wait_all([free, barrier], LIMIT)
    assert gated.state == "pending"
    gate.signal(1)
    gated.wait(LIMIT)
    assert order == ["free", "gated"]


def test_calls_of_an_unordered_queue_overlap_q2(device):
    queue = device.create_queue(ordered=False)
    together = threading.Barrier(5, timeout=LIMIT)
    hal.wait_all([queue.call(together.wait) for _ in range(5)], LIMIT)


def test_waits_order_an_unordered_queue_q2(device):
    """Q2: a dependency through a submission holds also within the one queue."""
    queue = device.create_queue(ordered=False)
    order = []
    gate = hal.create_semaphore()
    first = queue.call(order.append, 1, wait=gate.at(1))
    second = queue.call(order.append, 2, wait=first)
    third = queue.call(order.append, 3, wait=[first, second])
    gate.signal(1)
    third.wait(LIMIT)
    assert order == [1, 2, 3]


def test_an_unordered_queue_with_everything_pending_closes_cleanly(device):
    queue = device.create_queue(ordered=False)
    gate = hal.create_semaphore()
    submissions = [queue.barrier(wait=gate.at(index)) for index in range(1, 20)]
    assert queue.close(LIMIT) == ()
    assert {each.state for each in submissions} == {"cancelled"}


# The queues that a device has


def test_three_queues_and_more_q3(device):
    """Q3: three queues with names and streams of their own; `queue` is the compute one."""
    queues = queues_of(device)
    assert device.queue is device.queues.compute
    assert len({queue.name for queue in queues}) == 3
    assert all(queue.ordered and queue.device is device for queue in queues)
    named = device.create_queue(name="mine")
    assert "mine" in named.name
    assert device.name in named.name
    one, two = device.create_queue(), device.create_queue()
    assert one.name != two.name


@pytest.mark.parametrize("held", ["compute", "upload", "download"])
def test_queues_have_streams_of_their_own_q3(open_probe, latch, held):
    """Q3: one queue that is held up holds up no other."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    probe.hold(latch)
    blocked = getattr(device.queues, held).fill(buffer, 1, size=4)
    for name in ("compute", "upload", "download"):
        if name != held:
            getattr(device.queues, name).fill(buffer, 1, offset=4, size=4).wait(LIMIT)
    device.create_queue().fill(buffer, 1, offset=8, size=4).wait(LIMIT)
    assert not blocked.done
    latch.open()
    blocked.wait(LIMIT)


def test_threads_that_submit_do_not_wait_for_each_other_q1(open_probe):
    """Q1: a thread that is in the middle of a native call blocks no other submitter."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    inside, go = threading.Event(), threading.Event()

    def stop():
        inside.set()
        assert go.wait(LIMIT)

    probe.fail_call(1, stop, names=("fill",))
    slow = threading.Thread(target=lambda: device.queue.fill(buffer, 1))
    slow.start()
    assert inside.wait(LIMIT)
    start = time.monotonic()
    same = device.queue.fill(buffer, 2)
    other = device.queues.upload.barrier()
    other.wait(LIMIT)
    assert time.monotonic() - start < LIMIT / 2
    assert same.state == "pending", "it stands behind the other thread's"
    go.set()
    slow.join(LIMIT)
    same.wait(LIMIT)
    assert buffer.numpy().tolist() == [2] * 16


def test_a_consumer_is_not_released_before_its_producer_is_recorded(open_probe):
    """A producer in the middle of its issue has promised, and recorded, nothing."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    inside, go = threading.Event(), threading.Event()

    def stop():
        inside.set()
        assert go.wait(LIMIT)

    semaphore = hal.create_semaphore()
    probe.fail_call(1, stop, names=("record_event",))
    producer = threading.Thread(
        target=lambda: device.queues.upload.fill(buffer, 1, signal=semaphore.at(1))
    )
    producer.start()
    assert inside.wait(LIMIT)
    consumer = device.queues.compute.fill(buffer, 2, wait=semaphore.at(1))
    assert consumer.state == "pending"
    assert semaphore.query() == 0
    go.set()
    producer.join(LIMIT)
    consumer.wait(LIMIT)
    assert buffer.numpy().tolist() == [2] * 16


def test_many_rounds_reuse_their_events(open_probe):
    """Events are pooled: 3000 operations over three queues need few native ones."""
    device, probe = open_probe()
    semaphore = hal.create_semaphore()
    queues = queues_of(device)
    for value in range(1, 3001):
        queues[value % 3].barrier(wait=semaphore.at(value - 1), signal=semaphore.at(value))
        if value % 50 == 0:
            semaphore.wait(value, LIMIT)
    assert probe.live()["event"] < 400
