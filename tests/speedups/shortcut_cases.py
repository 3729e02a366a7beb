"""Cases of the C extension's shortcuts, on any device."""

import copy
import gc
import inspect
import os
import pickle
import pydoc
import sys
import threading
import typing
import weakref
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from core_harness import wait_until
from shortcut_harness import (
    SOURCE,
    Calls,
    Interrupt,
    OnlyC,
    fill_at_once,
    in_threads,
    keeps_nothing,
    main,
    warm,
)

import hal
from hal._engine import progress, timelines
from hal._engine.contexts import harvest_some
from hal._engine.timelines import Timepoint
from hal_conformance.calls import Holds


def case_the_commonest_calls_take_no_python_q1(device):
    buffer, queue = warm(device), device.queue
    other = device.create_queue()
    numbers, beside = (device.allocate(64, dtype=np.float32) for _ in range(2))
    met, done = hal.create_semaphore(), hal.create_semaphore()
    met.signal(1)
    kernel = device.compile(SOURCE)["add"]
    x, y = device.upload(np.arange(4, dtype=np.int32)), device.upload(np.zeros(4, np.int32))
    bits, natural = x.view(np.uint8), y.view(np.uint32)  # which fit as well
    with device.record() as commands:
        commands.dispatch(kernel, grid=1, args=(x, y, 1, 0.0))
    with device.record() as filling:
        filling.fill(beside, np.float32(6))
    queue.execute(filling).wait()
    for block in (None, 4):  # which are known from now on
        queue.dispatch(kernel, grid=1, block=block, args=(x, y, 0, 0.0), shared_memory=1024)
    queue.execute(commands).wait()
    device.wait_idle()
    with Calls() as calls:
        first = queue.fill(buffer, 7, wait=(met.at(1),), signal=(done.at(1),))
        queue.fill(buffer, b"\1\2\3\4", offset=4, size=8, wait=[first, done.at(1)])
        queue.fill(numbers, 1.5, signal=done.at(2))
        queue.dispatch(kernel, grid=(1, 1), args=(x, y, np.int32(2), 3), wait=first)
        queue.dispatch(kernel, grid=1, block=4, args=[x, y, 3, np.float32(1.0)])
        queue.dispatch(kernel, grid=1, args=(bits, natural, 4, 0.0), shared_memory=512)
        queue.execute(filling, bindings=[], wait=first)
        last = queue.execute(commands, signal=[done.at(3)])
        queue.barrier(signal=done.at(4))
        other.barrier(wait=done.at(4))
        beside = other.fill(buffer, 9, wait=(last,), signal=(done.at(5),))
    assert calls.names == {"Queue.barrier": 2}, calls.names
    beside.wait()
    assert done.query() == 5
    assert buffer.numpy().tolist() == [9] * 256
    assert numbers.numpy().tolist() == [1.5] * 16
    assert y.numpy().tolist() == [7 * i + 1 + 2 + 3 + 3 + 1 + 4 + 1 for i in range(4)]


def case_a_recording_on_the_stream_takes_no_step_of_python_for_a_call_c4(device):
    device = hal.create_device(f"{device.backend}?command_buffer=stream")
    kernel, buffer = device.compile(SOURCE)["add"], warm(device)
    x, y = device.upload(np.arange(4, dtype=np.int32)), device.upload(np.zeros(4, np.int32))
    plain, slotted = device.record(), device.record(slots=1)
    for commands, target in ((plain, y), (slotted, slotted.slots[0])):
        with commands:
            commands.fill(target, np.int32(3), size=16)
            for _ in range(40):
                commands.dispatch(kernel, grid=1, args=(x, target, 1, 0.0))
            if commands is slotted:
                commands.copy(target, buffer, size=16)
                commands.update(buffer, np.ones(8, np.uint8), offset=16)
    names, queue = Counter(), device.queue
    for commands, bindings in ((plain, None), (slotted, [y])):
        queue.execute(commands, bindings=bindings).wait()
        sys.setprofile(
            lambda frame, event, _: names.update([frame.f_code.co_name] * (event == "call"))
        )
        last = queue.execute(commands, bindings=bindings)
        sys.setprofile(None)
        last.wait()
        assert names["replay"] == 2 * (commands is slotted)  # of the execution, and of its playback
        assert not names & Counter(["fill", "launch", "copy_from_host"]), names
        assert y.numpy().tolist() == [43, 83, 123, 163]
    assert buffer.numpy()[:24].tolist() == [*y.numpy().view(np.uint8), *[1] * 8]
    assert device.close() == ()


