"""What a process may do: run out of stack or threads, collect garbage, copy, pickle."""

import copy
import pickle
import threading

import pytest
from child_processes import run_python
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError


def test_a_coroutine_may_be_collected_under_the_timeline_lock_i10(tmp_path):
    """I10: a loop was closed under it, and the collector comes whenever it likes."""
    result = run_python(
        tmp_path,
        f"""
        import asyncio, gc, hal
        from hal._engine import timelines
        semaphore = hal.create_semaphore()

        async def main():
            async def wait():
                await semaphore.reached(1)
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            return task

        gc.disable()
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(main())
        assert len(semaphore._reached) == 1
        task._log_destroy_pending = False
        loop.close()
        task.myself = [task]
        del task, loop, main
        with timelines.lock:
            gc.collect()
        hal.create_semaphore(1).on_reached(1, print)  # wakes hal's threads
        semaphore.signal(1)
        semaphore.wait(1, {LIMIT})
        """,
    )
    assert result.returncode == 0, result.stderr


def test_a_queue_outlives_a_stack_that_is_full_q1(tmp_path):
    """Q1: the submission that broke off ends, and those behind it go on."""
    result = run_python(
        tmp_path,
        f"""
        import hal
        device = hal.create_device("cpu")
        queue, buffer = device.queue, device.allocate(64)
        queue.fill(buffer, 1).wait({LIMIT})
        raised = 0

        def deep():
            global raised
            try:
                queue.fill(buffer, 1)
            except RecursionError:
                raised += 1
            deep()

        try:
            deep()
        except RecursionError:
            pass
        assert raised
        queue.fill(buffer, 2).wait({LIMIT})
        assert set(buffer.numpy().tolist()) == {{2}}
        assert device.close({LIMIT}) == ()
        """,
    )
    assert result.returncode == 0, result.stderr


def test_what_is_this_processes_is_not_copied(device):
    """A twin would own the same stream, or wait for what nobody signals."""
    with device.record() as commands:
        commands.barrier()
    semaphore = hal.create_semaphore()
    submission = device.queue.barrier()
    ones = [device, device.queue, semaphore, submission, commands, device.allocate(4)]
    ones += [hal.Output(device)]
    for one in ones:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(ArgumentTypeError, match="neither copied nor"):
                way(one)
    with pytest.raises(ArgumentTypeError, match="Semaphore belongs to this process"):
        pickle.dumps(semaphore.at(1))
    assert copy.copy(threading.current_thread()) is not None
