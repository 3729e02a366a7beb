"""Cases of copies: those that queues submit, and those that the calling thread makes."""

import gc
import sys
import threading
import weakref
from collections import Counter
from functools import partial

import numpy as np
import pytest
from core_harness import wait_until
from shortcut_harness import Calls, OnlyC, fails, in_threads, main, warm

import hal
from hal._transfers.transfers import SMALL
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, OperationError
from hal_conformance.calls import Holds

ARGUMENTS = Counter({"Buffer.numpy": 1, "check_buffer": 1})
"""What is left in Python of a blocking read: its arguments."""


def case_a_blocking_read_takes_no_engine_m1(device):
    data = np.arange(4096, dtype=np.uint8)
    small, pinned = device.upload(data), device.allocate(4096, memory="host")
    pinned.map()[:] = data
    for buffer in (small, pinned):
        buffer.numpy()  # makes the stream
        device.queue.fill(small, 7, offset=4095).wait()
        with Calls() as calls:
            found = buffer.numpy()
        assert calls.names == ARGUMENTS, calls.names
        assert found[:4095].tolist() == data[:4095].tolist()
    assert small.numpy()[4095] == 7


def case_a_blocking_write_takes_no_engine_m1(device):
    data = np.arange(64, dtype=np.float32)
    device.upload(data)
    with Calls() as calls:
        buffer = device.upload(data)
    assert not {"act", "_move", "_copy"} & set(calls.names), calls.names
    assert buffer.numpy().tolist() == data.tolist()


def case_copies_take_no_engine_q4(device):
    """In both directions, behind a wait, and issued by a signal."""
    buffer, pinned = warm(device), device.allocate(256, memory="host")
    go, done = hal.create_semaphore(), hal.create_semaphore()
    pinned.map()[:] = np.arange(256)
    queue, download = device.queue, device.queues.download
    queue.copy(pinned, buffer).wait()
    with OnlyC():
        first = queue.copy(pinned, buffer, target_offset=8, size=248, signal=(done.at(1),))
        second = download.copy(buffer, pinned, size=16, wait=first)
    second.wait()
    assert done.query() == 1
    assert pinned.map()[:16].tolist() == [*range(8), *range(8)]
    pending = queue.copy(pinned, buffer, wait=(go.at(1),), signal=(done.at(2),))
    with OnlyC():
        go.signal(1)
    pending.wait()
    assert buffer.numpy().tolist() == pinned.numpy().tolist()


def case_copies_that_are_refused_are_so_by_python_q4(device):
    """Ranges that overlap or do not fit, and buffers of others; the same range is a no-op."""
    buffer, other = warm(device), device.allocate(8)
    half, closed = buffer.subspan(128, 128), device.allocate(8)
    closed.close()
    read_only = device.allocate(8, access="read")
    for source, target, options in (
        (buffer, half, {"size": 129}),
        (buffer, buffer, {"target_offset": 4}),
        (buffer, other, {}),
        (buffer, other, {"source_offset": 250, "target_offset": 3}),
        (buffer, other, {"size": -1}),
        (buffer, other, {"source_offset": 2**63}),
        (closed, other, {}),
        (other, read_only, {}),
    ):
        with pytest.raises((ClosedError, InvalidArgumentError)):
            device.queue.copy(source, target, **options)
    device.queue.copy(half, buffer, target_offset=128).wait()
    device.queue.copy(buffer, half, size=128).wait()
    assert device.queue.copy(buffer, other, size=0).state in {"issued", "done"}


def case_arrays_are_copied_without_python_q4(device):
    """Where the device copies pageable memory: a write captures it, a read keeps its array."""
    if not device._pageable:
        return
    warm(device)
    queue, buffer = device.queue, device.allocate(16, dtype=np.int32)
    data, found = np.arange(4, dtype=np.int32), np.zeros((1, 2), np.int32)
    kept = weakref.ref(found)
    with OnlyC():
        first = queue.write(buffer, data, wait=[])
        data += 1
        second = queue.write(buffer, data[:2].view(np.uint8), offset=8, wait=(first,))
        third = queue.read(buffer, found, offset=4, wait=second, signal=())
    assert (first.kind, third.kind) == ("write", "read")
    third.wait(30)
    assert found.tolist() == [[1, 1]]
    assert buffer.numpy().tolist() == [0, 1, 1, 2]
    with Holds(device._native) as holds:
        holds.hold(queue._stream)
        last = queue.read(buffer, found)
        del found
        gc.collect()
        assert kept() is not None
    last.wait(30)
    device.wait_idle(30)
    del last
    gc.collect()
    wait_until(lambda: kept() is None)


