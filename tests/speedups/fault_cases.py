"""Cases of the shortcuts whose driver calls fail."""

import contextlib
import ctypes
import sys
import threading
import weakref

import numpy as np
import pytest
from shortcut_harness import FAILED, SOURCE, fails, main, warm

import hal


def case_a_call_that_fails_twice_fails_the_operation(device):
    """The table's call and the primitive's; the error is the primitive's."""
    buffer, done = warm(device), hal.create_semaphore()
    for function in ("cuMemsetD8Async", "cuEventRecord"):
        fails(function, 2, device)
        submission = device.queue.fill(buffer, 1, signal=(done.at(1),))
        with pytest.raises(hal.errors.OperationError, match="CUDA_ERROR_UNKNOWN"):
            submission.wait(30)
        assert submission.state == "failed"
        with pytest.raises(hal.HalError):
            done.query()
        done = hal.create_semaphore()
        device.queue.fill(buffer, 4).wait(30)
        assert buffer.numpy().tolist() == [4] * 256


def case_an_event_that_is_not_recorded_is_recorded_by_python_s7(device):
    """The operation is on the stream by then, and runs once."""
    buffer, done = warm(device), hal.create_semaphore()
    sim = fails("cuEventRecord", 1, device)
    calls = sim.calls("cuMemsetD8Async")
    device.queue.fill(buffer, 1, signal=(done.at(1),))
    assert not sim.fail_none()
    done.wait(1, 30)
    assert sim.calls("cuMemsetD8Async") == calls + 1
    assert buffer.numpy().tolist() == [1] * 256


def case_an_event_of_what_a_signal_issues_is_not_recorded_s7(device):
    """The operation is on the stream by then, and runs once."""
    warm(device)
    go, kernel = hal.create_semaphore(), device.compile(SOURCE)["add"]
    x, y = device.upload(np.arange(4, dtype=np.int32)), device.upload(np.zeros(4, np.int32))
    done = hal.create_semaphore()
    added = device.queue.dispatch(
        kernel, grid=1, args=(x, y, 1, 0.0), wait=(go.at(1),), signal=done.at(1)
    )
    sim = fails("cuEventRecord", 1, device)
    go.signal(1)
    assert not sim.fail_none()
    added.wait(30)
    assert y.numpy().tolist() == [1, 2, 3, 4]


def case_a_call_of_what_a_signal_issues_fails_s5(device):
    """Once: Python repeats it; twice: it fails alone. Also where the call lets the lock go."""
    buffer, shown = warm(device), device.create_queue()
    assert shown.stream_handle
    for queue in (device.queue, shown):
        for times in (1, 2):
            go, done = hal.create_semaphore(), hal.create_semaphore()
            first = queue.fill(buffer, times, wait=(go.at(1),), signal=(done.at(1),))
            behind = queue.fill(buffer, 7, size=1)
            beside = device.queues.upload.fill(buffer, 8, offset=8, wait=(done.at(1),))
            sim = fails("cuMemsetD8Async", times, device)
            go.signal(1)
            behind.wait(30)
            assert not sim.fail_none()
            if times == 1:
                beside.wait(30)
                continue
            for failed in (first, beside):
                with pytest.raises(hal.errors.OperationError, match="CUDA_ERROR_UNKNOWN"):
                    failed.wait(30)