def case_memory_of_an_alloca_notes_its_uses_m3(device):
    """Memory that is given back behind a use on another queue waits for that use."""
    buffer, other, go = warm(device), device.create_queue(), hal.create_semaphore()
    temporary = device.queue.alloca(256)
    temporary.allocation.wait()
    queue = device.queue
    with OnlyC():
        first = queue.fill(temporary, 1)
        second = other.fill(temporary, 2, wait=(first,))
    assert temporary._storage.uses == [first, second]
    second.wait()
    held = other.call(go.wait, 1, 30)
    last = other.fill(temporary, 3, wait=(held,))
    storage = temporary._storage
    device.queue.dealloca(temporary).wait()
    assert storage._lease is not None  # `last` is not over
    go.signal(1)
    last.wait(30)
    for _ in range(40):
        temporary = device.queue.alloca(256)
        device.queue.fill(temporary, 4)
        device.queue.copy(temporary, buffer)
        device.queue.dealloca(temporary)
    device.wait_idle()
    assert buffer.numpy().tolist() == [4] * 256
    with pytest.raises(hal.errors.ClosedError):
        device.queue.fill(temporary, 5)


def case_what_it_does_not_know_is_pythons_c1(device):
    buffer, queue = warm(device), device.queue
    for value, pattern in ((np.uint16(513), [1, 2]), (b"\1\2\3\4\5\6\7\10", list(range(1, 9)))):
        queue.fill(buffer, value).wait()
        assert buffer.numpy().tolist() == pattern * (256 // len(pattern))
    for bad, error in (
        ({"value": 256}, hal.errors.InvalidArgumentError),
        ({"value": 1.5}, hal.errors.ArgumentTypeError),
        ({"value": 1, "offset": 300}, hal.errors.InvalidArgumentError),
        ({"value": 1, "offset": -1}, hal.errors.InvalidArgumentError),
        ({"value": b"abc"}, hal.errors.InvalidArgumentError),
        ({"value": 1, "wait": "no"}, hal.errors.ArgumentTypeError),
        ({"value": 1, "signal": 3}, hal.errors.ArgumentTypeError),
    ):
        with pytest.raises(error):
            queue.fill(buffer, **bad)
    with pytest.raises(TypeError, match="colour"):
        queue.fill(buffer, 1, colour=2)


def case_an_operation_cannot_wait_for_its_own_signal_s1(device):
    buffer, done = warm(device), hal.create_semaphore()
    first = device.queue.fill(buffer, 1, signal=(done.at(4),))
    for options in (
        {"wait": (done.at(5),), "signal": (done.at(5),)},
        {"signal": (done.at(4),)},
        {"signal": (done.at(9), done.at(9))},
    ):
        with pytest.raises(hal.errors.InvalidArgumentError):
            device.queue.fill(buffer, 1, **options)
    first.wait()
    assert done.query() == 4


def case_a_held_lock_leaves_it_to_python_i5(device):
    """The Python engine waits for the lock, or is put off on the thread that has it (O3)."""
    buffer, done = warm(device), hal.create_semaphore()
    has_begun, may_end = threading.Event(), threading.Event()

    def hold():
        with timelines.lock:
            has_begun.set()
            may_end.wait(30)

    def submit():
        has_begun.wait(30)
        device.queue.fill(buffer, 2, signal=(done.at(1),))

    def look():
        has_begun.wait(30)
        assert done._reserved == 0
        may_end.set()

    in_threads(hold, submit, look)
    with timelines.lock:
        device.queue.fill(buffer, 3, signal=(done.at(2),))
        assert done._reserved == 1
    done.wait(2, 30)
    assert buffer.numpy().tolist() == [3] * 256


def case_a_collection_may_come_at_any_allocation_i10(device):
    """Finalisers submit and signal in the middle of submissions."""
    buffer, done = warm(device), hal.create_semaphore()
    signalled, ended = hal.create_semaphore(), []

    class Node:
        def __init__(self):
            self.itself = self

        def __del__(self):
            ended.append(device.queue.fill(buffer, 5))
            signalled.signal(len(ended))

    gc.set_threshold(3)
    for number in range(1, 1001):
        Node()
        device.queue.fill(buffer, 7, wait=(done.at(number - 1),), signal=(done.at(number),))
    gc.set_threshold(700)
    gc.collect()
    done.wait(1000, 60)
    device.wait_idle(60)
    assert len(ended) == 1000
    assert signalled.query() == 1000
    assert all(each.state == "done" for each in ended)


def case_nothing_is_kept_and_nothing_is_freed_twice_q5(device):
    buffer, done = warm(device), hal.create_semaphore()
    kernel = device.compile(SOURCE)["add"]
    x, y = device.upload(np.arange(4, dtype=np.int32)), device.upload(np.zeros(4, np.int32))
    with device.record() as commands:
        commands.fill(buffer, 3)
        commands.dispatch(kernel, grid=1, args=(x, y, 1, 1.0))
    device.queue.execute(commands).wait()
    kept = (
        buffer,
        buffer._storage,
        x._storage,
        kernel,
        kernel._module,
        commands,
        done,
        device.queue,
    )
    value = 0

    def run(count):
        nonlocal value
        for _ in range(count):
            signal = (done.at(value + 1),)
            first = device.queue.fill(buffer, 7, wait=(done.at(value),), signal=signal)
            device.queue.dispatch(kernel, grid=1, args=(x, y, 1, 1.0), wait=(first,))
            device.queue.execute(commands)
            value += 1
            if not value % 100:
                done.wait(value)

    keeps_nothing(run, kept, device, 200, 3000)
    assert [sys.getrefcount(each) > 100_000 for each in (None, True, False, ())].count(False) < 5
    ended = weakref.ref(device.queue.fill(buffer, 1))
    device.wait_idle()
    wait_until(lambda: ended() is None)


def case_threads_submit_and_wait_at_once_q4(device):
    """Each thread has a queue and waits for its neighbour's now and then."""
    warm(device)
    queues = [device.create_queue() for _ in range(6)]
    fill_at_once(device, 6, lambda index, _: queues[index], lambda index: index - 1)


def case_a_closed_device_is_refused_q6(device):
    buffer, queue = warm(device), device.queue
    device.close()
    with pytest.raises(hal.errors.ClosedError):
        queue.fill(buffer, 1)


def case_methods_stay_methods(device):
    assert list(inspect.signature(hal.Queue.fill).parameters)[:3] == ["self", "buffer", "value"]
    assert next(iter(inspect.signature(device.queue.fill).parameters)) == "buffer"
    assert hal.Queue.fill.__doc__.startswith("Write a pattern")
    assert hal.Queue.fill.__qualname__ == "Queue.fill"
    bound = device.queue.fill
    bound(warm(device), 1).wait()

    class Mine(hal.Semaphore):
        """A subclass may add what it likes."""

        def at(self, value):
            return super().at(value + 1)

    assert Mine(0, None).at(1).value == 2


def case_an_interrupted_signal_releases_all_that_waits_o3(device):
    """The value is raised by then, and nobody else would release the rest."""
    buffer, beside = warm(device), device.create_queue()
    for where, wide in (("release_again", b"12345678"), ("put_last", 1), ("issue_ready", 1)):
        go, done = hal.create_semaphore(), hal.create_semaphore()
        waiting = [
            device.queue.fill(buffer, wide, wait=(go.at(1),)),
            beside.fill(buffer, 1, wait=(go.at(1),), signal=(done.at(1),)),
        ]
        if where == "issue_ready":  # an operation that is ready behind one that waits
            waiting.append(device.queue.fill(buffer, b"12345678"))
        if where == "put_last":
            waiting += [device.queue.fill(buffer, 2, wait=(go.at(1),)) for _ in range(100)]
        # Twice in a row at one place; a stream may take less than the budget.
        with Interrupt(where, "release_again", times=2):
            go.signal(1)
        hal.wait_all(waiting, 30)
        assert done.query() == 1


def case_an_interrupt_while_retiring_reaches_the_caller_o3(device):
    """It comes out of the submission, which is made."""
    buffer, others = warm(device), [device.create_queue(), device.create_queue()]
    for each in others:
        each._calls = None  # Python retires there, and finds nothing while they are held
    kernel, x = device.compile(SOURCE)["add"], device.allocate(16, dtype=np.int32)
    with device.record() as commands:
        for _ in range(1 if device.backend == "cpu" else 64):  # a launch, or a graph
            commands.dispatch(kernel, grid=1, args=(x, x, 1, 1.0))
    device.queue.execute(commands).wait()
    device.wait_idle()
    with Holds(device._native) as holds:
        for each in others:
            holds.hold(each._stream)
            each.fill(buffer, 1)
        for submit in (
            lambda: device.queue.fill(buffer, 5),
            lambda: device.queue.execute(commands),
        ):
            with Interrupt("harvest_some"):
                for _ in range(2000):  # until it is the others' turn
                    submit().wait(30)  # with many in flight it would be Python that submits
    device.wait_idle(30)


def case_a_wait_for_a_huge_value_stays_s1(device):
    buffer, go = warm(device), hal.create_semaphore()
    kept = device.queue.fill(buffer, 9, wait=(go.at(2**63 - 1),))
    other = device.create_queue()
    first = other.fill(buffer, 1, wait=(go.at(1),))
    with OnlyC():
        go.signal(1)
        go.signal(2)
    first.wait(30)
    assert kept.state == "pending"
    go.signal(2**63 - 1)
    kept.wait(30)


def case_a_timepoint_is_made_while_a_signal_allocates_s7(device):
    """The collector runs there, and a finaliser asks for the operation as a timepoint."""
    buffer = warm(device)
    for _ in range(20):
        go, done = hal.create_semaphore(), hal.create_semaphore()
        first = device.queue.fill(buffer, 1, wait=(go.at(1),), signal=(done.at(1),))

        def collecting(phase, _, first=first, go=go):
            if phase == "start" and go._value == 1:
                first._as_timepoint()

        gc.callbacks.append(collecting)
        kept = [(number, None) for number in range(5000)]  # no tuple is at hand
        gc.set_threshold(1)
        go.signal(1)
        gc.set_threshold(700)
        gc.callbacks.remove(collecting)
        del kept
        hal.wait_all([first], 5)


def case_calls_stay_behind_those_that_were_put_off_q2(device):
    """A handler in the middle of a call submits what C does not take, and then what it takes."""
    buffer, done = warm(device), hal.create_semaphore()
    made = []

    def handle(frame, event, _):
        if event == "call" and frame.f_code.co_name == "harvest_some" and not made:
            made.append(device.queue.fill(buffer, b"12345678", signal=(done.at(1),)))
            made.append(device.queue.fill(buffer, 7))
            done.signal(2)

    sys.setprofile(handle)
    progress.act(harvest_some, device.queue, None)
    sys.setprofile(None)
    device.wait_idle(30)
    hal.wait_all(made, 30)
    assert buffer.numpy().tolist() == [7] * 256
    assert done.query() == 2


def case_unfinished_objects_are_refused(device):
    buffer = warm(device)
    queue = hal.Queue.__new__(hal.Queue)
    timepoint, submission = Timepoint.__new__(Timepoint), hal.Submission.__new__(hal.Submission)
    for call in (
        lambda: queue.fill(buffer, 1),
        lambda: queue.fill(hal.Buffer.__new__(hal.Buffer), 1),
        lambda: queue.dispatch(hal.Kernel.__new__(hal.Kernel), grid=1),
        lambda: queue.execute(hal.CommandBuffer.__new__(hal.CommandBuffer)),
        lambda: device.queue.fill(buffer, 1, wait=(timepoint,)),
        lambda: device.queue.fill(buffer, 1, wait=submission, signal=hal.Semaphore(0, None).at(1)),
        lambda: device.queue.fill(buffer, 1, signal=timepoint),
        lambda: device.queue.fill(buffer, 1, wait=hal.Semaphore.__new__(hal.Semaphore).at(1)),
        lambda: hal.Semaphore.__new__(hal.Semaphore).signal(1),
        lambda: hal.Semaphore.__new__(hal.Semaphore).wait(1),
        submission.wait,
    ):
        with pytest.raises(AttributeError):
            call()


def case_devices_that_take_turns_on_a_thread_take_no_python_q1(device):
    with hal.create_device("cpu" if device.backend == "cpu" else f"{device.backend}:1") as other:
        ours, theirs = warm(device), warm(other)
        queue, beside = device.queue, other.queue
        with OnlyC():
            for number in range(3):
                queue.fill(ours, number)
                beside.fill(theirs, 10 + number)
        assert (ours.numpy()[0], theirs.numpy()[0]) == (2, 12)


def case_structures_of_another_size_are_refused_c5(device):
    kernel = device.compile(
        'extern "C" __global__ void HAL_BLOCK(1) sum(float4 *x) { x->w = x->x + x->y + x->z; }'
    )["sum"]
    numbers = device.upload(np.array([1, 2, 3, 0], np.float32))
    pairs = numbers.view(np.dtype([("one", np.float32), ("other", np.float32)]))
    for _ in range(2):  # the second time by a shortcut, if there is one
        device.queue.dispatch(kernel, grid=1, args=(numbers,)).wait()
        with pytest.raises(hal.errors.ArgumentTypeError):
            device.queue.dispatch(kernel, grid=1, args=(pairs,))
    assert numbers.numpy().tolist() == [1, 2, 3, 6]


def case_a_method_is_copied_pickled_and_held_weakly(device):
    fill = hal.Queue.fill
    assert pickle.loads(pickle.dumps(fill)) is fill
    assert copy.deepcopy(fill) is copy.copy(fill) is fill
    assert weakref.ref(fill)() is fill
    assert weakref.WeakMethod(device.queue.fill)()(warm(device), 1).wait() is None
    shown = pydoc.render_doc(hal.Queue, renderer=pydoc.plaintext)
    # Each parameter has a line of its own since Python 3.13.
    assert "fill(self,buffer" in "".join(shown.replace("|", "").split())
    assert str(fill.__doc__).splitlines()[0] in shown
    assert typing.get_type_hints(hal.Semaphore.at)["return"] is Timepoint
    with mock.patch.object(hal.Queue, "fill", autospec=True) as patched:
        device.queue.fill(1, 2)
    patched.assert_called_once_with(device.queue, 1, 2)
    assert hal.Queue.fill is fill


def case_a_forked_child_submits_nothing_q6(device):
    """It submits none even by a method that was bound in its parent."""
    buffer, done = warm(device), hal.create_semaphore()
    fill, signal = device.queue.fill, done.signal
    child = os.fork()
    if not child:
        refused = 0
        for call in (lambda: fill(buffer, 1), lambda: signal(1)):
            try:
                call()
            except hal.HalError:
                refused += 1
        os._exit(refused != 2)
    assert os.waitpid(child, 0)[1] == 0


def case_a_forked_child_has_a_lock_of_its_own(_no_device):
    """The parent has imported hal, and opened no device."""
    child = os.fork()
    if not child:
        code = 1
        try:
            with hal.create_device("cpu") as device:
                buffer = device.allocate(16)
                device.queue.fill(buffer, 3).wait()
                code = buffer.numpy().tolist() != [3] * 16
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