def case_other_arrays_are_copied_by_python_q4(device):
    """Python copies them, or refuses them."""
    buffer, wide = device.upload(np.zeros(4, np.int32)), np.arange(8, dtype=np.int32)
    constant = np.zeros(4, np.int32)
    constant.flags.writeable = False
    read_only, closed = device.allocate(16, access="read"), device.allocate(16)
    closed.close()
    for method, to, array, options, error in (
        ("write", buffer, wide[::2], {}, InvalidArgumentError),
        ("write", buffer, wide, {}, InvalidArgumentError),
        ("write", buffer, wide[:4], {"offset": 4}, InvalidArgumentError),
        ("write", buffer, wide[:4], {"offset": -4}, InvalidArgumentError),
        ("write", buffer, wide[:4].astype(np.float32), {}, ArgumentTypeError),
        ("write", read_only, wide[:4].view(np.uint8), {}, InvalidArgumentError),
        ("write", closed, wide[:4], {}, ClosedError),
        ("write", buffer, buffer, {}, ArgumentTypeError),
        ("read", buffer, wide[::2], {}, InvalidArgumentError),
        ("read", buffer, constant, {}, InvalidArgumentError),
        ("read", buffer, wide[:4].view(np.float32), {}, ArgumentTypeError),
        ("write", buffer, wide[:4].view(np.uint32), {}, None),
        ("write", buffer, wide[:4].view(type("Array", (np.ndarray,), {})), {}, None),
        ("write", buffer, wide[:0], {}, None),
        ("write", buffer, wide[:1], {"offset": np.int64(4)}, None),
        ("read", buffer, memoryview(wide[:4]), {}, None),
    ):
        raised = None
        try:
            with Calls() as calls:
                getattr(device.queue, method)(to, array, **options).wait(30)
        except hal.HalError as caught:
            raised = type(caught)
        assert raised is error, (method, array, options, raised)
        assert f"Queue.{method}" in calls.names, (method, array, options)


def case_a_large_array_is_written_from_where_it_is_q4(device):
    """No copy of it is made: what it holds when the write runs counts."""
    if not device._pageable:
        return
    data, go = np.zeros(SMALL + 1, np.uint8), hal.create_semaphore()
    buffer = device.allocate(data.size)
    last = device.queue.write(buffer, data, wait=go.at(1))
    data += 1
    go.signal(1)
    last.wait(30)
    assert (buffer.numpy() == 1).all()


def case_threads_read_at_once_m1(device):
    buffers = [device.upload(np.full(1 << 18, number, np.uint8)) for number in range(4)]

    def read(number):
        return all((buffers[number].numpy() == number).all() for _ in range(30))

    assert in_threads(*(partial(read, number) for number in range(4))) == [True] * 4
    assert not device._context.direct.users


def case_a_close_waits_for_a_thread_in_a_copy_q6(device):
    """The thread lets the interpreter lock go while the driver copies."""
    other = hal.create_device(device.name)
    if other._pageable:
        return other.close()  # the host copies
    buffer, ends = other.upload(np.ones(16 << 20, np.uint8)), []
    buffer.numpy()

    def read():
        try:
            while True:
                assert (buffer.numpy() == 1).all()
        except ClosedError:
            ends.append("closed")

    thread = threading.Thread(target=read)
    thread.start()
    while not other._context.direct.users:
        thread.join(0.0001)
    assert other.close(60) == ()
    assert not other._context.direct.users
    thread.join(60)
    assert ends == ["closed"]
    return None


def case_a_copy_that_fails_is_repeated_by_python_m1(device):
    """Once, it is not seen; twice, the error is the primitive's, and the stream is used again."""
    if device.backend != "cuda":
        return
    buffer, pinned = (
        device.upload(np.arange(256, dtype=np.uint8)),
        device.allocate(256, memory="host"),
    )
    expected = buffer.numpy().tolist()
    for function in ("cuMemcpyAsync", "cuStreamSynchronize"):
        fails(function, 1, device)
        assert buffer.numpy().tolist() == expected
        fails(function, 2, device)
        with pytest.raises(OperationError, match="CUDA_ERROR_UNKNOWN"):
            buffer.numpy()
        assert buffer.numpy().tolist() == expected
    warm(device)
    sim = fails("cuMemcpyAsync", 1, device)
    device.queue.copy(buffer, pinned).wait()
    assert not sim.fail_none()
    assert pinned.map().tolist() == expected
    assert len(device._copy_streams) == 1


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
