"""Submit far more than a stream takes, behind work that the host holds (Q1)."""

import numpy as np

import hal

COUNT = 5000
SOURCE = """
extern "C" __global__ void hold(const volatile unsigned* flag) {
  while (*flag == 0) {}
}
extern "C" __global__ void increment(unsigned* number) { *number += 1; }
"""


def test_submissions_do_not_block_behind_a_held_kernel_q1(device):
    program = device.compile(SOURCE)
    flag = device.allocate(4, dtype=np.uint32, memory="host")
    number = device.upload(np.zeros(1, np.uint32))
    view = flag.map()
    view[0] = 0
    ready = hal.create_semaphore()
    held = device.queue.dispatch(program["hold"], grid=1, block=1, args=(flag,))
    submissions = [
        device.queue.dispatch(
            program["increment"], grid=1, block=1, args=(number,), wait=[ready.at(1)]
        )
        for _ in range(COUNT)
    ]
    # The first COUNT wait for what nobody has promised; these wait for the kernel alone.
    ready.signal(1)
    submissions += [
        device.queue.dispatch(program["increment"], grid=1, block=1, args=(number,))
        for _ in range(COUNT)
    ]
    assert not held.done
    assert not any(each.done for each in submissions)
    view[0] = 1
    submissions[-1].wait(timeout=30)
    assert held.done
    assert number.numpy()[0] == 2 * COUNT
    del view
