"""Cases of allocas on a device that is short of memory: by hand, without a model."""

import functools

from schedlab.memory import ASYNC
from schedlab.programs import QueueSpec
from schedlab.small import SmallCase, expect, program_of, run_threads

BLOCK = 256
"""Bytes of the smallest block."""

QUEUES = {"q": QueueSpec(), "r": QueueSpec(), "u": QueueSpec()}


def _short(name, body, *, blocks, native=False, queues=QUEUES, **settings):
    """Return a case on a device that has room for so many blocks."""
    options = dict(ASYNC if native else {"settings": ()})
    options["settings"] += (("memory_limit", blocks * BLOCK),)
    title = f"{name}, native" if native else name
    return SmallCase(title, program_of(queues=queues, **options), body, **settings)


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


def one_block_two_queues(**settings):
    """Two queues use one block in turn: neither fails, and neither has the other's bytes."""

    def body(world, scheduler):
        targets = [_target(world), _target(world)]

        def uses(name, value):
            _end(_cycle(world, name, value, targets[value - 1]))

        run_threads(world, scheduler, lambda: uses("q", 1), lambda: uses("r", 2))
        expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}])

    return _short("one block, two queues", body, blocks=3, **settings)


def a_block_behind_another_queue(**settings):
    """A queue that waits for the dealloca has the block; one that does not waits until it retires.

    Its bytes are safe until the first queue's copy has run.
    """

    def body(world, scheduler):
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

    return _short("a block behind another queue", body, blocks=3, **settings)


def reserved_at_issue(**settings):
    """Of two uses that a semaphore orders neither holds what the other needs."""

    def body(world, scheduler):
        ready = world.core.hal.create_semaphore()
        targets = [_target(world), _target(world)]
        run_threads(
            world,
            scheduler,
            lambda: _end(_cycle(world, "q", 1, targets[0], wait=[ready.at(1)])),
            lambda: _end(_cycle(world, "r", 2, targets[1], signal=[ready.at(1)])),
        )
        expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}])

    return _short("reserved at issue", body, blocks=3, **settings)


def use_beside_dealloca(**settings):
    """A use on another queue, which the dealloca does not wait for, keeps its bytes."""

    def body(world, scheduler):
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

    return _short("use beside dealloca", body, blocks=3, **settings)


def _resumed(name, prepare, **settings):
    """Return a case in which an alloca starves while a host call runs, which makes room.

    `prepare(world, held)` returns what the call does; `held` is a list of the
    buffer that is in the way.
    """

    def body(world, scheduler):
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

    return _short(name, body, blocks=2, **settings)


def resumed_by_close(**settings):
    """A buffer is closed: whoever starves has its memory."""
    return _resumed("resumed by close", lambda _, held: held[0].close, **settings)


def resumed_by_a_finaliser(**settings):
    """Nobody names a buffer any more: whoever starves has its memory."""
    return _resumed("resumed by a finaliser", lambda _, held: held.clear, **settings)


def resumed_by_dealloca(**settings):
    """Another queue gives memory back."""

    def prepare(world, held):
        return lambda: world.queues["q"].dealloca(held.pop()) and None

    return _resumed("resumed by dealloca", prepare, **settings)


def resumed_by_failure(**settings):
    """What a dealloca waits for fails: it fails, and gives its memory back all the same."""

    def prepare(world, held):
        gate = world.core.hal.create_semaphore()
        world.queues["q"].dealloca(held.pop(), wait=[gate.at(1)])
        return lambda: gate.fail(world.core.errors.OperationError("broken"))

    return _resumed("resumed by a failure", prepare, **settings)


def resumed_by_cancel(**settings):
    """The queue of a dealloca that waits is closed: its memory comes back."""

    def prepare(world, held):
        gate = world.core.hal.create_semaphore()
        world.queues["q"].dealloca(held.pop(), wait=[gate.at(1)])
        return lambda: world.queues["q"].close() and None

    return _resumed("resumed by a cancellation", prepare, **settings)


def _closed(name, close, **settings):
    """Return a case in which an alloca starves, perhaps, and something is closed meanwhile."""

    def body(world, scheduler):
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

    return _short(name, body, blocks=2, **settings)


def starved_and_closed(**settings):
    """The queue of an alloca that starves is closed: it is cancelled, or has had its memory."""
    return _closed("starved and closed", lambda world: world.queues["r"].close(), **settings)


def starved_on_a_closed_device(**settings):
    """The device is closed while an alloca starves: it ends, and nothing is left."""

    def close(world):
        world.close_device(world.devices[0, 0], 5.0)

    return _closed("starved on a closed device", close, **settings)


def nothing_comes_back(**settings):
    """What runs gives nothing back: the alloca fails once that has ended, and nobody hangs."""

    def body(world, scheduler):
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

    return _short("nothing comes back", body, blocks=1, **settings)


def two_starve(**settings):
    """Two queues wait for the block of a third: each has it in its turn."""

    def body(world, scheduler):
        targets = [_target(world) for _ in range(3)]
        first = _cycle(world, "q", 1, targets[0])

        def starves(name, value):
            _end(_cycle(world, name, value, targets[value - 1]))

        run_threads(world, scheduler, lambda: starves("r", 2), lambda: starves("u", 3))
        _end(first)
        expect(scheduler, [_content(world, each) for each in targets], [{1}, {2}, {3}])

    return _short("two starve", body, blocks=4, **settings)


def _given_back_by(name, blocked, **settings):
    """Return a case in which an alloca fails, and with it what held some memory up.

    The next alloca in its queue has that memory. `blocked(world, first, starved)`
    submits what fails, and returns it.
    """

    def body(world, scheduler):
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

    return _short(name, body, blocks=2, **settings)


def given_back_by_a_failed_use(**settings):
    """The last use of the memory fails, unissued."""

    def blocked(world, first, starved):
        use = world.queues["r"].fill(first, 1, wait=[starved.allocation])
        world.queues["u"].dealloca(first, wait=[first.allocation])
        return [use]

    return _given_back_by("given back by a failed use", blocked, **settings)


def given_back_by_a_failed_dealloca(**settings):
    """The dealloca itself fails, since another one that it waits for does."""

    def blocked(world, first, starved):
        ended = world.queues["q"].dealloca(starved, wait=[starved.allocation])
        return [ended, world.queues["q"].dealloca(first, wait=[ended])]

    return _given_back_by("given back by a failed dealloca", blocked, **settings)


IN_BOTH = {
    "given back by a failed use": given_back_by_a_failed_use,
    "given back by a failed dealloca": given_back_by_a_failed_dealloca,
    "one block, two queues": one_block_two_queues,
    "a block behind another queue": a_block_behind_another_queue,
    "reserved at issue": reserved_at_issue,
    "use beside dealloca": use_beside_dealloca,
    "resumed by close": resumed_by_close,
    "resumed by a finaliser": resumed_by_a_finaliser,
    "resumed by dealloca": resumed_by_dealloca,
    "resumed by a failure": resumed_by_failure,
    "resumed by a cancellation": resumed_by_cancel,
    "starved and closed": starved_and_closed,
    "starved on a closed device": starved_on_a_closed_device,
    "nothing comes back": nothing_comes_back,
    "two starve": two_starve,
}

SHORTAGE = {
    **IN_BOTH,
    **{f"{name}, native": functools.partial(each, native=True) for name, each in IN_BOTH.items()},
}
