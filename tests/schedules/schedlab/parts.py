"""Cases of recordings whose parts run on several queues, of two devices."""

from schedlab.memory import content
from schedlab.programs import QueueSpec
from schedlab.small import by_hand, expect, program_of, run_threads

QUEUES = {"q": QueueSpec(), "r": QueueSpec(), "u": QueueSpec(device=1), "v": QueueSpec(device=1)}
"""The executing queue, another one of its device, and two of a second device."""


PARTS = {}


def _record(world):
    """Return a recording of parts on all queues, and what it writes.

    The second device's part needs nothing, and the last one of the executing queue writes what the
    part of the other queue reads.
    """
    one, two = world.devices[0, 0], world.devices[0, 1]
    x, y, z = one.allocate(8), one.allocate(8), two.allocate(8)
    with one.record() as commands:
        with commands.on(world.queues["u"]):
            commands.fill(z, 7)
        commands.fill(x, 5)
        commands.barrier()
        with commands.on(world.queues["r"]):
            commands.copy(x, y)
        commands.barrier()
        commands.fill(x, 9)
    return commands, (x, y, z)


def _content_of(world, buffers):
    return [content(world, each) for each in buffers]


@by_hand(PARTS, "parts in order", program_of(queues=QUEUES))
def parts_in_order(world, scheduler):
    """No part begins before the wait is reached, and all have run when the execution has ended."""
    commands, buffers = _record(world)
    go = world.core.hal.create_semaphore()

    def executes():
        world.queues["q"].execute(commands, wait=[go.at(1)]).wait()
        expect(scheduler, _content_of(world, buffers), [9, 5, 7])

    def signals():
        world.queues["v"].fill(buffers[2], 3).wait()  # before the second device's part
        go.signal(1)

    run_threads(world, scheduler, executes, signals)


@by_hand(PARTS, "parts of two", program_of(queues=QUEUES))
def parts_of_two(world, scheduler):
    """Two threads execute one recording: all of the one comes before all of the other."""
    commands, buffers = _record(world)

    def executes():
        world.queues["q"].execute(commands).wait()

    run_threads(world, scheduler, executes, executes)
    expect(scheduler, _content_of(world, buffers), [9, 5, 7])
