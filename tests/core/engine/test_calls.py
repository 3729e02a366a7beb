"""Host calls: what they return defers their end (Q4), and their order (Q2)."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest
from call_harness import returning, text_of, until_deferred
from core_harness import LIMIT, collect_in_threads, wait_until

import hal
from hal.errors import DeadlineExceededError, OperationError


def test_what_is_dropped_is_not_looked_into_q4(device):
    """A generator, a mapping with waitable values and a nested list are not iterated over."""
    never = hal.create_semaphore()
    touched = []

    def generate():
        touched.append(1)
        yield never.at(1)

    for value in (generate(), {"a": never.at(1)}, [[never.at(1)]], never, hal.Fence()):
        device.queue.call(returning(value)).wait(LIMIT)
    assert touched == []


def test_the_last_of_many_ends_the_call_q4(device):
    """Several threads reach a thousand waits in any order; the call ends once, after all."""
    count = 1000
    gates = [hal.create_semaphore() for _ in range(count)]
    ends = []
    done = hal.create_semaphore()
    done.on_reached(1, ends.append)
    call = device.queue.call(returning([each.at(1) for each in gates]), signal=done.at(1))
    until_deferred(call)
    last = gates.pop(count // 2)
    collect_in_threads(
        [lambda part=part: [each.signal(1) for each in gates[part::4]] for part in range(4)]
    )
    assert call.state == "issued"
    last.signal(1)
    call.wait(LIMIT)
    device.queue.call(list).wait(LIMIT)
    done.wait(1, LIMIT)
    second = threading.Event()
    done.on_reached(1, lambda _: second.set())
    assert second.wait(LIMIT)
    assert ends == [None]


def test_a_deferral_holds_no_thread_q4(device):
    """Fifty calls wait at the same time, on far fewer threads than that."""
    queue = device.create_queue(ordered=False)
    gate, threads, calls = hal.create_semaphore(), set(), []

    def work():
        threads.add(threading.get_ident())
        return gate.at(1)

    for _ in range(50):
        calls.append(queue.call(work))
        until_deferred(calls[-1])
    assert len(threads) < 25
    gate.signal(1)
    hal.wait_all(calls, LIMIT)


@pytest.mark.parametrize("when", ["before", "racing"])
def test_a_deferral_races_with_its_end_q4(device, when):
    """The call ends exactly once, however close the signal is to its return."""
    queue = device.create_queue(ordered=False)
    rounds = 200
    gates = [hal.create_semaphore() for _ in range(rounds)]
    done = [hal.create_semaphore() for _ in range(rounds)]

    def work(index):
        if when == "before":
            gates[index].signal(1)
        return [gates[index].at(1)]

    calls = [queue.call(work, index, signal=each.at(1)) for index, each in enumerate(done)]
    if when == "racing":
        collect_in_threads([lambda: [gate.signal(1) for gate in gates]])
    hal.wait_all([*calls, *(each.at(1) for each in done)], LIMIT)
    assert {call.state for call in calls} == {"done"}


def test_a_long_chain_of_deferrals_ends_without_recursion_q4(device):
    """Two thousand calls, each deferred to the next one's signal; a failure runs down, too."""
    queue = device.create_queue(ordered=False)
    count = 2000
    for fail in (False, True):
        links = [hal.create_semaphore() for _ in range(count + 1)]
        calls = [
            queue.call(returning(links[index + 1].at(1)), signal=links[index].at(1))
            for index in range(count)
        ]
        if fail:
            links[count].fail(OperationError("the end of the chain"))
            with pytest.raises(OperationError, match="the end of the chain"):
                links[0].wait(1, LIMIT)
            device.wait_idle(LIMIT)
            assert {call.state for call in calls} == {"failed"}
        else:
            links[count].signal(1)
            hal.wait_all(calls, LIMIT)


def test_a_deferred_call_can_be_awaited_and_waited_for_by_queues_q4(device):
    buffer = device.upload(np.zeros(4, np.uint8))
    gate = hal.create_semaphore()
    call = device.queue.call(returning(gate.at(1)))
    fill = device.queues.upload.fill(buffer, 7, wait=call)
    until_deferred(call)
    assert fill.state == "pending"

    async def wait():
        asyncio.get_running_loop().call_soon(gate.signal, 1)
        await asyncio.wait_for(call, LIMIT)
        await asyncio.wait_for(fill, LIMIT)

    asyncio.run(wait())
    assert buffer.numpy().tolist() == [7] * 4


def test_wait_idle_waits_for_deferred_ends(device):
    gate = hal.create_semaphore()
    call = device.queue.call(returning(gate.at(1)))
    until_deferred(call)
    with pytest.raises(DeadlineExceededError, match="has returned"):
        device.wait_idle(0)
    gate.signal(1)
    device.wait_idle(LIMIT)
    assert call.state == "done"


def test_a_deferred_call_keeps_and_then_drops_what_it_was_given_q5(device):
    class Thing:
        pass

    thing, gate = Thing(), hal.create_semaphore()
    reference = weakref.ref(thing)
    call = device.queue.call(lambda _: gate.at(1), thing)
    del thing
    until_deferred(call)
    gc.collect()
    assert reference() is not None
    gate.signal(1)
    call.wait(LIMIT)
    wait_until(lambda: reference() is None)  # the signalling thread drops it after the wake-up


# Order


def test_what_stands_behind_waits_for_the_deferred_end_q2(device):
    """Q2: in an ordered queue a deferred call holds up the rest; other queues go on."""
    gate, order = hal.create_semaphore(), []
    buffer = device.upload(np.zeros(4, np.uint8))
    first = device.queue.call(returning(gate.at(1)))
    fill = device.queue.fill(buffer, 1)
    second = device.queue.call(order.append, "second")
    until_deferred(first)
    device.queues.upload.call(order.append, "elsewhere").wait(LIMIT)
    assert (fill.state, second.state, order) == ("pending", "pending", ["elsewhere"])
    text = text_of(fill)
    assert "behind" in text
    assert f"{gate.name}@1" in text
    gate.signal(1)
    second.wait(LIMIT)
    assert order == ["elsewhere", "second"]
    assert buffer.numpy().tolist() == [1] * 4


# Other devices


@pytest.mark.parametrize("kind", ["same driver", "another driver", "another domain"])
def test_deferred_to_another_devices_work_s3(device, second_device, open_probe, latch, kind):
    """The progress thread notices the end, with nobody polling."""
    other, probe = second_device, None
    if kind != "same driver":
        other, probe = open_probe(domain=object() if kind == "another domain" else None)
        probe.hold(latch)
    buffer = other.allocate(16)
    gate, shared, told = hal.create_semaphore(), hal.create_semaphore(), threading.Event()

    def work():
        other.queue.fill(buffer, 1, wait=gate.at(1), signal=shared.at(1))
        return shared.at(1)

    done = hal.create_semaphore()
    done.on_reached(1, lambda _: told.set())
    call = device.queue.call(work, signal=done.at(1))
    until_deferred(call)
    gate.signal(1)
    if probe is not None:
        assert call.state == "issued"
        latch.open()
    assert told.wait(LIMIT)
    assert call.state == "done"
