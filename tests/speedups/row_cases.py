"""Cases of rows of work whose handles nobody keeps: several operations end with one event.

They count the driver's calls, and hold up streams by a function on the software driver's threads.
"""

import asyncio
import contextlib
import ctypes
import functools
import sys

import gpusim
import numpy as np
from shortcut_harness import FAILED, SOURCE, fails, main, records, warm

import hal
from hal._engine import timelines
from hal_conformance.calls import Holds

LIMIT = 60.0
COUNT = 48  # of a row: fewer than the submissions after which a queue harvests
SHARE = 8  # operations of one event, at the most
LOST = 719


def in_a_row(submit, orders=({},) * COUNT, kept=None):
    """Submit operations, each with an order, and drop their handles, unless a list keeps them."""
    for order in orders:
        made = submit(**order)
        if kept is not None:
            kept.append(made)
        del made


def finish():
    """Let the device end all of its work, of which hal is not told."""
    assert not ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()


def rows(device, queue=None):
    """Return calls that submit one operation each, by their kinds."""
    buffer, kernel, queue = warm(device), device.compile(SOURCE)["add"], queue or device.queue
    x, y = (device.upload(np.zeros(4, np.int32)) for _ in range(2))
    with device.record() as commands:
        commands.fill(buffer, 1)
        commands.barrier()
        commands.fill(buffer, 2)
    queue.execute(commands).wait(LIMIT)  # now there is an instance
    return {
        "fill": lambda **order: queue.fill(buffer, 1, **order),
        "dispatch": lambda **order: queue.dispatch(kernel, grid=1, args=(x, y, 1, 0.0), **order),
        "copy": lambda **order: queue.copy(x, y, **order),
        "execute": lambda **order: queue.execute(commands, **order),
    }


def case_a_row_shares_its_events_q4(device):
    for name in rows(device):
        submit = rows(device, device.create_queue())[name]
        submit().wait(LIMIT)  # the first launch of a block is Python's
        assert records(in_a_row, submit) == COUNT // SHARE - 1, name
        assert records(device.wait_idle, LIMIT) <= 1, name


def case_who_can_see_an_end_has_an_event_of_its_own_s2(device):
    """A handle that is kept, a signal, a stream that others fill: each operation has one."""
    for name, submit in rows(device).items():
        device.wait_idle(LIMIT)
        done = hal.create_semaphore()
        assert records(in_a_row, submit, ({},) * COUNT, []) == COUNT - 1, name
        device.wait_idle(LIMIT)
        signals = [{"signal": done.at(value)} for value in range(1, COUNT + 1)]
        assert records(in_a_row, submit, signals) == COUNT, name
        done.wait(COUNT, LIMIT)
    assert device.queue.stream_handle
    for name, submit in rows(device).items():
        assert records(in_a_row, submit) == COUNT, name


def case_a_small_stream_is_not_shared_q1(device):
    """Its room would come back only with the last of them."""
    for limit, events in ((4, 4), (8, 8), (16, 8)):
        with (
            hal.create_device(device.backend, max_in_flight=limit) as small,
            Holds(small._native) as holds,
        ):
            buffer = warm(small)
            holds.hold(small.queue._stream)
            submit = functools.partial(small.queue.fill, buffer, 1)
            assert records(in_a_row, submit, ({},) * limit) == events - 1, limit


def case_the_first_question_is_answered_as_it_is_s6(device):
    """The stream is asked: an event recorded for the question would not be complete yet."""
    questions = {
        "done": lambda made: made.done,
        "state": lambda made: made.state == "done",
        "wait": lambda made: made.wait(0) is None,
    }
    for name, submit in rows(device).items():
        for question, is_done in questions.items():
            made = submit()
            finish()
            before = gpusim.load().calls("cuEventRecord")
            assert is_done(made), (name, question)
            assert gpusim.load().calls("cuEventRecord") == before, (name, question)
        with Holds(device._native) as holds:
            holds.hold(device.queue._stream)
            made = submit()
            assert not made.done
            assert made.state == "issued"
        made.wait(LIMIT)
    assert device._context.events.is_idle()


