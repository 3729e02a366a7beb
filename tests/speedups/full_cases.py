"""Cases of native calls that block, or fail, without the interpreter lock.

On the software driver a Python function of another library's holds up a stream, which takes so many
operations and then blocks. Nobody would go on if the call kept the interpreter lock.
"""

import contextlib
import ctypes
import faulthandler
import sys
import threading

import gpusim
import pytest
from core_harness import Running
from pool_cases import grow
from shortcut_harness import Calls, fails, main, warm

import hal

HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ROOM = 7  # operations: the function, and two of a fill and its event with a wait, or three without
ENOUGH = 1024
LIMIT = 60.0


class Blocked:
    """A thread that submits fills to the device's queue, and the driver that blocks the last."""

    def __init__(self, device):
        self.device, self.sim = device, gpusim.load()
        self.buffer, self.queue = warm(device), device.queue
        self.gate, self.done = threading.Event(), hal.create_semaphore()
        self.function = HOST(lambda _: self.gate.wait(LIMIT))
        self.other = None  # a queue that each of them waits for
        self.thread = threading.Thread(target=self.submit)
        self.count = 0  # of submissions that have begun
        self.last = None  # the one that was blocked
        self.hold(self.queue)

    def hold(self, queue):
        """Put the function on a queue's stream."""
        driver, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(queue.stream_handle)
        assert not driver.cuLaunchHostFunc(stream, self.function, None)

    def submit(self):
        while self.sim.blocked() == self.before:
            self.count += 1
            signal = self.done.at(self.count)
            wait = self.other and self.other.barrier()
            self.last = self.queue.fill(self.buffer, self.count, wait=wait, signal=signal)

    def __enter__(self):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        self.before = self.sim.blocked()
        self.sim.launch_limit(ROOM)
        self.thread.start()
        while self.sim.blocked() == self.before:
            assert self.thread.is_alive()
        return self

    def open(self):
        self.sim.launch_limit(ENOUGH)
        self.gate.set()
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()

    def __exit__(self, kind, *_):
        self.open()
        if kind is None:
            assert self.last.wait(LIMIT) is None
        faulthandler.cancel_dump_traceback_later()


def case_a_call_that_blocks_holds_up_nobody_q1(device):
    """Not even its own queue: work that is submitted there meanwhile comes behind it."""
    other = device.create_queue()
    with Blocked(device) as blocked:
        behind = blocked.queue.fill(blocked.buffer, 99)
        assert behind.state == "pending"
        beside = device.allocate(64)
        other.fill(beside, 5).wait(LIMIT)
        assert not blocked.done.poll(blocked.count)
        blocked.open()
        behind.wait(LIMIT)
    assert blocked.last.state == "done"
    assert blocked.buffer.numpy().tolist() == [99] * 256


def case_a_call_that_blocks_publishes_to_who_has_come_s2(device):
    """Its values are promised when it is claimed, and who waits for them is told."""
    other, called = device.create_queue(), threading.Event()
    with Blocked(device) as blocked:
        with pytest.raises(hal.errors.InvalidArgumentError):
            blocked.done.signal(blocked.count)
        blocked.done.on_reached(blocked.count, lambda _: called.set())
        beside = device.allocate(64)
        behind = other.fill(beside, 5, wait=blocked.done.at(blocked.count))
        assert behind.state == "pending"
        blocked.open()
        behind.wait(LIMIT)
        assert called.wait(LIMIT)
    assert blocked.done.query() == blocked.count


def case_a_close_waits_for_a_call_that_blocks_q6(device):
    with Blocked(device) as blocked:
        behind = blocked.queue.fill(blocked.buffer, 99)
        closing = Running(device.close, LIMIT)
        while behind.state == "pending":
            pass
        assert behind.state == "cancelled"
        assert closing.is_alive()
        blocked.open()
        assert closing.result() == ()


