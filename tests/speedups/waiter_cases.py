"""Cases of reads and writes of queues that the thread makes which waits for them."""

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import pytest
from shortcut_harness import Interrupt, fails, main

import hal
from hal._engine import progress
from hal._engine.host_calls import begin, complete
from hal._transfers.transfers import SMALL
from hal.errors import CancelledError, DeadlineExceededError, OperationError

SIZE = SMALL + 1
LIMIT = 60.0


@contextlib.contextmanager
def idle_pool():
    """Keep what is sent to the pool from its threads until the block ends."""
    sent, run = SimpleQueue(), progress.workers.run
    progress.workers.run = sent.put
    try:
        yield sent
    finally:
        progress.workers.run = run
        while not sent.empty():
            sent.get()()  # as a thread does that comes late


def arrays(device):
    """Return a buffer, the bytes in it, and an array for them."""
    data = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    buffer = device.upload(data)
    buffer.numpy()  # makes the stream
    return buffer, data, np.zeros(SIZE, np.uint8)


def case_a_wait_copies_m1(device):
    """In both directions; what is behind it goes on, and the pool finds nothing to do."""
    buffer, data, host = arrays(device)
    queue, done = device.queue, hal.create_semaphore()
    with idle_pool() as sent:
        queue.read(buffer, host, signal=done.at(1)).wait()
        assert (host == data).all()
        assert done.query() == 1
        written = queue.write(buffer, data[::-1].copy())
        behind = queue.fill(buffer, 7, size=1)
        assert behind.state == "pending"
        written.wait(None)
        behind.wait(LIMIT)
        host[:] = 1
        assert sent.qsize() == 2
    assert (host == 1).all()
    found = buffer.numpy()
    assert found[0] == 7
    assert (found[1:] == data[-2::-1]).all()


def case_a_wait_with_a_time_out_leaves_it_to_the_pool_s6(device):
    """A copy does not end in time."""
    buffer, data, host = arrays(device)
    with idle_pool():
        read = device.queue.read(buffer, host)
        with pytest.raises(DeadlineExceededError):
            read.wait(0.01)
    read.wait(LIMIT)
    assert (host == data).all()


def case_what_was_cancelled_is_not_begun_q4(device):
    """Nor what a thread of the pool has begun."""
    buffer, _, host = arrays(device)
    queue = device.queue
    with idle_pool():
        read = queue.read(buffer, host)
        assert read.cancel()
        with pytest.raises(CancelledError):
            read.wait()
        assert not host.any()

        read = queue.read(buffer, host)
        assert progress.act(begin, read, None)  # as a thread of the pool does
        with ThreadPoolExecutor(1) as waiter:
            waited = waiter.submit(read.wait)
            progress.act(complete, read, ())
            assert waited.result(LIMIT) is None
        assert not host.any()


def case_a_copy_that_fails_there_is_the_pools_q5(device):
    """Failing once it is made there; as often as it is tried, the operation fails, and is over."""
    buffer, data, host = arrays(device)
    for times in (1, 3):
        with idle_pool() as sent, ThreadPoolExecutor(1) as waiter:
            read = device.queue.read(buffer, host)
            late = sent.get(timeout=LIMIT)
            sim = fails("cuMemcpyAsync", times, device)
            waited = waiter.submit(read.wait)
            sent.get(timeout=LIMIT)()  # sent by the thread that waits
            late()
            assert isinstance(waited.exception(LIMIT), (type(None), OperationError)[times == 3])
        assert not sim.fail_none()
        assert (host == data).all() == (times == 1)
        host[:] = 0
    device.queue.read(buffer, host).wait()
    assert (host == data).all()


def case_a_ctrl_c_ends_the_wait_and_no_copy_o3(device):
    """It comes as the copy has been made: the operation ends nevertheless."""
    buffer, data, host = arrays(device)
    for times in (1, 2):
        with idle_pool():
            read = device.queue.read(buffer, host)
            with Interrupt("complete", times=times):
                read.wait()
            assert read.state == "done"
            assert (host == data).all()
            host[:] = 0
    device.wait_idle(LIMIT)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
