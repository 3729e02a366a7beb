"""Cases of allocas on a device that is short of memory: by hand, without a model."""

import functools

from schedlab.memory import ASYNC
from schedlab.programs import QueueSpec
from schedlab.small import by_hand, expect, program_of, run_threads

BLOCK = 256
"""Bytes of the smallest block."""

QUEUES = {"q": QueueSpec(), "r": QueueSpec(), "u": QueueSpec()}


SHORTAGE = {}
"""Factories of the cases by name."""


def _short(name, *, blocks):
    """Add a case on a device with room for so many blocks, of the core's allocas and of its own."""
    limit = (("memory_limit", blocks * BLOCK),)

    def add(body):
        by_hand(SHORTAGE, name, program_of(queues=QUEUES, settings=limit))(body)
        native = program_of(queues=QUEUES, **{**ASYNC, "settings": limit})
        by_hand(SHORTAGE, f"{name}, native", native)(body)
        return body

    return add


def _around(body, name):
    """Add a case on a device with room for two blocks: of `body`, given the decorated function."""
    return lambda part: _short(name, blocks=2)(functools.partial(body, part))


def _target(world):
    """Allocate a block that stays."""
    return world.devices[0, 0].allocate(BLOCK)


def _cycle(world, name, value, target, wait=(), signal=()):
    """Allocate, fill, copy out and give back in a queue; return the four submissions.

    The first begins when all are submitted: else the device might rest in between,
    and others would rightly find no memory.
    """
    queue, go = world.queues[name], world.core.hal.create_semaphore()
    buffer = queue.alloca(BLOCK, wait=[go.at(1), *wait])
    submitted = [
        buffer.allocation,
        queue.fill(buffer, value),
        queue.copy(buffer, target),
        queue.dealloca(buffer, signal=signal),
    ]
    go.signal(1)
    return submitted


def _end(submissions):
    for each in submissions:
        each.wait()


def _content(world, target):
    return set(world.vendors[0].peek(target.address, target.size))


@_short("one block, two queues", blocks=3)
def one_block_two_queues(world, scheduler):
    """Two queues use one block in turn: neither fails, and neither has the other's bytes."""
    targets = [_target(world), _target(world)]

    def uses(name, value):
        _end(_cycle(world, name, value, targets[value - 1]))

    run_threads(world, scheduler, lambda: uses("q", 1), lambda: uses("r", 2))
    expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}])


@_short("a block behind another queue", blocks=3)
def a_block_behind_another_queue(world, scheduler):
    """A queue that waits for the dealloca has the block; one that does not waits until it retires.

    Its bytes are safe until the first queue's copy has run.
    """
    targets = [_target(world), _target(world)]
    waits = bool(scheduler.choose(2, "whether it waits for the dealloca"))
    first = []

    def gives():
        first.extend(_cycle(world, "q", 1, targets[0], signal=[ready.at(1)]))
        _end(first)

    def takes():
        _end(_cycle(world, "r", 2, targets[1], wait=[ready.at(1)] if waits else ()))

    ready = world.core.hal.create_semaphore()
    world.start()
    run_threads(world, scheduler, gives, takes)
    expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}])


@_short("reserved at issue", blocks=3)
def reserved_at_issue(world, scheduler):
    """Two uses that a semaphore orders: neither holds memory that the other needs."""
    ready = world.core.hal.create_semaphore()
    targets = [_target(world), _target(world)]
    run_threads(
        world,
        scheduler,
        lambda: _end(_cycle(world, "q", 1, targets[0], wait=[ready.at(1)])),
        lambda: _end(_cycle(world, "r", 2, targets[1], signal=[ready.at(1)])),
    )
    expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}])


@_short("use beside dealloca", blocks=3)
def use_beside_dealloca(world, scheduler):
    """A use on another queue, which the dealloca does not wait for, keeps its bytes."""
    q, r = world.queues["q"], world.queues["r"]
    targets = [_target(world), _target(world)]
    first = [q.alloca(BLOCK)]
    q.fill(first[0], 1).wait()
    copied = r.copy(first[0], targets[0])

    def gives_back():
        q.dealloca(first.pop())
        _end(_cycle(world, "q", 2, targets[1]))

    run_threads(world, scheduler, gives_back, copied.wait)
    expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}])


def _resume(prepare, world, scheduler):
    """An alloca starves while a host call runs, which makes room.

    `prepare(world, held)` returns what the call does; `held` is a list of the
    buffer that is in the way.
    """
    q = world.queues["q"]
    target = _target(world)
    held = [q.alloca(BLOCK)]
    q.fill(held[0], 9).wait()
    makes_room = prepare(world, held)
    called = []

    def call():
        called.append(makes_room())

    running = world.queues["u"].call(call)

    def starves():
        _end(_cycle(world, "r", 2, target))

    run_threads(world, scheduler, starves, running.wait)
    expect(scheduler, (_content(world, target), len(called)), ({2}, 1))
    held.clear()


@_around(_resume, "resumed by close")
def resumed_by_close(_, held):
    """A buffer is closed: the starving alloca gets its memory."""
    return held[0].close


