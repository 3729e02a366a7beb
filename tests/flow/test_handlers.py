"""A signal handler at every place of a flow's code, which uses the same flow (O3).

It gets what it asks for, or `ReentrantCallError`; what it has interrupted goes on, in order.
"""

import pytest
from child_processes import assert_quiet, run_python

import hal
from hal.errors import ReentrantCallError
from hal.flow import Flow

TRIALS = """
    import contextlib, faulthandler, sys
    import numpy as np
    import hal
    from hal.errors import ReentrantCallError
    from hal.flow import Flow
    from interrupts import Interrupts, try_places

    KIND, LIMIT = sys.argv[1], 60.0
    device = hal.create_device("cpu")
    ones, twos = np.full(4096, 1, np.uint8), np.full(4096, 2, np.uint8)

    def trial(place):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        flow, wrong = Flow(device), []
        first, second, third = (flow.allocate(4096, clear=True) for _ in range(3))
        raws = [device.allocate(64) for _ in range(2)]
        merge = flow.merge_buffer()
        downloads, read = [], np.zeros(4096, np.uint8)

        def adopt(raw):
            flow.adopt(raw).close()

        def handler(_):
            for use in (
                lambda: flow.fill(second, 2),
                lambda: flow.write(third, twos, hold=True),
                lambda: downloads.append(flow.to_host(second)),
                lambda: merge.load(second),
                lambda: adopt(raws[1]),
            ):
                with contextlib.suppress(ReentrantCallError):
                    use()

        Interrupts.interrupt = handler
        interrupts = Interrupts(place)
        with interrupts:
            if KIND == "fill":
                flow.fill(first, 1)
                flow.copy(first, second)
                flow.read(first, read)
            elif KIND == "write":
                flow.write(first, ones, hold=True)
                flow.read(first, read)
            elif KIND == "merge":
                flow.fill(first, 1)
                merge.load(first)
                flow.read(first, read)
            elif KIND == "adopt":
                adopt(raws[0])
                flow.fill(first, 1)
                flow.read(first, read)
        flow.wait_idle(LIMIT)
        for each in downloads:
            each.result(LIMIT)
        if not (read == 1).all():
            wrong.append("not read")
        if not (first.numpy(timeout=LIMIT) == 1).all():
            wrong.append("not written")
        flow.close(LIMIT)
        if not (ones.flags.writeable and twos.flags.writeable):
            wrong.append("held")
        return interrupts.places, wrong

    try_places(trial, KIND)
    faulthandler.cancel_dump_traceback_later()
"""


@pytest.mark.parametrize("kind", ["fill", "write", "merge", "adopt"])
def test_a_handler_at_every_call_of_a_flow_o3(tmp_path, kind):
    assert_quiet(run_python(tmp_path, TRIALS, arguments=(kind,)))


def test_a_handler_while_a_queue_is_noted_is_refused_o3(monkeypatch):
    """O3: else the queue that it uses would be forgotten, and work in it not be waited for."""
    device, refused = hal.create_device("cpu"), []
    with device, Flow(device) as flow:
        buffers = [flow.allocate(16) for _ in range(2)]
        queues = [device.create_queue() for _ in range(2)]
        look = flow._open_queues

        def interrupted():
            found = look()
            with pytest.raises(ReentrantCallError) as caught:
                flow.fill(buffers[1], 1, queue=queues[1])
            refused.append(caught.value)
            return found

        monkeypatch.setattr(flow, "_open_queues", interrupted)
        flow.fill(buffers[0], 1, queue=queues[0]).wait(60.0)
        monkeypatch.undo()
        assert len(refused) == 1
        flow.fill(buffers[1], 1, queue=queues[1]).wait(60.0)
        assert {*queues} <= {*flow._queues}


FORKS = """
    import os, signal, sys, threading
    import hal
    from hal.errors import ClosedError
    from hal.flow import Flow

    flow = Flow(hal.create_device("cpu"))
    buffer = flow.allocate(64)
    inside, forked = threading.Event(), threading.Event()

    def refused(call):
        try:
            call()
        except ClosedError as error:
            return "was forked from one" in str(error)

    def fork(queue, waits):
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
        return queue.fill(buffer.raw, 1, wait=waits)

    def stay(queue, waits):
        inside.set()
        forked.wait(60)
        return queue.fill(buffer.raw, 1, wait=waits)

    thread = threading.Thread(target=lambda: flow.submit(stay, writes=[buffer]))
    thread.start()
    inside.wait(60)
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        calls = lambda: flow.fill(buffer, 2), lambda: buffer.written, buffer.recover
        os._exit(0 if all(map(refused, calls)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    forked.set()
    thread.join(60)
    parent = os.getpid()
    try:
        flow.submit(fork, writes=[buffer])
    except ClosedError:
        os._exit(0 if os.getpid() != parent else 2)
    assert os.getpid() == parent
"""


def test_a_child_is_refused_what_another_thread_was_doing_at_the_fork_q6(tmp_path):
    """Q6: and does not wait for that thread, which it has not. What forks within a call has it."""
    result = run_python(tmp_path, FORKS, watchdog=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
