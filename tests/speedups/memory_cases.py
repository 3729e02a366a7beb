"""Cases in which Python has no memory for one allocation of a call, for each in turn (S2, Q1)."""

import _testcapi
import contextlib
import sys

from shortcut_harness import main, warm

import hal
from hal._engine import progress
from hal.errors import CancelledError, HalError, InvalidArgumentError

PLACES = 48
"""More allocations than a shortcut makes."""

HIGH = 1 << 40  # no int that Python has at hand


def with_one_missing(device, prepare, act):
    """Prepare, and act with one allocation refused; whatever has come of it, nobody waits for ever.

    Both are called with 14 semaphores, which are signalled to `HIGH` in the end unless an operation
    has promised that, and return submissions.
    """
    for place in range(PLACES):
        semaphores = [hal.create_semaphore() for _ in range(14)]
        prepared = prepare(*semaphores)
        made = []
        with contextlib.suppress(MemoryError, HalError):
            _testcapi.set_nomemory(place, place + 1)
            made = act(*semaphores)
        _testcapi.remove_mem_hooks()
        for semaphore in semaphores:
            with contextlib.suppress(CancelledError):  # its operation broke off in Python
                try:
                    semaphore.signal(HIGH)
                except InvalidArgumentError:  # promised
                    semaphore.wait(HIGH, 30)
        for each in (*prepared, *made):
            with contextlib.suppress(MemoryError, CancelledError):
                each.wait(30)
        device.queue.barrier().wait(30)


def nothing(*_):
    return ()


def case_an_operation_stands_in_line_q1(device):
    """Alone and behind another one that waits for the same value, ordered or not."""
    buffer, beside = warm(device), device.create_queue(ordered=False)
    for queue in (device.queue, beside):

        def fill(go, done, *_, queue=queue):
            return (queue.fill(buffer, 5, wait=(go.at(1), done.at(HIGH))),)

        for prepare in (nothing, fill):
            with_one_missing(device, prepare, fill)


def case_an_operation_is_issued_and_retires_s2(device):
    """Another one waits for it, or nobody does."""
    buffer = warm(device)

    def behind(_, done, *__):
        return (device.queues.upload.fill(buffer, 1, wait=done.at(HIGH)),)

    def fill(_, done, *__):
        made = device.queue.fill(buffer, 5, signal=done.at(HIGH))
        with contextlib.suppress(MemoryError):
            made.wait(30)
        return (made,)

    for prepare in (nothing, behind):
        with_one_missing(device, prepare, fill)


def case_a_signal_releases_operations_s2(device):
    """Those that wait for much else besides, on several queues."""
    buffer = warm(device)
    queues = (device.queue, device.queues.upload) * 2

    def prepare(*semaphores):
        waits = [each.at(1) for each in semaphores]
        return tuple(queue.fill(buffer, 1, wait=waits) for queue in queues)

    def signal(go, *_):
        go.signal(1)
        return ()

    def signal_all(*semaphores):
        for each in semaphores:
            each.signal(1)
        return ()

    for act in (signal, signal_all):
        with_one_missing(device, prepare, act)


def case_a_call_ends_o3(_):
    """The end of a ``with`` makes a tuple for a lock of Python's, which stays taken without it."""
    held = []
    for place in range(12):
        held.append([(number, number, number) for number in range(5000)])  # no spare tuple is left
        with contextlib.suppress(MemoryError):
            _testcapi.set_nomemory(place, place + 1)
            progress.act(progress.nothing, None, None)
        _testcapi.remove_mem_hooks()
        progress.act(progress.nothing, None, None)


def case_an_alloca_takes_memory_m3(device):
    """What no memory could be noted for has no address: no two have the same."""
    queue, kept, refused = device.queue, [], 0
    for buffer in [queue.alloca(512) for _ in range(2 * PLACES)]:
        queue.dealloca(buffer)
    device.wait_idle(30)

    def take(*_):
        kept.append(queue.alloca(512))
        return ()

    for _ in range(2):
        with_one_missing(device, nothing, take)
    for index, buffer in enumerate(kept):
        with contextlib.suppress(InvalidArgumentError):
            queue.fill(buffer, index).wait(30)
            continue
        refused += 1
    assert refused < len(kept) // 2
    found = [buffer.numpy().max() for buffer in kept if buffer.address is not None]
    assert len({*found}) == len(kept) - refused


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
