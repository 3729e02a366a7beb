"""Run cases that are written by hand, where the model does not know what the threads do."""

import functools

from schedlab.loader import load_core
from schedlab.program_case import check_saved
from schedlab.programs import Program, QueueSpec
from schedlab.world import World


class SmallCase:
    """A case written by hand: `body(world, scheduler)` is the first thread."""

    def __init__(self, name, program, body, *, patches=(), track=True):
        self.name = name
        self.program = program
        self.body = body
        self.patches = tuple(patches)
        self.track = track

    def load(self):
        """Return the copy of the core; raises `PatchError`."""
        return load_core(self.patches, track=self.track)

    def run(self, scheduler):
        core = self.load()
        if self.track:
            core.set_races(())
        world = World(core, scheduler)
        world.build(self.program)
        world.monitored = True
        self.body(world, scheduler)
        check_saved(scheduler)
        world.settle()
        world.check_clean()
        world.close()
        scheduler.on_released = None


def by_hand(cases, name, program):
    """Put a case into a table: the decorated ``body(world, scheduler)`` is its first thread."""

    def add(body):
        cases[name] = functools.partial(SmallCase, name, program, body)
        return body

    return add


def program_of(*ops, queues=None, features=(), **more):
    before = tuple(("submit", op) for op in ops)
    return Program(
        "by hand",
        (),
        before,
        queues=queues or {"q": QueueSpec()},
        features=frozenset(features),
        **more,
    )


def expect(scheduler, seen, wanted):
    if seen != wanted:
        scheduler.fail("result", f"{seen!r} and not {wanted!r}")


def run_threads(world, scheduler, *bodies):
    world.start()
    scheduler.join(*[scheduler.spawn(body, f"t{i}") for i, body in enumerate(bodies, 1)])
    world.stop()
