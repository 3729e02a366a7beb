"""``semaphores=memory`` on gpusim: what is called, what is lost, what is refused; both engines."""

import textwrap

import pytest
import suite_runs

SECONDS = 120

PRELUDE = """
import ctypes, os
import hal
from hal.errors import DeviceLostError, UnimplementedError
LIMIT, NAMES, EVENTS = 30, "{names}".split(), "{backend}"
sim = ctypes.CDLL(os.environ["GPUSIM_SHOWN"], ctypes.RTLD_GLOBAL)
RECORD, QUERY, WAIT, WRITE, WAIT_VALUE = (name.encode() for name in NAMES)
def open_device():
    return hal.create_device("{backend}?semaphores=memory&command_buffer=stream")
"""
NAMES = {
    "cuda": "cuEventRecord cuEventQuery cuStreamWaitEvent cuStreamWriteValue64 cuStreamWaitValue64",
    "hip": "hipEventRecord hipEventQuery hipStreamWaitEvent hipStreamWriteValue64"
    " hipStreamWaitValue64",
}


@pytest.fixture(params=["C", "plain"])
def engine(request):
    if request.param == "C":
        pytest.importorskip("hal._speedups")
    return "require" if request.param == "C" else "0"


@pytest.fixture
def run(backend, engine):
    """Return what runs a program on gpusim by one of the backends."""
    variables = suite_runs.environment(backend) | {"HAL_SPEEDUPS": engine}

    def function(program):
        prelude = PRELUDE.format(backend=backend, names=NAMES[backend])
        suite_runs.run_program(prelude + textwrap.dedent(program), variables, SECONDS)

    return function


def test_streams_write_and_await_numbers_and_no_event(run):
    """Each operation is one write; two queues that take turns wait for numbers, if for anything."""
    run("""
        with open_device() as device:
            buffer, turns = device.allocate(64), hal.create_semaphore()
            other = device.create_queue()
            device.queue.fill(buffer, 1).wait(LIMIT); other.fill(buffer, 1).wait(LIMIT)
            before = [sim.gpusim_calls(name) for name in (RECORD, WAIT, WRITE)]
            for turn in range(300):
                queue = other if turn % 2 else device.queue
                queue.fill(buffer, turn % 200, wait=[turns.at(turn)], signal=[turns.at(turn + 1)])
            turns.wait(300, LIMIT)
            assert sim.gpusim_calls(WRITE) == before[2] + 300
            assert sim.gpusim_calls(WAIT) == before[1]
            looks = sim.gpusim_calls(RECORD) - before[0]  # of a wait longer than a millisecond
            assert looks <= sim.gpusim_calls(QUERY) + 1 and looks < 100, looks
            assert (buffer.numpy() == 99).all()
    """)


def test_two_devices_wait_for_each_other_whatever_their_events_are(run):
    run("""
        with open_device() as first, open_device() as second, hal.create_device(EVENTS) as third:
            turns = hal.create_semaphore()
            works = [(each.queue, each.allocate(64)) for each in (first, second, third)]
            for turn in range(300):
                queue, buffer = works[turn % 3]
                queue.fill(buffer, turn % 200, wait=[turns.at(turn)], signal=[turns.at(turn + 1)])
            turns.wait(300, LIMIT)
            assert [int(buffer.numpy()[0]) for _, buffer in works] == [97, 98, 99]
    """)


def test_a_lost_device_fails_what_waits_for_a_number(run):
    run("""
        device = open_device()
        buffer, done = device.allocate(64), hal.create_semaphore()
        device.queue.fill(buffer, 1).wait(LIMIT)
        sim.gpusim_lose_device_at(ctypes.c_ulong(sim.gpusim_calls(None) + 3), 719)
        try:
            for turn in range(20):
                device.queue.fill(buffer, 2, signal=[done.at(turn + 1)])
            done.wait(20, LIMIT)
        except DeviceLostError:
            pass
        else:
            raise AssertionError("it was not noticed")
        assert device.lost
        device.close()
    """)


def test_a_driver_that_refuses_the_trial_is_refused_and_nothing_is_left(run):
    run("""
        text = ctypes.create_string_buffer(1 << 16)
        def leaks():
            sim.gpusim_leaks(-1, text, len(text))
            return text.value
        open_device().close()
        before = leaks()
        for name in (WRITE, WAIT_VALUE):
            sim.gpusim_fail(name, 1, 801)
            try:
                open_device()
            except UnimplementedError as error:
                assert "trial failed" in str(error) and "semaphores=events" in str(error), error
            else:
                raise AssertionError("it was opened")
            assert leaks() == before, leaks()
        open_device().close()
    """)