def case_a_call_that_fails_takes_its_claim_back_s1(device):
    """Python repeats it, behind what has come meanwhile, with the same signal."""
    blocked = Blocked(device)
    blocked.other = device.create_queue()
    blocked.hold(blocked.other)
    with blocked:  # by the stream's third wait
        behind = blocked.queue.fill(blocked.buffer, 99)
        blocked.sim.fail("cuMemsetD8Async", 1, 999)
        blocked.open()
        assert not blocked.sim.fail_none()
    assert behind.state == "done"
    assert blocked.last.state == "done"
    assert blocked.buffer.numpy().tolist() == [blocked.count] * 256
    device.wait_idle(LIMIT)
    assert device._context.events.is_idle()


def make_events(device):
    """Have so many made that a submission finds one."""
    pool = device._context.events
    for event in [pool.take() for _ in range(256)]:
        event.release()


def case_queues_at_rest_leave_their_room_to_another_q1(device):
    """An alloca keeps the interpreter lock: Python makes it where many launches are in flight."""
    grow(device)
    blocked = Blocked(device)
    make_events(device)
    queue, kept = device.create_queue(), []
    queue.barrier(wait=blocked.queue.barrier())
    with Calls() as calls:
        while not calls.names:
            kept.append(queue.alloca(64))
            kept.append(queue.dealloca(kept[-1]))
    blocked.gate.set()
    device.wait_idle(LIMIT)
    assert 100 < len(kept) < 256, len(kept)


def case_few_questions_make_room_q1(device):
    """Where the device keeps up, one is enough for many submissions."""
    buffer, sim, driver = warm(device), gpusim.load(), ctypes.CDLL("libcuda.so.1")
    make_events(device)
    before = sim.calls("cuEventQuery")
    for _ in range(256):
        device.queue.fill(buffer, 1)
        assert not driver.cuCtxSynchronize()
    asked = sim.calls("cuEventQuery") - before
    assert 0 < asked <= 8, asked


def case_a_wait_asks_once_for_what_is_complete_s6(device):
    buffer, sim, driver = warm(device), gpusim.load(), ctypes.CDLL("libcuda.so.1")
    done = hal.create_semaphore()
    for value in range(1, 9):
        first = device.queue.fill(buffer, value)
        device.queue.fill(buffer, 0, signal=done.at(value))
        assert not driver.cuCtxSynchronize()
        before = sim.calls("cuEventQuery")
        first.wait(LIMIT)  # which does not ask about what is behind it
        assert sim.calls("cuEventQuery") == before + 1
        done.wait(value, LIMIT)
        assert sim.calls("cuEventQuery") == before + 2


def case_each_call_may_fail_on_a_stream_that_others_know_s1(device):
    buffer, other = warm(device), device.create_queue()
    assert device.queue.stream_handle
    for function in ("cuStreamWaitEvent", "cuMemsetD8Async", "cuEventRecord"):
        for times in (1, 2):
            done = hal.create_semaphore()
            before = other.fill(buffer, 1, signal=done.at(1))  # whose event is recorded
            sim = fails(function, times, device)
            submission = device.queue.fill(buffer, 2, wait=before, signal=done.at(2))
            with contextlib.suppress(hal.HalError):
                submission.wait(LIMIT)
            assert not sim.fail_none(), (function, times)
            assert submission.state == ("done" if times == 1 else "failed"), function
            device.queue.fill(buffer, 3).wait(LIMIT)
    device.wait_idle(LIMIT)
    assert device._context.events.is_idle()


def case_a_stream_of_others_is_pythons_o1(device):
    """Its owner may be capturing it: the primitives look, and refuse."""
    buffer, driver, stream = warm(device), ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert not driver.cuStreamCreate(ctypes.byref(stream), 1)
    queue = device.create_queue(stream=stream.value)
    queue.fill(buffer, 1).wait(LIMIT)
    assert not driver.cuStreamBeginCapture_v2(stream, 2)
    refused = queue.fill(buffer, 2)
    graph = ctypes.c_void_p()
    assert not driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert "captured" in str(refused.error)
    assert buffer.numpy().tolist() == [1] * 256
    assert queue.close() == ()
    driver.cuGraphDestroy(graph)
    driver.cuStreamDestroy_v2(stream)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
