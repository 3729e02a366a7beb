"""Cases of native calls that may block: on streams that are nearly full, or that others know.

They are made with the queue's baton and without the interpreter lock.
"""

import sys

import numpy as np
from shortcut_harness import SOURCE, Calls, OnlyC, fill_at_once, main, warm

import hal

DEEP = 100  # launches, more than are made with the interpreter lock kept
SPIN = """
extern "C" __global__ void HAL_BLOCK(1) spin(const volatile int *flag) { while (!flag[0]) { } }
"""


def held_up(device, queue):
    """Return an array: what is submitted to the queue from now on runs once its 0 is a 1."""
    flag = device.allocate(4, dtype=np.int32, memory="host")
    view = flag.map()
    view[0] = 0
    queue.dispatch(device.compile(SPIN)["spin"], grid=1, args=(flag,))
    return view


def fill_deep(device, queue, buffer):
    """Fill a buffer 100 times while nothing runs; return the functions of Python that it took."""
    gate, done = held_up(device, queue), hal.create_semaphore()
    with Calls() as calls:
        for number in range(1, DEEP + 1):
            queue.fill(buffer, number, wait=(done.at(number - 1),), signal=(done.at(number),))
    gate[0] = 1
    done.wait(DEEP, 60)
    assert buffer.numpy().tolist() == [DEEP] * 256
    device.wait_idle(60)
    return calls.names


def case_deep_and_shown_queues_take_no_python_q1(device):
    buffer, queue = warm(device), device.queue
    fill_deep(device, queue, buffer)  # which makes the events that are needed
    assert not (names := fill_deep(device, queue, buffer)), names
    kernel = device.compile(SOURCE)["add"]
    x, y = device.upload(np.arange(4, dtype=np.int32)), device.upload(np.zeros(4, np.int32))
    with device.record() as commands:
        commands.dispatch(kernel, grid=1, args=(x, y, 1, 0.0))
    queue.execute(commands).wait()
    other, beside = device.create_queue(), device.allocate(256)
    for each in (queue, other):
        assert each.stream_handle
    gate = held_up(device, queue)
    with OnlyC():
        first = queue.dispatch(kernel, grid=1, args=(x, y, 2, 0.0))
        second = queue.execute(commands, wait=first)
        third = other.fill(buffer, 7, wait=second)
        queue.copy(buffer, beside, wait=third)
    assert second.state == "issued"
    gate[0] = 1
    device.wait_idle(60)
    assert y.numpy().tolist() == [3 * i + 4 for i in range(4)]
    assert beside.numpy().tolist() == [7] * 256


def case_threads_share_queues_that_others_know_q4(device):
    """The submissions of each thread to the two stay in their order."""
    warm(device)
    queues = (device.queue, device.create_queue())
    assert all(each.stream_handle for each in queues)
    fill_at_once(device, 4, lambda _, number: queues[number // 3 % 2], lambda index: index)
    assert device._context.events.is_idle()


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