@_around(_resume, "resumed by a finaliser")
def resumed_by_a_finaliser(_, held):
    """Nobody refers to a buffer any more: the starving alloca gets its memory."""
    return held.clear


@_around(_resume, "resumed by dealloca")
def resumed_by_dealloca(world, held):
    """Another queue gives memory back."""
    return lambda: world.queues["q"].dealloca(held.pop()) and None


@_around(_resume, "resumed by a failure")
def resumed_by_failure(world, held):
    """A dealloca fails with what it waits for, and gives its memory back all the same."""
    gate = world.core.hal.create_semaphore()
    world.queues["q"].dealloca(held.pop(), wait=[gate.at(1)])
    return lambda: gate.fail(world.core.errors.OperationError("broken"))


@_around(_resume, "resumed by a cancellation")
def resumed_by_cancel(world, held):
    """The queue of a dealloca that waits is closed: its memory comes back."""
    gate = world.core.hal.create_semaphore()
    world.queues["q"].dealloca(held.pop(), wait=[gate.at(1)])
    return lambda: world.queues["q"].close() and None


def _close(close, world, scheduler):
    """An alloca starves, perhaps, and something is closed meanwhile."""
    r = world.queues["r"]
    target = _target(world)
    first = _cycle(world, "q", 1, target)
    ended = []

    def starves():
        errors = world.core.errors
        submitted = []
        try:
            buffer = r.alloca(BLOCK)
            submitted += [buffer.allocation, r.fill(buffer, 2)]
        except errors.ClosedError:
            pass
        for each in submitted:
            try:
                each.wait()
                ended.append("ok")
            except errors.HalError as error:
                ended.append(world.label(error))

    run_threads(world, scheduler, starves, lambda: close(world))
    allowed = (["ok", "ok"], ["ok", "cancelled"], ["cancelled", "cancelled"], ["ok"])
    if ended and ended not in (*allowed, ["cancelled"]):
        scheduler.fail("result", f"an alloca and a fill ended with {ended}")
    del first


@_around(_close, "starved and closed")
def starved_and_closed(world):
    """The queue of an alloca that starves is closed: it is cancelled, or has had its memory."""
    world.queues["r"].close()


@_around(_close, "starved on a closed device")
def starved_on_a_closed_device(world):
    """The device is closed while an alloca starves: it ends, and nothing is left."""
    world.close_device(world.devices[0, 0], 5.0)


@_short("nothing comes back", blocks=1)
def nothing_comes_back(world, scheduler):
    """The running work gives nothing back: once it has ended the alloca fails, and nobody hangs."""
    q, r = world.queues["q"], world.queues["r"]
    held = _target(world)
    seen = []

    def starves():
        buffer = r.alloca(BLOCK)
        for each in (buffer.allocation, r.fill(buffer, 1)):
            try:
                each.wait()
            except world.core.errors.OutOfMemoryError:
                seen.append("out of memory")
        r.dealloca(buffer).wait()
        r.fill(held, 2).wait()

    run_threads(world, scheduler, starves, lambda: q.fill(held, 1).wait())
    expect(scheduler, seen, ["out of memory"] * 2)


@_short("two starve", blocks=4)
def two_starve(world, scheduler):
    """Two queues wait for the block of a third: each has it in its turn."""
    targets = [_target(world) for _ in range(3)]
    first = _cycle(world, "q", 1, targets[0])

    def starves(name, value):
        _end(_cycle(world, name, value, targets[value - 1]))

    run_threads(world, scheduler, lambda: starves("r", 2), lambda: starves("u", 3))
    _end(first)
    expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}, {3}])


def _give_back(blocked, world, scheduler):
    """An alloca fails, and with it what held some memory up.

    The next alloca in its queue has that memory. `blocked(world, first, starved)`
    submits what fails, and returns it.
    """
    q, r = world.queues["q"], world.queues["r"]
    go = world.core.hal.create_semaphore()
    stays = _target(world)
    first = q.alloca(BLOCK, wait=[go.at(1)])
    starved = r.alloca(BLOCK, wait=[first.allocation])
    fails = blocked(world, first, starved)
    second = r.alloca(BLOCK)
    filled = r.fill(second, 2)
    seen = []

    def waits():
        for each in (starved.allocation, *fails, second.allocation, filled):
            try:
                each.wait()
                seen.append("ok")
            except world.core.errors.OutOfMemoryError:
                seen.append("out of memory")

    run_threads(world, scheduler, waits, lambda: go.signal(1))
    expect(scheduler, seen, ["out of memory"] * (1 + len(fails)) + ["ok"] * 2)
    expect(scheduler, _content(world, second), {2})
    del stays


@_around(_give_back, "given back by a failed use")
def given_back_by_a_failed_use(world, first, starved):
    """The last use of the memory fails, unissued."""
    use = world.queues["r"].fill(first, 1, wait=[starved.allocation])
    world.queues["u"].dealloca(first, wait=[first.allocation])
    return [use]


@_around(_give_back, "given back by a failed dealloca")
def given_back_by_a_failed_dealloca(world, first, starved):
    """The dealloca itself fails, since another one that it waits for does."""
    ended = world.queues["q"].dealloca(starved, wait=[starved.allocation])
    return [ended, world.queues["q"].dealloca(first, wait=[ended])]
