"""Cases of memory that is allocated in a queue's order, and of copies of pageable memory."""

import numpy as np

from schedlab.faults import SPARED
from schedlab.programs import QueueSpec
from schedlab.small import by_hand, expect, program_of, run_threads

ONE = {"q": QueueSpec()}
TWO = {"q": QueueSpec(), "r": QueueSpec()}

ASYNC = {"features": {"async_allocations"}, "settings": ()}
"""Of a program whose allocas are the driver's own."""

# Arrays that are copied in two parts
PAGEABLE = {"constants": (("_transfers.transfers", "SMALL", 8), ("_memory.blocking", "PART", 256))}
LENGTH = 512


MEMORY = {}
"""Factories of the cases by name."""


def _allocating(name):
    """Add a case twice: allocas are the core's, and the driver's own."""

    def add(body):
        by_hand(MEMORY, name, program_of(queues=TWO))(body)
        by_hand(MEMORY, f"{name}, native", program_of(queues=TWO, **ASYNC))(body)
        return body

    return add


def _semaphores(world):
    """Return two semaphores of the case's own, of which the checks of programs know nothing."""
    return [world.core.hal.create_semaphore() for _ in range(2)]


def content(world, buffer):
    """Return what a buffer of one byte repeated holds."""
    data = set(world.vendors[0].peek(buffer.address, buffer.size))
    return data.pop() if len(data) == 1 else data


@_allocating("alloca elsewhere")
def alloca_elsewhere(world, scheduler):
    """A buffer is allocated on one queue, used on another, and given back on the first."""
    q, r = world.queues["q"], world.queues["r"]
    go, ready = _semaphores(world)
    target = world.devices[0, 0].allocate(8)
    buffer = q.alloca(8, wait=[go.at(1)], signal=[ready.at(1)])
    seen = {}

    def uses():
        filled = r.fill(buffer, 7, wait=[ready.at(1)])
        copied = r.copy(buffer, target, wait=[filled])
        ended = q.dealloca(buffer, wait=[copied])
        seen["closed"] = buffer.closed
        ended.wait()

    run_threads(world, scheduler, uses, lambda: go.signal(1))
    expect(scheduler, seen, {"closed": True})
    expect(scheduler, content(world, target), 7)


@_allocating("dealloca waits")
def dealloca_waits(world, scheduler):
    """Memory is given to nobody else before what its dealloca waits for has come."""
    q, r = world.queues["q"], world.queues["r"]
    first = q.alloca(8)
    first.allocation.wait()
    address = first.address
    go, _ = _semaphores(world)
    ended = q.dealloca(first, wait=[go.at(1)])
    del first
    pending = world.core.operation.PENDING

    def allocates():
        second = r.alloca(8)
        second.allocation.wait()
        kept = world.vendors[0].allocations.get(address)
        given_back = second.address == address or kept is None or kept.doomed
        if given_back and ended._state == pending:
            scheduler.fail("M3", "memory is given back whose dealloca still waits")
        r.fill(second, 3).wait()
        expect(scheduler, content(world, second), 3)

    run_threads(world, scheduler, allocates, lambda: go.signal(1))
    ended.wait()


@_allocating("dealloca under work")
def dealloca_under_work(world, scheduler):
    """Work that was submitted before the dealloca keeps the memory, on any queue."""
    q, r = world.queues["q"], world.queues["r"]
    target = world.devices[0, 0].allocate(8)
    first = [q.alloca(8)]
    first[0].allocation.wait()
    copied = r.copy(first[0], target, wait=[q.fill(first[0], 5)])

    def gives_back():
        q.dealloca(first.pop()).wait()
        second = q.alloca(8)
        q.fill(second, 6).wait()

    run_threads(world, scheduler, gives_back, copied.wait)
    expect(scheduler, content(world, target), 5)


@_allocating("alloca and close")
def alloca_and_close(world, scheduler):
    """A queue is closed while others wait for memory that it was to allocate."""
    q, r = world.queues["q"], world.queues["r"]
    go, _ = _semaphores(world)
    buffer = q.alloca(8, wait=[go.at(1)])
    seen = {}

    def uses():
        go.signal(1)
        filled = r.fill(buffer, 7, wait=[buffer.allocation])
        try:
            filled.wait()
            seen["fill"] = content(world, buffer) == 7
        except world.core.errors.HalError as error:
            seen["fill"] = world.label(error)

    run_threads(world, scheduler, uses, q.close)
    if seen["fill"] not in {True, "cancelled"}:
        scheduler.fail("result", f"a fill of an alloca's memory ended with {seen['fill']}")


@by_hand(MEMORY, "alloca in turn", program_of(queues=ONE))
def alloca_in_turn(world, scheduler):
    """There is room for one of two: the second gets the first one's memory, whichever that is."""
    q = world.queues["q"]
    vendor = world.vendors[0]
    vendor.room = sum(each.size for each in vendor.allocations.values()) + 256

    ready, _ = _semaphores(world)

    def one():
        first = q.alloca(8)
        q.fill(first, 1)
        q.dealloca(first)
        second = q.alloca(8)
        q.fill(second, 2, signal=[ready.at(1)])
        q.dealloca(second)

    run_threads(world, scheduler, one, lambda: ready.wait(1))
    vendor.room = None