def case_a_launch_of_a_recording_that_fails_is_repeated_by_python_c4(device):
    """The launches on the stream stay, and run once; if it fails again the operation fails. The
    same holds if it has stood in line."""
    device = hal.create_device(f"{device.backend}?command_buffer=stream")
    kernel, buffer, shown = device.compile(SOURCE)["add"], warm(device), device.create_queue()
    assert shown.stream_handle  # so C makes its calls with a claim, without the locks
    for turn, queue in enumerate((device.queue, shown, device.queue, shown)):
        x, y = device.upload(np.arange(4, dtype=np.int32)), device.upload(np.zeros(4, np.int32))
        with device.record() as commands:
            commands.fill(buffer, 7)
            for number in (1, 10, 100):
                commands.dispatch(kernel, grid=1, args=(x, y, number, 0.0))
        queue.execute(commands).wait(30)
        sim = fails("cuLaunchKernel", 0, device)

        def execute(*failing, stands=turn > 1, queue=queue, commands=commands, sim=sim, done):
            gate = hal.create_semaphore(0 if stands else 1)
            for each in failing:
                sim.fail("cuLaunchKernel", each, FAILED)
            last = queue.execute(commands, wait=gate.at(1), signal=done)
            if stands:
                assert last.state == "pending"
                gate.signal(1)
            return last

        for failing in (1, 2, 3):  # which of them
            done = hal.create_semaphore()
            execute(failing, done=done.at(1))
            assert not sim.fail_none()
            done.wait(1, 30)
            assert y.numpy().tolist() == [(1 + failing) * (111 + 3 * each) for each in range(4)]
        for failing in (1, 2, 3):
            what = f"command {failing} of 4, dispatch: cuLaunchKernel"
            done = hal.create_semaphore()
            with pytest.raises(hal.errors.OperationError, match=what):  # twice in C, and in Python
                execute(failing, failing + 1, failing + 2, done=done.at(1)).wait(30)
            assert not sim.fail_none()
    assert device.close() == ()


def case_a_wait_that_fails_is_repeated_by_python_i1(device):
    buffer, other = warm(device), device.create_queue()
    sim = fails("cuStreamWaitEvent", 1, device)
    first = device.queue.fill(buffer, 1)
    other.fill(buffer, 2, wait=(first,)).wait(30)
    assert not sim.fail_none()
    assert buffer.numpy().tolist() == [2] * 256


def case_a_full_stack_leaves_no_claim_behind_o3(device):
    """Where the stack has no room for the engine's part of a submission, C makes none."""
    buffer, queue, before = warm(device), device.queue, sys.getrecursionlimit()
    assert queue.stream_handle  # so C makes its calls with a claim, without the locks

    def down(depth):
        return down(depth - 1) if depth else queue.fill(buffer, 1, signal=done.at(1))

    for function in ("cuMemsetD8Async", "cuEventRecord"):
        broken = 0
        for depth in range(200, 300):
            done = hal.create_semaphore()
            sim = fails(function, 1, device)
            sys.setrecursionlimit(300)
            try:
                down(depth)
            except RecursionError:
                broken += 1
            finally:
                sys.setrecursionlimit(before)
            sim.fail_none()
            queue.fill(buffer, 4).wait(30)
        assert 0 < broken < 100
    assert buffer.numpy().tolist() == [4] * 256


def case_what_retires_is_dropped_once_a_claim_is_over_o3(device):
    """A weak reference's callback may wait for the queue that an operation has just been put on."""
    buffer, queue, ended = warm(device), device.queue, []
    stream = ctypes.c_void_p(queue.stream_handle)
    gate = threading.Event()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(30))
    driver = ctypes.CDLL("libcuda.so.1")

    def wait(_):
        submission = queue.fill(buffer, 2)
        with contextlib.suppress(hal.errors.DeadlineExceededError):
            submission.wait(10)
        ended.append(submission.state)

    [queue.fill(buffer, 0) for _ in range(512)][-1].wait(30)  # which makes the events
    assert not driver.cuLaunchHostFunc(stream, function, None)
    references = [weakref.ref(queue.fill(buffer, 0), wait)]
    for _ in range(300):
        queue.fill(buffer, 0)
    gate.set()
    assert not driver.cuStreamSynchronize(stream)
    for number in range(16):
        sim = fails("cuEventRecord", 1, device)
        queue.fill(buffer, number)
        sim.fail_none()
    assert ended == ["done"] * len(references), ended


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
