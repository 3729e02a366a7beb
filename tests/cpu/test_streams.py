"""Streams keep their own order, run beside each other, and never block their caller."""

import ctypes
import functools
import os
import signal
import threading

import numpy as np
import pytest
from core_harness import collect_in_threads, handled_by, wait_until

from hal._base.sync import Doorbell
from hal.errors import OperationError


def test_streams_overlap(lab):
    """Each of two streams waits for something that only the other does."""
    one, two = lab.stream(), lab.stream()
    first, second = Doorbell(), Doorbell()
    wait = ctypes.cast(ctypes.CDLL(None).sem_wait, ctypes.c_void_p).value
    lab.device.notify(one, wait, first.argument)
    lab.device.notify(one, second.function, second.argument)
    lab.device.notify(two, first.function, first.argument)
    lab.device.notify(two, wait, second.argument)
    lab.finish(one, two)


def test_notify_comes_after_the_work(lab):
    stream = lab.stream()
    bell = Doorbell()
    value = lab.array(np.zeros(1 << 20), "u4")
    gate = lab.gate(stream)
    lab.device.fill(stream, value.ctypes.data, 1, 4, value.size)
    lab.device.notify(stream, bell.function, bell.argument)
    assert not bell.wait(0.01)
    gate.open()
    assert bell.wait(20)
    assert value.all()


def test_a_held_stream_takes_any_number_of_operations(lab):
    stream = lab.stream()
    gate = lab.gate(stream)
    values = lab.array(np.zeros(2), "u4")
    count = lab.device.max_in_flight + 10_000
    for number in range(count):
        lab.device.fill(stream, values.ctypes.data, number, 4, 1)
    assert not lab.device.query_event(lab.event(stream))
    gate.open()
    lab.finish(stream)
    assert values[0] == count - 1


def test_who_has_adopted_a_stream_does_not_touch_its_owners_next_work(lab, monkeypatch):
    """Both may be about to enqueue: each writes what it wants into a mailbox of its own."""
    device, stream = lab.device, lab.stream()
    adopted = device.adopt_stream(stream)
    values = lab.array(np.zeros(2), "u4")
    enqueue, entered = device._enqueue, []

    def enqueue_after_another(handle):
        if not entered:
            entered.append(handle)
            device.fill(adopted, values.ctypes.data + 4, 2, 4, 1)
        return enqueue(handle)

    monkeypatch.setattr(device, "_enqueue", enqueue_after_another)
    device.fill(stream, values.ctypes.data, 1, 4, 1)
    device.synchronize_stream(adopted)
    assert values.tolist() == [1, 2]
    event = device.create_event()
    device.record_event(event, adopted)
    device.wait_event(stream, event)
    assert device.query_event(event)
    assert device.export_stream(adopted) == stream
    device.destroy_event(event)
    device.release_stream(adopted)


def test_a_stream_is_adopted_so_often_at_once(lab):
    device, stream = lab.device, lab.stream()
    adopted = [device.adopt_stream(stream) for _ in range(63)]
    with pytest.raises(OperationError, match="too often"):
        device.adopt_stream(stream)
    assert len(set(adopted)) == len(adopted)
    for handle in adopted:
        device.release_stream(handle)
    assert device.adopt_stream(stream) in adopted


def test_two_threads_enqueue_on_one_stream(lab):
    """The threads hold no interpreter lock: each record is whole, and in its thread's order."""
    device, stream = lab.device, lab.stream()
    handles = [device.adopt_stream(stream) for _ in range(4)]
    values = lab.array(np.zeros(4), "u4")

    def work(index):
        for number in range(3000):
            device.fill(handles[index], values.ctypes.data + 4 * index, number, 4, 1)

    collect_in_threads([functools.partial(work, index) for index in range(4)])
    lab.finish(stream)
    assert (values == 2999).all()
    for handle in handles:
        device.release_stream(handle)


def test_a_signal_ends_synchronize(lab):
    class AlarmError(Exception):
        pass

    def handler(number, frame):
        raise AlarmError

    stream = lab.stream()
    lab.gate(stream)
    with handled_by(handler):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError):
            lab.finish(stream)


def test_a_slow_kernel_lets_go_of_the_interpreter(lab):
    """Python runs on while synchronize waits."""
    stream = lab.stream()
    gate = lab.gate(stream)
    threading.Thread(target=gate.open).start()
    lab.finish(stream)


def test_threads_of_a_destroyed_stream_are_gone(driver):
    device = driver.open_device(0, {"threads": "1"})
    before = set(os.listdir("/proc/self/task"))  # those of earlier tests may end meanwhile

    def count():
        return len(set(os.listdir("/proc/self/task")) - before)

    for _ in range(20):
        device.destroy_stream(device.create_stream())
    streams = [device.create_stream() for _ in range(8)]
    # A thread that was joined may stand in the system's list for a moment more.
    wait_until(lambda: count() == 8)
    for stream in streams:
        device.destroy_stream(stream)
    wait_until(lambda: count() == 0)


def test_threads_that_help_start_with_the_first_work_to_share(python):
    """To open a device on a machine with many processors takes no longer than elsewhere."""
    program = """
import os
from hal.native import MemoryType
from hal_cpu.driver import CpuDriver
device = CpuDriver().open_device(0, {"threads": "4"})
address = device.allocate(1 << 24, MemoryType.DEVICE)
before = len(os.listdir("/proc/self/task"))
stream = device.create_stream()
for count in (1, 1 << 22, 1 << 22):
    device.fill(stream, address, 1, 4, count)
    device.synchronize_stream(stream)
    print(len(os.listdir("/proc/self/task")) - before, end=" ")
"""
    result = python(program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1 4 4 ", "")


PROGRAM = """
import ctypes, os, sys
from hal.native import MemoryType
from hal_cpu.driver import CpuDriver
device = CpuDriver().open_device(0, {})
stream = device.create_stream()
address = device.allocate(1 << 24, MemoryType.DEVICE)
for _ in range(200):
    device.fill(stream, address, 1, 4, 1 << 22)
"""


QUIET = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
"""Python 3.12 and later warn of a fork with threads."""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "device.notify(stream, ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value, 0)",
        QUIET + "os._exit(0) if os.fork() == 0 else os.wait()",
        QUIET + "sys.exit(0) if os.fork() == 0 else os.wait()",
        "raise SystemExit(0)",
    ],
    ids=["busy", "stuck", "fork-exit-now", "fork-exit", "exit"],
)
def test_exit_with_streams_alive(python, end):
    result = python(PROGRAM + end)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_no_more_threads(python):
    """The system's refusal of a thread is an error that says so."""
    program = """
import resource
from hal.errors import OperationError
from hal_cpu.driver import CpuDriver
device = CpuDriver().open_device(0, {"threads": "1"})
limit = 400 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # room for few stacks
streams = []
try:
    while len(streams) < 5000:
        streams.append(device.create_stream())
except OperationError as error:
    print("refused", error.native_name)
for stream in streams:
    device.destroy_stream(stream)
"""
    result = python(program)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("refused E")