def _numbers(first):
    return (np.arange(LENGTH) + first).astype(np.uint8)


def _two_buffers(world):
    return [world.devices[0, 0].allocate(LENGTH) for _ in range(2)]


def _write_both(world, scheduler, buffers, error=()):
    """Have two threads write through one ring; return the bytes of those that did not fail."""
    ended = []

    def writes(index, queue):
        try:
            world.queues[queue].write(buffers[index], _numbers(99 * index)).wait()
        except error:
            return
        ended.append(index)

    run_threads(world, scheduler, lambda: writes(0, "q"), lambda: writes(1, "r"))
    return {each: world.vendors[0].peek(buffers[each].address, LENGTH) for each in ended}


def _expect_bytes(scheduler, found):
    expect(scheduler, found, {each: _numbers(99 * each).tobytes() for each in found})


@by_hand(MEMORY, "pageable writes", program_of(queues=TWO, **PAGEABLE))
def pageable_writes(world, scheduler):
    """Two writes at once: neither gets the other's bytes."""
    found = _write_both(world, scheduler, _two_buffers(world))
    expect(scheduler, len(found), 2)
    _expect_bytes(scheduler, found)


@by_hand(MEMORY, "pageable read", program_of(queues=TWO, **PAGEABLE))
def pageable_read(world, scheduler):
    """A read waits for a write on another queue, and gets its bytes."""
    buffer = world.devices[0, 0].allocate(LENGTH)
    array, result = _numbers(7), np.zeros(LENGTH, np.uint8)
    at = _semaphores(world)[0].at(1)

    def reads():
        world.queues["r"].read(buffer, result, wait=[at]).wait()
        expect(scheduler, result.tobytes(), array.tobytes())

    run_threads(
        world, scheduler, reads, lambda: world.queues["q"].write(buffer, array, signal=[at])
    )


@by_hand(MEMORY, "pageable and close", program_of(queues=ONE, **PAGEABLE))
def pageable_and_close(world, scheduler):
    """A device is closed while a write is under way: it ends, or never began."""
    device = world.devices[0, 0]
    buffer = device.allocate(LENGTH)
    errors = world.core.errors
    left = []

    def writes():
        try:
            world.queues["q"].write(buffer, _numbers(7)).wait()
        except (errors.CancelledError, errors.ClosedError):
            return

    run_threads(world, scheduler, writes, lambda: left.extend(world.close_device(device, 5.0)))
    expect(scheduler, left, [])


@by_hand(MEMORY, "pageable and lost", program_of(queues=TWO, **PAGEABLE))
def pageable_and_lost(world, scheduler):
    """The device is lost at any call of two writes: both end."""
    vendor, buffers = world.vendors[0], _two_buffers(world)
    world.start()
    vendor.lost_at = vendor.calls + 2 + scheduler.choose(8, "at which call it is lost")
    _write_both(world, scheduler, buffers, world.core.errors.DeviceLostError)
    vendor.lost_at = None


def _refuse_one(world, scheduler, calls):
    """Have the device refuse one of its next calls, whichever."""
    vendor = world.vendors[0]
    world.start()
    number = vendor.calls + 1 + scheduler.choose(calls, "which call is refused")

    def make(vendor, primitive):
        return None if primitive in SPARED else world.core.errors.OperationError("refused")

    vendor.faults.append((None, number, make))


@by_hand(MEMORY, "pageable and refused", program_of(queues=TWO, **PAGEABLE))
def pageable_and_refused(world, scheduler):
    """Any call of two writes is refused: one write fails at the most, and the bytes are right."""
    buffers = _two_buffers(world)
    _refuse_one(world, scheduler, 8)
    found = _write_both(world, scheduler, buffers, world.core.errors.OperationError)
    world.vendors[0].faults.clear()
    expect(scheduler, bool(found), wanted=True)
    _expect_bytes(scheduler, found)


@_allocating("alloca and refused")
def alloca_and_refused(world, scheduler):
    """Any call is refused: what uses the memory fails as the allocation does, and nobody hangs."""
    q, r = world.queues["q"], world.queues["r"]
    go, ready = _semaphores(world)
    ended = {}

    def uses():
        buffer = q.alloca(8, wait=[go.at(1)], signal=[ready.at(1)])
        operations = [
            buffer.allocation,
            r.fill(buffer, 7, wait=[ready.at(1)]),
            q.dealloca(buffer, wait=[ready.at(1)]),
        ]
        for number, operation in enumerate(operations):
            try:
                operation.wait()
                ended[number] = "ok"
            except world.core.errors.OperationError:
                ended[number] = "refused"

    _refuse_one(world, scheduler, 10)
    run_threads(world, scheduler, uses, lambda: go.signal(1))
    world.vendors[0].faults.clear()
    if ended[0] == "refused" and set(ended.values()) != {"refused"}:
        scheduler.fail("M3", f"the allocation failed, and what uses it did not: {ended}")