def case_one_that_is_kept_ends_before_the_next_s6(device):
    for name, submit in rows(device).items():
        with Holds(device._native) as holds:
            kept, other = submit(), device.create_queue()
            holds.hold(other._stream)
            blocked = submit(wait=other.fill(device.allocate(4), 1))
            kept.wait(LIMIT)
            assert kept.state == "done", name
            assert not blocked.done
        blocked.wait(LIMIT)


def case_much_memory_has_an_event_of_its_own_m1(device):
    """It comes back when its own work ends, and not with the last operation of a row."""
    warm(device)
    for size, events in (((1 << 20) - 4, COUNT // SHARE - 1), (1 << 20, COUNT)):
        part, queue = device.allocate(size).subspan(0, 4), device.create_queue()
        queue.fill(part, 1).wait(LIMIT)
        assert records(in_a_row, functools.partial(queue.fill, part, 1)) == events, size


def case_memory_comes_back_before_what_may_wait_for_ever_m1(device):
    """An operation that waits for another stream may end at any time."""
    with hal.create_device(device.backend, memory_limit=1 << 20) as small:
        other, size = small.create_queue(), 600_000
        warm(small)
        with Holds(small._native) as holds:
            holds.hold(other._stream)
            before = other.fill(small.allocate(4), 1)
            small.queue.fill(small.allocate(size), 1)
            blocked = small.queue.fill(small.allocate(4), 1, wait=before)
            while not small.statistics().bytes_now < size:
                small.allocate(4).close()
            small.allocate(size).close()
        blocked.wait(LIMIT)


def case_who_holds_an_event_has_it_recorded_i1(device):
    """Once its operations have retired, nothing could record it: the stream may be closed."""
    for submit in rows(device).values():
        event = (submit(), submit())[-1]._event  # the first launch of a block is Python's
        assert event.due is device.queue
        with timelines.lock:
            event.hold()
        assert event.due is None
        device.wait_idle(LIMIT)
        with timelines.lock:
            event.release()


def case_what_sleeps_is_woken_s8(device):
    """The thread that notifies has the event recorded."""
    submit = rows(device)["fill"]

    async def wait(made):
        asyncio.get_running_loop().call_later(0.05, holds.open)
        await made

    for _ in range(3):
        with Holds(device._native) as holds:
            holds.hold(device.queue._stream)
            submit()
            made = submit()
            asyncio.run(asyncio.wait_for(wait(made), LIMIT))
            assert made.done


def case_a_queue_that_nobody_asked_closes_q6(device):
    """No event of a row is asked or recorded once its stream is gone."""
    buffer = warm(device)
    for _ in range(4):
        queue = device.create_queue()
        for _ in range(5):
            queue.fill(buffer, 1)
        finish()
        last = queue.fill(buffer, 2)
        finish()
        assert queue.close() == ()
        assert last.done
        device.queue.fill(buffer, 3, wait=last)
    device.wait_idle(LIMIT)
    assert device._context.events.is_idle()
    assert not [each for each in device._context.events._free if each.due is not None]


def case_a_question_to_a_stream_may_fail_o2(device):
    """Then the event is recorded, and asked; an error that loses the device comes from there."""
    submit = rows(device)["fill"]
    for times in (1, 2):
        made = submit()
        finish()
        sim = fails("cuStreamQuery", times, device)
        made.wait(LIMIT)
        sim.fail_none()
        assert made.state == "done"
    with contextlib.closing(hal.create_device(device.backend)) as lost:
        made = rows(lost)["fill"]()
        sim = gpusim.load()
        for name in ("cuStreamQuery", "cuEventRecord", "cuEventQuery"):
            for number in range(1, 5):
                sim.fail(name, number, LOST)
        try:
            made.wait(LIMIT)
        except hal.errors.DeviceLostError:
            pass
        else:
            raise AssertionError
        sim.fail_none()
        assert made.state == "failed"


def case_an_event_that_cannot_be_recorded_changes_nothing_s5(device):
    """It was put off, and the next operation needs it: Python records it."""
    submit = rows(device)["fill"]
    kept = submit()
    sim = fails("cuEventRecord", 1, device)
    last = submit()
    assert not sim.fail_none()
    kept.wait(LIMIT)
    last.wait(LIMIT)
    for _ in range(SHARE - 1):
        submit()
    sim.fail("cuEventRecord", 1, FAILED)
    submit()
    submit()
    sim.fail_none()
    device.wait_idle(LIMIT)
    assert device._context.events.is_idle()


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
